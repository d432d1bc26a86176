"""One driver at a time in a home: a lock of its Python process, and one of its JVM, which lives some seconds longer (ADR 0006)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql import SparkSession

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.liveness import holding, locked, noted
from spark_jobs.home.layout import DRIVER_LOCK, JVM_LOCK
from spark_jobs.protocol.errors import ConflictError, FencedError, HomeInUseError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.spark.session import WorkLock
from spark_jobs.storage.files import Files, local_path

_JVM_LOCK_TIMEOUT_S = 60.0


@contextmanager
def driver_lock(home: Files, request: StartRequest) -> Iterator[None]:
    """Holds the driver's lock. A second driver on this host fails at once.

    Raises:
        HomeInUseError: Another driver is at work.
        FencedError: Another driver is at work on the same request.
    """
    path = local_path(home, DRIVER_LOCK)
    with ExitStack() as stack:
        try:
            stack.enter_context(holding(path, request.request))
        except BlockingIOError as error:
            raise _busy(home, request, RequestId(noted(path))) from error
        yield


def forget_driver_lock(home: Files) -> None:
    """Deletes the file of the driver's lock, which the caller holds, and the directories that are then empty.

    For a directory that is the home of no pipeline.
    """
    path = local_path(home, DRIVER_LOCK)
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()  # the home itself, or its cache


def check_free(home: Files, request: StartRequest) -> None:
    """Refuses a home in use, as :func:`driver_lock` does, without taking the lock.

    Raises:
        HomeInUseError: Another driver is at work.
        FencedError: Another driver is at work on the same request.
    """
    path = local_path(home, DRIVER_LOCK)
    if locked(path):
        raise _busy(home, request, RequestId(noted(path)))


def jvm_lock(home: Files, spark: SparkSession) -> WorkLock:
    """Takes the JVM's lock. Waits for the JVM of a killed driver, which ends some seconds after its Python process.

    Raises:
        HomeInUseError: That JVM does not end.
    """
    lock = WorkLock(spark, str(local_path(home, JVM_LOCK)))
    deadline_s = time.monotonic() + _JVM_LOCK_TIMEOUT_S
    while not lock.try_lock():
        if time.monotonic() > deadline_s:
            lock.release()
            raise HomeInUseError(
                f"The Spark of an earlier driver still holds {home.url} after {_JVM_LOCK_TIMEOUT_S:.0f} s.",
                remedy="End that Java process, then start again.",
                home=home.url,
            )
        time.sleep(0.2)
    return lock


def _busy(home: Files, request: StartRequest, served: RequestId) -> ConflictError:
    """Returns the error for a home in which another driver is working on ``served``. For the same request this driver is not needed."""
    live = Attempts(home).latest()
    kind = FencedError if served == request.request else HomeInUseError
    return kind(
        f"Another driver is at work in {home.url}"
        + (f": attempt {live.attempt} of run {live.run}, process {live.process} on {live.host}." if live else "."),
        safe="This start has changed nothing.",
        remedy="Wait for it (spark-jobs status), and start again if you still need to.",
        home=home.url,
        attempt=live.attempt if live else None,
        run=live.run if live else None,
    )
