"""Savepoints with slow or unresponsive storage, and the requests that wait for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.errors import DeadlineExceededError, RejectedError, RunCancelledError
from spark_jobs.runtime.checkpoints import exports
from spark_jobs.storage.open import open_files
from tests.support.slow_places import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_PATIENCE_S", 0.1)


def is_too_late(answer: CheckpointResponse | None) -> bool:
    assert answer is not None
    return answer.error is not None and answer.error.error == "DeadlineExceededError"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("slow", ["copy", "savepoint.json"])
def test_an_export_whose_storage_hangs_is_answered_in_time_and_its_place_stays_reserved(place: Place, slow: str) -> None:
    place.slow = slow
    first, again, driver = place.asks("first"), place.asks("again"), place.driver()
    driver.completed([first], place.manifest)
    assert is_too_late(place.answer(first))
    assert (place.directory / "exporting.json").exists()
    place.slow = ""
    with pytest.raises(RejectedError, match="was begun there for savepoint-first"):
        driver.check(again)
    assert (place.directory / "exporting.json").exists()
    place.lets_go()
    if slow == "copy":
        driver.check(again)
        driver.completed([again], place.manifest)
        assert verify(open_files(str(place.directory))).request == again.request
    else:  # only the last step was missing
        assert verify(open_files(str(place.directory))).request == first.request


@pytest.mark.usefixtures("impatient")
def test_files_of_a_failed_export_are_deleted_once_the_storage_responds(place: Place) -> None:
    driver = place.driver()
    driver.completed([place.asks("first")], place.manifest)
    driver.open()
    assert place.directory.exists()
    place.lets_go()
    driver.open()
    assert not place.directory.exists()


def test_an_export_that_is_too_slow_leaves_no_files(place: Place) -> None:
    request = place.asks("slow")
    place.goes_on_once_given_up()
    place.driver().completed([request], place.manifest)
    assert is_too_late(place.answer(request))
    assert not place.directory.exists()


def test_an_export_that_completes_while_it_is_given_up_is_the_answer(place: Place) -> None:
    place.slow = "savepoint.json"
    request = place.asks("slow")
    place.goes_on_once_given_up()
    place.driver().completed([request], place.manifest)
    answer = place.answer(request)
    assert answer is not None
    assert (answer.error, answer.savepoint) == (None, place.directory.as_uri())
    assert verify(open_files(str(place.directory))).request == request.request


def test_a_place_that_does_not_respond_delays_no_other_request(place: Place) -> None:
    request, driver = place.asks("first"), place.driver()
    place.slow = "names"
    with pytest.raises(DeadlineExceededError, match="The place for the savepoint of savepoint-first does not answer"):
        driver.check(request)
    place.is_reached.clear()
    assert list(driver.open()) == [request], "it is looked at again when its checkpoint is complete"
    place.lets_go()


@pytest.mark.usefixtures("impatient")
def test_a_cancel_does_not_wait_for_an_export_and_the_next_attempt_completes_it(place: Place) -> None:
    request = place.asks("cancelled")

    def cancelled() -> None:
        if place.is_reached.is_set():
            raise RunCancelledError("Attempt 1 was cancelled.")

    with pytest.raises(RunCancelledError):
        place.driver(cancelled).completed([request], place.manifest)
    assert place.answer(request) is None
    place.lets_go()
    place.driver().resume(place.manifest)
    answer = place.answer(request)
    assert answer is not None
    assert (answer.error, answer.checkpoint) == (None, place.manifest.checkpoint)
    assert verify(open_files(str(place.directory))).request == request.request


HANGS = """
import sys
from pathlib import Path
from threading import Event
import pytest
from spark_jobs.protocol.errors import DeadlineExceededError, RejectedError, RunCancelledError
from spark_jobs.runtime.checkpoints import exports
from tests.support.slow_places import Place

with pytest.MonkeyPatch.context() as patch:
    exports._PATIENCE_S = 0.1
    place = Place(Path(sys.argv[1]), patch)
    place.may_go_on = Event()
    place.may_go_on.wait = lambda timeout: Event().wait()

    def cancelled():
        if place.is_reached.is_set():
            raise RunCancelledError("Attempt 1 was cancelled.")

    try:
        place.driver(cancelled).completed([place.asks("hangs")], place.manifest)
    except RunCancelledError:
        print("cancelled")
"""


@pytest.mark.slow
def test_an_export_that_never_ends_does_not_keep_the_process_running(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "cancelled\n", ended.stderr


def test_a_stop_waits_for_its_own_export_without_a_deadline(place: Place) -> None:
    request = place.asks("mine", Wanted.STOP)
    place.goes_on_once_given_up()
    assert place.driver().save(request, place.manifest) == place.directory.as_uri()
    assert verify(open_files(str(place.directory))).request == request.request
