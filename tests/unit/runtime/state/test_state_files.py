"""The files of Spark's checkpoint that a restart needs."""

import json
from pathlib import Path

import pytest

from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, UnsupportedFormatError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.state.state_files import needed_files, never_reused
from tests.support.memory_files import MemoryFiles
from tests.support.state_stores import SparkCheckpoint, store_id
from tests.support.systems import quick

JOIN = (("0/left-keyToNumValues", "0/right-keyToNumValues"), ("1/left-keyToNumValues", "1/right-keyToNumValues"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> SparkCheckpoint:
    return SparkCheckpoint(tmp_path / "checkpoint")


def needed(checkpoint: SparkCheckpoint, batch: int) -> list[str]:
    log = SparkLog(quick(checkpoint.root.parent), "checkpoint")
    return needed_files(log, BatchId(batch))


class ListedStore(MemoryFiles):
    """A store that keeps which directories were listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def names(self, directory: str) -> list[str]:
        self.listed.append(directory)
        return super().names(directory)

    def paths(self, directory: str = "") -> list[str]:
        self.listed.append(directory)
        return sorted(path for path in self.contents if path.startswith(f"{directory}/"))


def in_a_store(checkpoint: SparkCheckpoint, files: MemoryFiles | None = None) -> SparkLog:
    """Returns the log of a copy of the checkpoint in a store."""
    files = files or MemoryFiles()
    for path in checkpoint.root.rglob("*"):
        if path.is_file():
            files.create(f"checkpoint/{path.relative_to(checkpoint.root)}", path.read_bytes())
    return SparkLog(files, "checkpoint")


def of(prefix: str, paths: list[str]) -> list[str]:
    return [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]


def test_the_first_batch_needs_only_its_own_entries(checkpoint: SparkCheckpoint) -> None:
    checkpoint.batch()
    paths = needed(checkpoint, 0)
    assert [path for path in paths if not path.startswith("state/")] == ["commits/0", "metadata", "offsets/0", "sources/0/0"]
    assert len(of("state/0/1/", paths)) == 1


def test_a_later_batch_also_needs_the_entries_of_the_previous_batch(checkpoint: SparkCheckpoint) -> None:
    for _ in range(8):
        checkpoint.batch()
    paths = needed(checkpoint, 6)
    assert of("offsets/", paths) == of("commits/", paths) == ["5", "6"]


def test_no_checksum_and_no_file_of_an_uncommitted_batch_is_needed(checkpoint: SparkCheckpoint) -> None:
    for _ in range(3):
        checkpoint.batch()
    before = needed(checkpoint, 2)
    checkpoint.batch(commits=False)
    checkpoint.write("state/0/_metadata/v2/3", "v2\n{}")
    checkpoint.write(f"state/0/_stateSchema/default/3_{store_id(5)}", "schema")
    assert needed(checkpoint, 2) == before
    assert [path for path in before if path.endswith(".crc") or "/." in path] == []


def test_the_metadata_of_every_operator_up_to_the_batch_is_needed(checkpoint: SparkCheckpoint) -> None:
    for _ in range(3):
        checkpoint.batch()
    facts = ["state/0/_metadata/v2/0", "state/0/_metadata/v2/2", f"state/0/_stateSchema/default/0_{store_id(5)}"]
    for path in facts:
        checkpoint.write(path, "v2\n{}")
    assert {*facts, "state/0/_metadata/metadata", "state/0/0/_metadata/schema"} <= set(needed(checkpoint, 2))


def test_every_state_store_of_an_operator_with_several_is_needed(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint", stores=JOIN)
    for _ in range(5):
        checkpoint.batch()
    checkpoint.snapshot(2)
    checkpoint.write("state/0/0/left-keyToNumValues/_metadata/schema", "of one store")
    paths = needed(checkpoint, 4)
    for name in (name for names in JOIN for name in names):
        suffixes = [path.rpartition(".")[2] for path in of(f"state/0/{name}/", paths) if "_metadata" not in path]
        assert suffixes == ["zip", "changelog", "changelog", "sst"], name
    assert "state/0/0/left-keyToNumValues/_metadata/schema" in paths


@pytest.mark.parametrize("stores", [(("0",), ("1",)), JOIN])
def test_the_same_files_are_found_in_an_object_store(tmp_path: Path, stores: tuple[tuple[str, ...], ...]) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint", stores=stores)
    for _ in range(6):
        checkpoint.batch()
    checkpoint.snapshot(2)
    checkpoint.write(f"state/0/_stateSchema/default/0_{store_id(5)}", "schema")
    for batch in (NO_BATCH, 1, 4, 5):
        assert needed_files(in_a_store(checkpoint), BatchId(batch)) == needed(checkpoint, batch)


def test_the_files_of_a_cut_in_an_object_store_are_listed_once(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint", stores=JOIN)
    for _ in range(6):
        checkpoint.batch()
    checkpoint.snapshot(2)
    store = ListedStore()
    log = in_a_store(checkpoint, store)
    assert needed_files(log, BatchId(5)) == needed(checkpoint, 5)
    assert store.listed == ["checkpoint"]


def test_a_state_store_whose_version_is_gone_is_not_found(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint", stores=JOIN)
    checkpoint.batch()
    store = checkpoint.by_name["1/right-keyToNumValues"]
    (store.directory / store.ids[0].changelog).unlink()
    with pytest.raises(NotFoundError):
        needed(checkpoint, 0)


def test_the_commit_log_may_be_purged_before_the_lineage_ends(checkpoint: SparkCheckpoint) -> None:
    for _ in range(150):
        checkpoint.batch()
    for number in range(148):
        for log in ("offsets", "commits"):
            (checkpoint.root / log / str(number)).unlink()
    assert len(of("state/0/0/", needed(checkpoint, 149))) == 151  # including the schema


class TestSources:
    """The files that a source keeps."""

    def entries(self, checkpoint: SparkCheckpoint, batch: int) -> list[str]:
        return sorted(of("sources/0/", needed(checkpoint, batch)), key=lambda name: int(name.partition(".")[0]))

    def test_a_file_source_needs_its_newest_compact_entry_and_those_after_it(self, checkpoint: SparkCheckpoint) -> None:
        for _ in range(25):
            checkpoint.batch()
        assert self.entries(checkpoint, 4) == ["0", "1", "2", "3", "4"]
        assert self.entries(checkpoint, 22) == ["19.compact", "20", "21", "22"]
        assert self.entries(checkpoint, 19) == ["19.compact"]

    def test_entries_that_spark_has_deleted_before_the_compact_entry_are_not_missed(self, checkpoint: SparkCheckpoint) -> None:
        for _ in range(13):
            checkpoint.batch()
        for number in range(9):
            (checkpoint.root / f"sources/0/{number}").unlink()
        assert self.entries(checkpoint, 9) == ["9.compact"]
        assert self.entries(checkpoint, 12) == ["9.compact", "10", "11", "12"]

    def test_all_entries_of_a_batch_that_took_several_are_needed(self, checkpoint: SparkCheckpoint) -> None:
        for _ in range(13):
            checkpoint.batch()
        header, _ = (checkpoint.root / "offsets/11").read_text().rsplit("\n", 1)
        checkpoint.write("offsets/11", f'{header}\n{{"logOffset":7}}')
        assert self.entries(checkpoint, 12) == ["8", "9.compact", "10", "11", "12"]

    def test_a_missing_entry_after_the_compact_one_is_not_found(self, checkpoint: SparkCheckpoint) -> None:
        for _ in range(13):
            checkpoint.batch()
        (checkpoint.root / "sources/0/11").unlink()
        with pytest.raises(NotFoundError, match="sources/0/11"):
            needed(checkpoint, 12)

    @pytest.mark.parametrize("line", ['{"topic":{"0":7}}', '{"reservoirVersion":3}', "7", "-"])
    def test_all_files_of_another_kind_of_source_are_needed(self, tmp_path: Path, line: str) -> None:
        checkpoint = SparkCheckpoint(tmp_path / "checkpoint", source=line)
        checkpoint.batch()
        checkpoint.write("sources/0/_schema_log_x/0", "a schema")
        checkpoint.write("sources/by name/0", "of a named source")
        assert of("sources/", needed(checkpoint, 0)) == ["0/0", "0/_schema_log_x/0", "by name/0"]

    def test_a_query_without_a_batch_needs_its_id_and_the_starting_points_of_its_sources(self, tmp_path: Path) -> None:
        checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
        checkpoint.write("sources/0/0", '{"topic":{"0":7}}')
        assert needed(checkpoint, NO_BATCH) == ["metadata", "sources/0/0"]


def test_a_query_without_state_needs_no_state_files(checkpoint: SparkCheckpoint) -> None:
    checkpoint.batch()
    checkpoint.write("commits/0", 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}')
    assert of("state/", needed(checkpoint, 0)) == []


def test_state_without_ids_is_refused(checkpoint: SparkCheckpoint) -> None:
    checkpoint.batch()
    checkpoint.write("commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(UnsupportedFormatError, match="checkpointFormatVersion=2"):
        needed(checkpoint, 0)


@pytest.mark.parametrize("entry", ["v2\n{", "v2", 'v2\n{"stateUniqueIds":[]}x', 'v2\n{"stateUniqueIds":[1]}', "v2\n[]"])
def test_a_torn_commit_entry_is_corrupt(checkpoint: SparkCheckpoint, entry: str) -> None:
    checkpoint.batch()
    checkpoint.write("commits/0", entry)
    with pytest.raises(CorruptDocumentError, match="commits/0"):
        needed(checkpoint, 0)


def test_a_purged_batch_is_not_found(checkpoint: SparkCheckpoint) -> None:
    checkpoint.batch()
    (checkpoint.root / "commits/0").unlink()
    with pytest.raises(NotFoundError):
        needed(checkpoint, 0)


def test_only_names_of_state_files_with_an_id_are_never_reused() -> None:
    assert never_reused(f"state/0/1/7_{store_id(3)}.changelog")
    assert never_reused(f"state/0/1/SSTs/000008-{store_id(3)}.sst")
    for path in ("metadata", "offsets/7", "state/0/_metadata/metadata", "state/0/_metadata/v2/0", f"sources/{store_id(3)}"):
        assert not never_reused(path)


def test_a_line_of_another_source_may_be_any_json(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint", source=json.dumps([1, {"logOffset": 4}]))
    checkpoint.batch()
    assert of("sources/", needed(checkpoint, 0)) == ["0/0"]
