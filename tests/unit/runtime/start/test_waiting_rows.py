"""The columns that a stage returns are compared with those of the rows that wait for its consumers."""

import json
from functools import reduce

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.graph import Graph
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import BatchId, InputName, StageName
from spark_jobs.protocol.known_sources import KnownDelta
from spark_jobs.runtime.start.waiting_rows import WaitingRows, check_waiting, gained_columns, waiting_in_work
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import SCHEMA, SHAPE, begun, staged

CLEAN, COPY, COUNT = StageName("clean"), StageName("copy"), StageName("count")


def graph() -> Graph:
    pipeline = Pipeline("waiting")
    pipeline.source(name="rows", bounded=True)(lambda spark: spark)
    pipeline.stage(name=CLEAN)(lambda rows: rows)
    for name in (COPY, COUNT):
        pipeline.stage(name=name, inputs={"clean": CLEAN}, sink=DeltaSink(f"/tables/{name}"))(lambda clean: clean)
    return pipeline.graph()


class Work:
    """A work directory in which a stage has staged three batches of two rows each."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.log = begun(self.files, f"stages/{CLEAN}/log")
        for batch, name in enumerate(("a", "b", "c")):
            self.log.append(staged(batch, name))

    def consumed(self, reader: StageName, version: int) -> None:
        """Commits a batch of a reader that has read everything before this version of the log."""
        offset = {"reservoirId": self.log.table_id, "reservoirVersion": version, "index": -1}
        directory = f"stages/{reader}/checkpoint"
        self.files.create(f"{directory}/offsets/0", "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(offset)]).encode())
        self.files.create(f"{directory}/commits/0", b"v2\n{}")

    def waiting(self, **begins: int) -> dict[StageName, int]:
        found = waiting_in_work(self.files, graph(), {StageName(n): {CLEAN: BatchId(b)} for n, b in begins.items()})
        assert all(rows.schema == SCHEMA for rows in found.values())
        return {name: rows.rows for name, rows in found.items()}


def test_all_rows_wait_for_a_reader_that_has_not_begun() -> None:
    work = Work()
    assert work.waiting() == {CLEAN: 6}
    assert work.waiting(copy=2, count=1) == {CLEAN: 2}


def test_the_slowest_reader_decides_which_rows_wait() -> None:
    work = Work()
    work.consumed(COPY, 4)
    work.consumed(COUNT, 3)
    assert work.waiting() == {CLEAN: 2}


def test_no_rows_wait_if_all_were_consumed_or_none_were_staged() -> None:
    work = Work()
    work.consumed(COPY, 4)
    work.consumed(COUNT, 4)
    assert work.waiting() == {}
    assert waiting_in_work(MemoryFiles(), graph(), {}) == {}


BEFORE = StructType().add("id", LongType()).add("places", ArrayType(StructType().add("city", StringType())))
WAITING = {CLEAN: WaitingRows(6, json.loads(BEFORE.json()))}


@pytest.mark.parametrize(
    ("now", "lacking"),
    [
        (StructType().add("number", LongType()).add("places", BEFORE["places"].dataType), ["number"]),
        (StructType([*BEFORE.fields]).add("more", LongType()), ["more"]),
        (StructType().add("places", ArrayType(StructType().add("town", StringType()))), ["places.element.town"]),
    ],
    ids=["renamed", "added", "a field of a struct in an array renamed"],
)
def test_a_column_that_waiting_rows_lack_is_refused_by_name(now: StructType, lacking: list[str]) -> None:
    with pytest.raises(RejectedError, match=f"returns {lacking[0]}, which 6 waiting rows of its earlier code lack") as refused:
        check_waiting({CLEAN: now}, WAITING, ())
    assert refused.value.evidence["columns"] == lacking


@pytest.mark.parametrize(
    "now",
    [BEFORE, StructType().add("ID", LongType()), StructType().add("id", StringType())],
    ids=["same", "dropped", "other type"],
)
def test_columns_that_waiting_rows_have_are_accepted(now: StructType) -> None:
    check_waiting({CLEAN: now}, WAITING, ())


def test_rows_staged_for_a_removed_stage_do_not_wait() -> None:
    check_waiting({}, WAITING, ())


def table(*columns: str) -> dict[InputName, tuple[KnownDelta]]:
    schema = reduce(lambda schema, name: schema.add(name, LongType()), columns, StructType())
    return {
        InputName("rows"): (KnownDelta(path="/rows", table="t", shape=SHAPE.model_copy(update={"table_schema": schema.json()})),)
    }


def test_a_column_that_the_source_table_has_gained_may_be_null_in_waiting_rows() -> None:
    gained = gained_columns(table("id"), table("id", "more"))
    check_waiting({CLEAN: StructType([*BEFORE.fields]).add("more", LongType())}, WAITING, gained)


@pytest.mark.parametrize("before", [("id", "less"), ("id", "more")], ids=["a column that may be renamed", "an existing column"])
def test_a_column_that_the_source_table_already_had_may_not_be_null_in_waiting_rows(before: tuple[str, ...]) -> None:
    assert not gained_columns(table(*before), table("id", "more"))
    assert not gained_columns({}, table("id", "more"))
