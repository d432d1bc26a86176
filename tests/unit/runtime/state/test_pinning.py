"""State at a cut is kept while its query continues."""

import json
import os
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from spark_jobs.checkpoint.named_files import state_file
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import ConflictError, CorruptDocumentError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.state import pinning
from spark_jobs.runtime.state.pinning import StateCopies, new_state_directory, persist, pin
from spark_jobs.runtime.state.state_files import grows_with_state, needed_files
from spark_jobs.storage.files import Digest
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.system import RealSystem
from tests.support.damage import flip
from tests.support.memory_files import MemoryFiles
from tests.support.state_site import HOURLY, Site, cut
from tests.support.systems import Crashed, CrashSystem, QuickSystem


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_every_needed_file_is_kept_as_it_was_although_spark_deletes_it(site: Site) -> None:
    site.batches(5)
    site.checkpoint.snapshot(2)
    paths = needed_files(site.log, BatchId(4))
    contents = {path: site.log.files.read(f"{site.log.directory}/{path}") for path in paths}
    pinned = site.pin(4)
    shutil.rmtree(site.checkpoint.root)
    files = persist(pinned)
    assert {file.path: site.home.read(file.stored) for file in files} == contents
    assert all(site.home.digest(file.stored) == (file.size_bytes, file.sha256) for file in files)
    assert {file.stored for file in files} == {f"state/hourly/1-1-1/{path}" for path in paths}


def test_a_work_directory_in_a_store_is_kept_and_restored_there(site: Site) -> None:
    site.batches(5)
    site.checkpoint.snapshot(2)
    store = MemoryFiles()
    for path in site.work.paths():
        if site.work.size_bytes(path) is not None:
            store.create(f"work/1/{path}", site.work.read(path))
    copies = StateCopies(store, SparkLog(store.below("work/1"), site.log.directory))
    files = persist(pin(copies, BatchId(4), "state/hourly/1-1-1", None))
    assert {file.path: copies.reader.read(file) for file in files} == {
        path: site.log.files.read(f"{site.log.directory}/{path}") for path in needed_files(site.log, BatchId(4))
    }
    restored = StateCopies(store, SparkLog(store.below("work/2"), site.log.directory))
    assert [restored.place(file) for file in files] == [False] * len(files)
    assert needed_files(restored.log, BatchId(4)) == needed_files(site.log, BatchId(4))


def test_the_metadata_of_an_operator_gets_the_paths_of_a_store() -> None:
    store = MemoryFiles()
    there = "file:/old/work/stages/hourly/checkpoint/state/0/_stateSchema/default/0_a"
    facts = f'v2\n{{"stateStoreInfo":[{{"stateSchemaFilePaths":["{there}"]}}]}}'
    copies = StateCopies(store, SparkLog(store.below("work/2"), "stages/hourly/checkpoint"))
    here = f"{store.below('work/2').url}/stages/hourly/checkpoint/state/0/_stateSchema/default/0_a"
    assert json.loads(copies.repointed(facts.encode()).partition(b"\n")[2]) == {
        "stateStoreInfo": [{"stateSchemaFilePaths": [here]}]
    }


def test_files_of_state_stores_are_linked_on_one_file_system_and_records_are_copied(site: Site) -> None:
    site.batches(2)
    site.checkpoint.snapshot(1)
    files = site.take(1).files
    linked = {file.path for file in files if (site.root / "home" / file.stored).samefile(site.checkpoint.root / file.path)}
    assert linked == {file.path for file in files if file.path.endswith((".zip", ".sst", ".changelog"))}
    assert {"metadata", "offsets/1", "commits/1", "sources/0/1"} <= {file.path for file in files} - linked


class _Counting(QuickSystem):
    """A system that counts the new files, and the flushes of each path."""

    def __init__(self) -> None:
        self.created = 0
        self.flushed: list[str] = []

    def create_file(self, path: str) -> int:
        self.created += 1
        return super().create_file(path)

    def fsync(self, descriptor: int) -> None:
        self.flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # several threads flush


def test_only_new_records_are_copied_and_each_is_flushed_once(site: Site) -> None:
    site.batches(50)
    parent = site.take(49)
    site.batches(2)
    system = _Counting()
    home = LocalFiles(site.root / "home", system)
    pinned = pin(StateCopies(home, site.log), BatchId(51), "state/hourly/2-1-1", parent)
    records = [path for path in pinned.new if not path.startswith("state/")]
    assert len(records) == 6
    assert (system.created, system.flushed) == (6, []), "the cut flushes nothing"
    persist(pinned)
    new = {str(site.root / "home/state/hourly/2-1-1" / path) for path in pinned.new}
    flushes = Counter(system.flushed)
    assert {path: flushes.pop(path, 0) for path in new} == dict.fromkeys(new, 1)
    directories = {os.path.dirname(path) for path in new}
    assert flushes.keys() >= directories
    assert max(flushes.values()) <= len(directories), (
        "the files of each directory are flushed together, and what is above them once"
    )
    assert system.created == 6


def test_files_of_the_parent_checkpoint_are_referenced_and_not_copied(site: Site) -> None:
    site.batches(5)
    first = site.take(4)
    site.batches(2)
    second = site.take(6, first, 2)
    new = {file.path for file in second.files if "/2-1-1/" in file.stored}
    assert {path for path in new if not path.startswith("state/")} == {
        *(f"{log}/{number}" for log in ("offsets", "commits") for number in (5, 6)),
        "sources/0/5",
        "sources/0/6",
    }
    assert len(new) == 6 + 4
    assert set(first.files) - set(second.files) == {
        file for file in first.files if file.path in {"offsets/3", "offsets/4", "commits/3", "commits/4"}
    }


def test_an_idle_stage_adds_no_file(site: Site) -> None:
    site.batches(3)
    first = site.take(2)
    assert site.take(2, first, 2) == first
    assert site.home.names("state/hourly") == ["1-1-1"]


def test_a_small_file_with_changed_contents_is_kept_again(site: Site) -> None:
    site.batches(2)
    first = site.take(1)
    site.checkpoint.write("metadata", '{"id":"another query"}')
    site.checkpoint.write("state/0/_metadata/metadata", "v1\n{1}")
    changed = set(site.take(1, first, 2).files) - set(first.files)
    assert {file.path for file in changed} == {"metadata", "state/0/_metadata/metadata"}


def test_a_record_of_the_parent_that_is_damaged_in_the_home_is_kept_again_by_another_attempt(site: Site) -> None:
    """It was computed again, with the same bytes, after a restore from an older checkpoint."""
    site.batches(2)
    parent = site.take(1)
    file = next(file for file in parent.files if file.path == "commits/1")
    flip(site.root / "home" / file.stored)
    place = new_state_directory(site.home, HOURLY, CheckpointId(2), AttemptNumber(2))
    pinned = pin(StateCopies(site.home, site.log), BatchId(1), place, parent, checks_parent=True)
    assert pinned.new == ("commits/1",)
    assert all(state_file(site.home, file).look() is None for file in persist(pinned))


def test_a_file_of_the_grandparent_checkpoint_is_used_only_if_the_parent_names_it(site: Site) -> None:
    site.batches(3)
    first = site.take(2)
    site.checkpoint.snapshot(2)
    site.batches(1)
    second = site.take(3, first, 2)
    site.batches(1)
    third = site.take(4, second, 3)
    known = {file.stored for file in second.files}
    assert all(file.stored in known or file.stored.startswith("state/hourly/3-1-1/") for file in third.files)


def test_each_try_has_its_own_directory(site: Site) -> None:
    site.batches(1)
    places = []
    for attempt in (1, 1, 2):
        place = new_state_directory(site.home, HOURLY, CheckpointId(7), AttemptNumber(attempt))
        places.append(place)
        pin(StateCopies(site.home, site.log), BatchId(0), place, None)
    assert places == ["state/hourly/7-1-1", "state/hourly/7-1-2", "state/hourly/7-2-1"]


def test_a_stage_without_a_batch_has_only_its_metadata(site: Site) -> None:
    assert [file.path for file in site.take(NO_BATCH).files] == ["metadata"]


class _Purges(RealSystem):
    """A file system that deletes a file immediately before it is linked, a limited number of times."""

    def __init__(self, site: Site, times: int) -> None:
        self.site, self.left = site, times

    def link(self, source: str, target: str) -> None:
        if source.endswith(".changelog") and self.left:
            self.left -= 1
            number = self.site.checkpoint.batches - 1 - self.left
            self.site.checkpoint.snapshot(number)
            Path(source).unlink()
        super().link(source, target)


def test_files_that_spark_deletes_during_the_pinning_are_chosen_again(site: Site) -> None:
    site.batches(5)
    home = LocalFiles(site.root / "home", _Purges(site, 1))
    pinned = pin(StateCopies(home, site.log), BatchId(4), "state/hourly/1-1-1", None)
    assert list(pinned.new) == needed_files(site.log, BatchId(4))
    assert len([path for path in pinned.new if path.endswith(".zip")]) == 2
    kept = {
        path.relative_to(site.root / "home/state/hourly/1-1-1")
        for path in (site.root / "home/state").rglob("*")
        if path.is_file()
    }
    assert {path.as_posix() for path in kept} == set(pinned.new), "what the first choice needed alone is not kept"


def test_a_try_fails_by_name_if_spark_does_not_stop_deleting_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.batches(5)
    asked = []

    def always_gone(log: SparkLog, batch: BatchId) -> list[str]:
        asked.append(batch)
        return [*needed_files(log, batch), "state/0/0/gone"]

    monkeypatch.setattr(pinning, "needed_files", always_gone)
    with pytest.raises(ConflictError, match="state/0/0/gone"):
        site.pin(4)
    assert len(asked) == 3


def test_a_batch_that_spark_has_purged_fails_the_try(site: Site) -> None:
    site.batches(3)
    (site.checkpoint.root / "commits/1").unlink()
    with pytest.raises(ConflictError, match="commits/1"):
        site.pin(1)


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.slow
def test_persisted_files_survive_a_loss_of_power_and_deletions_by_spark(tmp_path: Path, seed: int | None) -> None:
    foreign = ("*.zip", "*.changelog", "*.sst", "[0-9]*", "metadata", "schema")  # Spark does not sync these files
    for index in range(400):
        root = tmp_path / str(index)
        root.mkdir()
        system = CrashSystem(root, crash_before=20 * index, seed=seed, foreign=foreign)
        site = Site(root)
        site.batches(2)
        site.checkpoint.snapshot(0)
        home, files = LocalFiles(root / "home", system), None
        with suppress(Crashed):
            files = persist(pin(StateCopies(home, site.log), BatchId(1), "state/hourly/1-1-1", None))
        system.crash()
        if files is not None:
            shutil.rmtree(site.checkpoint.root)
            assert all(site.home.digest(file.stored) == (file.size_bytes, file.sha256) for file in files)
            return
    raise AssertionError("it never finishes")


def names(path: Path) -> int:
    return path.stat().st_nlink


def test_a_second_copy_replaces_the_hard_link(site: Site) -> None:
    site.batches(3)
    before = {path: (site.checkpoint.root / path).read_bytes() for path in needed_files(site.log, BatchId(2))}
    files = persist(site.pin(2, second_copy=True))
    assert {file.path: site.home.read(file.stored) for file in files} == before
    assert all(site.home.digest(file.stored) == (file.size_bytes, file.sha256) for file in files)
    assert {names(site.root / "home" / file.stored) for file in files} == {1}
    assert {names(site.checkpoint.root / file.path) for file in files} == {1}
    left = (path for path in (site.root / "home/state").rglob("*") if path.is_file())
    assert {file.stored for file in files} == {str(path.relative_to(site.root / "home")) for path in left}


def test_a_second_copy_may_be_made_again(site: Site) -> None:
    site.batches(1)
    pinned = site.pin(0, second_copy=True)
    site.home.copy(site.home, f"{pinned.place}/metadata", f"{pinned.place}/copies/metadata")
    assert {file.path for file in persist(pinned)} == set(pinned.new)


def test_no_file_that_shares_its_bytes_is_referenced_if_second_copies_are_on(site: Site) -> None:
    site.batches(3)
    shared = site.take(2)
    copies = StateCopies(site.home, site.log, second_copy=True)
    place = new_state_directory(site.home, HOURLY, CheckpointId(2), AttemptNumber(1))
    pinned = pin(copies, BatchId(2), place, shared)
    linked = {file.path for file in shared.files if grows_with_state(file.path)}
    assert set(pinned.new) == linked
    assert {file.path for file in pinned.held} == {file.path for file in shared.files} - linked
    own = cut(2, persist(pinned))
    third = new_state_directory(site.home, HOURLY, CheckpointId(3), AttemptNumber(1))
    assert pin(copies, BatchId(2), third, own).held == own.files


class _ReadNowhere(LocalFiles):
    """A work directory none of whose files is read."""

    def digest(self, path: str) -> Digest:
        raise AssertionError(f"{path} is read again")


def test_a_file_from_a_store_is_checked_while_it_is_downloaded_and_not_read_again(tmp_path: Path) -> None:
    home, data = MemoryFiles(), b"rows"
    file = StateFile(path=f"state/0/0/SSTs/1-{uuid4()}.sst", stored="state/kept", size_bytes=4, sha256=sha256(data))
    copies = StateCopies(home, SparkLog(_ReadNowhere(tmp_path), "checkpoint"))
    for damaged in (None, b"row", b"rowz"):
        home.contents = {} if damaged is None else {file.stored: damaged}
        with pytest.raises(CorruptDocumentError, match="was altered|is missing"):
            copies.place(file)
        copies.work.delete("checkpoint")
    home.contents = {file.stored: data}
    copies.place(file)
    assert (tmp_path / "checkpoint" / file.path).read_bytes() == data
