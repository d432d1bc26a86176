"""Old checkpoints are deleted while a private log still contains their batches.

The newest checkpoint lists the staged files that they named.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.checkpoint import carried as module
from spark_jobs.checkpoint.carried import named_before
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import CarriedActions, CheckpointKind, Manifest, Publish, SinkCut
from spark_jobs.protocol.ids import AppId, AttemptNumber, BatchId, CheckpointId, IncarnationId, SinkName, StageName
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.runtime.checkpoints.subsume import Subsumption
from spark_jobs.runtime.staged.channel_cut import cut_channel, rebuild_log
from spark_jobs.runtime.staged.log_folding import ConsumerCut
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.private_logs import begun, staged
from tests.support.staged_pipeline import a_manifest, a_stage_cut
from tests.support.systems import QuickSystem, quick

PREFIX, COPIED, SINK = "0123456789abcdef-", StageName("copied"), SinkName("copied")
PAST_ALL = 2**62


class CountingSystem(QuickSystem):
    """A file system that counts the opened documents of checkpoints."""

    opened = 0

    def open_file(self, path: str, root: str) -> int:
        self.opened += any(f"/{kind}/" in path for kind in ("manifests", "checkpoints", "state"))
        return super().open_file(path, root)


@dataclass
class Copied:
    """A stage whose checkpoints are published immediately, and whose consumer has not begun."""

    root: Path
    packs: bool = True
    retained: int = 1
    batches: int = 2
    """The number of batches for each checkpoint."""
    system: CountingSystem = field(default_factory=CountingSystem)
    home: LocalFiles = field(init=False)
    subsumption: Subsumption = field(init=False)
    log: PrivateLog = field(init=False)
    table: Path = field(init=False)
    reads_from: int = 0
    """The version of the private log that the consumer reads next."""
    number: int = 1
    """The number of the attempt."""
    public: set[str] = field(default_factory=set)
    """The files that readers of the table need."""

    def __post_init__(self) -> None:
        self.home, self.table = LocalFiles(self.root / "home", self.system), self.root / "table"
        self.table.mkdir()
        self.log = begun(self.home, "work/1/stages/copied/log")
        self._begin()

    def begins_anew(self, log: PrivateLog | None = None) -> None:
        """Starts another attempt, with the existing private log or with a rebuilt one."""
        self.number, self.log = self.number + 1, log or self.log
        self._begin()

    def stage(self, batch: int, *, dies: bool = False) -> Path:
        path = self.table / f"{PREFIX}{batch}-{'left' if dies else 'staged'}.parquet"
        path.write_bytes(b"rows")
        if not dies:
            self.log.append(staged(batch, path.name))
        return path

    def complete(self) -> Manifest:
        """Stages two batches, completes and publishes the next checkpoint, and deletes the files that are no longer needed."""
        head = self.store.head()
        number = CheckpointId(head.checkpoint + 1 if head else 1)
        batches = range(self.batches * (number - 1), self.batches * number)
        originals = [self.stage(batch) for batch in batches]
        if self.packs:
            packed = self.table / f"{PREFIX}{batches[-1]}-packed.parquet"
            packed.write_bytes(b"rows")
            named = [(packed, batches[-1])]
        else:
            named = list(zip(originals, batches, strict=True))
        lines = [{"add": {"path": path.name, "size": 4, "stats": '{"numRecords": 1}'}, "batch": batch} for path, batch in named]
        manifest = self._manifest(number, head, BatchId(batches[-1]), lines)
        self.store.complete(manifest)
        self.public |= {path.name for path, _ in named}
        self.subsumption.after(manifest, [self.run], {SINK: number})
        assert self.public <= self.files(), "what is public is there"
        return manifest

    def _manifest(self, number: CheckpointId, head: Manifest | None, batch: BatchId, lines: list[dict[str, Any]]) -> Manifest:
        stored = f"state/copied/{number}-1-1/1.delta"
        self.home.create(stored, b"state")
        sink = SinkCut(
            stage=COPIED, table="file:///t", table_id="t", staged_for=(), partition_by=(), app=AppId("a"),
            actions=self.store.write_actions(number, SINK, lines), publish=Publish.EVERY_CHECKPOINT,
            known_published=head.checkpoint if head else None,
            named_before=tuple(named_before(self.store, number, head, SINK, self.log.oldest(), ())),
        )  # fmt: skip
        at = ConsumerCut(self.reads_from, self.reads_from)
        parent = head.stages[COPIED].batch if head else None
        channel = cut_channel(self.store, number, COPIED, self.log, batch, [at], parent)
        state = StateFile(path="1.delta", stored=stored, size_bytes=5, sha256="")
        return a_manifest(
            number, checkpoint_kind=CheckpointKind.PERIODIC, incarnation=IncarnationId("i"), attempt=AttemptNumber(self.number),
            stages={COPIED: a_stage_cut(batch, channel=channel, files=(state,))}, sinks={SINK: sink},
        )  # fmt: skip

    def _begin(self) -> None:
        attempts = Attempts(self.home)
        attempts.begin(attempt(self.number), known=attempts.numbers())
        self.subsumption = Subsumption(self.home, LocalFiles(self.root / "work"), self.retained)

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore(self.home)

    @property
    def run(self) -> StageRun:
        fakes = {
            "stage": SimpleNamespace(name=COPIED, sink=object()),
            "log": self.log,
            "table": SimpleNamespace(path=self.table),
            "file_prefix": PREFIX,
            "directory": quick(self.table),
            "output": SimpleNamespace(consumers=[SimpleNamespace(reads_from=lambda: self.reads_from)]),
            "outlet": SimpleNamespace(is_own=False),
        }
        return cast(StageRun, SimpleNamespace(**fakes))

    def files(self) -> set[str]:
        return {path.name for path in self.table.iterdir()}

    def spans(self) -> list[tuple[int, int]]:
        """Returns the ranges of checkpoints whose files the newest one lists."""
        head = self.store.head()
        assert head is not None
        return [(each.first, each.last) for each in head.sinks[SINK].named_before]


@pytest.fixture(params=[True, False], ids=["packed", "as staged"])
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Copied:
    return Copied(tmp_path, request.param)


def test_a_round_whose_consumer_waits_keeps_few_checkpoints_and_loses_no_file(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CARRIED_MAX", 8)
    for _ in range(30):
        copied.complete()
        assert len(copied.store.taken()) <= 2
        assert len(copied.home.names("state/copied")) <= 2
        assert len(copied.home.names("checkpoints")) <= 2 * 3 + module.CARRIED_MAX
    assert copied.log.oldest() == 0, "it waits"
    assert len(copied.files()) == 30 * (2 + copied.packs)
    copied.reads_from = PAST_ALL
    for _ in range(4):
        copied.complete()
    assert copied.log.oldest() > 60
    assert copied.files() - copied.public == {
        f"{PREFIX}{b}-staged.parquet" for b in range(copied.log.oldest(), 68) if copied.packs
    }
    assert len(copied.spans()) <= 4, "what is forgotten is named no more"


def test_a_late_checkpoint_of_a_long_round_reads_no_more_documents_than_an_early_one(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CARRIED_MAX", 5)
    opened = []
    for _ in range(40):
        before = copied.system.opened
        copied.complete()
        opened.append(copied.system.opened - before)
    assert 0 < max(opened[20:]) <= max(opened[:20])


def test_the_sweep_deletes_orphans_and_no_file_that_a_discarded_checkpoint_has_named(
    copied: Copied,
) -> None:
    for _ in range(6):
        copied.complete()
    left = [copied.stage(batch, dies=True) for batch in (3, 11)]
    copied.begins_anew()
    copied.complete()
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("packs", [False, True])
def test_a_private_log_that_goes_back_before_the_newest_checkpoint_loses_no_file(tmp_path: Path, packs: bool) -> None:
    """The state of the newest checkpoint was damaged: a stage and its logs go back two checkpoints."""
    copied = Copied(tmp_path, packs, retained=3, batches=1, reads_from=PAST_ALL)
    newest = [copied.complete() for _ in range(8)][-1]
    older = [copied.store.manifest(CheckpointId(number)) for number in (6, 7, 8)]
    channels = [each.stages[COPIED].channel for each in older]
    lines = {line["batch"]: line for channel in channels for line in copied.store.read_channel(channel)}
    assert copied.log.oldest() <= channels[0].first < older[1].stages[COPIED].batch - 1
    work = copied.home.below("work/2")
    first = channels[0].first
    copied.begins_anew(rebuild_log(work, COPIED, newest.stages[COPIED].channel, [lines[b] for b in sorted(lines)], first))
    for _ in range(4):
        copied.complete()
    assert copied.log.oldest() > channels[-1].first


def test_many_files_of_actions_are_merged_without_batches_that_the_log_has_forgotten(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CARRIED_MAX", 4)
    for _ in range(9):
        copied.complete()
    assert copied.spans() == [(1, 7), (8, 8)]
    for _ in range(8):
        copied.complete()
    assert len(copied.spans()) <= 4
    copied.reads_from = PAST_ALL
    for _ in range(3):
        copied.complete()
    copied.reads_from = copied.log.latest()
    manifests = [copied.complete() for _ in range(9)]
    merged = manifests[-1].sinks[SINK].named_before[0]
    assert merged.first < merged.last
    assert min(line["batch"] for line in copied.store.read_actions(merged)) >= copied.log.oldest() > 0


def test_a_damaged_file_of_actions_prevents_only_deletions_of_files_that_it_could_name(
    copied: Copied, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CARRIED_MAX", 4)
    damaged = [copied.complete() for _ in range(2)][-1]
    path = damaged.sinks[SINK].actions.path
    copied.home.replace(path, b"damaged")
    for _ in range(20):
        copied.complete()
        assert len(copied.spans()) <= module.CARRIED_MAX + 1
        assert len(copied.store.taken()) <= 2
    assert copied.log.oldest() == 0, "its consumer waits"
    copied.reads_from = PAST_ALL
    for _ in range(6):
        copied.complete()
    assert path in caplog.text
    assert "Restore the file from a copy" in caplog.text
    assert copied.log.oldest() > 40
    assert len(copied.spans()) <= 4
    assert path not in [f"checkpoints/{name}" for name in copied.home.names("checkpoints")]
    caplog.clear()
    left = copied.stage(copied.batches * copied.store.taken()[-1], dies=True)
    copied.begins_anew()
    copied.complete()
    assert not left.exists()
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert warnings == [], "the damage is forgotten with the batches"


def test_files_that_are_replaced_before_they_are_public_are_not_named(copied: Copied) -> None:
    """A complete result of an unfinished round will never be read."""
    newest = [copied.complete() for _ in range(3)][-1]
    found = named_before(copied.store, CheckpointId(4), newest, SINK, BatchId(0), (), CheckpointId(2))
    assert [each.last for each in found] == [1, 2]


def test_carried_files_are_not_named_a_second_time(copied: Copied) -> None:
    newest = [copied.complete() for _ in range(3)][-1]
    own = newest.sinks[SINK]
    before = CarriedActions(first=CheckpointId(2), last=CheckpointId(3), batch=BatchId(5), actions=own.actions, replace=False)
    found = named_before(copied.store, CheckpointId(4), newest, SINK, BatchId(0), [before])
    assert [each.last for each in found] == [1]
