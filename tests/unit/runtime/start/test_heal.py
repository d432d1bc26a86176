"""A work directory is verified before an attempt continues in it. Damaged files are replaced from the home."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.runtime.spark.session import SHUFFLE_PARTITIONS
from spark_jobs.runtime.start.heal import heal_in_place
from spark_jobs.runtime.start.restore import restore
from spark_jobs.runtime.state.pinning import persist
from spark_jobs.runtime.state.state_files import needed_files
from spark_jobs.storage.checksums import checksum_name
from spark_jobs.storage.local import LocalFiles
from tests.support.damage import flip
from tests.support.state_site import HOURLY, Site, manifest_of
from tests.support.state_stores import store_id
from tests.support.systems import quick

CHECKPOINT = "stages/hourly/checkpoint"


def heal(site: Site, head: Manifest | None, work: LocalFiles | None = None) -> str | None:
    return heal_in_place(site.home, work or site.work, head, [HOURLY])


def part(site: Site, manifest: Manifest) -> None:
    """Gives the home its own copies of the files, as on another file system."""
    for file in manifest.stages[HOURLY].files:
        path = site.root / "home" / file.stored
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)


def needed(site: Site) -> dict[str, bytes]:
    return {path: (site.checkpoint.root / path).read_bytes() for path in needed_files(site.log, site.log.last_commit())}


def delete(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, delete])
@pytest.mark.parametrize("where", ["work", "home"])
def test_every_damaged_file_of_the_checkpoint_is_replaced_by_its_other_copy(
    site: Site, damage: Callable[[Path], None], where: str
) -> None:
    manifest = site.complete(3)
    part(site, manifest)
    before = needed(site)
    files: Iterable[StateFile] = manifest.stages[HOURLY].files
    assert {file.path for file in files} == set(before)
    for file in files:
        if where == "home" and "/_metadata/v2/" in file.path:
            continue  # the next attempt pins this file again, because its paths differ
        if damage is delete and file.path == "commits/3":
            continue  # batch 3 is then not committed: see work_directory
        path = site.checkpoint.root / file.path if where == "work" else site.root / "home" / file.stored
        damage(path)
        assert heal(site, manifest) is None, file.path
        assert path.read_bytes() == before[file.path]
    assert needed(site) == before
    assert heal(site, manifest) is None


@pytest.mark.slow
@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_a_file_with_a_damaged_format_marker_is_replaced_by_its_other_copy(site: Site, bit: int) -> None:
    """The first bytes say which format a file has, and the last ones where the parts of an archive are."""
    manifest = site.complete(3)
    part(site, manifest)
    before = needed(site)
    for name, right in before.items():
        path = site.checkpoint.root / name
        for at in {0, len(right) // 3, len(right) - 20, len(right) - 1} & set(range(len(right))):
            path.unlink()  # it may be the home's, too
            path.write_bytes(right[:at] + bytes([right[at] ^ bit]) + right[at + 1 :])
            assert heal(site, manifest) is None, (name, at)
            assert path.read_bytes() == right


@pytest.mark.parametrize("path", ["offsets/4", "commits/4", "state/0/0/5_00000000-0000-0000-0000-000000001388.changelog"])
def test_a_work_directory_with_a_damaged_format_marker_in_a_newer_file_is_not_used(site: Site, path: str) -> None:
    manifest = site.complete(3)
    site.batches(1)
    flip(site.checkpoint.root / path, 0)
    assert heal(site, manifest) is not None


def test_all_damaged_files_are_replaced_at_once(site: Site) -> None:
    manifest = site.complete(3)
    part(site, manifest)
    before = needed(site)
    for path in before:
        if path.startswith("state/"):
            delete(site.checkpoint.root / path)
    assert heal(site, manifest) is None
    assert needed(site) == before


@pytest.mark.parametrize("damage", [flip, delete])
@pytest.mark.parametrize("where", ["work", "home"])
@pytest.mark.parametrize("is_restored", [False, True], ids=["in place", "restored"])
def test_a_record_of_spark_has_a_second_copy_on_one_file_system(
    site: Site, damage: Callable[[Path], None], where: str, is_restored: bool
) -> None:
    manifest = site.complete(3)
    work = quick(site.root / "home/work/new") if is_restored else site.work
    if is_restored:
        restore(site.home, manifest, work)
    for name in ("metadata", "offsets/3", "commits/2", "sources/0/3", "state/0/_metadata/metadata"):
        (file,) = (file for file in manifest.stages[HOURLY].files if file.path == name)
        path = Path(work.local(f"{CHECKPOINT}/{name}")) if where == "work" else site.root / "home" / file.stored
        before = path.read_bytes()
        damage(path)
        assert heal(site, manifest, work) is None, name
        assert path.read_bytes() == before
        damage(path)
        assert heal(site, manifest, work) is None, f"{name}: its replacement is a copy, too"
        assert path.read_bytes() == before


def test_a_file_that_is_damaged_in_both_copies_is_not_healed(site: Site) -> None:
    manifest = site.complete(3)
    file = next(file for file in manifest.stages[HOURLY].files if file.path.endswith(".changelog"))
    assert os.path.samefile(site.checkpoint.root / file.path, site.root / "home" / file.stored)
    flip(site.checkpoint.root / file.path)
    why = heal(site, manifest)
    assert why is not None
    assert file.stored in why
    assert "damaged" in why


def test_a_healed_file_has_no_checksum_of_other_bytes(site: Site) -> None:
    manifest = site.complete(3)
    part(site, manifest)
    target = site.checkpoint.root / "offsets/3"
    for path in (target, target.with_name(checksum_name("offsets"))):
        if path.exists():
            flip(path)
    assert heal(site, manifest) is None
    assert not target.with_name(checksum_name(target.name)).exists()


@pytest.mark.parametrize("name", ["{}", "{}.crc"])
def test_a_damaged_checksum_of_an_intact_file_is_deleted(site: Site, name: str) -> None:
    """Otherwise Spark would refuse the file at every restart."""
    manifest = site.complete(3)
    path = next(path for path in needed(site) if path.endswith(".changelog"))
    changelog = site.checkpoint.root / path
    beside = changelog.with_name(checksum_name(name.format(changelog.name)))
    flip(beside, 9)
    before = needed(site)
    assert heal(site, manifest) is None
    assert not beside.exists()
    assert needed(site) == before


@pytest.mark.parametrize(
    "path",
    [
        *("offsets/5", "offsets/6", "commits/5", "sources/0/5", "sources/0/6"),
        "state/0/0/6_00000000-0000-0000-0000-000000001770.changelog",
    ],
)
def test_a_file_that_is_newer_than_the_checkpoint_is_compared_with_its_checksum(site: Site, path: str) -> None:
    manifest = site.complete(3)
    site.batches(2)
    site.checkpoint.batch(commits=False)
    assert heal(site, manifest) is None
    flip(site.checkpoint.root / path)
    assert heal(site, manifest) is not None


def test_a_missing_file_that_the_planned_batch_will_read_is_noticed(site: Site) -> None:
    manifest = site.complete(3)
    site.checkpoint.batch(commits=False)
    delete(site.checkpoint.root / "sources/0/4")
    why = heal(site, manifest)
    assert why is not None
    assert "sources/0/4 is missing" in why


def test_offsets_without_a_checksum_are_compared_with_the_staged_batches(site: Site) -> None:
    manifest = site.complete(3)
    site.batches(1)
    entry = site.checkpoint.root / "offsets/4"
    entry.write_text(entry.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))
    entry.with_name(checksum_name("4")).unlink()
    assert heal(site, manifest) == f"{CHECKPOINT}/offsets/4 was altered"


@pytest.mark.parametrize("damage", [flip, delete])
@pytest.mark.parametrize("version", [0, 3, 5, 6])
def test_a_work_directory_with_a_damaged_private_log_is_not_used(
    site: Site, damage: Callable[[Path], None], version: int
) -> None:
    manifest = site.complete(3)
    site.batches(2)
    damage(site.root / f"home/work/w/stages/hourly/log/_delta_log/{version:020d}.json")
    assert heal(site, manifest) is not None


def test_a_segment_of_a_private_log_that_was_altered_is_noticed(site: Site) -> None:
    manifest = site.complete(3)
    site.batches(2)
    site.channel.fold(BatchId(3))
    assert heal(site, manifest) is None
    (segment,) = (site.root / "home/work/w/stages/hourly/log/segments").iterdir()
    flip(segment)
    why = heal(site, manifest)
    assert why is not None
    assert "segment" in why


@pytest.mark.parametrize("damage", [flip, delete])
def test_the_delta_checkpoint_of_a_folded_log_is_written_again(site: Site, damage: Callable[[Path], None]) -> None:
    manifest = site.complete(3)
    site.channel.fold(BatchId(2))
    (checkpoint,) = (site.root / "home/work/w/stages/hourly/log/_delta_log").glob("*.checkpoint.parquet")
    right = checkpoint.read_bytes()
    damage(checkpoint)
    assert heal(site, manifest) is None
    assert checkpoint.read_bytes() == right


def test_a_work_directory_that_was_built_from_a_checkpoint_is_intact_although_its_paths_differ(site: Site) -> None:
    schema = f"file:{site.checkpoint.root}/state/0/_stateSchema/default/0_{store_id(1)}"
    facts = {"stateStoreInfo": [{"stateSchemaFilePaths": [schema]}]}
    site.checkpoint.write("state/0/_metadata/v2/0", f"v2\n{json.dumps(facts)}")
    site.checkpoint.write(f"state/0/_stateSchema/default/0_{store_id(1)}", "v3")
    manifest = site.complete(3)
    work = quick(site.root / "home/work/new")
    restore(site.home, manifest, work)
    before = {path: path.stat().st_mtime_ns for path in (site.root / "home/work/new").rglob("*") if path.is_file()}
    assert heal(site, manifest, work) is None
    assert {path: path.stat().st_mtime_ns for path in before} == before
    here = site.root / "home/work/new" / CHECKPOINT / "state/0/_metadata/v2/0"
    right = here.read_bytes()
    flip(here)
    assert heal(site, manifest, work) is None
    assert here.read_bytes() == right


def test_a_batch_that_repartitioned_state_is_not_missed_in_the_private_log(site: Site) -> None:
    site.checkpoint.batch()
    assert heal(site, None) == "the private log of stage 'hourly' has lost batch 4"
    entry = site.log.offsets(BatchId(4))
    other = entry.header | {"conf": {SHUFFLE_PARTITIONS: "8"}}
    site.checkpoint.write("offsets/4", replace(entry, header=other).to_bytes().decode())
    assert heal(site, None) is None


def test_only_checksums_are_compared_without_a_checkpoint(site: Site) -> None:
    assert heal(site, None) is None
    flip(site.checkpoint.root / "commits/3")
    assert heal(site, None) is not None


def test_a_stage_that_has_not_begun_is_intact(tmp_path: Path) -> None:
    home = quick(tmp_path / "home")
    assert heal_in_place(home, home.below("work/w"), None, [HOURLY]) is None


def test_a_replaced_file_shares_no_bytes_with_its_second_copy(site: Site) -> None:
    files = persist(site.pin(3, second_copy=True))
    manifest = manifest_of(site.home, 1, 3, files, site.channel)
    before = needed(site)
    path = next(path for path in before if path.endswith(".changelog"))
    (file,) = (file for file in files if file.path == path)
    for where in (site.checkpoint.root / path, site.root / "home" / file.stored):
        flip(where)
        assert heal_in_place(site.home, site.work, manifest, [HOURLY], second_copy=True) is None
        assert where.read_bytes() == before[path]
        assert where.stat().st_nlink == 1


def test_a_restored_work_directory_shares_no_bytes_with_the_home_if_second_copies_are_on(site: Site) -> None:
    files = persist(site.pin(3, second_copy=True))
    manifest = manifest_of(site.home, 1, 3, files, site.channel)
    restore(site.home, manifest, quick(site.root / "home/work/new"), second_copy=True)
    assert {(site.root / "home" / file.stored).stat().st_nlink for file in files} == {1}
