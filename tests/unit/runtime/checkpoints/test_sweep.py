"""Recognition of orphaned staged files."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import work_path
from spark_jobs.protocol.documents import Manifest, WorkDirectory
from spark_jobs.protocol.errors import FencedError
from spark_jobs.protocol.ids import (
    AttemptNumber,
    BatchId,
    IncarnationId,
    StageName,
    WorkDirectoryId,
    file_prefix,
    new_incarnation_id,
    new_work_directory_id,
)
from spark_jobs.runtime.checkpoints.sweep import NamedByCheckpoints, orphans, sweep, sweep_abandoned
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.state.early_directory import mark_early
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged
from tests.support.staged_pipeline import HOURLY, StagedPipeline, a_stage_cut
from tests.support.systems import quick

PREFIX = "0123456789abcdef-"


@dataclass
class Swept:
    """The parts of a stage that the sweep uses."""

    root: Path
    file_prefix: str = PREFIX
    log: PrivateLog = field(init=False)
    table: Path = field(init=False)
    directory: LocalFiles = field(init=False)
    named: set[str] = field(default_factory=set)
    outlet: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(is_own=False))
    stage: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name=StageName("hourly"), sink=object()))

    def __post_init__(self) -> None:
        self.log, self.table = begun(quick(self.root)), self.root / "table"
        self.directory = LocalFiles(self.table)

    def write(self, batch: int, *, dies: bool = False) -> Path:
        """Writes a batch's file. If the driver dies, the log gets no version for the batch."""
        name = f"{PREFIX}{batch}-part-{'orphan' if dies else 'named'}.parquet"
        path = self.table / "day=a b" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"rows")
        if not dies:
            self.log.append(staged(batch, f"day=a%20b/{name}"))
        return path

    def swept(self, last: int = 9, needed_from: BatchId | None = None) -> list[Path]:
        """Returns the files that a sweep deletes after a checkpoint at batch ``last``."""
        return [self.table / path for path in sweep(self.run, BatchId(last), self.named, needed_from)]

    def orphans(self) -> list[Path]:
        """Returns the files that a sweep would delete."""
        return [self.table / path for path in orphans(self.run, BatchId(9), set())]

    @property
    def run(self) -> StageRun:
        return cast(StageRun, self)


@pytest.fixture
def stage(tmp_path: Path) -> Swept:
    return Swept(tmp_path)


def test_a_file_that_the_log_does_not_name_is_an_orphan_and_is_deleted(stage: Swept) -> None:
    left, named = stage.write(0, dies=True), stage.write(0)
    assert stage.swept() == [left]
    assert [named.exists(), left.exists()] == [True, False]


def test_a_file_of_a_batch_after_the_checkpoint_is_no_orphan(stage: Swept) -> None:
    """The batch may be running. Its version is written a moment later."""
    stage.write(0)
    under_way = stage.write(1, dies=True)
    assert stage.swept(last=0) == []
    assert stage.swept(last=1) == [under_way]


def test_files_of_other_writers_are_no_orphans(stage: Swept) -> None:
    stage.write(0)
    for name in ("part-0.parquet", "fedcba9876543210-0-part-0.parquet", f"{PREFIX}part-without-a-batch.parquet"):
        (stage.table / name).write_bytes(b"rows")
    assert stage.orphans() == []


def test_a_fold_of_the_log_neither_makes_nor_hides_an_orphan(stage: Swept) -> None:
    for batch in range(6):
        stage.write(batch)
    left = stage.write(1, dies=True)
    stage.log.fold(BatchId(1))
    stage.log.fold(BatchId(3))
    assert stage.orphans() == [left]


def test_a_file_of_a_forgotten_batch_is_never_deleted(stage: Swept) -> None:
    """The file may be public although the log no longer contains it."""
    public = [stage.write(batch) for batch in range(6)]
    stage.log.fold(BatchId(1))
    stage.log.fold(BatchId(3))
    stage.log.forget(BatchId(1), lambda batch: None)
    left = stage.write(2, dies=True)
    assert stage.log.oldest() == 2
    assert stage.swept() == [left]
    assert all(path.exists() for path in public)


@pytest.mark.parametrize(("needed_from", "gone"), [(None, 2), (0, 0), (1, 1), (7, 2)])
def test_files_of_a_forgotten_batch_in_the_home_stay_if_a_checkpoint_needs_them(
    stage: Swept, needed_from: BatchId | None, gone: int
) -> None:
    """Files in this directory are never public, and only the sweep deletes them."""
    stage.outlet.is_own = True
    staged_files = [stage.write(batch) for batch in range(6)]
    stage.log.fold(BatchId(1))
    stage.log.fold(BatchId(3))
    stage.log.forget(BatchId(1), lambda batch: None)
    assert stage.log.oldest() == 2
    assert stage.swept(needed_from=needed_from) == staged_files[:gone]


def test_a_file_that_only_a_checkpoint_names_is_no_orphan(stage: Swept) -> None:
    """Packed files carry the name of the last batch, which did not stage them."""
    stage.write(0)
    packed = stage.write(0, dies=True)
    stage.named = {str(packed.relative_to(stage.table))}
    assert stage.swept() == []
    assert packed.exists()


def cut_at(batch: int) -> dict[str, Any]:
    """Returns a stage's part of a manifest."""
    return {"stages": {HOURLY: a_stage_cut(batch)}}


def paths(store: CheckpointStore, manifest: Manifest, since: int = 0) -> int | None:
    """Returns the number of the stage's files that checkpoints name, or None if they may name any file."""
    named = NamedByCheckpoints(store, manifest, cast(Stage, SimpleNamespace(name=HOURLY, sink=object())), BatchId(since))
    assert ("never staged" in named) == (named.paths is None)
    return None if named.paths is None else len(named.paths)


def test_files_of_checkpoints_that_the_log_remembers_are_named_and_an_unreadable_one_names_every_file(tmp_path: Path) -> None:
    pipeline = StagedPipeline(MemoryFiles(), tmp_path)
    pipeline.make_table()
    manifests = [pipeline.checkpoint({HOURLY: [(batch, "monday")]}, **cut_at(batch)) for batch in (2, 4, 6)]
    assert [paths(pipeline.store, manifests[-1], since) for since in (0, 2, 3, 5, 7)] == [3, 3, 2, 1, 0]
    pipeline.files.contents[manifests[0].sinks[HOURLY].actions.path] = b"{}"  # type: ignore[attr-defined]
    assert [paths(pipeline.store, manifests[-1], since) for since in (3, 2)] == [2, None]


def test_the_checkpoint_of_a_restored_savepoint_names_no_files(tmp_path: Path) -> None:
    pipeline = StagedPipeline(MemoryFiles(), tmp_path)
    pipeline.make_table()
    pipeline.checkpoint({}, **cut_at(2))
    manifest = pipeline.checkpoint({HOURLY: [(1, "monday")]}, **cut_at(4))
    assert paths(pipeline.store, manifest) == 1


def test_a_corrupt_checkpoint_counts_as_naming_every_file_only_if_another_checkpoint_continues_it(tmp_path: Path) -> None:
    pipeline = StagedPipeline(MemoryFiles(), tmp_path)
    pipeline.make_table()
    first, _, third = (pipeline.checkpoint({HOURLY: [(batch, "monday")]}, **cut_at(batch)) for batch in (2, 4, 6))
    pipeline.files.contents["manifests/2.json"] = b"torn"  # type: ignore[attr-defined]
    assert paths(pipeline.store, third) is None
    assert paths(pipeline.store, third.model_copy(update={"parent": first.checkpoint})) == 2


def test_all_files_of_abandoned_attempts_are_deleted_and_none_that_the_live_one_uses() -> None:
    files = MemoryFiles()
    one, two = (work_path(new_work_directory_id()) for _ in range(2))
    files.create("work/driver.lock", b"")
    live = attempt(1)
    for number, work, name in ((1, one, "one"), (2, two, "two"), (3, two, "two")):
        directory = WorkDirectory(id=WorkDirectoryId(work.rpartition("/")[2]), path=work, host="h")
        live = attempt(number).model_copy(update={"incarnation": IncarnationId(name), "work_directory": directory})
        Attempts(files).create(live)
        files.create(f"{work}/offsets", b"{number}")
        files.create(f"channels/{name}/hourly/_delta_log/0.json", b"0")
        files.create(f"tombstones/{name}/hourly/_delta_log/0.json", b"0")
    sweep_abandoned(files, live, {IncarnationId("one")})
    assert (files.names("work"), files.names("channels")) == (sorted(["driver.lock", two.rpartition("/")[2]]), ["one", "two"])
    sweep_abandoned(files, live)
    assert (files.names("channels"), files.names("tombstones")) == (["two"], ["two"])


@pytest.mark.parametrize("place", ["work", "channels", "tombstones"])
@pytest.mark.parametrize("marker", ["pipeline.json", "savepoint.json", "exporting.json", "_delta_log/0.json"])
def test_an_abandoned_directory_with_a_home_savepoint_or_table_inside_stays(place: str, marker: str) -> None:
    files, live = MemoryFiles(), attempt(1)
    Attempts(files).create(live)
    own, theirs = (f"{place}/{new_work_directory_id()}" for _ in range(2))
    files.create(f"{own}/stages/hourly/log/_delta_log/0.json" if place == "work" else f"{own}/hourly/_delta_log/0.json", b"")
    files.create(f"{theirs}/deep/er/{marker}", b"")
    sweep_abandoned(files, live)
    assert files.paths(place) == [f"{theirs}/deep/er/{marker}"]


@pytest.mark.parametrize("place", ["channels", "tombstones"])
def test_a_foreign_directory_between_abandoned_tables_stays(place: str) -> None:
    files, live, closed = MemoryFiles(), attempt(1), str(new_incarnation_id())
    Attempts(files).create(live)
    theirs = [f"{place}/mine/notes.txt", f"{place}/{closed}/mine/notes.txt", f"{place}/{closed}/notes.txt"]
    staged = f"{file_prefix(IncarnationId(closed), StageName('hourly'))}0-part.parquet"
    own = ("daily/_delta_log/0.json", "daily/part", f"hourly/{staged}")
    for path in (*theirs, *(f"{place}/{closed}/{name}" for name in own)):
        files.create(path, b"0")
    sweep_abandoned(files, live)
    assert files.paths(place) == sorted(theirs)


def test_a_fenced_attempt_deletes_nothing_of_the_live_one() -> None:
    files = MemoryFiles()
    for number in (1, 2):
        Attempts(files).create(attempt(number))
    work = work_path(new_work_directory_id())
    files.create(f"{work}/offsets", b"0")
    with pytest.raises(FencedError):
        sweep_abandoned(files, Attempts(files).read(AttemptNumber(1)))
    assert files.names(work) == ["offsets"]


@pytest.mark.parametrize(("begun_for", "stays"), [(1, False), (2, True), (3, True)])
def test_a_work_directory_that_was_begun_for_a_later_attempt_stays(begun_for: int, stays: bool) -> None:
    """A start copies state before its attempt begins. Meanwhile an attempt that was cut off may go on."""
    files, live = MemoryFiles(), attempt(2)
    Attempts(files).create(live)
    directory = work_path(new_work_directory_id())
    mark_early(files.below(directory), AttemptNumber(begun_for))
    files.create(f"{directory}/stages/hourly/checkpoint/metadata", b"0")
    sweep_abandoned(files, live)
    assert bool(files.names(directory)) is stays


def test_a_file_that_a_loss_has_left_out_is_no_orphan(stage: Swept) -> None:
    left = stage.write(1, dies=True)
    assert stage.orphans() == [left]
    assert orphans(stage.run, BatchId(9), set(), left_out={left.name}) == []
