"""When the coordinator takes a checkpoint, and whom it tells."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_jobs.control.owners import Owners
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    FencedError,
    InterruptedRunError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, RequestId
from spark_jobs.runtime import coordinator
from spark_jobs.runtime.cancellation import Cancellation
from spark_jobs.runtime.coordinator import Coordinator
from spark_jobs.runtime.cut import Alignment
from spark_jobs.runtime.due import Due
from spark_jobs.runtime.schedule import CheckpointSchedule
from spark_jobs.storage.local import LocalFiles
from tests.support.staged_pipeline import NOW, a_manifest


def request(wanted: Wanted, name: str) -> CheckpointRequest:
    return CheckpointRequest(request=RequestId(f"{wanted.value}-{name}"), requested_at=NOW, wanted=wanted)


A, B = request(Wanted.CHECKPOINT, "a"), request(Wanted.CHECKPOINT, "b")
SAVE, STOP, OTHER_STOP = request(Wanted.SAVEPOINT, "s"), request(Wanted.STOP, "x"), request(Wanted.STOP, "y")
NEVER_S = 1e9


class TheEnd(Exception):
    """The pipeline has run long enough."""


class Askers:
    """What is asked at each look, and what is told."""

    def __init__(self, *asked: Sequence[CheckpointRequest]) -> None:
        self.asked = list(asked)
        self.completed_with: list[tuple[list[CheckpointRequest], int]] = []
        self.failed_with: list[tuple[list[CheckpointRequest], str]] = []

    def open(self) -> Sequence[CheckpointRequest]:
        return self.asked.pop(0) if self.asked else ()

    def completed(self, requests: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        self.completed_with.append((list(requests), manifest.checkpoint))

    def failed(self, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        self.failed_with.append((list(requests), type(error).__name__))


class World:
    """A coordinator of no stages, whose tries end as they are told to."""

    def __init__(
        self, directory: Path, askers: Askers, *, interval_s: float = NEVER_S, tolerable_failures: int = 0, idle: bool = False
    ) -> None:
        self.askers = askers
        self.due: list[Due] = []
        self.errors: list[Exception] = []
        self.stops: list[list[CheckpointRequest]] = []
        self.stops_end: list[Manifest | None] = []
        self.looked = 0
        self._coordinator = Coordinator(
            (),
            self._failure,
            self._take,
            self._stop,
            alignment=Alignment(),
            timeout_s=60.0,
            schedule=CheckpointSchedule(interval_s, 0.0, tolerable_failures, began_s=0.0),
            cancellation=Cancellation(Owners(LocalFiles(directory), AttemptNumber(1))),
            requests=askers,
            is_idle=lambda: idle,
            check_live=self._check_live,
        )

    def run(self) -> None:
        with pytest.raises(TheEnd):
            self._coordinator.run()

    def run_to_its_stop(self) -> Manifest:
        return self._coordinator.run()

    def run_until(self, error: type[Exception]) -> None:
        with pytest.raises(error):
            self._coordinator.run()

    def _check_live(self) -> None:
        self.looked += 1
        if self.looked == 3:
            raise FencedError("Another attempt is live.")

    def _failure(self) -> BaseException | None:
        return TheEnd() if not self.askers.asked and not self.errors and self.due else None

    def _stop(self, asked: Sequence[CheckpointRequest]) -> Manifest | None:
        self.stops.append(list(asked))
        return self.stops_end.pop(0)

    def _take(self, due: Due) -> Manifest:
        self.due.append(due)
        if self.errors:
            raise self.errors.pop(0)
        return a_manifest(len(self.due), request=due.request)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_LOOK_S", 0.0)


def test_a_request_is_taken_at_once_although_none_is_due(tmp_path: Path) -> None:
    world = World(tmp_path, Askers((), [A]))
    world.run()
    assert [due.request for due in world.due] == [A.request]
    assert world.askers.completed_with == [([A], 1)]


def test_all_who_had_asked_are_told_of_one_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A, B]))
    world.run()
    assert [due.request for due in world.due] == [A.request]
    assert world.askers.completed_with == [([A, B], 1)]


def test_a_periodic_one_answers_those_who_had_asked(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), interval_s=0.0)
    world.run()
    assert world.askers.completed_with[0] == ([A], 1)


def test_those_who_had_asked_are_told_that_the_try_has_failed_and_the_pipeline_runs_on(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A], [B]), tolerable_failures=1)
    world.errors = [DeadlineExceededError("Not in time.")]
    world.run()
    assert world.askers.failed_with == [([A], "DeadlineExceededError")]
    assert world.askers.completed_with == [([B], 2)]


def test_a_requested_one_that_fails_counts_and_is_answered_before_the_attempt_ends(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A], [B]), tolerable_failures=1)
    world.errors = [StorageError("The disk is away."), StorageError("The disk is away.")]
    world.run_until(InterruptedRunError)
    assert [asked for asked, _ in world.askers.failed_with] == [[A], [B]]


def test_an_attempt_that_is_fenced_answers_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), tolerable_failures=5)
    world.errors = [FencedError("Another attempt is live.")]
    world.run_until(FencedError)
    assert (world.askers.failed_with, world.askers.completed_with) == ([], [])


def test_a_savepoint_is_a_checkpoint_of_its_own_kind_that_answers_the_others_too(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A, SAVE]))
    world.run()
    assert [due.kind for due in world.due] == [CheckpointKind.SAVEPOINT]
    assert world.askers.completed_with == [([A, SAVE], 1)]


def test_a_stop_goes_before_whatever_else_is_asked_for_or_due(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A, STOP, SAVE, OTHER_STOP]), interval_s=0.0)
    world.stops_end = [a_manifest(1)]
    assert world.run_to_its_stop().checkpoint == 1
    assert world.stops == [[STOP, OTHER_STOP, A, SAVE]]
    assert world.due == []


def test_after_a_stop_that_has_failed_checkpoints_go_on(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([STOP], [A]))
    world.stops_end = [None]
    world.run()
    assert world.askers.completed_with == [([A], 1)]


def test_an_idle_pipeline_takes_no_checkpoint_and_asks_instead_whether_it_is_still_live(tmp_path: Path) -> None:
    world = World(tmp_path, Askers(), interval_s=0.0, idle=True)
    world.run_until(FencedError)
    assert (world.due, world.looked) == ([], 3)


def test_an_idle_pipeline_takes_a_checkpoint_for_who_asks(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), idle=True)
    world.run()
    assert world.askers.completed_with == [([A], 1)]
