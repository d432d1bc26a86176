"""The plugin: pages of Airflow's API server about the pipelines that tasks have run."""

from functools import cached_property
from typing import Any

from airflow_provider.links import URL_PREFIX
from airflow_provider.version_compat import AirflowPlugin

_PAGES = URL_PREFIX.lstrip("/")


class StreamPipelinesPlugin(AirflowPlugin):
    """Found by the entry point ``airflow.plugins``. Every process of Airflow makes one; only its API server asks for the pages."""

    name = "stream_pipelines"
    external_views = [  # noqa: RUF012  # as Airflow declares it
        {"name": "Pipelines", "href": f"{_PAGES}/pipelines", "destination": "nav", "category": "browse"},
        {
            "name": "Pipelines",
            "href": f"{_PAGES}/pipelines?dag_id={{DAG_ID}}",
            "destination": "dag",
            "url_route": "stream-pipelines-of-dag",
        },
        {
            "name": "Pipelines",
            "href": f"{_PAGES}/pipelines?dag_id={{DAG_ID}}",
            "destination": "task_instance",
            "url_route": "stream-pipelines-of-task",
        },
    ]
    """The pipelines page: a window of its own from the navigation, and tabs of DAGs and task instances."""

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The pages, where they are served: no worker imports what they need."""
        from airflow_provider.pages.app import make_app

        return [{"app": make_app(), "url_prefix": URL_PREFIX, "name": "Stream pipelines"}]
