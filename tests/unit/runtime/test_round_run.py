"""What an attempt does with a stage whose inputs end, after what earlier ones have done."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.protocol.documents import Manifest, OnEnd
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, IncarnationId, RoundNumber, StageName
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.local import LocalFiles
from tests.support.staged_pipeline import a_manifest, a_stage_cut

STAGE, LAST = StageName("history"), BatchId(3)
CUT = a_stage_cut(LAST, finished=True, drained=True, drain_batches=1)
FINISHED = a_manifest(round=RoundNumber(1), stages={STAGE: CUT})


class Attempt:
    """One that goes on from a checkpoint with one stage, whose queries are told and end at once."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, parent: Manifest | None) -> None:
        self.done: list[str] = []
        self.stage = SimpleNamespace(
            stage=SimpleNamespace(name=STAGE),
            spark_log=SimpleNamespace(last_commit=lambda: LAST, pending=lambda: False),
            output=SimpleNamespace(ended=SimpleNamespace(set=self._does("ended"))),
            run_to_end=self._does("run"),
            drain=self._does("drained"),
        )
        attempt = SimpleNamespace(
            attempt=AttemptNumber(2), incarnation=IncarnationId("first"), restored_from=CheckpointId(1) if parent else None
        )
        run_round = SimpleNamespace(round=RoundNumber(1), on_end=OnEnd.DRAIN)
        site = SimpleNamespace(heartbeat=SimpleNamespace(stage=lambda name, state: None))
        none: Any = None
        self._run = RoundRun(none, LocalFiles(root), none, cast(Any, attempt), cast(Any, run_round), cast(Any, site), none)
        monkeypatch.setattr(RoundRun, "parent", parent)

    def to_its_end(self) -> list[str]:
        self._run.to_its_end(cast(StageRun, self.stage))
        return self.done

    def _does(self, what: str) -> Callable[[], None]:
        return lambda: self.done.append(what)


def test_what_the_checkpoint_calls_finished_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Attempt(tmp_path, monkeypatch, FINISHED).to_its_end() == ["ended"]


@pytest.mark.parametrize(
    "parent",
    [
        None,
        FINISHED.model_copy(update={"round": RoundNumber(2)}),
        FINISHED.model_copy(update={"incarnation": IncarnationId("another")}),
        FINISHED.model_copy(update={"stages": {}}),
        FINISHED.model_copy(update={"stages": {STAGE: CUT.model_copy(update={"finished": False})}}),
        FINISHED.model_copy(update={"stages": {STAGE: CUT.model_copy(update={"batch": BatchId(2)})}}),
    ],
)
def test_everything_else_is_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: Manifest | None) -> None:
    assert Attempt(tmp_path, monkeypatch, parent).to_its_end() == ["run", "drained", "ended"]


def test_a_batch_that_an_earlier_attempt_has_begun_is_brought_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path, monkeypatch, FINISHED)
    attempt.stage.spark_log.pending = lambda: True
    assert attempt.to_its_end() == ["run", "drained", "ended"]
