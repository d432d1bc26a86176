"""What an attempt does with a stage whose inputs end, and with what is left in its tables, after what earlier ones have done."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import CheckpointKind, Manifest, OnEnd
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, IncarnationId, RoundNumber, StageName
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.local import LocalFiles
from tests.support.private_logs import begun, staged
from tests.support.staged_pipeline import CHECKPOINTING, a_channel, a_manifest, a_stage_cut
from tests.unit.control.test_channel import attempt

PREFIX = "0123456789abcdef-"
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


class Table(LocalFiles):
    """The directory of a public table; counts the files that are looked at."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self.looks = path, 0
        path.mkdir()

    def paths(self, directory: str = "") -> list[str]:
        found = super().paths(directory)
        self.looks += len(found)
        return found


class Daily:
    """A pipeline that runs once a day; each run stages a file for its table and ends with a checkpoint."""

    def __init__(self, root: Path) -> None:
        self.home, self.table, self.number = LocalFiles(root / "home"), Table(root / "table"), 0
        self.work = self.home.below("work/1")
        self.log = begun(self.work, "stages/history/log")

    def leave(self, *, ahead: int) -> Path:
        """A file that nothing names, of a batch so many after the last one."""
        return self._write(self.number - 1 + ahead, "left")

    def _write(self, batch: int, name: str) -> Path:
        path = self.table.path / f"{PREFIX}{batch}-{name}.parquet"
        path.write_bytes(b"rows")
        return path

    def run(self, *kinds: CheckpointKind, dies: bool = False, restarts: int = 0) -> int:
        """A run that takes these checkpoints. Returns how many files of the table it looks at."""
        attempts, before = Attempts(self.home), self.table.looks
        live = attempt(max(attempts.numbers(), default=0) + 1).model_copy(update={"incarnation": IncarnationId("first")})
        attempts.begin(live, known=attempts.numbers())
        status = SimpleNamespace(stages={STAGE: SimpleNamespace(restarts=restarts)})
        site: Any = SimpleNamespace(work=self.work, heartbeat=SimpleNamespace(status=status, blocked=lambda told: None))
        graph: Any = SimpleNamespace(checkpointing=CHECKPOINTING)
        none: Any = None
        run = RoundRun(graph, self.home, none, live, none, site, Publishers())
        run.subsumption.begin()
        for kind in kinds:
            self.number += 1
            self.log.append(staged(self.number - 1, self._write(self.number - 1, "staged").name))
            cut = a_stage_cut(self.number - 1, channel=a_channel(self.number - 1, first=BatchId(0)))
            manifest = a_manifest(self.number, checkpoint_kind=kind, attempt=live.attempt, stages={STAGE: cut})
            CheckpointStore(self.home).complete(manifest)
            if not dies:
                run.publish([self._stage()], manifest)
        return self.table.looks - before

    def _stage(self) -> StageRun:
        fakes: dict[str, Any] = {
            "stage": SimpleNamespace(name=STAGE, sink=None),
            "log": self.log,
            "file_prefix": PREFIX,
            "directory": self.table,
            "output": SimpleNamespace(consumers=[]),
            "outlet": SimpleNamespace(is_own=False),
        }
        return cast(StageRun, SimpleNamespace(**fakes))


@pytest.mark.parametrize("kind", [CheckpointKind.FINAL, CheckpointKind.STOP])
def test_after_a_clean_end_no_run_looks_through_its_tables(tmp_path: Path, kind: CheckpointKind) -> None:
    daily = Daily(tmp_path)
    looks = [daily.run(CheckpointKind.PERIODIC, kind) for _ in range(5)]
    assert looks[0] > 0, "nobody knows what was there before"
    assert looks[1:] == [0] * 4


def test_after_a_crash_what_it_has_left_goes_and_the_next_run_looks_no_more(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    daily.run(CheckpointKind.FINAL)
    left = daily.leave(ahead=1)
    assert daily.run(dies=True) == 0
    assert daily.run(CheckpointKind.FINAL) > 0
    assert not left.exists()
    assert daily.run(CheckpointKind.FINAL) == 0


def test_what_an_attempt_that_died_had_staged_after_the_first_checkpoint_of_the_next_goes_with_its_last(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    left = daily.leave(ahead=2)
    daily.run(CheckpointKind.PERIODIC, CheckpointKind.FINAL)
    assert not left.exists()


def test_a_run_that_dies_before_its_last_checkpoint_is_public_is_followed_by_one_that_looks(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    daily.run(CheckpointKind.FINAL)
    daily.run(CheckpointKind.FINAL, dies=True)
    assert daily.run(CheckpointKind.FINAL) > 0


def test_a_run_in_which_a_stage_has_failed_looks_through_its_tables_at_its_end(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    daily.run(CheckpointKind.FINAL)
    left = daily.leave(ahead=1)
    daily.run(CheckpointKind.FINAL, restarts=1)
    assert not left.exists()
