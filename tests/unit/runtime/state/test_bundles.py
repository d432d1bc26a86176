"""A checkpoint of a home in a store puts small state files into bundles. They are restored, verified, copied and deleted."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_jobs.checkpoint import bundles
from spark_jobs.checkpoint.bundles import BUNDLE_MAX_BYTES, StateReader, create_bundle, grouped, in_reading_order
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.retention import discard
from spark_jobs.checkpoint.savepoint import export, read_savepoint, verify
from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.codec import decode, encode, sha256
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, StorageError, UnsupportedFormatError
from spark_jobs.protocol.ids import BatchId, CheckpointId, RequestId
from spark_jobs.protocol.stage_cut import StageCut, StateFile
from spark_jobs.publication.verification import named_by_home
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.start.heal import heal_in_place
from spark_jobs.runtime.start.lost_sources import log_of_cut
from spark_jobs.runtime.start.restore import Restored, restore
from spark_jobs.runtime.start.savepoint_import import bring_in
from spark_jobs.runtime.state import pinning
from spark_jobs.runtime.state.pinning import StateCopies, persist, pin
from spark_jobs.runtime.state.state_files import needed_files
from spark_jobs.storage.files import READ_MAX_BYTES
from spark_jobs.storage.open import open_place
from tests.support.damage import flipped
from tests.support.memory_files import Death, DyingFiles, MemoryFiles
from tests.support.object_store import Requests, object_store
from tests.support.savepoint_site import STAGE, SavepointSite
from tests.support.savepoint_start import beginning, saved
from tests.support.state_site import HOURLY, Site, manifest_of
from tests.support.systems import quick

CHECKPOINT = "stages/hourly/checkpoint"


class Counting(MemoryFiles):
    """Files that count how often each is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = Counter[str]()

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        with self._lock:
            self.reads[path] += 1
        return super().read(path, max_bytes)


@pytest.fixture
def home() -> Counting:
    return Counting()


@pytest.fixture
def site(tmp_path: Path, home: Counting) -> Site:
    site = Site(tmp_path, home)
    site.batches(4)
    return site


def expected(site: Site, batch: int) -> dict[str, bytes]:
    return {path: (site.checkpoint.root / path).read_bytes() for path in needed_files(site.log, BatchId(batch))}


def restored(site: Site, name: str = "new") -> dict[str, bytes]:
    root = site.root / "home/work" / name / CHECKPOINT
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def bundled(cut: StageCut) -> list[StateFile]:
    return [file for file in cut.files if file.offset is not None]


def bundles_of(home: MemoryFiles) -> set[str]:
    return {path for path in home.contents if "/bundles/" in path}


def flip(home: MemoryFiles, path: str, at: int) -> None:
    data = bytearray(home.contents[path])
    data[at] ^= 1
    home.contents[path] = bytes(data)


def of_kind(cut: StageCut, end: str) -> StateFile:
    return next(file for file in bundled(cut) if file.path.endswith(end))


def test_files_of_state_share_one_object_and_records_of_sources_another(site: Site, home: Counting) -> None:
    before = expected(site, 3)
    cut = site.take(3)
    shutil.rmtree(site.checkpoint.root)
    assert {file.path: StateReader(home).read(file) for file in cut.files} == before
    alone = {file.path for file in cut.files if file.offset is None}
    assert alone == {"metadata", "sources/0/0", "state/0/_metadata/metadata", "state/0/0/_metadata/schema"}
    found = {
        file.stored: {path.path.partition("/")[0] for path in bundled(cut) if path.stored == file.stored} for file in bundled(cut)
    }
    assert sorted(map(sorted, found.values())) == [["commits", "offsets", "state"], ["sources"]]
    assert all(sha256(home.contents[stored]) == stored.rpartition("/")[2] for stored in found)


def test_snapshots_are_in_bundles_and_their_shared_files_are_not(site: Site) -> None:
    site.checkpoint.snapshot(3)
    cut = site.take(3)
    assert {file.path.rpartition(".")[2] for file in bundled(cut) if file.path.startswith("state/")} == {"zip"}
    assert [file.offset for file in cut.files if file.path.endswith(".sst")] == [None, None]


def test_a_home_in_a_directory_has_no_bundles(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.batches(2)
    assert bundled(site.take(1)) == []


def test_a_large_file_is_an_object_of_its_own(site: Site, home: Counting) -> None:
    large = next(path for path in sorted(expected(site, 3)) if path.endswith(".changelog"))
    with (site.checkpoint.root / large).open("ab") as file:
        file.write(bytes(32 << 10))
    cut = site.take(3)
    (found,) = (file for file in cut.files if file.path == large)
    assert found.offset is None
    assert home.contents[found.stored] == (site.checkpoint.root / large).read_bytes()
    assert len([file for file in bundled(cut) if file.path.endswith(".changelog")]) == 7


def test_the_files_in_memory_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_BUNDLED_MAX", 3)
    before = expected(site, 3)
    cut = site.take(3)
    assert len(bundled(cut)) == 3
    assert {file.path: StateReader(site.home).read(file) for file in cut.files} == before


def test_a_bundle_has_a_maximum_size() -> None:
    contents = {f"state/0/0/{number:03d}": bytes(1 << 20) for number in range(20)}
    assert [len(group) for group in grouped(contents)] == [8, 8, 4]
    assert BUNDLE_MAX_BYTES == 8 << 20


def test_a_file_that_spark_deletes_meanwhile_is_not_in_the_bundle(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []

    def first_with_one_more(log: SparkLog, batch: BatchId) -> list[str]:
        chosen.append(batch)
        return [*needed_files(log, batch), *(["commits/0", "offsets/7"] if len(chosen) == 1 else [])]

    monkeypatch.setattr(pinning, "needed_files", first_with_one_more)
    assert {file.path for file in site.take(3).files} == expected(site, 3).keys()


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def store(requests: Requests) -> Iterator[str]:
    with object_store(requests=requests) as url:
        yield url


def asked(requests: Requests, work: Callable[[], object]) -> Counter[str]:
    """Returns the number of requests for state files of the home, by method."""
    requests.served.clear()
    work()
    return Counter(each.method for each in requests.served if "/home/state/" in each.path)


def in_store(site: Site, store: str) -> SparkLog:
    """Copies the work directory into a store."""
    work = open_place(f"{store}/work")
    for path in site.work.paths():
        if site.work.size_bytes(path) is not None:
            work.copy(site.work, path, path)
    return SparkLog(work, site.log.directory)


@pytest.mark.parametrize(("bundled_max", "puts", "gets"), [(0, 5, 19), (4_096, 2, 8)], ids=["without bundles", "with bundles"])
@pytest.mark.parametrize("in_stores", [False, True], ids=["work on a disk", "work in a store"])
def test_a_checkpoint_puts_and_a_restore_gets_few_objects(
    tmp_path: Path, store: str, requests: Requests, monkeypatch: pytest.MonkeyPatch, bundled_max: int, puts: int, gets: int,
    in_stores: bool,
) -> None:  # fmt: skip
    """A stage with two partitions: a checkpoint after one batch, and a restore of four batches."""
    monkeypatch.setattr(pinning, "_BUNDLED_MAX", bundled_max)
    home = HomeInStore(open_place(f"{store}/home"), quick(tmp_path / "cache"))
    home.create("pipeline.json", b"{}")  # checks the store
    site = Site(tmp_path, home)
    site.batches(3)
    parent = site.take(2)
    site.batches(1)
    log = in_store(site, store) if in_stores else site.log
    cuts: list[StageCut] = []

    def take() -> None:
        pinned = pin(StateCopies(home, log), BatchId(3), "state/hourly/2-1-1", parent)
        cuts.append(parent.model_copy(update={"batch": 3, "files": persist(pinned)}))

    assert asked(requests, take)["PUT"] == puts
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()], "nothing waits there"
    manifest = manifest_of(home, 2, 3, cuts[0].files)
    before = expected(site, 3)
    assert asked(requests, lambda: restore(home, manifest, quick(tmp_path / "home/work/new")))["GET"] == gets
    assert restored(site) == before


def test_each_bundle_is_read_once_for_a_restore(site: Site, home: Counting) -> None:
    head = site.complete(3)
    for number in range(4, 8):
        site.batches(1)
        head = site.complete(number, head.stages[HOURLY], number)
    before = expected(site, 7)
    home.reads.clear()
    restore(home, head, quick(site.root / "home/work/new"))
    assert restored(site) == before
    named = {file.stored for file in bundled(head.stages[HOURLY])}
    assert {path: count for path, count in home.reads.items() if "/bundles/" in path} == dict.fromkeys(named, 1)


def test_files_of_bundles_come_from_a_local_copy_first(site: Site, home: Counting) -> None:
    head = site.complete(3)
    before = expected(site, 3)
    lost = of_kind(head.stages[HOURLY], ".changelog")
    (site.checkpoint.root / lost.path).unlink()
    home.reads.clear()
    found = restore(home, head, quick(site.root / "home/work/new"), [site.work])
    assert restored(site) == before
    assert found[HOURLY] == Restored(
        len(before) - 1, sum(map(len, before.values())) - lost.size_bytes, 1, lost.size_bytes
    )  # fmt: skip
    assert [path for path in home.reads if path.startswith("state/")] == [lost.stored]


def test_damage_of_one_file_does_not_affect_the_others(site: Site, home: Counting) -> None:
    head = site.complete(3)
    before = expected(site, 3)
    damaged, other = (
        file
        for file in bundled(head.stages[HOURLY])
        if file.path.endswith("/4_00000000-0000-0000-0000-000000000fa0.changelog") or file.path == "commits/3"
    )
    assert damaged.stored == other.stored
    assert damaged.offset is not None
    flip(home, damaged.stored, damaged.offset)
    reader = StateReader(home)
    assert reader.look(other) is None
    assert f"{damaged.stored} from byte {damaged.offset} was altered" in str(reader.look(damaged))
    (site.checkpoint.root / other.path).unlink()
    restore(home, head, quick(site.root / "home/work/new"), [site.work])
    assert restored(site) == before, "the damaged file has a local copy, and the other one comes from the home"


@pytest.mark.parametrize("damage", ["altered", "cut off", "missing"])
def test_state_is_computed_again_from_an_older_checkpoint_if_a_bundle_is_damaged(site: Site, home: Counting, damage: str) -> None:
    """What sources have recorded since is in another bundle."""
    older = site.complete(3)
    site.batches(2)
    head = site.complete(5, older.stages[HOURLY], 2)
    file = bundled(head.stages[HOURLY])[-1]
    assert file.stored.startswith("state/hourly/2-1-1/")
    if damage == "missing":
        home.delete(file.stored)
    elif damage == "cut off":
        home.contents[file.stored] = home.contents[file.stored][:-1]
    else:
        flip(home, file.stored, file.offset or 0)
    restore(home, head, quick(site.root / "home/work/new"))
    log = SparkLog(quick(site.root / "home/work/new"), CHECKPOINT)
    assert log.last_batch() == 3
    assert {f"sources/0/{number}" for number in range(6)} <= restored(site).keys()


def test_a_lost_bundle_is_named_if_there_is_no_older_checkpoint(site: Site, home: Counting) -> None:
    head = site.complete(3)
    file = of_kind(head.stages[HOURLY], ".changelog")
    home.delete(file.stored)
    with pytest.raises(CorruptDocumentError, match=f"{file.stored} is missing"):
        restore(home, head, quick(site.root / "home/work/new"))


def test_a_bundle_that_is_larger_than_any_is_damage(site: Site, home: Counting) -> None:
    head = site.complete(3)
    file = of_kind(head.stages[HOURLY], ".changelog")
    home.contents[file.stored] += bytes(BUNDLE_MAX_BYTES)
    with pytest.raises(CorruptDocumentError, match="larger than"):
        restore(home, head, quick(site.root / "home/work/new"))


class Torn(MemoryFiles):
    """A store whose first upload of a bundle fails, with or without effect."""

    def __init__(self, *, has_effect: bool) -> None:
        super().__init__()
        self.has_effect, self.failed = has_effect, False

    def create(self, path: str, data: bytes) -> None:
        if "/bundles/" in path and not self.failed:
            self.failed = True
            if self.has_effect:
                super().create(path, data)
            raise StorageError("The store does not answer.", path=path)
        super().create(path, data)


@pytest.mark.parametrize("has_effect", [False, True])
def test_an_upload_that_fails_can_be_repeated(tmp_path: Path, has_effect: bool) -> None:
    home = Torn(has_effect=has_effect)
    site = Site(tmp_path, home)
    site.batches(2)
    pinned = site.pin(1)
    with pytest.raises(StorageError):
        persist(pinned)
    files = persist(pinned)
    assert {file.path: StateReader(home).read(file) for file in files} == expected(site, 1)
    assert bundles_of(home) == {file.stored for file in files if file.offset is not None}


def test_a_process_that_dies_at_any_change_leaves_nothing_for_ever(tmp_path: Path) -> None:
    """The next attempt takes the checkpoint, and retention deletes the bundles of the dead one."""
    for changes in range(20):
        site = Site(tmp_path / str(changes))
        site.batches(2)
        contents: dict[str, bytes] = {}
        site.home = DyingFiles(contents, changes)
        finished = False
        with suppress(Death):
            site.complete(1)
            finished = True
        home = MemoryFiles()
        home.contents = contents
        if not finished:
            assert not CheckpointStore(home).taken()
            place = "state/hourly/1-2-1"
            files = persist(pin(StateCopies(home, site.log), BatchId(1), place, None))
            manifest_of(home, 1, 1, files)
        discard(home, [])
        (manifest,) = CheckpointStore(home).manifests()
        named = {file.stored for file in manifest.stages[HOURLY].files}
        assert {path for path in contents if path.startswith("state/")} == named
        assert {file.path: StateReader(home).read(file) for file in manifest.stages[HOURLY].files} == expected(site, 1)
        if finished:
            return
    raise AssertionError("it never finishes")


def test_a_late_bundle_of_an_abandoned_try_affects_no_other_try(site: Site, home: Counting) -> None:
    """Both tries have only small files, so the second one finds no directory of the first one."""
    parent = site.take(3)
    site.batches(1)
    abandoned = site.pin(4, parent, 2)
    site.batches(1)
    second = site.pin(5, parent, 2)
    assert abandoned.place == second.place
    before = expected(site, 5)
    manifest = manifest_of(home, 2, 5, persist(second), parent=parent)
    late = {file.stored for file in persist(abandoned) if "/2-1-1/" in file.stored}
    named = {file.stored for file in manifest.stages[HOURLY].files}
    assert {file.path: StateReader(home).read(file) for file in manifest.stages[HOURLY].files} == before
    assert late - named
    discard(home, [])
    assert bundles_of(home) == {path for path in named if "/bundles/" in path}


def test_a_bundle_is_deleted_with_the_last_checkpoint_that_names_a_file_in_it(site: Site, home: Counting) -> None:
    first = site.complete(3)
    site.batches(1)
    second = site.complete(4, first.stages[HOURLY], 2)
    site.checkpoint.snapshot(4)
    site.batches(1)
    third = site.complete(5, second.stages[HOURLY], 3)
    own = {file.stored for file in bundled(first.stages[HOURLY])}
    discard(home, [CheckpointId(1)])
    assert own <= bundles_of(home), "the second checkpoint needs changelogs of the first one"
    discard(home, [CheckpointId(2)])
    of_sources = {file.stored for file in bundled(third.stages[HOURLY]) if file.path == "sources/0/1"}
    assert own & bundles_of(home) == of_sources, "a snapshot replaces them"
    assert {file.path: StateReader(home).read(file) for file in third.stages[HOURLY].files} == expected(site, 5)


def test_another_attempt_keeps_a_damaged_record_of_its_parent_again(site: Site, home: Counting) -> None:
    parent = site.take(3)
    commit = next(file for file in bundled(parent) if file.path == "commits/3")
    assert commit.offset is not None
    flip(home, commit.stored, commit.offset)
    home.reads.clear()
    pinned = pin(StateCopies(home, site.log), BatchId(3), "state/hourly/2-2-1", parent, checks_parent=True)
    assert pinned.new == ("commits/3",)
    assert home.reads[commit.stored] == 1
    assert all(StateReader(home).look(file) is None for file in persist(pinned))


@pytest.mark.parametrize("end", [".changelog", "commits/3", "sources/0/3"])
def test_a_damaged_work_directory_is_healed_from_a_bundle(site: Site, home: Counting, end: str) -> None:
    head = site.complete(3)
    file = of_kind(head.stages[HOURLY], end)
    before = expected(site, 3)
    (site.checkpoint.root / file.path).write_bytes(b"damaged")
    assert heal_in_place(home, site.work, head, [HOURLY]) is None
    assert expected(site, 3) == before


def test_a_damaged_work_directory_is_not_healed_if_its_bundle_is_lost(site: Site, home: Counting) -> None:
    head = site.complete(3)
    file = of_kind(head.stages[HOURLY], ".changelog")
    (site.checkpoint.root / file.path).unlink()
    home.delete(file.stored)
    assert file.stored in str(heal_in_place(home, site.work, head, [HOURLY]))


def test_the_position_of_a_stage_is_read_from_bundles(site: Site, home: Counting) -> None:
    cut = site.take(3)
    log = log_of_cut(home, HOURLY, cut)
    assert (log.last_commit(), log.offsets(BatchId(3))) == (3, site.log.offsets(BatchId(3)))


def test_verification_reads_each_bundle_once_and_names_a_damaged_one(tmp_path: Path, home: Counting) -> None:
    site = SavepointSite(tmp_path, home)
    manifest = site.complete([(1, "a")])
    named = named_by_home(home)
    home.reads.clear()
    assert named.verify() == []
    assert {home.reads[path] for path in bundles_of(home)} == {1}
    path = of_kind(manifest.stages[STAGE], ".changelog").stored
    flip(home, path, 0)
    (damage,) = named.verify()
    assert damage.evidence["path"] == f"{home.url}/{path}"


def test_a_savepoint_has_the_bundles_and_is_opened_in_another_home(tmp_path: Path, home: Counting) -> None:
    site = SavepointSite(tmp_path / "origin", home)
    manifest = site.complete([(1, "a")])
    opened = saved(site, manifest)
    copied = {path: opened.files.read(path) for path in opened.files.paths("state/hourly") if "/bundles/" in path}
    assert copied == {path: home.contents[path] for path in bundles_of(home)}
    before = {file.path: StateReader(home).read(file) for file in manifest.stages[STAGE].files}
    for other in (quick(tmp_path / "other/home"), MemoryFiles()):
        brought = bring_in(opened, beginning(other, tmp_path / "other"))
        assert bundled(brought.stages[STAGE]) == []
        work = quick(tmp_path / "other" / other.url.partition(":")[0])
        restore(other, brought, work)
        found = {path: work.read(f"{CHECKPOINT}/{path}") for path in before}
        assert json.loads(found.pop("metadata")) != json.loads(before["metadata"])
        assert found == {path: data for path, data in before.items() if path != "metadata"}


def test_a_savepoint_with_a_damaged_bundle_is_refused(tmp_path: Path, home: Counting) -> None:
    site = SavepointSite(tmp_path, home)
    manifest = site.complete([(1, "a")])
    target = quick(tmp_path / "savepoint")
    export(home, manifest.checkpoint, target, request=RequestId("savepoint-a"))
    assert read_savepoint(target)[1] == manifest
    path = of_kind(manifest.stages[STAGE], ".changelog").stored
    with flipped(target.local(path), 0), pytest.raises(CorruptDocumentError, match=path):
        verify(target)
    flip(home, path, 0)
    with pytest.raises(CorruptDocumentError, match=path):
        export(home, manifest.checkpoint, quick(tmp_path / "another"), request=RequestId("savepoint-b"))


class OlderManifest(Manifest):
    """A manifest as versions before bundles know it."""

    format_version = 1


def test_versions_before_bundles_refuse_only_manifests_with_bundles(tmp_path: Path, home: Counting) -> None:
    inside = Site(tmp_path / "directory")
    outside = Site(tmp_path / "store", home)
    for site in (inside, outside):
        site.batches(2)
    assert decode(OlderManifest, encode(inside.complete(1)), "manifests/1.json").checkpoint == 1
    data = encode(outside.complete(1))
    assert decode(Manifest, data, "manifests/1.json").checkpoint == 1
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        decode(OlderManifest, data, "manifests/1.json")


def test_a_manifest_of_a_version_before_bundles_is_continued(site: Site, home: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_BUNDLED_MAX", 0)
    body = json.loads(encode(site.complete(3)))["body"]
    for file in body["stages"]["hourly"]["files"]:
        assert file.pop("offset") is None
    older = Manifest.model_validate_json(json.dumps(body), strict=True)
    monkeypatch.undo()
    site.batches(1)
    head = site.complete(4, older.stages[HOURLY], 2)
    before = expected(site, 4)
    restore(home, head, quick(site.root / "home/work/new"))
    assert restored(site) == before
    assert {file.path for file in bundled(head.stages[HOURLY])} >= {"offsets/4", "commits/4", "sources/0/4"}
    assert not any(file.path in {each.path for each in older.stages[HOURLY].files} for file in bundled(head.stages[HOURLY]))


def test_the_bundles_in_memory_are_limited(home: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "_KEPT_BYTES", 3)
    found = [create_bundle(home, "state/hourly/1-1-1", {"a": b"%d" % number, "b": b""}) for number in range(6)]
    files = in_reading_order(file for of_one_name in zip(*found, strict=True) for file in of_one_name)
    reader = StateReader(home)
    assert Counter(reader.read(file) for file in files) == {b"": 6} | {b"%d" % number: 1 for number in range(6)}
    assert set(home.reads.values()) == {1}
    for bundle in found:
        home.delete(bundle[0].stored)
    assert len(reader.read(files[-2])) == 1
    with pytest.raises(NotFoundError):
        reader.read(files[0])
