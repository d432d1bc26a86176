"""A trigger's tolerance for storage that misbehaves."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from airflow_provider.triggers.home import failed, wait_for
from airflow_provider.waits.shared_looks import Looking, Pace
from spark_jobs.background import run_in_lane
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.waits.limits import LIMITS, WaitLimits

FAST = Pace(0.01, 0.02)
LOG = logging.getLogger(__name__)


HOME = "file:///homes/flights"


async def sees_nothing(found: object, left_s: float | None) -> bool | None:
    return None


def event_of(
    look: Any,
    deadline_at: float | None = None,
    release: threading.Event | None = None,
    judge: Any = sees_nothing,
    pace: Pace = FAST,
    limits: WaitLimits = LIMITS,
) -> dict[str, Any]:
    """Returns the event that ends a wait."""

    async def work() -> dict[str, Any]:
        try:
            looking = Looking(HOME, "a look", look, pace, lambda before, now: True)
            waiting = wait_for(looking, judge, deadline_at, LOG, limits=limits)
            found = await asyncio.wait_for(waiting, 20.0)
            return failed(found) if isinstance(found, StreamPipelineError) else {}
        finally:
            if release is not None:
                release.set()

    return asyncio.run(work())


def test_a_look_that_never_returns_counts_as_unavailable_storage() -> None:
    """A network file system without its server behaves like this: calls neither fail nor return."""
    hung = threading.Event()
    error = event_of(lambda: hung.wait(30.0), release=hung, limits=WaitLimits(storage_s=0.2))["error"]
    assert (error["error"], error["retry"]) == ("StorageError", "with_backoff")


def test_a_look_that_never_returns_does_not_delay_the_deadline() -> None:
    hung = threading.Event()
    error = event_of(lambda: hung.wait(30.0), time.time() + 0.2, hung, limits=WaitLimits(last_look_s=0.2))["error"]
    assert error["error"] == "StorageError"


@pytest.mark.parametrize("deadline_s", [None, 0.2])
def test_a_second_look_that_never_returns_counts_as_unavailable_storage(
    deadline_s: float | None,
) -> None:
    """The closer look follows a first look that has seen a change. The storage may become unavailable in between."""
    hung = threading.Event()

    async def judge(found: object, left_s: float | None) -> bool:
        return bool(await run_in_lane(HOME, hung.wait, 30.0))

    deadline_at = None if deadline_s is None else time.time() + deadline_s
    limits = WaitLimits(storage_s=0.2, last_look_s=0.2)
    assert event_of(lambda: 1, deadline_at, hung, judge, limits=limits)["error"]["error"] == "StorageError"


def test_a_long_poll_interval_does_not_count_as_unavailable_storage() -> None:
    """A pause between looks is no silence of the storage, even if the shortest pause is longer than the storage's preferred longest one."""
    seen: list[object] = []

    async def judge(found: object, left_s: float | None) -> bool | None:
        seen.append(found)
        return True if len(seen) == 3 else None

    assert event_of(lambda: len(seen), judge=judge, pace=Pace(0.5, 0.05), limits=WaitLimits(storage_s=0.2)) == {}


@pytest.mark.parametrize(
    ("failure", "name"), [(PermissionError(13, "denied"), "AccessDeniedError"), (OSError(5, "I/O"), "StorageError")]
)
def test_an_error_of_the_operating_system_is_reported_as_an_error_of_the_storage(failure: OSError, name: str) -> None:
    def look() -> None:
        raise failure

    assert event_of(look, limits=WaitLimits(storage_s=1.0))["error"]["error"] == name
