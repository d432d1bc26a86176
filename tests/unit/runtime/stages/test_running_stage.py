"""A stage from the view of the cut rule, at rest or failing. The start of bounded stages."""

import json
import random
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from spark_jobs.protocol.errors import InterruptedRunError, StorageError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.restart_settings import FixedDelay
from spark_jobs.protocol.restarts import Restarts
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.stages import running_stage
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.stages.running_stage import EndingStage, StageAtWork
from spark_jobs.runtime.stages.stage import StageRun
from tests.support.channels import PRODUCER, Channel
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged

FAILURE = InterruptedRunError("A row cannot be read.")
ALL_READ, NOTHING_READ = 5, None
SOON_S = 5.0
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def spark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_stage, "application_has_ended", lambda spark: False)


def restarts_after(delay_ms: int) -> Restarts:
    """A strategy that always allows a restart after this delay."""
    return Restarts(FixedDelay(attempts=1_000, delay_ms=delay_ms), lambda: 0.0, random.Random(0))


def _nothing(*looked_at: object) -> None:
    """Stands in for a check, and finds no loss."""


class Stage:
    """A stage that reads a channel, and whose first batch is committed."""

    def __init__(self, read: int | None) -> None:
        self._channel, self._log = Channel(), begun(MemoryFiles())
        self._channel.consume(0, read)
        self._log.append(staged(0))
        self.gate = Gate()
        run = SimpleNamespace(
            stage=SimpleNamespace(name=StageName("consumer")),
            spark_log=self._channel.spark_log,
            bounds=self._channel.bounds,
            log=self._log,
            gate=self.gate,
            upstream=[SimpleNamespace(producer=PRODUCER)],
            frame=SimpleNamespace(sparkSession=None),
            heartbeat=SimpleNamespace(restarting=lambda name, error: None),
        )
        self.in_cut = StageAtWork(cast(StageRun, run), restarts_after(0), threading.Event(), _nothing, _nothing, isolated=False)

    def plans(self) -> None:
        entry = "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), '{"else": 1}', "-"]).encode()
        self._channel.files.create("consumer/offsets/1", entry)

    def stages(self) -> None:
        self._log.append(staged(1))

    def commits(self) -> None:
        self._channel.files.create("consumer/commits/1", b"v2\n{}")

    def fails(self) -> None:
        self.in_cut._wait_for_restart(FAILURE)


def test_a_stage_that_has_failed_is_failing_until_its_next_batch_is_committed() -> None:
    stage = Stage(NOTHING_READ)
    stage.plans()
    assert stage.in_cut.failing_with() is None, "a batch that takes long is no failure"
    stage.fails()
    assert stage.in_cut.failing_with() is FAILURE
    stage.stages()
    assert stage.in_cut.failing_with() is FAILURE
    stage.commits()
    assert stage.in_cut.failing_with() is None


def test_a_stage_that_has_failed_with_nothing_left_to_read_is_at_rest_once_it_is_held() -> None:
    """The batch was planned and has staged nothing. When it is retried, it waits at the gate."""
    stage = Stage(ALL_READ)
    stage.plans()
    stage.fails()
    assert stage.in_cut.failing_with() is None
    assert not stage.in_cut.is_at_rest()
    stage.in_cut.hold()
    assert stage.in_cut.is_at_rest()
    stage.in_cut.release()
    with stage.gate.batch():
        stage.in_cut.hold()
        assert not stage.in_cut.is_at_rest()


def test_a_stage_is_failing_while_it_waits_for_its_restart_and_until_its_batch_was_repeated() -> None:
    stage, waits = Stage(ALL_READ), list[bool]()
    in_cut: StageAtWork = stage.in_cut

    def wait(delay_s: float) -> bool:
        waits.append(in_cut.is_failing())
        return False

    in_cut.stopping = cast(threading.Event, SimpleNamespace(is_set=lambda: False, wait=wait))
    stage.fails()
    assert waits == [True]
    assert not in_cut.is_failing(), "there is no batch to do"
    stage.plans()
    assert in_cut.is_failing()
    stage.commits()
    assert not in_cut.is_failing()


def test_a_stage_with_a_staged_and_uncommitted_batch_is_not_at_rest() -> None:
    stage = Stage(ALL_READ)
    stage.plans()
    stage.stages()
    stage.in_cut.hold()
    assert not stage.in_cut.is_at_rest()
    assert stage.in_cut.failing_with() is None
    stage.fails()
    assert stage.in_cut.failing_with() is FAILURE
    stage.commits()
    assert stage.in_cut.is_at_rest()


def test_a_stage_that_fails_while_its_log_cannot_be_read_still_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise StorageError("The disk is away.")

    stage = Stage(NOTHING_READ)
    with monkeypatch.context() as patch:
        patch.setattr(stage.in_cut, "committed", away)
        stage.fails()
    assert stage.in_cut.failing_with() is None


class Ending:
    """Stages whose inputs all end. Those in ``failing`` never finish, and wait for a restart."""

    def __init__(self, *failing: str, restarts: bool = True) -> None:
        self._failing, self._restarts = failing, restarts_after(HOUR_MS) if restarts else None
        self.stopping = threading.Event()
        self.begun: list[str] = []
        self.stages: list[EndingStage] = []

    def stage(self, name: str, *producers: EndingStage) -> EndingStage:
        run = SimpleNamespace(
            stage=SimpleNamespace(name=StageName(name)),
            output=SimpleNamespace(ended=threading.Event()),
            upstream=[producer.run.output for producer in producers],
            spark_log=SparkLog(MemoryFiles(), "stage"),
            gate=Gate(),
            frame=SimpleNamespace(sparkSession=None),
            heartbeat=SimpleNamespace(restarting=lambda name, error: None),
        )
        self.stages.append(
            EndingStage(cast(StageRun, run), self._restarts, self.stopping, _nothing, _nothing, False, self._to_its_end)
        )
        return self.stages[-1]

    def _to_its_end(self, run: StageRun) -> None:
        self.begun.append(run.stage.name)
        if run.stage.name in self._failing:
            raise FAILURE
        run.output.ended.set()

    def stop(self) -> None:
        self.stopping.set()
        for stage in self.stages:
            stage.stop()


def test_a_bounded_stage_waits_only_for_the_stages_that_it_reads() -> None:
    ending = Ending("poisoned")
    poisoned, history = ending.stage("poisoned"), ending.stage("history")
    behind_both, behind = ending.stage("behind both", poisoned, history), ending.stage("behind", history)
    for stage in reversed(ending.stages):
        stage.start()
    assert behind.run.output.ended.wait(SOON_S)
    ending.stop()
    assert sorted(ending.begun) == ["behind", "history", "poisoned"]
    assert ending.begun.index("history") < ending.begun.index("behind")
    assert not behind_both.run.output.ended.is_set()
    assert [stage.failure for stage in ending.stages] == [None] * 4


def test_a_bounded_stage_that_gives_up_shows_the_reason_and_other_stages_go_on() -> None:
    ending = Ending("poisoned", restarts=False)
    poisoned, history = ending.stage("poisoned"), ending.stage("history")
    poisoned.start()
    poisoned.stop()
    history.start()
    assert history.run.output.ended.wait(SOON_S)
    ending.stop()
    assert (poisoned.failure, history.failure) == (FAILURE, None)
