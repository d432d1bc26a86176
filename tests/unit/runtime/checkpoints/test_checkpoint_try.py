"""One try at a checkpoint: its entry in the history, and its deadline."""

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs import background
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.documents import CheckpointKind, PipelineDocument
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    FencedError,
    InterruptedRunError,
    NotFoundError,
    OutcomeUnknownError,
    RunCancelledError,
    StorageError,
    StorageFullError,
)
from spark_jobs.protocol.ids import (
    BatchId,
    CheckpointId,
    InputName,
    PipelineName,
    RequestId,
    RoundNumber,
    StageName,
)
from spark_jobs.protocol.losses import Loss, LostFile, LostFiles
from spark_jobs.protocol.masking import masking
from spark_jobs.protocol.pins import Pin
from spark_jobs.protocol.steps import observed_by
from spark_jobs.runtime.checkpoints import try_history
from spark_jobs.runtime.checkpoints.checkpoint_try import CheckpointTry, stages_behind
from spark_jobs.runtime.checkpoints.cut import Alignment, CheckpointOrder, Cut, Waiting, take_cut
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_bound import ChannelBound
from spark_jobs.runtime.staged.log_folding import Consumer
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.storage.files import Digest, Files
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.clocks import HOUR_S, ALongTimeOnce
from tests.support.left_behind import land_left_behind
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged
from tests.support.rounds import ROUND
from tests.support.staged_pipeline import PIPELINE, Overtaking
from tests.support.state_site import HOURLY, Site
from tests.support.state_stores import SparkCheckpoint
from tests.support.systems import QuickSystem

SECRET = "hunter-twelve"
SOON_S = 5.0


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def a_try(
    files: Files,
    find_cut: Callable[[], Cut],
    deadline_s: float = math.inf,
    pause: Callable[[], object] = lambda: None,
    check_pins: Callable[[], dict[InputName, tuple[Pin, ...]]] = dict,
) -> CheckpointTry:
    """A try at the first checkpoint, which a user has requested."""
    return CheckpointTry(
        files,
        PipelineDocument(name=PipelineName("p"), uuid=PIPELINE),
        attempt(1),
        ROUND,
        CheckpointOrder(CheckpointKind.PERIODIC, find_cut, RequestId("checkpoint-now"), deadline_s, pause),
        None,
        check_pins,
        masking([SECRET]),
    )


def test_a_failure_is_recorded_with_its_name_and_without_secrets(files: MemoryFiles) -> None:
    def find_cut() -> Cut:
        raise InterruptedRunError(f"Stage 'hourly' failed in batch 3: no login with {SECRET}", stage="hourly")

    with pytest.raises(InterruptedRunError):
        a_try(files, find_cut).take([])
    (tried,) = CheckpointStore(files).history()
    assert tried.failure is not None
    assert tried.failure.error == "InterruptedRunError"
    assert tried.failure.failed == "Stage 'hourly' failed in batch 3: no login with ***"
    assert (tried.aligned, [step.step for step in tried.steps]) == (None, [])
    assert not any(SECRET.encode() in data for data in files.contents.values())


def test_a_checkpoint_is_recorded_with_its_cut_and_its_request(files: MemoryFiles) -> None:
    manifest = a_try(files, lambda: Cut({}, aligned=False, alignment_s=1.25)).take([])
    (tried,) = CheckpointStore(files).history()
    assert (tried.aligned, tried.alignment_s, tried.failure) == (False, 1.25, None)
    assert [step.step for step in tried.steps] == ["cut", "persist", "actions", "complete"]
    assert (manifest.request, manifest.aligned) == ("checkpoint-now", False)


def test_a_try_that_cannot_read_a_table_fails_and_is_recorded(files: MemoryFiles) -> None:
    def check_pins() -> dict[InputName, tuple[Pin, ...]]:
        raise StorageError("The table is away.")

    with pytest.raises(StorageError):
        a_try(files, lambda: Cut({}, aligned=True, alignment_s=0.0), check_pins=check_pins).take([])
    (tried,) = CheckpointStore(files).history()
    assert tried.failure is not None
    assert (tried.checkpoint, tried.failure.failed) == (1, "The table is away.")


class WithoutHistory(MemoryFiles):
    """A home whose history cannot be written."""

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("history/"):
            raise StorageFullError("No space is left.")
        super().create(path, data)


def test_a_history_that_cannot_be_written_does_not_change_the_outcome_of_a_try() -> None:
    files = WithoutHistory()
    with pytest.raises(DeadlineExceededError):
        a_try(files, lambda: Cut({}, aligned=True, alignment_s=0.0), time.monotonic()).take([])
    assert a_try(files, lambda: Cut({}, aligned=True, alignment_s=0.0)).take([]).checkpoint == 1


def test_a_try_that_is_not_durable_in_time_fails(files: MemoryFiles) -> None:
    with pytest.raises(DeadlineExceededError, match="expired before completing: its files were not made durable in time"):
        a_try(files, lambda: Cut({}, aligned=True, alignment_s=0.0), time.monotonic()).take([])
    (tried,) = CheckpointStore(files).history()
    assert tried.failure is not None
    assert (CheckpointStore(files).taken(), tried.failure.error) == ([], "DeadlineExceededError")


@pytest.mark.parametrize("number", [1, 2])
def test_a_checkpoint_that_another_attempt_completes_meanwhile_fences_the_try(files: MemoryFiles, number: int) -> None:
    """A higher checkpoint also fences. The zombie's number may be free again if a later attempt has discarded that checkpoint."""
    with (
        observed_by(Overtaking(CheckpointStore(files), number)),
        pytest.raises(FencedError, match="Checkpoint 1 was completed by"),
    ):
        a_try(files, lambda: Cut({}, aligned=True, alignment_s=0.0)).take([])


class HangingFiles(LocalFiles):
    """A home in which one operation hangs until ``may_go_on`` is set."""

    def __init__(self, site: Site, hangs: str) -> None:
        super().__init__(site.root / "home", QuickSystem())
        self._hangs = hangs
        self.may_go_on, self.is_reached = threading.Event(), threading.Event()
        self.was_waited_for = False

    def link_or_copy(self, source: Path, path: str) -> None:
        self._reach("link_or_copy")
        super().link_or_copy(source, path)

    def digest(self, path: str) -> Digest:
        self._reach("digest")
        return super().digest(path)

    def sync(self, *paths: str) -> None:
        self._reach("sync")
        super().sync(*paths)

    def create(self, path: str, data: bytes) -> None:
        kind = next((kind for kind in ("history", "manifest") if kind in path), path.rpartition(".")[2])
        self._reach(f"create {kind}")
        super().create(path, data)

    def _reach(self, operation: str) -> None:
        if operation == self._hangs:
            self.is_reached.set()
            self.was_waited_for |= not self.may_go_on.wait(SOON_S)


def land(home: HangingFiles) -> None:
    """Lets the hanging operation finish."""
    home.may_go_on.set()
    land_left_behind()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.batches(1)
    return made


def without_spark(name: StageName, log: SparkLog, channel: PrivateLog, consumers: Sequence[Consumer] = ()) -> StageRun:
    """A stage with the parts that a try reads."""
    looked_at: dict[str, Any] = {
        "stage": SimpleNamespace(name=name, sink=None, unbounded=True),
        "output": StageOutput(name, channel, None, None, held=False, consumers=list(consumers)),
        "spark_log": log,
        "bounds": (),
        "ended": frozenset(),
        "undrained": (),
        "upstream": (),
    }
    required = [field.name for field in fields(StageRun) if field.default is field.default_factory is MISSING]
    parts: dict[str, Any] = dict.fromkeys(required) | looked_at
    return StageRun(**parts)


def hourly(site: Site) -> StageRun:
    """A stage without consumers."""
    return without_spark(HOURLY, site.log, site.channel)


def at_the_first_batch() -> Cut:
    return Cut({HOURLY: BatchId(0)}, aligned=True, alignment_s=0.0)


def test_the_manifest_names_failing_stages_and_the_stages_that_they_feed(site: Site) -> None:
    def stage(name: str, *producers: str) -> StageRun:
        outputs = [StageOutput(StageName(each), site.channel, None, None, held=False) for each in producers]
        return replace(without_spark(StageName(name), site.log, site.channel), upstream=outputs)

    stages = [stage("hourly"), stage("daily", "hourly"), stage("scored", "hourly"), stage("best", "daily", "scored")]
    assert stages_behind(stages, {StageName("scored")}) == ("scored", "best")
    assert stages_behind(stages, ()) == ()
    manifest = a_try(site.home, lambda: replace(at_the_first_batch(), failing=frozenset({HOURLY}))).take([hourly(site)])
    (tried,) = CheckpointStore(site.home).history()
    assert (manifest.aligned, manifest.behind, tried.behind) == (True, (HOURLY,), (HOURLY,))


@pytest.mark.parametrize("aligned", [True, False])
def test_the_manifest_names_stages_with_unread_rows_in_flight(site: Site, aligned: bool) -> None:
    """The alignment does not matter: only the batches that were read count."""
    daily = StageName("daily")
    behind = replace(
        without_spark(daily, SparkLog(site.home, "none"), site.channel),
        bounds=(ChannelBound(producer=HOURLY, log=site.channel, begins=NO_BATCH),),
        upstream=(hourly(site).output,),
    )
    cut = Cut({HOURLY: BatchId(0), daily: NO_BATCH}, aligned=aligned, alignment_s=0.0)
    manifest = a_try(site.home, lambda: cut).take([hourly(site), behind])
    (tried,) = CheckpointStore(site.home).history()
    assert (manifest.aligned, manifest.behind, tried.behind) == (aligned, (daily,), (daily,))
    assert tried.in_flight_rows == site.channel.amount_after(NO_BATCH).rows > 0


@pytest.mark.parametrize("before", [True, False])
def test_a_stage_that_ends_while_the_cut_is_found_is_not_finished_in_the_cut(site: Site, before: bool) -> None:
    """F5: the stage is cut at a batch that was committed when the rule looked. It may have committed later batches before it ended."""
    stage = hourly(site)

    def find_cut() -> Cut:
        stage.output.ended.set()
        return at_the_first_batch()

    if before:
        stage.output.ended.set()
    manifest = a_try(site.home, find_cut).take([stage])
    assert manifest.stages[HOURLY].finished is before


@pytest.mark.parametrize(("round_number", "counted"), [(1, {"positive": 7, "known": 1}), (2, {"positive": 5})])
def test_violations_are_counted_from_the_beginning_of_the_round(site: Site, round_number: int, counted: dict[str, int]) -> None:
    """The last checkpoint of a run counts the violations of the whole run, and none of the previous round."""
    for violations in ({"positive": 2, "known": 1}, {"positive": 5}):
        batch = site.checkpoint.batch()
        offsets = site.log.offsets_text(BatchId(batch))
        site.channel.append(replace(staged(batch, f"{batch}.parquet", offsets=offsets), violations=violations))
    cuts = [Cut({HOURLY: BatchId(batch)}, aligned=True, alignment_s=0.0) for batch in (1, 2)]
    first = a_try(site.home, lambda: cuts[0])
    parent = first.take([hourly(site)])
    second = replace(
        first,
        round=ROUND.model_copy(update={"round": RoundNumber(round_number)}),
        order=replace(first.order, find_cut=lambda: cuts[1]),
        parent=parent,
    )
    assert parent.stages[HOURLY].violations == {"positive": 2, "known": 1}
    assert second.take([hourly(site)]).stages[HOURLY].violations == counted
    assert [tried.violations for tried in CheckpointStore(site.home).history()] == [
        {HOURLY: {"positive": 2, "known": 1}},
        {HOURLY: counted},
    ]


@pytest.mark.parametrize("hangs", ["link_or_copy", "digest", "sync", "create channel"])
def test_a_try_that_hangs_expires_and_its_late_writes_do_not_affect_the_next_try(site: Site, hangs: str) -> None:
    home = HangingFiles(site, hangs)
    with pytest.raises(DeadlineExceededError, match="not made durable in time"):
        a_try(home, at_the_first_batch, time.monotonic() + 0.1).take([hourly(site)])
    assert not home.was_waited_for
    manifest = a_try(site.home, at_the_first_batch).take([hourly(site)])
    land(home)
    assert (manifest.checkpoint, CheckpointStore(site.home).taken()) == (1, [1])
    kept = manifest.stages[HOURLY].files
    assert [file.path for file in kept] == [file.path for file in site.complete(0, checkpoint=2).stages[HOURLY].files]
    assert all(site.home.digest(file.stored) == (file.size_bytes, file.sha256) for file in kept)


@pytest.mark.parametrize("lands_before_the_next_try", [True, False])
def test_a_manifest_whose_write_hangs_may_appear_later_and_its_number_counts_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, lands_before_the_next_try: bool
) -> None:
    home = HangingFiles(site, "create manifest")
    with monkeypatch.context() as patch:
        patch.setattr(background, "time", ALongTimeOnce(home.is_reached))
        with pytest.raises(OutcomeUnknownError, match="expired while its manifest was created: .* Checkpoint 1 may be complete"):
            a_try(home, at_the_first_batch, time.monotonic() + HOUR_S).take([hourly(site)])
    assert not home.was_waited_for
    assert CheckpointStore(site.home).taken() == []
    if lands_before_the_next_try:
        land(home)
        late = CheckpointStore(site.home).manifest(CheckpointId(1))
        with pytest.raises(FencedError, match="Checkpoint 1 was completed by another attempt"):
            a_try(site.home, at_the_first_batch).take([hourly(site)])
        assert CheckpointStore(site.home).manifest(CheckpointId(1)) == late
    else:
        manifest = a_try(site.home, at_the_first_batch).take([hourly(site)])
        land(home)
        assert CheckpointStore(site.home).manifest(CheckpointId(1)) == manifest
    assert CheckpointStore(site.home).taken() == [1]


def test_a_complete_checkpoint_does_not_wait_for_its_history(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_history, "_TIMEOUT_S", 0.1)
    home = HangingFiles(site, "create history")
    assert a_try(home, at_the_first_batch).take([hourly(site)]).checkpoint == 1
    assert not home.was_waited_for
    land(home)


@pytest.mark.parametrize("hangs", ["link_or_copy", "digest", "sync", "create channel"])
def test_a_cancel_ends_a_try_that_hangs(site: Site, hangs: str) -> None:
    home, looks = HangingFiles(site, hangs), list[int]()

    def cancelled() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise RunCancelledError("Attempt 1 was cancelled.")

    with pytest.raises(RunCancelledError):
        a_try(home, at_the_first_batch, pause=cancelled).take([hourly(site)])
    home.may_go_on.set()
    assert CheckpointStore(site.home).taken() == []


class GoingOn:
    """A stage whose next batch arrives at the gate when the stage is held, and enters when the gate opens."""

    name, ends, waits_for_none = HOURLY, False, True

    def __init__(self, site: Site) -> None:
        self._site, self._gate = site, Gate()
        self._thread = threading.Thread(target=self._batch, daemon=True)

    def _batch(self) -> None:
        with self._gate.batch():
            self._site.batches(1)

    def committed(self) -> BatchId:
        return self._site.log.last_commit()

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        return {}

    def has_consumed(self, producers: Collection[StageName]) -> bool:
        return True

    def in_flight_bytes(self, producers: Collection[StageName]) -> int:
        return 0

    def hold(self) -> None:
        self._gate.close()
        if not self._thread.is_alive():
            self._thread.start()

    def release(self) -> None:
        self._gate.open()

    def is_at_rest(self) -> bool:
        return self._gate.is_empty() and self._gate.is_waiting()

    def is_failing(self) -> bool:
        return False

    def failing_with(self) -> None:
        return None

    def goes_on(self) -> bool:
        """Waits for the batch and returns whether it is committed."""
        self._thread.join(SOON_S)
        return self.committed() == 1


class FilesOfARunningStage(LocalFiles):
    """A home that links files and computes digests only after the stage has committed its next batch."""

    def __init__(self, site: Site, stage: GoingOn) -> None:
        super().__init__(site.root / "home", QuickSystem())
        self._stage = stage

    def link_or_copy(self, source: Path, path: str) -> None:
        assert self._stage.goes_on()
        super().link_or_copy(source, path)

    def digest(self, path: str) -> Digest:
        assert self._stage.goes_on()
        return super().digest(path)


def test_the_files_of_a_checkpoint_are_copied_while_the_stages_run_on(site: Site) -> None:
    stage = GoingOn(site)

    def find_cut() -> Cut:
        return take_cut([stage], Alignment(), Waiting(time.monotonic() + SOON_S, time.monotonic, lambda: time.sleep(0.01)))

    manifest = a_try(FilesOfARunningStage(site, stage), find_cut).take([hourly(site)])
    assert (manifest.aligned, manifest.stages[HOURLY].batch, stage.committed()) == (True, 0, 1)


def test_losses_that_are_recorded_while_the_cut_is_found_are_in_the_manifest(site: Site) -> None:
    loss = LostFiles(input=InputName("events"), stage=HOURLY, files=(LostFile(path="a"),))
    effort = a_try(site.home, lambda: Cut({HOURLY: BatchId(0)}, aligned=True, alignment_s=0.0))
    effort.losses = losses = list[Loss]()
    find_cut = effort.order.find_cut

    def passes_something_over() -> Cut:
        losses.append(loss)
        return find_cut()

    effort.order = replace(effort.order, find_cut=passes_something_over)
    assert effort.take([hourly(site)]).losses == (loss,)


class PurgedMeanwhile(LocalFiles):
    """A home that is so slow that Spark purges the cut from its logs."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.root / "home", QuickSystem())
        self._work = site.root / "home/work/w"

    def digest(self, path: str) -> Digest:
        for log in ("offsets", "commits"):
            for entry in self._work.glob(f"stages/*/checkpoint/{log}/*"):
                entry.unlink(missing_ok=True)
        return super().digest(path)


def test_a_checkpoint_whose_batches_spark_purges_while_it_is_made_durable_still_completes(site: Site) -> None:
    site.batches(6)
    daily, source = StageName("daily"), '{"reservoirVersion":%d,"index":-1}'
    consumer = SparkCheckpoint(site.root / "home/work/w/stages/daily/checkpoint", source=source)
    for _ in range(5):
        consumer.batch()
    log = SparkLog(site.work, "stages/daily/checkpoint")
    stages = [
        without_spark(HOURLY, site.log, site.channel, [Consumer(log, 0)]),
        without_spark(daily, log, begun(site.work, "stages/daily/log")),
    ]

    def find_cut() -> Cut:
        return Cut({HOURLY: BatchId(5), daily: BatchId(4)}, aligned=False, alignment_s=0.0)

    entries = {
        name: {each: site.work.read(f"stages/{name}/checkpoint/{each}/{last}") for each in ("offsets", "commits")}
        for name, last in ((HOURLY, 5), (daily, 4))
    }
    manifest = a_try(PurgedMeanwhile(site), find_cut).take(stages)
    assert not site.work.names("stages/daily/checkpoint/offsets")
    for name, entry in entries.items():
        found = manifest.stages[name]
        assert (found.offsets_sha256, found.commits_sha256) == (sha256(entry["offsets"]), sha256(entry["commits"]))
    channel = manifest.stages[HOURLY].channel
    assert channel is not None
    assert (channel.first, channel.last) == (1, 5), "the consumer plans again from version 3 on"
    assert channel.in_flight_rows == 2 * 3, "it has read all before version 4"
    assert manifest.stages[HOURLY].rows == 2 * 6


DAILY, KEPT = StageName("daily"), 100
"""The number of batches whose plans Spark keeps."""


class Purging:
    """A stage that an unaligned cut waits for, and its consumer.

    The stage has staged a batch, which the consumer has read, and never commits it.
    The consumer continues until Spark purges the batch at which it was cut.
    """

    def __init__(self, site: Site) -> None:
        root = site.root / "home/work/w/stages/daily/checkpoint"
        self._site, self.consumer = site, SparkCheckpoint(root, source='{"reservoirVersion":3,"index":-1}')
        self.log = SparkLog(site.work, "stages/daily/checkpoint")
        site.channel.append(staged(site.checkpoint.batch(commits=False), "1.parquet"))
        self.consumer.batch()
        self.stages = [
            without_spark(HOURLY, site.log, site.channel, [Consumer(self.log, 0)]),
            without_spark(DAILY, self.log, begun(site.work, "stages/daily/log")),
        ]

    def find_cut(self) -> Cut:
        waiting = Waiting(time.monotonic() + SOON_S, time.monotonic, self._wait)
        stages: Any = [self._cuttable(HOURLY, self._site.log, {}), self._cuttable(DAILY, self.log, {HOURLY: BatchId(1)})]
        return take_cut(stages, Alignment(False), waiting)

    def _cuttable(self, name: StageName, log: SparkLog, consumed: Mapping[StageName, BatchId]) -> SimpleNamespace:
        return SimpleNamespace(
            name=name,
            committed=log.last_commit,
            consumed_by=lambda batch: consumed,
            is_failing=lambda: False,
            failing_with=lambda: None,
            release=lambda: None,
        )

    def _wait(self) -> None:
        for _ in range(KEPT + 1):
            purged = self.consumer.batch() - KEPT
            for log in ("offsets", "commits"):
                (self.consumer.root / f"{log}/{purged}").unlink(missing_ok=True)
        self._site.checkpoint.commit(1)


def test_stages_are_cut_again_if_spark_purges_the_batch_of_one_while_the_cut_waits_for_another(site: Site) -> None:
    purging = Purging(site)
    manifest = a_try(site.home, purging.find_cut).take(purging.stages)
    assert (manifest.stages[HOURLY].batch, manifest.stages[DAILY].batch) == (1, KEPT + 1)
    (tried,) = CheckpointStore(site.home).history()
    assert (tried.failure, [step.step for step in tried.steps]) == (None, ["cut", "persist", "actions", "complete"])


def test_a_try_whose_cuts_spark_purges_again_and_again_expires(site: Site) -> None:
    purging = Purging(site)

    def find_cut() -> Cut:
        return Cut({HOURLY: BatchId(0), DAILY: BatchId(purging.consumer.batch() + KEPT)}, aligned=False, alignment_s=0.0)

    with pytest.raises(DeadlineExceededError):
        a_try(site.home, find_cut, time.monotonic() + 0.2).take(purging.stages)


def test_a_batch_of_an_idle_stage_that_is_missing_in_sparks_logs_fails_the_try_at_once(site: Site) -> None:
    gone = Cut({HOURLY: BatchId(7)}, aligned=True, alignment_s=0.0)
    with pytest.raises(NotFoundError):
        a_try(site.home, lambda: gone, time.monotonic() + SOON_S).take([hourly(site)])
