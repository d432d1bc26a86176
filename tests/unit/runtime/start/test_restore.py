"""A work directory is rebuilt from a checkpoint."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.home.layout import manifest_path
from spark_jobs.protocol.documents import Manifest, PinnedInput
from spark_jobs.protocol.errors import CorruptDocumentError, RejectedError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, InputName
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.replay import is_behind
from spark_jobs.runtime.start.restore import Restored, copy_state, is_half_built, is_whole, restore
from spark_jobs.runtime.state.early_directory import mark_early
from spark_jobs.runtime.state.state_files import needed_files
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt as an_attempt
from tests.support.damage import flip
from tests.support.private_logs import TABLE, staged
from tests.support.state_site import HOURLY, Site
from tests.support.state_stores import store_id
from tests.support.systems import Crashed, CrashSystem, quick

CHECKPOINT = "stages/hourly/checkpoint"


def work_of(site: Site, name: str = "new") -> LocalFiles:
    return quick(site.root / "home/work" / name)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def state(site: Site, name: str = "new") -> dict[str, bytes]:
    return contents(site.root / "home/work" / name / CHECKPOINT)


def test_the_checkpoint_directory_is_as_it_was_at_the_cut(site: Site) -> None:
    needed = needed_files(site.log, BatchId(3))
    before = {path: (site.checkpoint.root / path).read_bytes() for path in needed}
    manifest = site.complete(3)
    site.batches(5)
    shutil.rmtree(site.root / "home/work/w")
    restored = restore(site.home, manifest, work_of(site))
    assert state(site) == before
    assert restored[HOURLY].home_files == len(before)
    log = SparkLog(work_of(site), CHECKPOINT)
    assert (log.last_batch(), log.query_id(), needed_files(log, BatchId(3))) == (3, "the-query", needed)


def test_a_directory_is_half_built_from_the_first_file_of_an_early_copy_to_the_end_of_the_restore(site: Site) -> None:
    manifest, work = site.complete(3), work_of(site)
    assert not is_half_built(work)
    mark_early(work, AttemptNumber(2))
    assert is_half_built(work)
    copied = copy_state(site.home, manifest, work, AttemptNumber(2), [], lambda: None)
    assert is_half_built(work)
    restore(site.home, manifest, work, copied=copied)
    assert not is_half_built(work)


def test_the_private_log_is_as_it_was_at_the_cut(site: Site) -> None:
    manifest = site.complete(3)
    site.batches(5)
    restore(site.home, manifest, work_of(site))
    log = PrivateLog(work_of(site), "stages/hourly/log", TABLE)
    assert (log.table_id, log.latest()) == (site.channel.table_id, 4)


def test_the_local_copy_is_used_first_and_the_log_names_the_origin_of_the_files(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = site.complete(3)
    files = manifest.stages[HOURLY].files
    with caplog.at_level(logging.INFO, "spark_jobs.runtime.start.restore"):
        restored = restore(site.home, manifest, work_of(site), [site.work])
    size_bytes = sum(file.size_bytes for file in files)
    assert restored == {HOURLY: Restored(len(files), size_bytes, 0, 0)}
    assert caplog.messages == [
        f"stage hourly is restored from checkpoint 1: {len(files)} files ({size_bytes} bytes) from a local copy, "
        "0 files (0 bytes) from the home"
    ]


def test_offsets_sources_and_operator_metadata_also_come_from_the_local_copy(site: Site) -> None:
    """R14: the home has lost the checkpoint's state."""
    manifest = site.complete(3)
    restore(site.home, manifest, work_of(site, "before"))
    shutil.rmtree(site.root / "home/state")
    restore(site.home, manifest, work_of(site), [site.work])
    assert state(site) == state(site, "before")
    assert {"offsets", "commits", "sources", "metadata", "state"} <= {path.partition("/")[0] for path in state(site)}
    assert any(path.startswith("state/0/_metadata/") for path in state(site))


def _cut_off(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])


def _alter(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: list[Callable[[Path], None]] = [Path.unlink, _cut_off, _alter, _make_directory, _make_link_to_nowhere, _make_pipe]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("share", [1, 3])
def test_a_damaged_local_copy_only_changes_the_origin_of_files(site: Site, damage: Callable[[Path], None], share: int) -> None:
    """R6, R7, R9, R10: matching files come from the local copy, and all others from the home without a message."""
    manifest = site.complete(3)
    restore(site.home, manifest, work_of(site, "without"))
    files = manifest.stages[HOURLY].files
    for file in files[::share]:
        damage(site.checkpoint.root / file.path)
    restored = restore(site.home, manifest, work_of(site), [quick(site.root / "nowhere"), site.work])
    assert state(site) == state(site, "without")
    assert restored[HOURLY].home_files == len(files[::share])
    assert restored[HOURLY].local_files == len(files) - len(files[::share])


def test_a_local_copy_of_another_pipeline_is_not_used(site: Site, tmp_path: Path) -> None:
    manifest = site.complete(3)
    foreign = Site(tmp_path / "foreign")
    foreign.checkpoint.write("metadata", '{"id": "not-this"}')
    foreign.batches(4)
    restore(site.home, manifest, work_of(site), [foreign.work])
    assert json.loads(state(site)["metadata"])["id"] == "the-query"


def test_a_file_that_one_local_copy_lacks_can_come_from_another(site: Site) -> None:
    manifest = site.complete(3)
    shutil.copytree(site.root / "home/work/w", site.root / "second")
    for number, file in enumerate(manifest.stages[HOURLY].files):
        ((site.checkpoint.root if number % 2 else site.root / "second" / CHECKPOINT) / file.path).unlink()
    shutil.rmtree(site.root / "home/state")
    assert restore(site.home, manifest, work_of(site), [site.work, quick(site.root / "second")])[HOURLY].home_files == 0


@pytest.mark.parametrize("damage", [Path.unlink, _cut_off, _alter], ids=lambda damage: damage.__name__)
def test_a_damaged_file_in_the_home_is_named_if_no_local_copy_has_it(site: Site, damage: Callable[[Path], None]) -> None:
    """R8: the restore only fails if both copies are damaged. A good local copy is enough."""
    manifest = site.complete(3)
    file = next(file for file in manifest.stages[HOURLY].files if file.path.endswith(".zip"))
    damage(site.root / "home" / file.stored)
    with pytest.raises(CorruptDocumentError, match=file.stored):
        restore(site.home, manifest, work_of(site))
    assert is_half_built(work_of(site))
    assert not is_whole(work_of(site), manifest)
    assert restore(site.home, manifest, work_of(site), [site.work])[HOURLY].home_files == 0
    assert not is_half_built(work_of(site))


def test_a_file_that_is_damaged_in_the_home_and_in_the_local_copy_is_named(site: Site) -> None:
    """On one file system, both are hard links to the same file."""
    manifest = site.complete(3)
    file = next(file for file in manifest.stages[HOURLY].files if file.path.endswith(".zip"))
    with (site.checkpoint.root / file.path).open("r+b") as local:
        first = local.read(1)
        local.seek(0)
        local.write(bytes([first[0] ^ 1]))
    with pytest.raises(CorruptDocumentError, match=f"{file.stored} was altered"):
        restore(site.home, manifest, work_of(site), [site.work])
    assert not is_whole(work_of(site), manifest)


def test_a_restore_changes_neither_the_home_nor_the_local_copy(site: Site) -> None:
    manifest = site.complete(3)
    _alter(site.checkpoint.root / "metadata")
    before = contents(site.root)
    restore(site.home, manifest, work_of(site), [site.work])
    shutil.rmtree(site.root / "home/work/new")
    assert contents(site.root) == before


def test_a_complete_work_directory_is_left_as_it_is(site: Site) -> None:
    manifest = site.complete(3)
    assert not is_whole(work_of(site), manifest)
    restore(site.home, manifest, work_of(site))
    work_of(site).create(f"{CHECKPOINT}/offsets/4", b"the query went on")
    before = contents(site.root / "home/work/new")
    assert is_whole(work_of(site), manifest)
    assert restore(site.home, manifest, work_of(site)) == {}
    assert contents(site.root / "home/work/new") == before


def test_a_directory_in_use_is_refused(site: Site) -> None:
    manifest = site.complete(3)
    before = contents(site.root / "home/work/w")
    with pytest.raises(RejectedError, match="not empty"):
        restore(site.home, manifest, site.work)
    assert contents(site.root / "home/work/w") == before


def test_a_directory_of_another_checkpoint_is_refused(site: Site) -> None:
    first = site.complete(2)
    second = site.complete(3, first.stages[HOURLY], 2)
    restore(site.home, first, work_of(site))
    with pytest.raises(RejectedError, match="another checkpoint"):
        restore(site.home, second, work_of(site))


class TestOperatorMetadata:
    """Spark stores absolute paths in the metadata of some operators."""

    def restored(self, site: Site, *paths: str) -> list[str]:
        store = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": list(paths)}
        body = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store], "operatorPropertiesJson": '{"x":"/state/0"}'}
        site.checkpoint.write("state/0/_metadata/v2/0", "v2\n" + json.dumps(body))
        restore(site.home, site.complete(3), work_of(site))
        version, body_here = state(site)["state/0/_metadata/v2/0"].decode().split("\n")
        found = json.loads(body_here)
        assert version == "v2"
        assert found["operatorPropertiesJson"] == body["operatorPropertiesJson"]
        named: list[str] = found["stateStoreInfo"][0]["stateSchemaFilePaths"]
        return named

    def test_has_the_paths_of_the_new_place(self, site: Site) -> None:
        schema = f"/state/0/_stateSchema/default/0_{store_id(1)}"
        root = site.root / "home/work/new" / CHECKPOINT
        assert (
            self.restored(site, f"file:/old/state/0/_stateSchema/x y{schema}", f"file:/a{schema}") == [f"file:{root}{schema}"] * 2
        )

    def test_is_not_changed_in_the_home(self, site: Site) -> None:
        self.restored(site, f"file:/old/state/0/_stateSchema/default/0_{store_id(1)}")
        kept = next((site.root / "home/state").rglob("_metadata/v2/0"))
        assert kept.read_bytes() == (site.checkpoint.root / "state/0/_metadata/v2/0").read_bytes()
        assert b"/old/" in kept.read_bytes()

    def test_is_corrupt_if_a_path_cannot_be_moved(self, site: Site) -> None:
        with pytest.raises(CorruptDocumentError, match="file:/elsewhere"):
            self.restored(site, "file:/elsewhere/schema")


def files_of(manifest: Manifest) -> tuple[StateFile, ...]:
    return manifest.stages[HOURLY].files


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.slow
def test_a_loss_of_power_leaves_a_directory_that_is_complete_or_is_built_again(tmp_path: Path, seed: int | None) -> None:
    finished = False
    for index in range(200):
        root = tmp_path / str(index)
        site = Site(root)
        site.batches(2)
        manifest = site.complete(1)
        expected = {file.path: site.home.read(file.stored) for file in files_of(manifest)}
        system = CrashSystem(root, crash_before=15 * index, seed=seed)
        with suppress(Crashed):
            restore(LocalFiles(root / "home", system), manifest, LocalFiles(root / "home/work/new", system))
            finished = True
        system.crash()
        assert is_whole(work_of(site), manifest) or not finished
        if is_whole(work_of(site), manifest):
            assert state(site) == expected
        restore(site.home, manifest, work_of(site))
        assert state(site) == expected
        assert CheckpointStore(site.home).manifest(manifest.checkpoint) == manifest
        if finished:
            return
    raise AssertionError("it never finishes")


def damaged_head(site: Site, *, also: str = "") -> tuple[Manifest, Manifest, StateFile]:
    """Two checkpoints, four batches apart. A state file that only the newer one needs is altered in its only copy."""
    older = site.complete(3)
    site.batches(4)
    head = site.complete(7, older.stages[HOURLY], 2)
    known = {file.stored for file in older.stages[HOURLY].files}
    file = next(file for file in head.stages[HOURLY].files if file.stored not in known and file.path.endswith(also))
    shutil.rmtree(site.checkpoint.root)
    flip(site.root / "home" / file.stored)
    return older, head, file


def test_the_state_of_an_older_checkpoint_replaces_a_damaged_file_of_the_newest_one(site: Site) -> None:
    older, head, _ = damaged_head(site, also=".changelog")
    restore(site.home, head, work_of(site))
    log = SparkLog(work_of(site), CHECKPOINT)
    assert log.last_batch() == 3
    assert {file.path for file in older.stages[HOURLY].files} <= set(state(site))
    staged = PrivateLog(work_of(site), "stages/hourly/log", TABLE)
    assert [staged.read(BatchId(batch)) for batch in range(4, 8)] == [site.channel.read(BatchId(batch)) for batch in range(4, 8)]
    assert is_behind(work_of(site), HOURLY)


def test_files_that_sources_have_found_since_the_older_checkpoint_are_kept_for_the_replay(site: Site) -> None:
    _, head, _ = damaged_head(site, also=".changelog")
    restore(site.home, head, work_of(site))
    assert {f"sources/0/{number}" for number in range(8)} <= set(state(site))


def test_a_damaged_source_log_entry_is_taken_from_the_old_work_directory(site: Site) -> None:
    head = site.complete(3)
    (file,) = (file for file in head.stages[HOURLY].files if file.path == "sources/0/3")
    expected = (site.checkpoint.root / file.path).read_bytes()
    flip(site.root / "home" / file.stored)
    restore(site.home, head, work_of(site), [site.work])
    assert state(site)["sources/0/3"] == expected


def test_a_damaged_source_log_entry_cannot_be_replaced_without_a_work_directory(site: Site) -> None:
    _, head, file = damaged_head(site, also="sources/0/7")
    with pytest.raises(CorruptDocumentError, match=file.stored) as caught:
        restore(site.home, head, work_of(site))
    assert "The kept older checkpoints 1 do not help" in caught.value.exists


def test_the_error_says_that_there_is_no_older_checkpoint(site: Site) -> None:
    _, head, file = damaged_head(site, also=".changelog")
    site.home.delete(manifest_path(CheckpointId(1)))
    with pytest.raises(CorruptDocumentError, match=file.stored) as caught:
        restore(site.home, head, work_of(site))
    assert caught.value.exists.startswith("No older checkpoint is kept.")
    assert "--restore" in caught.value.remedy


def test_a_batch_without_a_known_plan_is_not_computed_again(site: Site) -> None:
    """One example is a batch in which Spark has changed the number of state partitions."""
    older = site.complete(3)
    site.checkpoint.batch()
    site.channel.append(staged(4, offsets=""))
    head = site.complete(4, older.stages[HOURLY], 2)
    shutil.rmtree(site.checkpoint.root)
    flip(site.root / "home" / next(file.stored for file in head.stages[HOURLY].files if file.path == "commits/4"))
    with pytest.raises(CorruptDocumentError, match="commits/4") as caught:
        restore(site.home, head, work_of(site))
    assert "the plan of batch 4 of stage 'hourly' is not known" in caught.value.exists


def test_batches_that_have_read_a_static_input_at_several_versions_are_not_computed_again(site: Site) -> None:
    graph = {"statics": {"places": {}}, "stages": {"hourly": {"inputs": {"events": "events", "places": "places"}}}}
    site.graph = graph
    for attempt, version in ((1, 7), (2, 8)):
        pin = DeltaPin(path="/places", table="t", version=version)
        pins_of_attempt(site.home, AttemptNumber(attempt)).pin(PinnedInput(input=InputName("places"), pins=(pin,)))
    _, head, _ = damaged_head(site, also=".changelog")
    later = head.model_copy(update={"attempt": AttemptNumber(2)})
    with pytest.raises(CorruptDocumentError) as caught:
        restore(site.home, later, work_of(site))
    assert "static input 'places' was read at several versions" in caught.value.exists
    restore(site.home, head, work_of(site, "another"))


def test_batches_of_forgotten_attempts_that_have_read_a_static_input_are_not_computed_again(site: Site) -> None:
    """The home no longer knows whether all these batches read the same version."""
    site.graph = {"statics": {"places": {}}, "stages": {"hourly": {"inputs": {"events": "events", "places": "places"}}}}
    _, head, _ = damaged_head(site, also=".changelog")
    Attempts(site.home).create(an_attempt(head.attempt + 1))
    with pytest.raises(CorruptDocumentError) as caught:
        restore(site.home, head, work_of(site))
    assert "the versions of places that were read are not known" in caught.value.exists
