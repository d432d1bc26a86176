"""Savepoints with slow or unresponsive storage, and the requests that wait for them."""

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spark_jobs import background
from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.home import savepoint_place
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import DeadlineExceededError, RejectedError, RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, RequestId
from spark_jobs.protocol.masking import unmasked
from spark_jobs.runtime.checkpoints import exports
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.storage.files import Digest, Files, create_document
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from tests.support.clocks import HOUR_S, ALongTimeOnce
from tests.support.left_behind import land_left_behind
from tests.support.savepoint_site import SavepointSite
from tests.support.staged_pipeline import NOW

SOON_S, PATIENCE_S = 5.0, 60.0


class SlowFiles(LocalFiles):
    """A directory in which one operation hangs until ``may_go_on`` is set."""

    place: "Place"
    """The state that all views of the directory share."""

    def names(self, directory: str) -> list[str]:
        self._reach("names")
        return super().names(directory)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        self._reach("copy")
        return super().copy(source, named, path)

    def create(self, path: str, data: bytes) -> None:
        self._reach(path)
        super().create(path, data)

    def _reach(self, operation: str) -> None:
        if operation == self.place.slow:
            self.place.is_reached.set()
            assert self.place.may_go_on.wait(PATIENCE_S)


class Place:
    """A home with a complete checkpoint, and a slow place for its savepoint."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self._patch = SavepointSite(root), patch
        self.manifest: Manifest = self.home.complete([(1, "a")], ["x.parquet"])
        self.directory, self.slow = root / "savepoint", "copy"
        self.may_go_on, self.is_reached = threading.Event(), threading.Event()
        patch.setattr(SlowFiles, "place", self, raising=False)
        patch.setattr(savepoint_place, "open_place", lambda url: SlowFiles(self.directory))
        for module in (background, exports):  # deadlines are set and checked with the same clock
            patch.setattr(module, "time", ALongTimeOnce(self.is_reached))

    def asks(self, name: str, wanted: Wanted = Wanted.SAVEPOINT) -> CheckpointRequest:
        target = str(self.directory)
        request = CheckpointRequest(request=RequestId(f"{wanted.value}-{name}"), requested_at=NOW, wanted=wanted, target=target)
        create_document(self.home.home, f"requests/{request.request}.json", request)
        return request

    def driver(self, check: Callable[[], object] = lambda: None) -> RequestedCheckpoints:
        return RequestedCheckpoints(self.home.home, AttemptNumber(1), unmasked, check=check, timeout_s=HOUR_S, interval_s=0.0)

    def answer(self, request: CheckpointRequest) -> CheckpointResponse | None:
        return CheckpointRequests(self.home.home).answer_of(request.request)

    def goes_on_once_given_up(self) -> None:
        """Lets the slow operation continue when the only savepoint is given up."""
        given_up = threading.Event()
        self._patch.setattr(exports, "_Export", partial(exports._Export, given_up=given_up))

        def go_on() -> None:
            given_up.wait(SOON_S)
            self.may_go_on.set()

        threading.Thread(target=go_on, daemon=True).start()

    def lets_go(self) -> None:
        """Lets abandoned operations finish. No operation is slow afterwards."""
        self.may_go_on.set()
        land_left_behind()
        self.slow = ""
        self.is_reached.clear()


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
def test_one_whose_storage_hangs_is_answered_in_time_and_nobody_has_its_place_while_files_may_still_come(
    place: Place, slow: str
) -> None:
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
def test_what_was_copied_in_vain_is_deleted_once_its_storage_answers(place: Place) -> None:
    driver = place.driver()
    driver.completed([place.asks("first")], place.manifest)
    driver.open()
    assert place.directory.exists()
    place.lets_go()
    driver.open()
    assert not place.directory.exists()


def test_of_one_that_is_too_slow_nothing_stays(place: Place) -> None:
    request = place.asks("slow")
    place.goes_on_once_given_up()
    place.driver().completed([request], place.manifest)
    assert is_too_late(place.answer(request))
    assert not place.directory.exists()


def test_one_that_becomes_whole_while_it_is_given_up_is_the_answer(place: Place) -> None:
    place.slow = "savepoint.json"
    request = place.asks("slow")
    place.goes_on_once_given_up()
    place.driver().completed([request], place.manifest)
    answer = place.answer(request)
    assert answer is not None
    assert (answer.error, answer.savepoint) == (None, place.directory.as_uri())
    assert verify(open_files(str(place.directory))).request == request.request


def test_a_place_that_does_not_answer_holds_nobody_up(place: Place) -> None:
    request, driver = place.asks("first"), place.driver()
    place.slow = "names"
    with pytest.raises(DeadlineExceededError, match="The place for the savepoint of savepoint-first does not answer"):
        driver.check(request)
    place.is_reached.clear()
    assert list(driver.open()) == [request], "it is looked at again when its checkpoint is complete"
    place.lets_go()


@pytest.mark.usefixtures("impatient")
def test_a_cancel_does_not_wait_for_one_and_the_next_attempt_ends_it(place: Place) -> None:
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
from tests.unit.runtime.checkpoints.test_exports import Place

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
def test_one_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "cancelled\n", ended.stderr


def test_a_stop_waits_for_its_own_as_long_as_it_takes(place: Place) -> None:
    request = place.asks("mine", Wanted.STOP)
    place.goes_on_once_given_up()
    assert place.driver().save(request, place.manifest) == place.directory.as_uri()
    assert verify(open_files(str(place.directory))).request == request.request
