"""The reported state of each stage while a running pipeline stops, and the checkpoint that remains after a failed one."""

import errno
import threading
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.api.restarts import OnStageFailure
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest, PipelineDocument, StageState
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    FencedError,
    InterruptedRunError,
    NotFoundError,
    PermanentFailureError,
    RejectedError,
    StorageError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AttemptNumber, BatchId, PipelineName, RequestId, RunId, StageName
from spark_jobs.protocol.masking import unmasked
from spark_jobs.protocol.restart_settings import NoRestart
from spark_jobs.runtime.checkpoints.cut import CheckpointOrder, Cut
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.running_pipeline import RunningPipeline
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.rounds import ROUND
from tests.support.staged_pipeline import CHECKPOINTING, NOW, PIPELINE
from tests.support.systems import FaultSystem, QuickSystem, every_fault, quick

FIRST, SECOND, THIRD, OVER = STAGES = [StageName(name) for name in ("first", "second", "third", "over")]
STOP = CheckpointRequest(request=RequestId("stop-a"), requested_at=NOW, wanted=Wanted.STOP)
DECLARED = CHECKPOINTING.model_copy(update={"interval_ms": 3_600_000, "timeout_ms": 3_600_000})


class Stage:
    """A stage without a query, with the parts that a pipeline uses while the stage is held."""

    def __init__(self, name: StageName, work: Files, pipeline: "Pipeline") -> None:
        self.stage = SimpleNamespace(name=name, unbounded=name is not OVER)
        self.gate, self.bounds, self.outlet = Gate(), (), SimpleNamespace(public=None)
        self.spark_log = SparkLog(work, checkpoint_directory(name))
        self.output = SimpleNamespace(ended=threading.Event(), producer=name)
        self.sources = [] if pipeline.stages else [object()]
        self.upstream = [stage.output for stage in pipeline.stages.values()]
        self._pipeline = pipeline

    def flush(self) -> None:
        self._pipeline.seen.append(self._pipeline.states())


class Pipeline:
    """Three running stages and one that has ended."""

    def __init__(self, root: Path) -> None:
        home = LocalFiles(root)
        self.heartbeat = Heartbeat(home, AttemptNumber(1), RunId("monday"), STAGES, None)
        self.seen: list[list[StageState]] = []
        """The reported states at each moment in which the pipeline waited."""
        self.happens: list[Callable[[], object]] = []
        """Called at such moments, one at each. When none is left, the wait fails at its deadline."""
        work = home.below("work/1")
        self.stages: dict[StageName, Stage] = {}
        for name in STAGES:  # each stage reads all stages before it
            self.stages[name] = Stage(name, work, self)
        self.stages[OVER].output.ended.set()
        for name in STAGES:
            self.heartbeat.stage(name, StageState.ENDED if name is OVER else StageState.RUNNING)
        run: Any = SimpleNamespace(
            graph=SimpleNamespace(restart=NoRestart(), on_stage_failure=OnStageFailure.ISOLATE, checkpointing=DECLARED),
            home=home,
            attempt=SimpleNamespace(attempt=AttemptNumber(1)),
            mask=unmasked,
            site=SimpleNamespace(heartbeat=self.heartbeat, work=work, sources={}, cancellation=SimpleNamespace(check=self._look)),
            parent=None,
            blocking=SimpleNamespace(is_blocked=False),
            build=lambda: list(self.stages.values()),
            check_lost=lambda stage, error: None,
            check_skipped=lambda stage: None,
            passing_over=lambda stage, stopping: None,
            to_its_end=lambda stage: None,
            flush=lambda stage: stage.flush(),
            build_again=lambda earlier, ended: earlier,
        )
        self.running = RunningPipeline(cast(RoundRun, run))

    def states(self) -> list[StageState]:
        return [self.heartbeat.status.stages[name].state for name in STAGES]

    def _look(self) -> None:
        self.seen.append(self.states())
        if self.happens:
            self.happens.pop(0)()
            return
        raise DeadlineExceededError("It does not come to rest.")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def test_stages_before_a_stage_that_a_stop_waits_for_are_quiesced_and_the_stage_is_running(pipeline: Pipeline) -> None:
    running = [StageState.RUNNING] * 3 + [StageState.ENDED]
    with pipeline.stages[SECOND].gate.batch(), pytest.raises(DeadlineExceededError):
        pipeline.running.quiesce(STOP)
    assert pipeline.seen == [[StageState.QUIESCED, StageState.RUNNING, StageState.RUNNING, StageState.ENDED]]
    pipeline.running.run_on()
    assert pipeline.states() == running, "a stop that failed"
    pipeline.running.quiesce(STOP)
    assert pipeline.states() == [StageState.QUIESCED] * 3 + [StageState.ENDED]
    pipeline.running.run_on()
    assert pipeline.states() == running


def test_each_stage_counts_its_own_failures(pipeline: Pipeline) -> None:
    first, second, *_ = [stage.restarts for stage in pipeline.running.stages]
    assert first is not None
    assert second is not None
    assert first is not second
    assert [stage.restarts for stage in pipeline.running._built()][:2] == [first, second], "also when all are built again"


def test_a_failure_of_a_stage_during_a_stop_is_shown_and_stages_before_it_stay_quiesced(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        error = StorageError("The disk is away.")
        pipeline.heartbeat.restarting(SECOND, error)
        monkeypatch.setattr(pipeline.running.stages[1], "failing_with", lambda: error)

    def is_up_again() -> None:
        pipeline.heartbeat.stage(SECOND, running)
        monkeypatch.setattr(pipeline.running.stages[1], "failing_with", lambda: None)

    running, quiesced = StageState.RUNNING, StageState.QUIESCED
    pipeline.happens = [fails, is_up_again]
    with pipeline.stages[THIRD].gate.batch(), pytest.raises(DeadlineExceededError):
        pipeline.running.quiesce(STOP)
    assert pipeline.seen == [
        [quiesced, quiesced, running, StageState.ENDED],
        [quiesced, StageState.RESTARTING, running, StageState.ENDED],
        [quiesced, quiesced, running, StageState.ENDED],
    ]
    pipeline.running.run_on()
    assert pipeline.states() == [running, running, running, StageState.ENDED]
    assert not any(stage.gate.is_closed() for stage in pipeline.stages.values())


FAILED = PermanentFailureError("A row cannot be divided.")


def give_up(pipeline: Pipeline, name: StageName) -> None:
    pipeline.heartbeat.failed(name, FAILED)
    pipeline.running.stages[STAGES.index(name)].given_up = FAILED


def test_other_stages_run_on_without_a_failed_stage_as_long_as_any_of_them_can_work(pipeline: Pipeline) -> None:
    pipeline.happens = [lambda: None] * 2
    give_up(pipeline, SECOND)
    pipeline.running._pause()
    give_up(pipeline, FIRST)  # the third stage reads only these, and the fourth has ended
    with pytest.raises(PermanentFailureError):
        pipeline.running._pause()


def test_a_stop_completes_without_a_failed_stage(pipeline: Pipeline) -> None:
    give_up(pipeline, SECOND)
    pipeline.running.quiesce(STOP)
    assert pipeline.states() == [StageState.QUIESCED, StageState.FAILED, StageState.QUIESCED, StageState.ENDED]
    assert pipeline.running._where_they_are().failing == {SECOND}, "rows may lie before the stage"
    pipeline.running.run_on()
    assert pipeline.states() == [StageState.RUNNING, StageState.FAILED, StageState.RUNNING, StageState.ENDED]


def test_a_stop_is_refused_if_others_have_read_an_uncommitted_batch_of_the_failed_stage(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(pipeline, SECOND)
    monkeypatch.setattr(pipeline.running.stages[2], "consumed_by", lambda batch: {SECOND: BatchId(0)})
    with pytest.raises(
        RejectedError, match=r"another stage has read a batch .* PermanentFailureError: A row .* spark-jobs cancel"
    ):
        pipeline.running.quiesce(STOP)


def test_a_drain_is_refused_while_a_stage_has_failed_and_holds_no_stage(pipeline: Pipeline) -> None:
    give_up(pipeline, SECOND)
    with pytest.raises(RejectedError, match="stage 'second' has failed, and a drain flushes every stage"):
        pipeline.running.quiesce(STOP.model_copy(update={"drain": True}))
    assert not any(stage.gate.is_closed() for stage in pipeline.stages.values())


def test_a_stage_that_is_flushed_is_shown_as_draining_and_stages_before_it_have_ended(pipeline: Pipeline) -> None:
    pipeline.running.quiesce(STOP)
    pipeline.running.flush(STOP)
    held, draining, ended = StageState.QUIESCED, StageState.DRAINING, StageState.ENDED
    assert pipeline.seen == [
        [draining, held, held, ended],
        [ended, draining, held, ended],
        [ended, ended, draining, ended],
        [ended, ended, ended, draining],
    ]
    assert pipeline.states() == [ended] * 4


class Failing:
    """A pipeline without stages, in whose home operations fail."""

    def __init__(self, root: Path, system: FaultSystem) -> None:
        home = LocalFiles(root, system)
        needed: dict[str, Any] = dict.fromkeys(
            each.name for each in fields(RoundSite) if each.default is MISSING and each.default_factory is MISSING
        )
        needed["heartbeat"] = Heartbeat(home, AttemptNumber(1), RunId("monday"), [], None)
        needed |= {"work": home.below("work/w"), "cancellation": SimpleNamespace(check=lambda: None)}
        site = RoundSite(**needed)
        declared = {"restart": NoRestart(), "on_stage_failure": OnStageFailure.ISOLATE, "checkpointing": DECLARED}
        graph: Any = SimpleNamespace(
            sources={}, statics={}, stages={}, unbounded=False, skips_what_is_gone=frozenset(), **declared
        )
        document = PipelineDocument(name=PipelineName("p"), uuid=PIPELINE)
        run = RoundRun(graph, home, document, attempt(1), ROUND, site, cast(Any, None))
        self._running = RunningPipeline(run)

    def complete(self, order: CheckpointOrder) -> Manifest:
        return self._running.complete(order)

    def finish(self) -> Manifest:
        return self._running.finish()

    def checkpoint(self) -> int | StreamPipelineError:
        """Returns the number of a new checkpoint, or its error."""
        try:
            return self._running.checkpoint(STOP).checkpoint
        except StreamPipelineError as error:
            return error


@pytest.mark.parametrize("answer_lost", [False, True], ids=["fails", "answer lost"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for a while"])
@pytest.mark.slow
def test_after_any_failed_step_of_a_try_the_same_attempt_takes_the_next_free_number(
    tmp_path: Path, lasting: bool, answer_lost: bool
) -> None:
    landed = 0
    for index, system in enumerate(every_fault(errno.EIO, lasting=lasting, answer_lost=answer_lost)):
        root = tmp_path / str(index)
        Attempts(quick(root)).create(attempt(1))
        pipeline, store = Failing(root, system), CheckpointStore(quick(root))
        first, taken = pipeline.checkpoint(), store.taken()
        where = system.trace[index] if system.injected else "nothing failed"
        if isinstance(first, int):
            assert taken == [first], where
        else:
            assert not isinstance(first, FencedError), where
            assert not taken or isinstance(first, InterruptedRunError), f"told that it was not taken: {where}"
        system.heal()
        assert pipeline.checkpoint() == len(taken) + 1, where
        landed += bool(taken and system.injected)
    assert landed


@pytest.mark.parametrize("overtaken", [False, True], ids=["still live", "a later attempt is live"])
def test_a_late_manifest_of_an_earlier_try_is_accepted_by_its_own_attempt_while_that_is_live(
    tmp_path: Path, overtaken: bool
) -> None:
    home = quick(tmp_path)
    Attempts(home).create(attempt(1))
    earlier, pipeline = (Failing(tmp_path, cast(FaultSystem, QuickSystem())) for _ in range(2))
    comes = [earlier.checkpoint]

    def find_cut() -> Cut:
        if comes:
            assert comes.pop()() == 1
            if overtaken:
                Attempts(home).create(attempt(2))
        return Cut({}, aligned=True, alignment_s=0.0)

    order = CheckpointOrder(CheckpointKind.PERIODIC, find_cut)
    if overtaken:
        with pytest.raises(FencedError):
            pipeline.complete(order)
    else:
        manifest = pipeline.complete(order)
        assert (manifest.checkpoint, manifest.parent, manifest.checkpoint_kind) == (2, 1, CheckpointKind.PERIODIC)
    assert CheckpointStore(home).taken() == ([1] if overtaken else [1, 2])


@pytest.mark.parametrize("kind", [UnsupportedTableError, StorageError])
def test_the_error_for_a_final_checkpoint_that_a_table_refuses_names_the_checkpoint_and_a_remedy(
    tmp_path: Path, kind: type[StreamPipelineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    Attempts(quick(tmp_path)).create(attempt(1))
    pipeline = Failing(tmp_path, cast(FaultSystem, QuickSystem()))

    def refuse(*_: object, **__: object) -> None:
        raise kind("Sink daily: 7 rows break positive.", remedy="Drop the constraint.", sink="daily")

    monkeypatch.setattr(RoundRun, "publish", refuse)
    with pytest.raises(kind) as refused:
        pipeline.finish()
    assert "final checkpoint 1" in refused.value.failed
    assert "7 rows break positive" in refused.value.failed
    assert "The checkpoint is complete" in refused.value.exists
    assert refused.value.remedy.startswith("Drop the constraint.")
    assert f"spark-jobs publish --home {tmp_path.as_uri()} --checkpoint 1" in refused.value.remedy
    assert refused.value.evidence["sink"] == "daily"
    assert CheckpointStore(quick(tmp_path)).taken() == [1]


def test_the_error_for_a_final_checkpoint_that_can_never_become_public_has_no_such_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Attempts(quick(tmp_path)).create(attempt(1))
    pipeline, lost = Failing(tmp_path, cast(FaultSystem, QuickSystem())), NotFoundError("Staged files are gone.")

    def refuse(*_: object, **__: object) -> None:
        raise lost

    monkeypatch.setattr(RoundRun, "publish", refuse)
    with pytest.raises(NotFoundError) as refused:
        pipeline.finish()
    assert refused.value is lost
