"""``spark-jobs stop`` and ``spark-jobs savepoint``."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.checkpoint.savepoint import export
from spark_jobs.checkpoint.unfinished_requests import UnfinishedRequest, unfinished_request
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.home.layout import savepoint_path
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.ids import CheckpointId, RequestId
from spark_jobs.storage.local import LocalFiles
from tests.support.answering_driver import LIVE, Driver
from tests.support.command_line import UsedHome, document, spark_jobs
from tests.support.staged_pipeline import HOURLY


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


def test_the_command_waits_for_the_savepoint_and_shows_its_place(running: UsedHome, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    with Driver(running):
        shown = spark_jobs("savepoint", "--home", running.url, "--request", "weekly", "--target", target)
        told = document(
            spark_jobs("savepoint", "--home", running.url, "--request", "weekly", "--target", target, "--output", "json")
        )
    assert shown.exit_code == 0
    assert "at checkpoint 1, is whole: 2 rows of the checkpoint" in shown.stdout
    assert (told["request"], told["savepoint"], told["drained"]) == ("savepoint-weekly", target.as_uri(), False)
    assert (target / "savepoint.json").exists()


def test_a_relative_target_is_below_the_directory_of_the_command_and_not_of_the_driver(
    running: UsedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spark_jobs("savepoint", "--home", running.url, "--target", "mine", "--timeout", 0)
    (asked,) = CheckpointRequests(running.files).open()
    assert asked.target == (tmp_path / "mine").as_uri()


def test_a_target_that_cannot_be_opened_is_refused_before_a_request_is_made(running: UsedHome) -> None:
    refused = spark_jobs("stop", "--home", running.url, "--target", "wasbs://elsewhere/mine")
    assert "wasbs: is not supported" in refused.stderr
    assert not list(CheckpointRequests(running.files).open())


def test_a_stop_requests_the_given_options_and_waits_for_the_end_of_the_driver(running: UsedHome) -> None:
    shown = spark_jobs("stop", "--home", running.url, "--drain", "--request", "nightly", "--timeout", 0)
    assert shown.exit_code == 3
    assert "There is no stop after" in shown.stderr
    assert "--request stop-nightly" in shown.stderr
    (asked,) = CheckpointRequests(running.files).open()
    assert (asked.request, asked.wanted, asked.drain, asked.target) == ("stop-nightly", Wanted.STOP, True, None)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("target", [None, "mine"])
def test_a_stop_whose_driver_ends_after_the_checkpoint_is_incomplete_and_names_its_savepoint(
    at_rest: UsedHome, tmp_path: Path, target: str | None, *, whole: bool
) -> None:
    stop, home = RequestId("stop-nightly"), at_rest.files
    place = LocalFiles(tmp_path / target) if target else home.below(f"savepoints/{stop}")
    with at_rest.driver():
        CheckpointRequests(home).ask(stop, target=place.url if target else None)
    at_rest.staged.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EVERY_CHECKPOINT, request=stop)
    if whole:
        export(home, CheckpointId(1), place, request=stop)
    options = ["--target", tmp_path / target] if target else []
    shown = spark_jobs("stop", "--home", at_rest.url, "--request", "nightly", *options, "--output", "json")
    assert shown.exit_code == 3
    error = json.loads(shown.stdout)["error"]
    assert error["error"] == "IncompleteError"
    assert error["evidence"] == {"request": stop, "checkpoint": 1, "savepoint": place.url if whole else None}
    assert (place.url if whole else "its savepoint is not complete yet") in error["exists"]


def test_the_savepoint_of_another_request_is_not_named(running: UsedHome) -> None:
    stop = RequestId("stop-nightly")
    CheckpointRequests(running.files).ask(stop)
    running.staged.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EVERY_CHECKPOINT, request=stop)
    export(running.files, CheckpointId(1), running.files.below(savepoint_path(stop)), request=RequestId("savepoint-weekly"))
    assert unfinished_request(running.files, stop) == UnfinishedRequest(CheckpointId(1), None)
    assert unfinished_request(running.files, RequestId("savepoint-weekly")) is None


def test_the_same_request_id_with_other_options_is_refused(running: UsedHome) -> None:
    spark_jobs("stop", "--home", running.url, "--request", "nightly", "--timeout", 0)
    shown = spark_jobs("stop", "--home", running.url, "--request", "nightly", "--drain", "--timeout", 0)
    assert (shown.exit_code, "with other options" in shown.stderr) == (2, True)
