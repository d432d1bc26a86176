"""A stage's private Delta log, read by the product and by delta-rs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.errors import AlreadyExistsError, CorruptDocumentError, UnsupportedTableError
from spark_jobs.protocol.ids import BatchId, LossId
from spark_jobs.protocol.table_shape import StagedFor, StagedSince
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.log_segments import LogSegments, Segment
from spark_jobs.runtime.staged.private_log import LogIdentity, PrivateLog, StagedBatch
from spark_jobs.storage.local import LocalFiles
from tests.support.damage import flip
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import METADATA, PROTOCOL, SHAPE, STAGED_FOR, TABLE, begun, staged, versions
from tests.support.systems import FaultSystem, quick


@pytest.fixture
def log(tmp_path: Path) -> PrivateLog:
    return begun(quick(tmp_path))


def test_a_batch_reads_back_as_it_was_staged(log: PrivateLog) -> None:
    log.append(staged(0, "a%20b.parquet", "c.parquet"))
    assert log.read(BatchId(0)) == staged(0, "a%20b.parquet", "c.parquet")


def test_violations_of_a_batch_do_not_count_for_earlier_batches(log: PrivateLog) -> None:
    violating = replace(staged(1, "a.parquet"), violations={"positive": 2})
    log.append(violating)
    assert [batch.violations for batch in log.between(BatchId(-1), BatchId(1))] == [{}, {"positive": 2}]


def test_losses_that_a_batch_has_backfilled_are_in_its_version_and_in_its_segment(log: PrivateLog) -> None:
    batches = [staged(0, "a"), replace(staged(1, "b"), backfilled=(LossId("3-1"),)), staged(3)]
    for batch in batches:
        log.append(batch)
    assert [each.backfilled for each in log.between(NO_BATCH, BatchId(3))] == [(), ("3-1",), (), ()]
    log.fold(BatchId(2))
    assert [each.backfilled for each in log.between(NO_BATCH, BatchId(3))] == [(), ("3-1",), (), ()]
    assert log.read(BatchId(1)) == batches[1]


def test_a_batch_that_is_not_staged_has_no_version(log: PrivateLog) -> None:
    assert log.read(BatchId(0)) is None


def test_only_the_first_result_of_a_batch_counts(log: PrivateLog) -> None:
    log.append(staged(0, "first.parquet"))
    with pytest.raises(AlreadyExistsError):
        log.append(staged(0, "second.parquet"))
    assert log.read(BatchId(0)) == staged(0, "first.parquet")


def test_a_batch_without_rows_has_an_empty_version(log: PrivateLog) -> None:
    log.append(staged(0))
    assert log.latest() == 1
    assert log.read(BatchId(0)) == staged(0)


def test_batch_ids_that_never_reached_the_sink_get_empty_versions(log: PrivateLog) -> None:
    log.append(staged(0, "a.parquet"))
    log.append(staged(3, "b.parquet"))
    assert [batch.adds == () for batch in log.between(BatchId(-1), BatchId(3))] == [False, True, True, False]
    assert log.latest() == 4


def test_beginning_a_log_again_changes_nothing(tmp_path: Path, log: PrivateLog) -> None:
    before = (tmp_path / "log/_delta_log/00000000000000000000.json").read_bytes()
    assert not log.begin(METADATA | {"configuration": {}}, PROTOCOL, STAGED_FOR)
    assert (tmp_path / "log/_delta_log/00000000000000000000.json").read_bytes() == before


def test_a_log_without_a_table_takes_the_table_for_which_it_is_begun(tmp_path: Path) -> None:
    """The log comes from a savepoint that was taken with another table."""
    log = PrivateLog(quick(tmp_path), "log", TABLE)
    log.rebuild(LogIdentity(METADATA | {"id": "as consumers call it"}, PROTOCOL, None), [staged(3), staged(4, "4.parquet")])
    named = METADATA | {"configuration": {"delta.columnMapping.mode": "name"}}
    assert log.begin(named, PROTOCOL, STAGED_FOR)
    found = log.identity()
    assert (found.staged_for, found.metadata["configuration"]) == (STAGED_FOR, named["configuration"])
    assert (log.table_id, log.latest(), DeltaTable(str(tmp_path / "log")).version()) == ("as consumers call it", 5, 5)
    assert not log.begin(named, PROTOCOL, STAGED_FOR)
    with pytest.raises(UnsupportedTableError, match="another id"):
        log.begin(named, PROTOCOL, STAGED_FOR.model_copy(update={"table_id": "another"}))


def changed(name: str) -> StagedFor:
    shape = SHAPE.model_copy(update={"configuration": {"delta.constraints.one": name}})
    return StagedFor(table_id=STAGED_FOR.table_id, since=(StagedSince(first=BatchId(0), shape=shape),))


def test_a_log_whose_staged_rows_no_longer_fit_the_table_is_refused(log: PrivateLog) -> None:
    log.append(staged(0, "a.parquet"))
    log.append(staged(1, "b.parquet"))
    with pytest.raises(UnsupportedTableError, match="do not fit it any more: it is odd") as caught:
        log.begin(METADATA, PROTOCOL, changed("a"), misfits=lambda _: ["is odd"])
    assert "--fresh" in caught.value.remedy
    assert log.staged_for() == STAGED_FOR


def test_rows_that_are_in_a_checkpoint_do_not_prevent_a_log_from_continuing(log: PrivateLog) -> None:
    log.append(staged(0, "a.parquet"))
    assert log.begin(METADATA, PROTOCOL, changed("a"), recorded=BatchId(0), misfits=lambda _: ["is odd"])
    found = log.staged_for()
    assert found is not None
    assert found.since == (StagedSince(first=BatchId(1), shape=changed("a").since[0].shape),)


def test_constraints_are_left_to_the_publication_until_the_log_is_begun_again(tmp_path: Path, log: PrivateLog) -> None:
    constrained = changed("a").since[0].shape
    log.begin(METADATA, PROTOCOL, changed("a"), recorded=BatchId(0))
    log.append(staged(0, "a.parquet"))
    log.leave_constraints_to_publication()
    log.leave_constraints_to_publication()
    log.append(staged(1, "b.parquet"))
    read_again = PrivateLog(quick(tmp_path), "log", TABLE)
    found = read_again.staged_for()
    assert found == log.staged_for()
    assert found is not None
    assert found.since == (StagedSince(first=BatchId(0), shape=constrained), StagedSince(first=BatchId(1), shape=SHAPE))
    assert [batch.batch for batch in read_again.between(NO_BATCH, BatchId(1))] == [0, 1]
    assert read_again.begin(METADATA, PROTOCOL, changed("a"), recorded=BatchId(0))
    found = read_again.staged_for()
    assert found is not None
    assert found.since == (StagedSince(first=BatchId(1), shape=SHAPE), StagedSince(first=BatchId(2), shape=constrained))


def test_constraints_are_checked_again_if_the_driver_died_before_it_staged_the_refused_batch(
    tmp_path: Path, log: PrivateLog
) -> None:
    log.begin(METADATA, PROTOCOL, changed("a"))
    log.append(staged(0, "a.parquet"))
    before = log.staged_for()
    log.leave_constraints_to_publication()
    next_attempt = PrivateLog(quick(tmp_path), "log", TABLE)
    assert next_attempt.begin(METADATA, PROTOCOL, changed("a"))
    assert next_attempt.staged_for() == before


def test_a_log_without_a_public_table_leaves_no_constraints_to_a_publication(tmp_path: Path) -> None:
    log = PrivateLog(quick(tmp_path), "log", TABLE)
    log.begin(METADATA, PROTOCOL, None)
    with pytest.raises(ValueError, match="no public table"):
        log.leave_constraints_to_publication()


def test_a_log_records_the_shape_of_the_table_for_each_batch(log: PrivateLog) -> None:
    log.append(staged(0, "a.parquet"))
    log.append(staged(1, "b.parquet"))
    assert log.begin(METADATA, PROTOCOL, changed("a"))
    assert not log.begin(METADATA, PROTOCOL, changed("a"))
    log.append(staged(2, "c.parquet"))
    assert log.begin(METADATA, PROTOCOL, changed("b"), recorded=BatchId(0))
    found = log.staged_for()
    assert found is not None
    first, second, third = SHAPE, changed("a").since[0].shape, changed("b").since[0].shape
    assert [each.first for each in found.since] == [0, 2, 3]
    assert found.shapes(BatchId(0), BatchId(1)) == (first,)
    assert found.shapes(BatchId(1), BatchId(2)) == (second,)
    assert found.shapes(BatchId(0), BatchId(3)) == (first, second, third)
    assert found.shapes(BatchId(2), BatchId(2)) == ()


def test_delta_reads_a_private_log_as_a_table_whose_files_lie_elsewhere(tmp_path: Path, log: PrivateLog) -> None:
    log.append(staged(0, "a.parquet"))
    log.append(staged(1))
    table = DeltaTable(str(tmp_path / "log"))
    assert [str(table.version()), str(table.metadata().id)] == ["2", log.table_id]
    assert table.get_add_actions().column("path").to_pylist() == [f"{TABLE}/a.parquet"]


def test_two_logs_have_two_ids(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert PrivateLog(files, "one", TABLE).table_id != PrivateLog(files, "two", TABLE).table_id


def test_a_writer_lists_its_log_once(tmp_path: Path) -> None:
    system = FaultSystem()
    log = begun(LocalFiles(tmp_path, system))
    looked = [entry for entry in system.trace if entry.startswith("listdir")]
    for batch in range(5):
        log.append(staged(batch))
        log.read(BatchId(batch))
    listed = [entry for entry in system.trace if entry.startswith("listdir")]
    assert len(listed) - len(looked) == 5 + 1, (
        "each create looks for what crashes have left, and the segments are looked for once"
    )


def test_after_a_failed_append_the_log_is_listed_again(tmp_path: Path) -> None:
    log, other = begun(quick(tmp_path)), begun(quick(tmp_path))
    other.append(staged(0, "other.parquet"))
    with pytest.raises(AlreadyExistsError):
        log.append(staged(0, "a.parquet"))
    assert log.latest() == 1


def filled(tmp_path: Path, batches: int) -> PrivateLog:
    log = begun(quick(tmp_path))
    for batch in range(batches):
        log.append(staged(batch, f"{batch}.parquet"))
    return log


def everything(log: PrivateLog, after: int = -1) -> list[StagedBatch]:
    return list(log.between(BatchId(after), BatchId(log.latest() - 1)))


def test_a_folded_log_reads_as_before(tmp_path: Path) -> None:
    log = filled(tmp_path, 9)
    before = everything(log)
    log.fold(BatchId(2))
    log.fold(BatchId(5))
    for reader in (log, begun(quick(tmp_path))):
        assert everything(reader) == before
        assert [reader.read(BatchId(batch)) for batch in range(9)] == before
        assert list(reader.between(BatchId(1), BatchId(6))) == before[2:7]
        assert reader.staged_for() == STAGED_FOR


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_log_that_is_folded_while_it_is_read_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """A running stage folds the segments just after the reader has listed them."""
    log = begun(quick(tmp_path))
    for batch in range(9):
        log.append(staged(batch, f"{batch}.parquet"))
    look, left = LogSegments.all, [looks]

    def all_and_then_folded(segments: LogSegments) -> list[Segment]:
        found = look(segments)
        left[0] -= 1
        if left[0] == 0:
            log.fold(BatchId(5))
        return found

    monkeypatch.setattr(LogSegments, "all", all_and_then_folded)
    assert [each.batch for each in log.between(BatchId(1), BatchId(8))] == list(range(2, 9))


def test_a_fold_keeps_versions_that_a_reader_may_have_listed_until_the_next_fold(tmp_path: Path) -> None:
    log = filled(tmp_path, 6)
    log.fold(BatchId(1))
    assert versions(tmp_path) == ["0000.json", "0001.json", "0002.checkpoint.parquet", *(f"{n:04}.json" for n in range(2, 7))]
    log.fold(BatchId(3))
    assert versions(tmp_path) == [
        "0000.json",
        "0002.checkpoint.parquet",
        "0003.json",
        "0004.checkpoint.parquet",
        "0004.json",
        "0005.json",
        "0006.json",
    ]
    log.fold(BatchId(4))
    assert versions(tmp_path) == ["0000.json", "0004.checkpoint.parquet", "0005.checkpoint.parquet", "0005.json", "0006.json"]


def checksum(root: Path, version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / f"log/_delta_log/{version:020}.crc").read_bytes())
    return found


def test_a_version_that_delta_reads_has_a_checksum_file_with_the_files_that_are_not_folded(tmp_path: Path) -> None:
    log = begun(quick(tmp_path))
    log.append(staged(0, "a.parquet", "b.parquet"))
    log.write_checksums()
    log.append(staged(1, "c.parquet"))
    log.append(staged(2))
    assert not (tmp_path / f"log/_delta_log/{1:020}.crc").exists()
    found = checksum(tmp_path, 2)
    assert (found["numFiles"], found["tableSizeBytes"], found["protocol"]) == (3, 27, PROTOCOL)
    assert found["metadata"] == METADATA | {"id": log.table_id}
    log.fold(BatchId(1))
    log.append(staged(3, "d.parquet"))
    assert (checksum(tmp_path, 3)["numFiles"], checksum(tmp_path, 4)["numFiles"]) == (3, 1)


def test_the_checksum_file_is_there_before_the_version(tmp_path: Path) -> None:
    system = FaultSystem()
    log = begun(LocalFiles(tmp_path, system))
    log.write_checksums()
    log.append(staged(0, "a.parquet"))
    named = [name for entry in system.trace for name in (".crc", f"{1:020}.json") if name in entry]
    assert named.index(".crc") < named.index(f"{1:020}.json")


def test_checksum_files_go_with_their_versions(tmp_path: Path) -> None:
    log = begun(quick(tmp_path))
    log.write_checksums()
    for batch in range(6):
        log.append(staged(batch, f"{batch}.parquet"))
    log.fold(BatchId(1))
    log.fold(BatchId(3))
    assert [name for name in versions(tmp_path) if name.endswith(".crc")] == ["0003.crc", "0004.crc", "0005.crc", "0006.crc"]


def test_checksum_files_of_an_earlier_process_are_deleted(tmp_path: Path) -> None:
    """Version 0 may have been replaced since, with another schema."""
    log = begun(quick(tmp_path))
    log.write_checksums()
    log.append(staged(0, "a.parquet"))
    log.write_checksums()
    assert "0001.crc" in versions(tmp_path), "the process that has written it goes on"
    again = begun(quick(tmp_path))
    again.write_checksums()
    assert versions(tmp_path) == ["0000.json", "0001.json"]


def test_the_newest_batch_is_never_folded(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.fold(BatchId(99))
    assert log.folded() == 1
    assert "0003.json" in versions(tmp_path)


def test_a_log_with_one_batch_or_none_is_not_folded(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.fold(BatchId(0))
    assert versions(tmp_path) == ["0000.json", "0001.json"]


def test_delta_reads_a_folded_log_from_its_checkpoint_with_the_schema_of_the_table(tmp_path: Path) -> None:
    log = filled(tmp_path, 6)
    log.fold(BatchId(2))
    log.fold(BatchId(3))
    table = DeltaTable(str(tmp_path / "log"))
    assert [str(table.version()), str(table.metadata().id)] == ["6", log.table_id]
    assert sorted(table.get_add_actions().column("path").to_pylist()) == [f"{TABLE}/4.parquet", f"{TABLE}/5.parquet"]
    assert [field.name for field in table.schema().fields] == ["id"]


def test_segments_have_a_maximal_size(tmp_path: Path) -> None:
    filled(tmp_path, 9)
    log = PrivateLog(quick(tmp_path), "log", TABLE, segment_batches_max=3)
    log.fold(BatchId(7))
    assert sorted(path.name for path in (tmp_path / "log/segments").iterdir()) == ["0-2.jsonl", "3-5.jsonl", "6-7.jsonl"]
    assert [batch.batch for batch in everything(log)] == list(range(9))


def test_a_forgotten_batch_is_reported_before_it_is_deleted_and_cannot_be_read_any_more(tmp_path: Path) -> None:
    log = filled(tmp_path, 9)
    for last in (1, 3, 6):
        log.fold(BatchId(last))
    told: list[StagedBatch] = []
    log.forget(BatchId(4), told.append)
    assert [batch.batch for batch in told] == [0, 1, 2, 3]
    assert log.oldest() == 4
    assert [batch.batch for batch in everything(log, after=3)] == [4, 5, 6, 7, 8]
    with pytest.raises(CorruptDocumentError, match="does not have the batches before 4 any more, but batch 3"):
        log.between(BatchId(2), BatchId(8))
    with pytest.raises(CorruptDocumentError):
        log.read(BatchId(0))


def test_the_newest_segment_is_never_forgotten(tmp_path: Path) -> None:
    log = filled(tmp_path, 9)
    log.fold(BatchId(6))
    log.forget(BatchId(6), lambda batch: pytest.fail("told"))
    assert begun(quick(tmp_path)).folded() == 6


def test_a_batch_that_was_reported_and_not_deleted_is_reported_again() -> None:
    log = begun(MemoryFiles())
    for batch in range(6):
        log.append(staged(batch))
    log.fold(BatchId(1))
    log.fold(BatchId(3))

    def dies(batch: StagedBatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.forget(BatchId(5), dies)
    told: list[StagedBatch] = []
    log.forget(BatchId(5), told.append)
    assert [batch.batch for batch in told] == [0, 1]


def test_readers_that_begin_at_the_checkpoint_of_a_folded_log_see_columns_that_it_has_gained(tmp_path: Path) -> None:
    log = filled(tmp_path, 6)
    log.fold(BatchId(1))
    log.fold(BatchId(3))
    fields: list[dict[str, object]] = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "more")
    ]
    wider = METADATA | {"schemaString": json.dumps({"type": "struct", "fields": fields})}
    assert log.begin(wider, PROTOCOL, STAGED_FOR)
    assert [field.name for field in DeltaTable(str(tmp_path / "log")).schema().fields] == ["id", "more"]
    assert not log.begin(wider, PROTOCOL, STAGED_FOR)


@given(data=st.data())
def test_a_flipped_byte_of_a_version_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("log")
    log = begun(LocalFiles(root))
    log.append(staged(0, "a.parquet"))
    version = data.draw(st.integers(0, 1))
    path = root / f"log/_delta_log/{version:020d}.json"
    flip(path, data.draw(st.integers(0, path.stat().st_size - 1)))
    fresh = PrivateLog(LocalFiles(root), "log", log.table_url)
    with pytest.raises(CorruptDocumentError, match=f"{version:020d}.json is not a complete version"):
        fresh.read(BatchId(0)) if version else fresh.identity()


def test_a_version_with_endless_nesting_is_noticed(tmp_path: Path) -> None:
    log = begun(LocalFiles(tmp_path))
    log.append(staged(0, "a.parquet"))
    (tmp_path / f"log/_delta_log/{1:020d}.json").write_bytes(b"[" * 100_000)
    with pytest.raises(CorruptDocumentError, match="is not a complete version"):
        PrivateLog(LocalFiles(tmp_path), "log", log.table_url).read(BatchId(0))
