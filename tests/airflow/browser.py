"""A browser for the pages of the plugin, in this process."""

import warnings
from typing import Any

from airflow_provider.links import URL_PREFIX

with warnings.catch_warnings():  # from modules that Airflow's server imports
    warnings.simplefilter("ignore")
    from airflow.api_fastapi.app import get_auth_manager, init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    from airflow_provider.pages.app import LINE_MAX_CHARACTERS, LOG_LINES, make_app

__all__ = ["LINE_MAX_CHARACTERS", "LOG_LINES", "Browser", "TestClient", "init_auth_manager", "make_app", "token"]


def token(role: str | None) -> str:
    """Returns the token that Airflow gives to a user of this role at sign-in."""
    manager: Any = get_auth_manager()
    return str(manager.generate_jwt(SimpleAuthManagerUser(username="somebody", role=role)))


class Browser:
    """A user who opens a task's pages."""

    def __init__(self, role: str | None = "viewer", *, signed_in: bool = True) -> None:
        self.client = TestClient(make_app(), cookies={"_token": token(role)} if signed_in else None)

    def get(self, link: str) -> Any:
        return self.client.get(link.removeprefix(URL_PREFIX.lstrip("/")))

    def page(self, link: str) -> str:
        answer = self.get(link)
        assert answer.status_code == 200, answer.text
        return str(answer.text)
