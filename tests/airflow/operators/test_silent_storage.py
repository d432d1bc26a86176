"""A task whose storage no longer responds. On a network file system without its server, calls neither fail nor return."""

import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.orders import StartOrder
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import RunId
from spark_jobs.storage.local import LocalFiles
from spark_jobs.waits.limits import WaitLimits
from tests.airflow.conftest import Homes
from tests.airflow.flights import DEADLINE_S, driver_has_started, failure, once, operator, until, waits_deferred
from tests.support.left_behind import land_left_behind

__all__ = ["waits_deferred"]
IMPATIENT = WaitLimits(storage_s=2.0, lease_s=0.3)


@pytest.fixture
def silence() -> Iterator[Callable[[], None]]:
    """Yields a function. After its call, no storage operation returns until the test ends."""
    back = threading.Event()
    with pytest.MonkeyPatch.context() as patch:

        def begins() -> None:
            for name in ("read", "chunks", "names", "create"):
                patch.setattr(LocalFiles, name, lambda *_: back.wait(2 * DEADLINE_S) and None)

        yield begins
    back.set()
    land_left_behind()


def test_a_task_that_waits_fails_and_leaves_its_driver_to_the_next_try(homes: Homes, silence: Callable[[], None]) -> None:
    breaker = once(driver_has_started, silence)
    error = failure(operator("waits", wait_limits=IMPATIENT), StorageError)
    breaker.join()
    assert "answer" in str(error) or "cannot be looked at" in str(error)
    assert psutil.pid_exists(homes.starts()[0]["pid"])


def test_a_next_try_fails_before_it_starts_anything(homes: Homes, silence: Callable[[], None]) -> None:
    StreamPipelineHook().submit("flights", StartOrder(entry="/pipelines/waits.py", run=RunId("another")))
    until(driver_has_started)
    silence()
    failure(operator("waits", wait_limits=IMPATIENT), StorageError)
    assert len(homes.starts()) == 1
