"""``spark-jobs checkpoint``."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId
from tests.support.answering_driver import LIVE, Driver
from tests.support.command_line import BLOCKED, UsedHome, document, spark_jobs
from tests.support.shaky_locks import ShakyLocks
from tests.support.staged_pipeline import DAILY, NOW


@pytest.fixture
def at_rest(tmp_path: Path) -> UsedHome:
    """The home of an unbounded pipeline in which no driver works."""
    home = UsedHome(tmp_path, LIVE)
    home.begin()
    return home


@pytest.fixture
def running(at_rest: UsedHome) -> Iterator[UsedHome]:
    """A home in which a driver holds the lock of an unbounded pipeline."""
    with at_rest.driver():
        yield at_rest


def ask(home: UsedHome, *options: object, sleep: Callable[[float], object] = time.sleep) -> Any:
    return spark_jobs("checkpoint", "--home", home.url, *options, sleep=sleep)


def test_the_command_waits_for_the_checkpoint_and_shows_its_rows(running: UsedHome) -> None:
    with Driver(running):
        shown = ask(running)
    assert shown.exit_code == 0
    assert "Checkpoint 1 of flights is complete: 2 rows of the checkpoint" in shown.stdout
    assert "version 1" in shown.stdout
    assert "checkpoint of flights" in shown.stderr


def test_the_same_request_id_gets_the_same_answer_also_after_the_driver_has_ended(running: UsedHome, tmp_path: Path) -> None:
    with Driver(running):
        first = document(ask(running, "--request", "nightly", "--output", "json"))
        other = document(ask(running, "--output", "json"))
    again = spark_jobs("checkpoint", "--home", running.url, "--request", "nightly", "--output", "json")
    assert document(again) == first
    assert (first["checkpoint"], other["checkpoint"]) == (1, 2)
    entries = document(spark_jobs("checkpoints", "--home", running.url, "--output", "json"))["checkpoints"]
    assert entries[0]["request"] == "checkpoint-nightly"
    assert (first["request"], first["rows"], first["sinks"]["hourly"]["version"]) == ("checkpoint-nightly", 2, 1)


def test_a_failed_try_fails_the_command_with_its_error(running: UsedHome) -> None:
    with Driver(running, DeadlineExceededError("Checkpoint expired before completing.", stage="hourly")):
        shown = ask(running, "--output", "json")
    assert shown.exit_code == 3
    error = json.loads(shown.stdout)["error"]
    assert (error["error"], error["evidence"]) == ("DeadlineExceededError", {"stage": "hourly"})


def test_a_request_without_an_answer_in_time_stays_and_is_named(running: UsedHome) -> None:
    shown = ask(running, "--request", "nightly", "--timeout", 0)
    assert shown.exit_code == 3
    assert "--request checkpoint-nightly" in shown.stderr
    assert [asked.request for asked in CheckpointRequests(running.files).open()] == ["checkpoint-nightly"]


def test_the_error_after_the_timeout_names_the_request_that_stays(running: UsedHome) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    shown = spark_jobs("stop", "--home", running.url, "--drain", "--output", "json", sleep=interrupt)
    error, (asked,) = json.loads(shown.stdout)["error"], CheckpointRequests(running.files).open()
    assert (shown.exit_code, error["error"], error["evidence"]) == (130, "Interrupted", {"request": asked.request})
    assert f"To wait again, add --request {asked.request}, and keep the other options." in error["remedy"]


def test_a_driver_that_ends_is_not_waited_for(at_rest: UsedHome) -> None:
    with ExitStack() as at_work:
        at_work.enter_context(at_rest.driver())
        shown = ask(at_rest, "--output", "json", sleep=lambda _: at_work.close())
    assert shown.exit_code == 3
    assert json.loads(shown.stdout)["error"]["error"] == "InterruptedRunError"


def test_a_storage_that_is_unavailable_for_a_while_is_tolerated(at_rest: UsedHome, caplog: pytest.LogCaptureFixture) -> None:
    with ShakyLocks(at_rest) as locks, ExitStack() as answering:

        def goes_away_and_comes_back(_: float) -> None:
            if not caplog.text:
                locks.go_away()
            elif locks.are_away:
                locks.come_back()
                answering.enter_context(Driver(at_rest))

        assert ask(at_rest, sleep=goes_away_and_comes_back).exit_code == 0
    assert "The home cannot be read" in caplog.text


def test_a_request_is_refused_while_no_driver_is_at_work(at_rest: UsedHome) -> None:
    shown = ask(at_rest)
    assert (shown.exit_code, "No attempt is running" in shown.stderr) == (2, True)


def test_an_answer_names_the_blocked_publication_and_the_tables_that_are_behind(running: UsedHome) -> None:
    requests, name = CheckpointRequests(running.files), RequestId("checkpoint-mine")
    requests.ask(name)
    answer = CheckpointResponse(
        request=name, attempt=AttemptNumber(1), checkpoint=CheckpointId(4), answered_at=NOW, behind=(DAILY,), blocked=BLOCKED
    )
    requests.answer(answer)
    shown = " ".join(spark_jobs("checkpoint", "--home", running.url, "--request", "mine").stdout.split())
    assert f"{BLOCKED.summary} A running pipeline tries again; otherwise the next start does." in shown
    assert "The tables of daily show less than the others" in shown
    told = document(spark_jobs("checkpoint", "--home", running.url, "--request", "mine", "--output", "json"))
    assert (told["behind"], told["blocked"]["waiting"]) == (["daily"], ["daily"])
