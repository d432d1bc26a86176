"""An attempt's work on a bounded stage, and on the files that earlier attempts left in its tables."""

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.api.tolerance import Tolerance
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import CheckpointKind, Manifest, OnEnd, Publish, ToleratedRows
from spark_jobs.protocol.errors import FencedError, RestartsExhaustedError, StorageError
from spark_jobs.protocol.ids import (
    AttemptNumber,
    BatchId,
    CheckpointId,
    IncarnationId,
    InputName,
    LossId,
    RoundNumber,
    RunId,
    SinkName,
    StageName,
    WorkDirectoryId,
)
from spark_jobs.protocol.losses import PassedOver, Records, StagedFile, units_of
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.checkpoints.checkpoint_try import CheckpointTry
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_bound import ChannelBound
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.documents import SAMPLES
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged
from tests.support.staged_pipeline import CHECKPOINTING, a_channel, a_manifest, a_sink_cut, a_stage_cut

PREFIX = "0123456789abcdef-"
STAGE, LAST = StageName("history"), BatchId(3)
CUT = a_stage_cut(LAST, finished=True, drained=True, drain_batches=1)
FINISHED = a_manifest(round=RoundNumber(1), stages={STAGE: CUT})


class Attempt:
    """An attempt that continues from a checkpoint with one stage. Its queries are recorded and end immediately."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, parent: Manifest | None) -> None:
        self.done: list[str] = []
        self.stage = SimpleNamespace(
            stage=SimpleNamespace(name=STAGE, reads_tables=False),
            spark_log=SimpleNamespace(last_commit=lambda: LAST, pending=lambda: False),
            output=SimpleNamespace(ended=SimpleNamespace(set=self._does("ended"))),
            run_to_end=self._does("run"),
            leave_release_to_drain=lambda: None,
            compute_table=self._does("computed"),
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


def test_a_stage_that_is_finished_in_the_checkpoint_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_every_other_stage_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: Manifest | None) -> None:
    assert Attempt(tmp_path, monkeypatch, parent).to_its_end() == ["run", "drained", "ended"]


def test_each_attempt_computes_the_table_of_a_stage_that_reads_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path, monkeypatch, FINISHED)
    attempt.stage.stage.reads_tables = True
    monkeypatch.setattr(RoundRun, "build_again", lambda run, earlier: earlier)
    assert attempt.to_its_end() == ["computed", "drained", "ended"]
    attempt._run.flush(cast(StageRun, attempt.stage))
    assert attempt.done[-1] == "computed", "after a drain has flushed the stages that it reads"


def test_a_batch_that_an_earlier_attempt_has_begun_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path, monkeypatch, FINISHED)
    attempt.stage.spark_log.pending = lambda: True
    assert attempt.to_its_end() == ["run", "drained", "ended"]


class Table(LocalFiles):
    """The directory of a public table, which counts the listed files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self.looks = path, 0
        path.mkdir()

    def paths(self, directory: str = "") -> list[str]:
        found = super().paths(directory)
        self.looks += len(found)
        return found


class Daily:
    """A pipeline that runs once a day. Each run stages a file for its table and ends with a checkpoint."""

    def __init__(self, root: Path) -> None:
        self.home, self.table, self.number = LocalFiles(root / "home"), Table(root / "table"), 0
        self.work = self.home.below("work/1")
        self.log = begun(self.work, "stages/history/log")

    def leave(self, *, ahead: int) -> Path:
        """Writes a file that no log names, of a batch this far after the last one."""
        return self._write(self.number - 1 + ahead, "left")

    def _write(self, batch: int, name: str) -> Path:
        path = self.table.path / f"{PREFIX}{batch}-{name}.parquet"
        path.write_bytes(b"rows")
        return path

    def run(self, *kinds: CheckpointKind, dies: bool = False, restarts: int = 0) -> int:
        """Runs and takes these checkpoints. Returns the number of the table's files that were listed."""
        attempts, before = Attempts(self.home), self.table.looks
        live = attempt(max(attempts.numbers(), default=0) + 1).model_copy(update={"incarnation": IncarnationId("first")})
        attempts.begin(live, known=attempts.numbers())
        status = SimpleNamespace(stages={STAGE: SimpleNamespace(restarts=restarts)})
        site: Any = SimpleNamespace(
            work=self.work, losses=[], heartbeat=SimpleNamespace(status=status, blocked=lambda told: None)
        )
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


def test_a_publication_that_the_attempt_has_not_noticed_deletes_no_checkpoint(tmp_path: Path) -> None:
    cuts = {
        SinkName(each.value): a_sink_cut(each.value, publish=each, known_published=CheckpointId(3))
        for each in (Publish.EVERY_CHECKPOINT, Publish.FINAL)
    }
    site: Any = SimpleNamespace(work=LocalFiles(tmp_path), heartbeat=SimpleNamespace(status=SimpleNamespace(stages={})))
    none: Any = None
    run = RoundRun(none, LocalFiles(tmp_path), none, none, none, site, Publishers())
    seen: list[object] = []
    cast(Any, run).subsumption = SimpleNamespace(after=lambda manifest, stages, known, *_: seen.append(known))
    run.subsume([], a_manifest(4, sinks=cuts), {})
    run.subsume([], a_manifest(4, sinks=cuts), {SinkName("every_checkpoint"): CheckpointId(2)})
    assert seen == [{"every_checkpoint": None, "final": 3}, {"every_checkpoint": 2, "final": 3}]


def test_the_heartbeat_counts_completed_checkpoints_and_failed_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, none = LocalFiles(tmp_path), cast(Any, None)
    heartbeat = Heartbeat(home, AttemptNumber(1), RunId("monday"), [], None)
    site: Any = SimpleNamespace(heartbeat=heartbeat, sources={}, losses=[])
    run = RoundRun(none, home, none, none, none, site, Publishers())
    away = StorageError("The disk is away.")
    given: list[Manifest | Exception] = [a_manifest(1), away, a_manifest(2), away]
    outcomes = iter(given)

    def take(*_: object) -> Manifest:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(CheckpointTry, "take", take)
    for fails in (False, True, False, True):
        with pytest.raises(StorageError) if fails else nullcontext():
            run.complete(none, [], None)
    found = heartbeat.status
    assert (found.checkpoint, found.completed_checkpoints, found.failed_checkpoints) == (2, 2, 2)


@pytest.mark.parametrize("kind", [CheckpointKind.FINAL, CheckpointKind.STOP])
def test_no_run_sweeps_its_tables_after_a_clean_end(tmp_path: Path, kind: CheckpointKind) -> None:
    daily = Daily(tmp_path)
    looks = [daily.run(CheckpointKind.PERIODIC, kind) for _ in range(5)]
    assert looks[0] > 0, "nobody knows what was there before"
    assert looks[1:] == [0] * 4


def test_files_that_a_crash_has_left_are_swept_once(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    daily.run(CheckpointKind.FINAL)
    left = daily.leave(ahead=1)
    assert daily.run(dies=True) == 0
    assert daily.run(CheckpointKind.FINAL) > 0
    assert not left.exists()
    assert daily.run(CheckpointKind.FINAL) == 0


def test_files_of_a_dead_attempt_are_swept_with_the_last_checkpoint_of_the_next_attempt(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    left = daily.leave(ahead=2)
    daily.run(CheckpointKind.PERIODIC, CheckpointKind.FINAL)
    assert not left.exists()


def test_the_run_after_one_that_died_before_its_last_publication_sweeps_its_tables(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    daily.run(CheckpointKind.FINAL)
    daily.run(CheckpointKind.FINAL, dies=True)
    assert daily.run(CheckpointKind.FINAL) > 0


def test_a_run_with_a_failed_stage_sweeps_its_tables_at_its_end(tmp_path: Path) -> None:
    daily = Daily(tmp_path)
    daily.run(CheckpointKind.FINAL)
    left = daily.leave(ahead=1)
    daily.run(CheckpointKind.FINAL, restarts=1)
    assert not left.exists()


def loss_of(file: str, batch: int = 3, rows: int = 9) -> PassedOver:
    """Returns the loss of a file that the stage before has staged."""
    whose = {"input": InputName("copy"), "stage": STAGE}
    unit = StagedFile(batch=BatchId(batch), file=file, size_bytes=9)
    return PassedOver(**whose, unit=unit, rows=rows, error="a secret", tries=3)


class Tolerant:
    """An attempt with a stage that may pass over 20 rows per hour of its channel. The channel has batches 0 to 4 with a file each.

    Args:
        home: The home.
        work: The work directory.
        read: The number of these batches that the stage has planned to read.
    """

    def __init__(self, home: LocalFiles, work: str = "w", read: int = 5) -> None:
        self.ledger, attempts = LossLedger(home), Attempts(home)
        live = attempt(max(attempts.numbers(), default=0) + 1)
        directory = live.work_directory.model_copy(update={"id": WorkDirectoryId(work)})
        self.live = live.model_copy(update={"work_directory": directory})
        attempts.begin(self.live, known=attempts.numbers())
        memory = MemoryFiles()
        channel = begun(memory, "copy")
        for batch in range(5):
            channel.append(staged(batch, f"{batch}.parquet"))
        line = json.dumps({"reservoirVersion": read + 1, "index": -1})
        memory.create("reads/offsets/0", "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), line]).encode())
        bounds = [ChannelBound(StageName("copy"), channel, NO_BATCH)]
        fakes = {"stage": SimpleNamespace(name=STAGE), "spark_log": SparkLog(memory, "reads"), "bounds": bounds}
        self._stages = [cast(StageRun, SimpleNamespace(**fakes))]
        first: Any = cast(Any, SimpleNamespace(round=RoundNumber(1), losses=(), undoes=()))
        self.heartbeat = Heartbeat(home, self.live.attempt, self.live.run, [STAGE], None)
        self.site = cast(Any, SimpleNamespace(losses=list(self.ledger.of_round(first.round)), heartbeat=self.heartbeat))
        none: Any = None
        self.run = RoundRun(none, home, none, self.live, first, self.site, none, mask=lambda text: text.replace("secret", "***"))
        self.run.left_out = Rounds(home).left_out(first)
        self.run.outputs[StageName("copy")] = cast(Any, SimpleNamespace(log=channel, producer=StageName("copy")))
        stage: Any = SimpleNamespace(name=STAGE, tolerance=Tolerance(after=3, rows=20, interval_ms=3_600_000))
        passing_over = self.run.passing_over(stage, threading.Event())
        assert passing_over is not None
        self._passing_over = passing_over

    def passes_over(self, file: str, batch: int = 3, rows: int = 9) -> None:
        self.record(loss_of(file, batch, rows))

    def record(self, loss: PassedOver) -> None:
        self._passing_over.record(loss)

    def reads_up_to(self, *streams: Any) -> None:
        cast(Any, self._stages[0]).read_up_to = lambda last: streams

    def begins(self, parent: Manifest | None = None, *backfilled: str) -> None:
        """Begins the attempt after a checkpoint, with a work directory in which the stage has staged the rows of losses since."""
        stage: Any = self._stages[0]
        stage.log = begun(MemoryFiles(), "stage")
        batches = [staged(0), replace(staged(1), backfilled=tuple(map(LossId, backfilled)))]
        for batch in batches:
            stage.log.append(batch)
        self.run.parent = parent
        self.run._leave_out_again(self._stages)
        self.run._find_backfilled(self._stages)
        self.run._read_again(self._stages)

    @property
    def left_out(self) -> list[str]:
        return [unit.file for unit in units_of(self.site.losses) if isinstance(unit, StagedFile)]


@pytest.fixture
def home(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


def test_a_passed_over_file_is_in_the_ledger_without_secrets_and_stays_left_out(home: LocalFiles) -> None:
    tolerant = Tolerant(home)
    tolerant.passes_over("a")
    tolerant.passes_over("a")
    (entry,) = tolerant.ledger.entries()
    assert (tolerant.left_out, tolerant.site.losses) == (["a"], [entry.recorded.loss])
    assert isinstance(entry.recorded.loss, PassedOver)
    assert tolerant.heartbeat.status.stages[STAGE].tolerates == ToleratedRows(rows=20, interval_ms=3_600_000)
    assert entry.recorded.loss.error == "a ***"


def test_no_file_is_passed_over_beyond_the_tolerance_of_a_stage_also_in_a_later_attempt(home: LocalFiles) -> None:
    Tolerant(home).passes_over("a", rows=15)
    tolerant = Tolerant(home)
    with pytest.raises(RestartsExhaustedError, match="20 rows in 3600 s. It has passed over 15, and fails with another 6"):
        tolerant.passes_over("b", rows=6)
    assert tolerant.left_out == ["a"]
    tolerant.passes_over("c", rows=5)
    assert tolerant.left_out == ["a", "c"]


def test_a_fenced_attempt_passes_no_file_over(home: LocalFiles) -> None:
    before = Tolerant(home)
    Tolerant(home)
    with pytest.raises(FencedError):
        before.passes_over("a")
    assert before.ledger.entries() == []


class DyingAt:
    """An observer that fails before or after a loss is in the ledger."""

    def __init__(self, *, before: bool) -> None:
        self._before = before

    def before(self, step: Step) -> None:
        if self._before and step is Step.LOSS_RECORD:
            raise KeyboardInterrupt

    def after(self, step: Step) -> None:
        if step is Step.LOSS_RECORD:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("before", "left_out"), [(True, []), (False, ["a"])])
def test_the_next_attempt_after_a_death_leaves_out_the_losses_in_the_ledger(
    home: LocalFiles, before: bool, left_out: list[str]
) -> None:
    with observed_by(DyingAt(before=before)), pytest.raises(KeyboardInterrupt):
        Tolerant(home).passes_over("a")
    tolerant = Tolerant(home)
    assert tolerant.left_out == left_out
    tolerant.passes_over("a")
    assert tolerant.left_out == ["a"]
    assert len(tolerant.ledger.entries()) == 1


def test_losses_of_a_batch_that_is_computed_again_are_undone_and_other_losses_stay_left_out(
    home: LocalFiles,
) -> None:
    """The attempt continues from a checkpoint before batch 5. Its channel ends with batch 4."""
    before = Tolerant(home)
    before.passes_over("a", batch=4)
    before.passes_over("b", batch=5)
    tolerant = Tolerant(home)
    tolerant.begins()
    assert tolerant.left_out == ["a"]
    assert [entry.state.value for entry in tolerant.ledger.entries()] == ["open", "undone"]
    tolerant.passes_over("b again", batch=5, rows=11)
    assert tolerant.left_out == Tolerant(home).left_out == ["a", "b again"], "what is undone does not count"


@pytest.mark.parametrize(("file", "read"), [("3.parquet", 3), ("3.parquet", 4), ("another.parquet", 3)])
def test_a_loss_of_another_work_directory_is_undone(home: LocalFiles, file: str, read: int) -> None:
    """An attempt that is no longer live may record a loss late: in a batch that exists again, or that was read completely."""
    Tolerant(home, "elsewhere").passes_over(file, batch=3)
    tolerant = Tolerant(home, read=read)
    tolerant.begins()
    assert tolerant.left_out == []


def test_a_loss_that_a_fenced_attempt_records_late_does_not_keep_the_live_one_from_recording_its_own(home: LocalFiles) -> None:
    fenced, tolerant = Tolerant(home, "elsewhere"), Tolerant(home)
    tolerant.begins()
    fenced.ledger.record(RoundNumber(1), fenced.run.attempt, [loss_of("3.parquet")])
    tolerant.passes_over("3.parquet")
    assert tolerant.left_out == ["3.parquet"]
    assert [entry.state.value for entry in tolerant.ledger.entries()] == ["undone", "open"]
    again = Tolerant(home)
    again.begins()
    assert again.left_out == ["3.parquet"]


def after(*, batch: int = 0, **given: Any) -> Any:
    """Returns a checkpoint with the stage's batches up to ``batch``."""
    cut = SimpleNamespace(batch=BatchId(batch))
    return SimpleNamespace(**({"losses": (), "backfilled": (), "stages": {STAGE: cut}, "round": RoundNumber(1)} | given))


def test_losses_whose_rows_are_in_a_checkpoint_or_a_later_batch_are_backfilled_and_keep_no_file(home: LocalFiles) -> None:
    before = Tolerant(home, "elsewhere")
    for file in ("1.parquet", "2.parquet", "3.parquet"):
        before.passes_over(file, batch=1, rows=1)
    tolerant = Tolerant(home)
    lost = tuple(before.site.losses)
    tolerant.begins(after(losses=lost[1:], backfilled=("1-1",)), "1-2")
    assert tolerant.run.backfilled == {"1-1", "1-2"}
    assert tolerant.left_out == ["1.parquet", "2.parquet", "3.parquet"], "a batch that is computed again has the same rows"
    assert tolerant.run._needed_files() == {"3.parquet"}
    again = Tolerant(home)
    again.begins(after(batch=1, losses=lost), "1-2")
    assert again.run.backfilled == set(), "a checkpoint that has the batch has the loss"


@pytest.mark.parametrize(("read", "left_out"), [(4, ["3.parquet"]), (3, [])])
def test_a_loss_that_another_attempt_has_undone_is_open_again_if_the_checkpoint_left_it_out(
    home: LocalFiles, read: int, left_out: list[str]
) -> None:
    """Two drivers race: one completes a checkpoint with the loss, and the other one has gone on from the checkpoint before it."""
    before = Tolerant(home, "elsewhere")
    before.passes_over("3.parquet", batch=3)
    lost = tuple(before.site.losses)
    before.ledger.undo([LossId("1-1")], RoundNumber(1))
    tolerant = Tolerant(home, read=read)
    tolerant.begins(after(losses=lost))
    assert tolerant.left_out == Tolerant(home).left_out == left_out
    assert [entry.state.value for entry in before.ledger.entries()] == ["open" if left_out else "undone"]


def test_a_loss_of_a_round_that_had_ended_before_the_checkpoint_is_not_undone(home: LocalFiles) -> None:
    Tolerant(home, "elsewhere").passes_over("3.parquet", batch=3)
    tolerant = Tolerant(home)
    tolerant.begins(after(round=RoundNumber(2)))
    assert tolerant.left_out == ["3.parquet"]


def test_a_backfilled_loss_is_open_again_if_an_attempt_restores_an_earlier_checkpoint(home: LocalFiles) -> None:
    before = Tolerant(home)
    before.passes_over("1.parquet", batch=1)
    (manifest,) = (sample for sample in SAMPLES if isinstance(sample, Manifest))
    before.ledger.backfill(manifest.model_copy(update={"backfilled": (LossId("1-1"),)}))
    for kept in (("1-1",), ()):
        Tolerant(home).begins(after(losses=tuple(before.site.losses), backfilled=kept))
        assert [entry.state.value for entry in before.ledger.entries()] == ["backfilled" if kept else "open"]


def test_losses_in_the_checkpoint_and_in_the_work_directory_are_left_out_again(home: LocalFiles) -> None:
    before = Tolerant(home, "elsewhere")
    before.passes_over("2.parquet", batch=2)
    Tolerant(home).passes_over("3.parquet", batch=3)
    tolerant = Tolerant(home)
    tolerant.begins(after(losses=tuple(before.site.losses)))
    assert tolerant.left_out == ["2.parquet", "3.parquet"]


@pytest.mark.parametrize("has_read", [False, True])
def test_a_loss_of_a_source_in_another_work_directory_is_undone(home: LocalFiles, has_read: bool) -> None:
    offset = Records(topic="clicks", partition=0, first=5, end=6)
    whose = {"input": InputName("clicks"), "stage": STAGE}
    Tolerant(home, "elsewhere").record(PassedOver(**whose, unit=offset, rows=1, error="it fails", tries=3))
    tolerant = Tolerant(home)
    read: Any = SimpleNamespace(name="clicks", kind=SimpleNamespace(has_read=lambda read, unit: has_read))
    stream = SimpleNamespace(read=read, kind=read.kind)
    tolerant.reads_up_to(stream)
    tolerant.begins()
    assert tolerant.site.losses == []


def test_counting_ahead_ends_before_the_first_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none, order = cast(Any, None), list[str]()
    staged = SimpleNamespace(stage=SimpleNamespace(name=STAGE), output=None)

    def replay(run: object, _: object) -> object:
        order.append("replays")
        return run

    replaced: dict[str, Any] = {
        "replay": replay,
        "keep_pinned_versions": lambda *_: {},
        "replace": lambda site, **_: site,
        "build_stage": lambda *_, **__: staged,
        "adopt_offsets": lambda *_: order.append("adopts"),
        "leave_out_lost": lambda stages, *_: stages,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(f"spark_jobs.runtime.round_run.{name}", function)
    for name in ("_leave_out_again", "_read_again", "_find_backfilled", "_renewed"):
        monkeypatch.setattr(RoundRun, name, lambda *_: ())
    monkeypatch.setattr(RoundRun, "_built_again", lambda _, stages, names: stages)
    monkeypatch.setattr(RoundRun, "_backfill", lambda _, stages: stages)
    graph: Any = SimpleNamespace(stages={STAGE: SimpleNamespace(name=STAGE)}, skips_what_is_gone=())
    run = RoundRun(graph, LocalFiles(tmp_path), none, none, none, none, Publishers(), before_queries=lambda: order.append("ends"))
    run.parent = None
    assert run.build() == [staged]
    assert order == ["adopts", "ends", "replays"]
