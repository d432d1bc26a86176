"""Streams over Delta tables: commits whose rows cannot be read, replaced tables, and files that are counted ahead."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError, StorageError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.known_sources import DeltaCommit, KnownDelta
from spark_jobs.protocol.losses import SkippedVersion
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.runtime.inputs import delta_source
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.inputs.delta_source import DeltaSource, counted_ahead, delta_offset, skipped_versions
from spark_jobs.runtime.inputs.source_kind import OwnLog, ReadSoFar
from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.storage.local import LocalFiles

SOON_S = 10.0


def file(rows: int | None = 2, **fields: Any) -> dict[str, Any]:
    return {"path": "f", "dataChange": True, "stats": None if rows is None else json.dumps({"numRecords": rows})} | fields


def skipped(*actions: dict[str, Any], keeps_deleted: bool = False) -> tuple[SkippedVersion, ...]:
    return skipped_versions([(6, [{"add": file()}]), (7, [{"commitInfo": {}}, *actions])], keeps_deleted=keeps_deleted)


def test_a_version_that_changes_rows_is_found_with_the_numbers_of_its_rows() -> None:
    found = skipped({"remove": file(4)}, {"remove": file(1)}, {"add": file(3)})
    assert found == (SkippedVersion(version=7, added_files=1, added_rows=3, removed_files=2, removed_rows=5),)


@pytest.mark.parametrize("keeps_deleted", [False, True])
def test_a_version_that_only_deletes_rows_is_no_loss_if_deleted_rows_are_kept(keeps_deleted: bool) -> None:
    found = skipped({"remove": file(4)}, keeps_deleted=keeps_deleted)
    assert [each.version for each in found] == ([] if keeps_deleted else [7])


def test_a_version_that_only_moves_rows_is_no_loss() -> None:
    assert not skipped({"remove": file(dataChange=False)}, {"add": file(dataChange=False)})


def test_rows_of_a_deletion_vector_are_not_counted_and_missing_numbers_of_rows_stay_unknown() -> None:
    (found,) = skipped({"remove": file(None)}, {"add": file(9, deletionVector={"cardinality": 4})})
    assert (found.removed_rows, found.added_rows) == (None, 5)


@pytest.mark.parametrize("option", ["skipChangeCommits", "failOnDataLoss"])
def test_an_option_that_leaves_rows_out_silently_is_refused(option: str) -> None:
    leaf = Leaf(0, "StreamingRelation", "delta", {option: "false" if option == "failOnDataLoss" else "true"}, StructType())
    with pytest.raises(InvalidPipelineError, match=option) as refused:
        DeltaSource().check(InputName("rows"), leaf, bounded=True, moving=False)
    assert "--accept-data-loss" in refused.value.remedy
    assert 'on_gone="skip"' in refused.value.remedy


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Counts files instead of Delta: /gone cannot be read, and /large takes until its jobs are cancelled."""
    jvm = SimpleNamespace(counted=[], has_begun=Event(), has_counted=Event(), cancelled=Event(), sparkContext=None, pinned=True)

    def count(path: str) -> int:
        jvm.counted.append(path)
        jvm.has_begun.set()
        if path == "/gone":
            raise StorageError("the store is away")
        assert path != "/large" or jvm.cancelled.wait(SOON_S)
        jvm.has_counted.set()
        return 1

    monkeypatch.setattr(delta_source, "pins_threads", lambda _: jvm.pinned)
    monkeypatch.setattr(delta_source, "session_with", lambda spark, settings: spark)
    monkeypatch.setattr(delta_source, "DeltaJvm", lambda spark: SimpleNamespace(count_files=count))
    monkeypatch.setattr(delta_source, "job_group", lambda *_: nullcontext())
    monkeypatch.setattr(delta_source, "cancel_for_good", lambda *_: jvm.cancelled.set())
    return jvm


def test_tables_are_counted_ahead_although_another_one_cannot_be_read(jvm: Any) -> None:
    with counted_ahead(jvm, ["/gone", "/rows"]):
        assert jvm.has_counted.wait(SOON_S)
    assert sorted(jvm.counted) == ["/gone", "/rows"]


def test_an_unfinished_count_is_cancelled_when_the_queries_begin(jvm: Any) -> None:
    with counted_ahead(jvm, ["/large"]):
        assert jvm.has_begun.wait(SOON_S)
        assert not jvm.cancelled.is_set()
    assert jvm.cancelled.is_set()
    assert jvm.has_counted.wait(SOON_S)


def test_a_count_does_not_begin_after_the_queries(jvm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    later = list[Callable[[], object]]()
    monkeypatch.setattr(delta_source, "run_in_background", later.append)
    with counted_ahead(jvm, ["/rows"]):
        pass
    later[0]()
    assert not jvm.counted


@pytest.mark.parametrize(("paths", "pinned"), [((), True), (("/rows",), False)])
def test_nothing_is_counted_without_tables_or_where_no_count_could_be_cancelled(
    jvm: Any, paths: tuple[str, ...], pinned: bool
) -> None:
    jvm.pinned = pinned
    with counted_ahead(jvm, paths):
        assert not jvm.has_begun.wait(0.05)
    assert not jvm.cancelled.is_set()


def test_a_replaced_table_is_refused_even_if_its_log_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the store is away")

    monkeypatch.setattr(delta_source, "delta_pin", lambda _, path: DeltaPin(path=path, table="new", version=0))
    monkeypatch.setattr(delta_source, "DeltaJvm", lambda _: None)
    monkeypatch.setattr(delta_source, "_hash_now", fail)
    monkeypatch.setattr(delta_source, "_skipped_in_batch", fail)
    session: Any = None
    read = ReadSoFar(
        name=InputName("rows"),
        position=0,
        stage=StageName("copied"),
        session=session,
        leaf=Leaf(0, "StreamingRelation", "delta", {"path": "/rows"}, StructType()),
        line=NO_OFFSET,
        known=KnownDelta(path="/rows", table="old", seen=DeltaCommit(version=3, sha256="0" * 64)),
        pin=None,
        log=OwnLog(LocalFiles(tmp_path), "sources"),
    )
    with pytest.raises(RejectedError, match="another Delta table"):
        DeltaSource().check_batch(read, delta_offset("new", 1), (), None, 0)
