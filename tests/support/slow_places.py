"""A place for savepoints whose storage is slow or hangs."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spark_jobs import background
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.home import savepoint_place
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import AttemptNumber, RequestId
from spark_jobs.protocol.masking import unmasked
from spark_jobs.runtime.checkpoints import exports
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.storage.files import Digest, Files, create_document
from spark_jobs.storage.local import LocalFiles
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
