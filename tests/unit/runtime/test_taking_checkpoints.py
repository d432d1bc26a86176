"""The times at which a running pipeline takes checkpoints, and the requests that it answers."""

from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.api.restarts import OnStageFailure
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.request_table import RequestEvent
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    CheckpointDeclinedError,
    CorruptDocumentError,
    DeadlineExceededError,
    FencedError,
    InterruptedRunError,
    NotFoundError,
    OutcomeUnknownError,
    SparkJobFailedError,
    StorageError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AttemptNumber, RequestId, SinkName, StageName
from spark_jobs.protocol.masking import unmasked
from spark_jobs.protocol.restarts import may_heal
from spark_jobs.publication import holds
from spark_jobs.runtime import running_pipeline
from spark_jobs.runtime.checkpoints import answers, publishing
from spark_jobs.runtime.checkpoints.answers import Answers
from spark_jobs.runtime.checkpoints.cut import CheckpointOrder, Cut
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.running_pipeline import RunningPipeline
from spark_jobs.runtime.stages.running_stage import StageAtWork
from spark_jobs.storage.local import LocalFiles
from tests.support.cut_model import Model
from tests.support.staged_pipeline import CHECKPOINTING, NOW, a_manifest, a_sink_cut


def request(wanted: Wanted, name: str) -> CheckpointRequest:
    return CheckpointRequest(request=RequestId(f"{wanted.value}-{name}"), requested_at=NOW, wanted=wanted)


A, B = request(Wanted.CHECKPOINT, "a"), request(Wanted.CHECKPOINT, "b")
SAVE, STOP, OTHER_STOP = request(Wanted.SAVEPOINT, "s"), request(Wanted.STOP, "x"), request(Wanted.STOP, "y")
DAILY = a_sink_cut("daily")
DECLARED = CHECKPOINTING.model_copy(update={"interval_ms": 10**12, "timeout_ms": 60_000})
"""No checkpoint becomes due during a test."""


class TheEnd(Exception):
    """Raised when the pipeline has run long enough."""


class Askers:
    """The open requests at each look, and their answers."""

    def __init__(self, *asked: Sequence[CheckpointRequest]) -> None:
        self.asked = list(asked)
        self.completed_with: list[tuple[list[CheckpointRequest], int]] = []
        self.failed_with: list[tuple[list[CheckpointRequest], str]] = []

    def open(self, waiting: Container[RequestId]) -> Sequence[CheckpointRequest]:
        return [request for request in (self.asked.pop(0) if self.asked else ()) if request.request not in waiting]

    def completed(self, requests: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        self.completed_with.append((list(requests), manifest.checkpoint))

    def failed(self, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        self.failed_with.append((list(requests), type(error).__name__))

    def unanswered(self) -> Sequence[CheckpointRequest]:
        return self.asked.pop(0)

    def reject(self, event: RequestEvent, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        self.failed_with.append((list(requests), type(error).__name__))


class Blocking:
    """Remembers blocked publications, which may be retried immediately."""

    def __init__(self) -> None:
        self.failures: list[tuple[int, str]] = []
        self.is_blocked = False
        self.held: tuple[SinkName, ...] = ()

    @property
    def all_wait(self) -> bool:
        return self.is_blocked

    def is_due(self) -> bool:
        return self.is_blocked

    def failed(self, manifest: Manifest, error: StreamPipelineError) -> None:
        self.failures.append((manifest.checkpoint, type(error).__name__))
        self.is_blocked = True


class World(RunningPipeline):
    """A pipeline whose checkpoints end as a test decides. It runs long enough after one checkpoint, or after ``tries`` of them."""

    def __init__(
        self,
        directory: Path,
        askers: Askers,
        *,
        stages: Sequence[Model] = (),
        idle: bool = False,
        tries: int = 1,
        **settings: Any,
    ) -> None:
        home = LocalFiles(directory)
        self.blocking, self.subsumed = Blocking(), list[int]()
        run: Any = SimpleNamespace(
            blocking=self.blocking,
            subsume=lambda stages, manifest, *_, **__: self.subsumed.append(manifest.checkpoint),
            check=lambda manifest: None,
            publish_sink=lambda manifest, sink: self._publish(manifest),
            publish_all=self._publish_or_block,
            graph=SimpleNamespace(
                restart=None, on_stage_failure=OnStageFailure.FAIL, checkpointing=DECLARED.model_copy(update=settings)
            ),
            home=home,
            attempt=SimpleNamespace(attempt=AttemptNumber(1)),
            mask=unmasked,
            site=SimpleNamespace(cancellation=Cancellation(AttemptLease(home, AttemptNumber(1))), sources={}),
            parent=None,
            build=lambda: [],
        )
        super().__init__(cast(RoundRun, run))
        self.askers, self._requests = askers, cast(RequestedCheckpoints, askers)
        self._answers = Answers(self._requests)
        self._tries = tries
        self.orders: list[CheckpointOrder] = []
        self.cuts: list[Cut] = []
        self.takes: Callable[[], object] = lambda: None
        """Called while a checkpoint is taken."""
        self.errors: list[Exception] = []
        self.not_published: list[Exception] = []
        self.published_with: list[int] = []
        self.stops: list[list[CheckpointRequest]] = []
        self.stops_end: list[Manifest | None] = []
        self.ended, self.finished = False, 0
        """Two facts: whether all stages have ended, and the number of final checkpoints."""
        self.looked, self.fenced_at = 0, 3
        """The number of checks that the attempt is live, and the first check that finds it fenced."""
        for stage in stages:
            vars(stage).update(given_up=None, run=None)
        self.stages, self._idle = cast(list[StageAtWork], list(stages)), idle

    def has_ended(self) -> bool:
        return self.ended

    def is_idle(self) -> bool:
        return self._idle

    def run(self) -> None:
        with pytest.raises(TheEnd):
            self._take_checkpoints()

    def run_to_its_stop(self) -> Manifest:
        return self._take_checkpoints()

    def run_until(self, error: type[Exception]) -> None:
        with pytest.raises(error):
            self._take_checkpoints()

    def check_live(self) -> None:
        self.looked += 1
        if self.looked == self.fenced_at:
            raise FencedError("Another attempt is live.")

    def _publish(self, manifest: Manifest) -> None:
        self.published_with.append(manifest.checkpoint)
        if self.not_published:
            raise self.not_published.pop(0)
        self.blocking.is_blocked = False

    def _publish_or_block(self, manifest: Manifest) -> None:
        try:
            self._publish(manifest)
        except StreamPipelineError as error:
            if not holds.may_heal(error):
                raise
            self.blocking.failed(manifest, error)

    def _pause(self) -> None:
        for _ in range(4):  # a check, a publication, an answer, and its end
            self._publishing.advance(self._parent)
            self._answers.advance(self._publishing.is_settled)
        if not self.askers.asked and not self.errors and self._tries <= 0 and not self.blocking.is_blocked:
            raise TheEnd
        super()._pause()

    def finish(self) -> Manifest:
        self.finished += 1
        return a_manifest(9)

    def stop(self, asked: Sequence[CheckpointRequest]) -> Manifest | None:
        self.stops.append(list(asked))
        return self.stops_end.pop(0)

    def complete(self, order: CheckpointOrder) -> Manifest:
        self.orders.append(order)
        try:
            if self.errors:
                raise self.errors.pop(0)
            self.cuts.append(order.find_cut())
            self.takes()
        finally:
            self._tries -= 1
        self._parent = a_manifest(len(self.orders), request=order.request, sinks={SinkName("daily"): DAILY})
        return self._parent


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_pipeline, "_LOOK_S", 0.0)
    for module in (answers, publishing):
        monkeypatch.setattr(module, "run_in_background", done)


def done(work: Callable[[], None]) -> Future[None]:
    """Does a background thread's work in this thread."""
    future: Future[None] = Future()
    try:
        work()
        future.set_result(None)
    except StreamPipelineError as error:
        future.set_exception(error)
    return future


def test_a_requested_checkpoint_is_taken_at_once_although_none_is_due(tmp_path: Path) -> None:
    world = World(tmp_path, Askers((), [A]))
    world.run()
    assert [order.request for order in world.orders] == [A.request]
    assert world.askers.completed_with == [([A], 1)]


def test_one_checkpoint_answers_all_open_requests(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A, B]))
    world.run()
    assert [order.request for order in world.orders] == [A.request]
    assert world.askers.completed_with == [([A, B], 1)]


def test_a_request_during_a_checkpoint_waits_for_its_end_and_gets_its_own_checkpoint(tmp_path: Path) -> None:
    """U10: one checkpoint at a time, even if the next one is long overdue."""
    askers = Askers([A])
    world = World(tmp_path, askers, interval_ms=0, tries=2)
    at_work: list[tuple[int, int]] = []

    def asked_meanwhile() -> None:
        at_work.append((len(world.orders), len(askers.completed_with)))
        askers.asked = [[B]] if len(at_work) == 1 else []

    world.takes = asked_meanwhile
    world.run()
    assert at_work == [(1, 0), (2, 1)]
    assert askers.completed_with == [([A], 1), ([B], 2)]


@pytest.mark.parametrize("held", [answers, publishing], ids=["a savepoint is copied", "a checkpoint is published"])
def test_further_checkpoints_are_taken_while_one_is_copied_or_published_and_do_not_take_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: ModuleType
) -> None:
    monkeypatch.setattr(held, "run_in_background", lambda work: Future())
    world = World(tmp_path, Askers([SAVE], [SAVE], [SAVE]), interval_ms=0, tries=3)
    world.run()
    assert [order.request for order in world.orders] == [SAVE.request, None, None]
    assert world.askers.completed_with == []


def test_a_periodic_checkpoint_answers_open_requests(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), interval_ms=0)
    world.run()
    assert world.askers.completed_with[0] == ([A], 1)


@pytest.mark.parametrize("kind", [DeadlineExceededError, SparkJobFailedError, StorageError])
def test_a_failed_try_is_the_answer_to_all_open_requests_and_the_pipeline_runs_on(
    tmp_path: Path, kind: type[StreamPipelineError]
) -> None:
    world = World(tmp_path, Askers([A], [B]), tolerable_failures=1)
    world.errors = [kind("It did not work.")]
    world.run()
    assert world.askers.failed_with == [([A], kind.__name__)]
    assert world.askers.completed_with == [([B], 2)]


def test_a_requested_checkpoint_that_fails_counts_and_is_answered_before_the_attempt_ends(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A], [B]), tolerable_failures=1)
    world.errors = [StorageError("The disk is away."), StorageError("The disk is away.")]
    world.run_until(InterruptedRunError)
    assert [asked for asked, _ in world.askers.failed_with] == [[A], [B]]


@pytest.mark.parametrize("kind", [DeadlineExceededError, OutcomeUnknownError, SparkJobFailedError, StorageError])
def test_no_number_of_failed_tries_ends_the_attempt_by_default(tmp_path: Path, kind: type[StreamPipelineError]) -> None:
    world = World(tmp_path, Askers(*([A] for _ in range(31))), tolerable_failures=None)
    world.fenced_at, world.errors = 1_000, [kind("It did not work.")] * 30
    world.run()
    assert world.askers.failed_with == [([A], kind.__name__)] * 30
    assert world.askers.completed_with == [([A], 31)]


def test_a_failure_that_only_the_next_attempt_can_heal_ends_the_attempt(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), tolerable_failures=None)
    world.errors = [NotFoundError("A file of Spark's is gone.")]
    with pytest.raises(InterruptedRunError, match="cannot take another checkpoint: .* A file of Spark's is gone") as ended:
        world.run_to_its_stop()
    assert may_heal(ended.value), "a restart strategy starts the next attempt"
    assert world.askers.failed_with == [([A], "NotFoundError")]


def test_a_declined_checkpoint_is_answered_and_does_not_count_as_a_failure(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A], [B]), tolerable_failures=0)
    world.errors = [CheckpointDeclinedError("A stage is failing.")]
    world.run()
    assert world.askers.failed_with == [([A], "CheckpointDeclinedError")]
    assert world.askers.completed_with == [([B], 2)]


def test_a_savepoint_that_fails_is_answered_and_ends_no_attempt(tmp_path: Path) -> None:
    """The other requests that its checkpoint would have answered fail too. Failed savepoints do not count as failed checkpoints."""
    world = World(tmp_path, Askers([SAVE], [A, SAVE], [B]))
    world.errors = [DeadlineExceededError("Not in time.")] * 2
    world.run()
    assert [asked for asked, _ in world.askers.failed_with] == [[SAVE], [A, SAVE]]
    assert world.askers.completed_with == [([B], 3)]


@pytest.mark.parametrize("kind", [UnsupportedTableError, AccessDeniedError, StorageError, OutcomeUnknownError])
def test_a_failed_publication_does_not_count_as_a_failure_and_its_checkpoint_answers_requests(
    tmp_path: Path, kind: type[StreamPipelineError]
) -> None:
    world = World(tmp_path, Askers([SAVE], [A]), tolerable_failures=0)
    world.fenced_at, world.not_published = 99, [kind("The table refuses.")] * 2
    world.run()
    assert world.blocking.failures[0] == (1, kind.__name__)
    assert world.askers.completed_with == [([SAVE], 1), ([A], 2)]
    assert world.subsumed == [1, 2], "what no row needs that waits is deleted all the same"


def test_a_blocked_publication_is_retried_without_another_checkpoint_until_it_succeeds(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), interval_ms=0, idle=True)
    world.fenced_at, world.not_published = 99, [UnsupportedTableError("The table refuses.")] * 3
    world.run()
    assert (world.published_with, world.subsumed) == ([1, 1, 1, 1], [1])
    assert len(world.orders) == 1


@pytest.mark.parametrize("kind", [NotFoundError, CorruptDocumentError])
def test_a_publication_that_can_never_succeed_ends_the_attempt(tmp_path: Path, kind: type[StreamPipelineError]) -> None:
    world = World(tmp_path, Askers([A]), tolerable_failures=5)
    world.not_published = [kind("Staged files are gone.")]
    world.run_until(kind)
    assert world.blocking.failures == []


def test_a_failed_publication_in_a_fenced_attempt_blocks_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]))
    world.fenced_at, world.not_published = 1, [UnsupportedTableError("The table refuses.")]
    world.run_until(FencedError)
    assert world.blocking.failures == []


def test_a_fenced_attempt_answers_no_request(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), tolerable_failures=5)
    world.errors = [FencedError("Another attempt is live.")]
    world.run_until(FencedError)
    assert (world.askers.failed_with, world.askers.completed_with) == ([], [])


@pytest.mark.parametrize("kind", [StorageError, CorruptDocumentError])
def test_a_failed_try_in_a_fenced_attempt_is_no_failure_of_the_pipeline(tmp_path: Path, kind: type[StreamPipelineError]) -> None:
    """The live attempt may have deleted files that this checkpoint would have named."""
    world = World(tmp_path, Askers([A]))
    world.fenced_at, world.errors = 1, [kind("A file is gone.")]
    world.run_until(FencedError)
    assert world.askers.failed_with == []


def test_a_savepoint_is_a_checkpoint_of_its_own_kind_that_answers_other_requests_too(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A, SAVE]))
    world.run()
    assert [order.kind for order in world.orders] == [CheckpointKind.SAVEPOINT]
    assert world.askers.completed_with == [([A, SAVE], 1)]


def test_a_stop_goes_before_all_other_requests_and_due_checkpoints(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A, STOP, SAVE, OTHER_STOP]), interval_ms=0)
    world.stops_end = [a_manifest(1)]
    assert world.run_to_its_stop().checkpoint == 1
    assert world.stops == [[STOP, OTHER_STOP, A, SAVE]]
    assert world.orders == []


def test_checkpoints_are_taken_again_after_a_failed_stop(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([STOP], [A]))
    world.stops_end = [None]
    world.run()
    assert world.askers.completed_with == [([A], 1)]


def test_an_attempt_that_reads_rows_again_rejects_a_drain_and_follows_a_stop(tmp_path: Path) -> None:
    drain = OTHER_STOP.model_copy(update={"drain": True})
    world = World(tmp_path, Askers([A, STOP, drain]))
    world._take_over_stops()
    assert [order.kind for order in world.orders] == [CheckpointKind.PERIODIC], "the earlier attempt can no longer stop"
    assert world.askers.failed_with == [([drain], "RejectedError")]


def test_an_idle_pipeline_takes_no_checkpoint_but_checks_whether_it_is_still_live(tmp_path: Path) -> None:
    world = World(tmp_path, Askers(), interval_ms=0, idle=True)
    world.run_until(FencedError)
    assert (world.orders, world.looked) == ([], 3)


def test_an_idle_pipeline_takes_a_requested_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A]), idle=True)
    world.run()
    assert world.askers.completed_with == [([A], 1)]


class Clock:
    """Stands in for the module ``time``. Each sleep takes a second."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, _: float) -> None:
        self.now_s += 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(running_pipeline, "time", made)
    return made


def test_checkpoints_are_triggered_and_expire_as_declared(tmp_path: Path, clock: Clock) -> None:
    world = World(tmp_path, Askers(), interval_ms=10_000, min_pause_ms=7_000, timeout_ms=30_000, tries=3)

    def lasts_5_s() -> None:
        clock.now_s += 5.0

    world.takes = lasts_5_s
    world.run()
    assert [order.deadline_s - 30.0 for order in world.orders] == [110.0, 122.0, 134.0], "5 s after a trigger, and a pause of 7 s"


@pytest.mark.parametrize("held", [answers, publishing], ids=["a savepoint is copied", "a checkpoint is published"])
def test_checkpoints_are_triggered_at_every_interval_while_a_copy_or_a_publication_takes_longer(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, held: ModuleType
) -> None:
    ends_s: list[float] = []

    def takes_15_s(work: Callable[[], None]) -> Future[None]:
        ended_s, future = clock.now_s + 15.0, done(work)
        ends_s.append(ended_s)
        monkeypatch.setattr(future, "done", lambda: clock.now_s >= ended_s)
        return future

    monkeypatch.setattr(held, "run_in_background", takes_15_s)
    world = World(tmp_path, Askers([SAVE]), interval_ms=1_000, timeout_ms=30_000, tries=50)
    world.run()
    assert [order.deadline_s - 30.0 for order in world.orders] == [101.0 + second for second in range(50)]
    assert 101.0 < ends_s[0] < 150.0, "work that took 15 s has ended meanwhile"


def behind() -> tuple[Model, Model]:
    """A stage that has staged ten batches of a byte, and a stage that reads none of them."""
    producer = Model(StageName("producer"), committed_batch=9, visible_batch=9)
    return producer, Model(StageName("consumer"), [producer], dead=True)


@pytest.mark.parametrize(
    ("settings", "waited_s"),
    [
        ({}, 30.0),
        ({"unaligned": True}, 0.0),
        ({"aligned_timeout_ms": 20_000}, 20.0),
        ({"aligned_timeout_ms": 20_000, "max_in_flight_bytes": 10}, 20.0),
        ({"max_in_flight_bytes": 9}, 0.0),
    ],
)
@pytest.mark.usefixtures("clock")
def test_a_checkpoint_becomes_unaligned_as_declared(tmp_path: Path, settings: dict[str, Any], waited_s: float) -> None:
    world = World(tmp_path, Askers([A]), stages=behind(), **settings)
    world.run()
    (cut,) = world.cuts
    assert (cut.aligned, cut.alignment_s) == (False, waited_s)


@pytest.mark.parametrize(
    ("asked", "settings"),
    [(A, {"aligned_timeout_ms": "never"}), (SAVE, {}), (SAVE, {"unaligned": True}), (SAVE, {"max_in_flight_bytes": 9})],
)
def test_a_checkpoint_that_may_not_become_unaligned_expires_after_the_timeout(
    tmp_path: Path, clock: Clock, asked: CheckpointRequest, settings: dict[str, Any]
) -> None:
    world = World(tmp_path, Askers([asked]), stages=behind(), tolerable_failures=1, timeout_ms=30_000, **settings)
    world.run()
    assert (world.askers.failed_with, world.cuts) == ([([asked], "DeadlineExceededError")], [])
    assert clock.now_s == pytest.approx(100.0 + 30.0, abs=3.0)


def test_when_all_stages_have_ended_one_final_checkpoint_answers_every_open_request(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([A, B]), interval_ms=0)
    world.ended = True
    assert world.run_to_its_stop().checkpoint == 9
    assert (world.finished, world.orders, world.askers.completed_with) == (1, [], [([A, B], 9)])


def test_a_stop_that_comes_when_all_stages_have_ended_is_answered_with_the_final_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, Askers([STOP]))
    world.ended = True
    assert world.run_to_its_stop().checkpoint == 9
    assert (world.stops, world.askers.completed_with) == ([], [([STOP], 9)])


def test_a_drain_that_comes_when_all_stages_have_ended_flushes_them(tmp_path: Path) -> None:
    drain = STOP.model_copy(update={"drain": True})
    world = World(tmp_path, Askers([drain]))
    world.ended, world.stops_end = True, [a_manifest(7)]
    assert world.run_to_its_stop().checkpoint == 7
    assert (world.stops, world.finished) == ([[drain]], 0)
