"""How a trigger bears with a storage that does not do what storages do."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from airflow_provider.triggers.patience import wait_for
from airflow_provider.waits.shared_looks import Pace

FAST = Pace(0.01, 0.02)
LOG = logging.getLogger(__name__)


def event_of(look: Any, deadline_at: float | None = None, release: threading.Event | None = None) -> dict[str, Any]:
    """What a wait ends with that nothing but an error ends."""

    async def see(found: object, left_s: float | None) -> bool:
        return False

    async def work() -> dict[str, Any]:
        try:
            return await asyncio.wait_for(wait_for("a home", look, FAST, lambda before, now: True, see, deadline_at, LOG), 20.0)
        finally:
            if release is not None:
                release.set()

    return asyncio.run(work())


def test_a_look_that_never_returns_is_a_storage_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network file system whose server is gone: no call fails, none ends."""
    monkeypatch.setattr("airflow_provider.waits.waiting.STORAGE_PATIENCE_S", 0.2)
    hung = threading.Event()
    error = event_of(lambda: hung.wait(30.0), release=hung)["error"]
    assert (error["error"], error["retry"]) == ("StorageError", "with_backoff")


def test_a_look_that_never_returns_does_not_keep_a_deadline_from_being_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider.waits.waiting.LOOK_MAX_S", 0.2)
    hung = threading.Event()
    assert event_of(lambda: hung.wait(30.0), time.time() + 0.2, hung)["error"]["error"] == "StorageError"


@pytest.mark.parametrize(
    ("failure", "name"), [(PermissionError(13, "denied"), "AccessDeniedError"), (OSError(5, "I/O"), "StorageError")]
)
def test_what_only_the_system_names_is_an_error_of_the_storage(
    monkeypatch: pytest.MonkeyPatch, failure: OSError, name: str
) -> None:
    monkeypatch.setattr("airflow_provider.waits.waiting.STORAGE_PATIENCE_S", 0.1)

    def look() -> None:
        raise failure

    assert event_of(look)["error"]["error"] == name
