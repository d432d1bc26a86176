"""Savepoints whose storage is slow or does not answer, and who waits for them."""

import threading
import time
from pathlib import Path

import pytest

from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, RequestId
from spark_jobs.protocol.masking import unmasked
from spark_jobs.runtime.checkpoints import exports, requested_checkpoints
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.storage.files import Digest, Files, create_document
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from tests.support.savepoint_site import SavepointSite
from tests.support.staged_pipeline import NOW

SOON_S = 10.0


class SlowFiles(LocalFiles):
    """A directory that takes a file only once it may."""

    may_go_on: threading.Event
    """Shared by all who open the directory."""
    begun: threading.Semaphore

    def copy(self, source: Files, named: str, path: str) -> Digest:
        self.begun.release()
        assert self.may_go_on.wait(SOON_S)
        return super().copy(source, named, path)


class Place:
    """A home with a complete checkpoint, and a slow place for its savepoint."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.home = SavepointSite(root)
        self.manifest: Manifest = self.home.complete([(1, "a")], ["x.parquet"])
        self.directory = root / "savepoint"
        self.may_go_on, self.begun = threading.Event(), threading.Semaphore(0)
        patch.setattr(SlowFiles, "may_go_on", self.may_go_on, raising=False)
        patch.setattr(SlowFiles, "begun", self.begun, raising=False)
        patch.setattr(requested_checkpoints, "open_place", lambda url: SlowFiles(self.directory))

    def asks(self, name: str, wanted: Wanted = Wanted.SAVEPOINT) -> CheckpointRequest:
        target = str(self.directory)
        request = CheckpointRequest(request=RequestId(f"{wanted.value}-{name}"), requested_at=NOW, wanted=wanted, target=target)
        create_document(self.home.home, f"requests/{request.request}.json", request)
        return request

    def answer(self, request: CheckpointRequest) -> CheckpointResponse | None:
        return CheckpointRequests(self.home.home).answer_of(request.request)

    def lets_go(self) -> None:
        """Lets what was left behind come to its end."""
        self.may_go_on.set()
        for thread in [thread for thread in threading.enumerate() if thread.name.startswith("beside")]:
            thread.join(SOON_S)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def driver(place: Place, **settings: float) -> RequestedCheckpoints:
    return RequestedCheckpoints(place.home.home, AttemptNumber(1), unmasked, **settings)  # type: ignore[arg-type]


def is_too_late(answer: CheckpointResponse | None) -> bool:
    assert answer is not None
    return answer.error is not None and answer.error.error == "DeadlineExceededError"


def test_one_whose_storage_hangs_is_answered_in_time_and_its_place_may_be_named_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_PATIENCE_S", 0.1)
    first, again = place.asks("first"), place.asks("again")
    driver(place, timeout_s=0.1).completed([first], place.manifest)
    assert is_too_late(place.answer(first))
    assert (place.directory / "exporting.json").exists(), "files may still come"
    place.lets_go()
    assert not (place.directory / "savepoint.json").exists()
    next_one = driver(place, timeout_s=SOON_S)
    next_one.check(again)
    next_one.completed([again], place.manifest)
    assert verify(open_files(str(place.directory))).request == again.request


def test_of_one_that_is_too_slow_nothing_stays(place: Place) -> None:
    request = place.asks("slow")
    threading.Timer(0.5, place.may_go_on.set).start()
    driver(place, timeout_s=0.1).completed([request], place.manifest)
    assert is_too_late(place.answer(request))
    assert not place.directory.exists()


def test_a_cancel_does_not_wait_for_one_and_the_next_attempt_ends_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_PATIENCE_S", 0.1)
    request = place.asks("cancelled")

    def cancelled() -> None:
        if place.begun.acquire(blocking=False):
            raise RunCancelledError("Attempt 1 was cancelled.")

    with pytest.raises(RunCancelledError):
        RequestedCheckpoints(place.home.home, AttemptNumber(1), unmasked, check=cancelled).completed([request], place.manifest)
    assert place.answer(request) is None
    place.lets_go()
    driver(place).resume(place.manifest)
    answer = place.answer(request)
    assert answer is not None
    assert (answer.error, answer.checkpoint) == (None, place.manifest.checkpoint)
    assert verify(open_files(str(place.directory))).request == request.request


def test_a_stop_waits_for_its_own_as_long_as_it_takes(place: Place) -> None:
    request = place.asks("mine", Wanted.STOP)
    threading.Timer(0.5, place.may_go_on.set).start()
    began_s = time.monotonic()
    assert driver(place, timeout_s=0.1).save(request, place.manifest) == place.directory.as_uri()
    assert time.monotonic() - began_s > 0.1
    assert verify(open_files(str(place.directory))).request == request.request
