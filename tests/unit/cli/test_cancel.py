"""``spark-jobs cancel``."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import holding
from spark_jobs.control.supervision import goes_on
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import InterruptedRunError, RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, RequestId, RunId
from spark_jobs.protocol.restart_settings import FixedDelay
from spark_jobs.protocol.restarts import RestartHistory
from spark_jobs.protocol.start_requests import StartRequest
from tests.support.answering_driver import LIVE
from tests.support.command_line import UsedHome, document, spark_jobs

LONG = FixedDelay(attempts=3, delay_ms=3_600_000)


@pytest.fixture
def home(tmp_path: Path) -> UsedHome:
    """The home of an unbounded pipeline in which one attempt has begun."""
    made = UsedHome(tmp_path, LIVE)
    made.begin(restart=LONG)
    return made


@contextmanager
def driver(home: UsedHome, request: StartRequest, *, answers: bool = True, stays: bool = False) -> Iterator[None]:
    """A driver that ends when its attempt is cancelled, after an answer if ``answers``. With ``stays`` it ends with the context."""
    owners, over, began = AttemptLease(home.files, request.attempt), Event(), Event()

    def work() -> None:
        with holding(home.directory / "home" / DRIVER_LOCK, request.request):
            began.set()
            while not over.wait(0.01) and (stays or owners.cancelled() is None):
                pass
            asked = owners.cancelled()
            if answers and asked is not None:
                Channel(home.files).respond_failure(request, RunCancelledError(f"It was cancelled: {asked.reason}."))

    thread = Thread(target=work)
    thread.start()
    began.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def first(home: UsedHome) -> StartRequest:
    return Channel(home.files).request(RequestId("start-1"))


def error_of(home: UsedHome, request: str = "start-1") -> ErrorReport:
    answer = Channel(home.files).response(RequestId(request))
    assert answer is not None
    assert answer.error is not None
    return answer.error


def test_the_command_waits_for_the_end_of_the_driver_and_shows_the_newest_checkpoint(home: UsedHome) -> None:
    home.complete()
    with driver(home, first(home)):
        shown = spark_jobs("cancel", "--home", home.url, "--reason", "the cluster is needed")
    assert shown.exit_code == 0
    assert "flights is cancelled: attempt 1 of run monday has ended." in shown.stdout
    assert "1, of 2026-" in shown.stdout
    assert "it goes on after the last batch" in shown.stdout
    assert "cancel of flights" in shown.stderr
    assert error_of(home).failed == "It was cancelled: the cluster is needed."


def test_the_command_answers_for_a_driver_that_ends_without_an_answer(home: UsedHome) -> None:
    with driver(home, first(home), answers=False):
        told = document(spark_jobs("cancel", "--home", home.url, "--output", "json"))
    assert told == {
        "pipeline": "flights",
        "home": home.url,
        "attempt": 1,
        "run": "monday",
        "cancelled": True,
        "checkpoint": None,
        "completed_at": None,
    }
    assert error_of(home).error == "RunCancelledError"


def test_a_cancel_prevents_a_restart_that_is_due_later_and_a_second_cancel_is_refused(home: UsedHome) -> None:
    Channel(home.files).respond_failure(first(home), InterruptedRunError("A stage failed."))
    assert goes_on(home.files)
    assert document(spark_jobs("cancel", "--home", home.url, "--output", "json"))["cancelled"]
    assert not goes_on(home.files)
    assert spark_jobs("cancel", "--home", home.url).exit_code == 2


def test_a_restart_that_was_decided_on_before_the_cancel_is_cancelled_too(home: UsedHome) -> None:
    def restart(seconds: float) -> None:
        """Starts the run again, like a supervisor that has not seen the cancellation."""
        if Channel(home.files).unclaimed() is None and not os.path.exists(home.directory / "restarted"):
            (home.directory / "restarted").touch()
            Channel(home.files).request_start(RunId("monday"), parameters={}, restarts=RestartHistory(restarts=1))

    told = document(spark_jobs("cancel", "--home", home.url, "--output", "json", sleep=restart))
    assert told["attempt"] == 2
    assert error_of(home, "start-2").error == "RunCancelledError"
    assert not goes_on(home.files)


def test_a_cancel_is_refused_if_nothing_runs(home: UsedHome, tmp_path: Path) -> None:
    with driver(home, first(home)):
        spark_jobs("cancel", "--home", home.url)
    for where in (home.url, str(tmp_path / "mistyped")):
        before = home.files.names("requests")
        shown = spark_jobs("cancel", "--home", where, "--output", "json")
        assert (shown.exit_code, json.loads(shown.stdout)["error"]["error"]) == (2, "RejectedError")
        assert home.files.names("requests") == before


def test_a_driver_that_does_not_end_in_time_is_an_error_and_the_cancel_stays(home: UsedHome) -> None:
    with driver(home, first(home), stays=True):
        shown = spark_jobs("cancel", "--home", home.url, "--timeout", 0, "--output", "json")
        assert (shown.exit_code, json.loads(shown.stdout)["error"]["error"]) == (3, "DeadlineExceededError")
        assert AttemptLease(home.files, AttemptNumber(1)).cancelled() is not None


def test_a_run_of_bounded_inputs_is_cancelled_too(interrupted: UsedHome) -> None:
    with driver(interrupted, first(interrupted)):
        assert document(spark_jobs("cancel", "--home", interrupted.url, "--output", "json"))["cancelled"]
