"""A publication of two checkpoints, and one thing that another writer does at a chosen moment of it."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.protocol.documents import Publish, Publisher, SinkMode, UpsertCut
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AppId
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers, Transaction
from tests.support.foreign_writers import ACTIONS, STRANGER, Action, Rows
from tests.support.staged_pipeline import HOURLY, SCHEMA, Row, StagedPipeline, path_of
from tests.support.systems import quick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISHED: Rows = [(1, "a"), (2, "a"), (3, "b")]
OF_ANOTHER: Row = (50, "a")
"""Was in the table before, so that there is something to compact and to keep."""
PENDING: list[Rows] = [[(1, "c"), (4, "c")], [(5, "b"), (4, "d")]]


class Moment(Enum):
    """When it happens."""

    BEFORE = "before"
    CHECKED = "between check and opening"
    FIRST = "between opening and the first transaction"
    SECOND = "between opening and the second transaction"
    AFTER = "after the last transaction"


@dataclass(frozen=True)
class Case:
    """One schedule."""

    publisher: Publisher
    mode: SinkMode
    action: Action
    by_spark: bool
    moment: Moment

    def __str__(self) -> str:
        writer = "Spark" if self.by_spark else "delta-rs"
        return f"{self.publisher.value}, {self.mode.value}: {writer} {self.action.name}, {self.moment.value}"

    @property
    def transactions(self) -> list[Rows]:
        """The rows of each transaction that is to be made."""
        return PENDING[-1:] if self.mode is SinkMode.COMPLETE else PENDING

    @property
    def error(self) -> type[StreamPipelineError] | None:
        """What the publication is refused with."""
        outcome = self.action.late if self.moment is Moment.AFTER else self.action.outcome(self.mode)
        return outcome.error

    @property
    def landed(self) -> int:
        """How many transactions are made."""
        if self.error is None or self.moment is Moment.AFTER:
            return len(self.transactions)
        return self._made_before

    @property
    def rows(self) -> Rows:
        """What a reader sees in the end: the transactions one after the other, the other writer's where it was."""
        rows = [*PUBLISHED, OF_ANOTHER]
        for made in range(self.landed + 1):
            if made == self._made_before:
                rows = self.action.effect(rows)
            if made < self.landed:
                rows = _published(rows, self.transactions[made], self.mode)
        return sorted(rows, key=str)

    @property
    def _made_before(self) -> int:
        return {Moment.SECOND: 1, Moment.AFTER: len(self.transactions)}.get(self.moment, 0)


def cases(publisher: Publisher, modes: Iterable[SinkMode], *, by_spark: bool) -> Iterator[Case]:
    """Every schedule that makes sense."""
    for mode in modes:
        for action in ACTIONS:
            for moment in Moment:
                if action.by_spark if by_spark else action.by_delta_rs:
                    case = Case(publisher, mode, action, by_spark, moment)
                    if moment is not Moment.SECOND or len(case.transactions) > 1:
                        yield case


def sampled(every: Iterable[Case], stride: int) -> list[Any]:
    """All cases as parameters; only each ``stride``-th is for every change."""
    return [
        pytest.param(case, id=str(case), marks=() if number % stride == 0 else pytest.mark.nightly)
        for number, case in enumerate(every)
    ]


class Interruption(Publishers):
    """Publishers, and an observer of their steps, that let another writer in at a moment, once."""

    def __init__(self, case: Case, table: Path, spark: "SparkSession | None") -> None:
        super().__init__(None if spark is None else lambda: spark)
        self._case, self._table, self._others = case, table, spark
        self._made = 0
        self.happened = False

    def at(self, moment: Moment) -> None:
        if moment is self._case.moment and not self.happened:
            self.happened = True
            self._case.action.carry_out(self._table, self._others if self._case.by_spark else None)

    def begin(self, publisher: Publisher, uri: str, app: AppId) -> Transaction:
        self.at(Moment.CHECKED)
        return super().begin(publisher, uri, app)

    def before(self, step: Step) -> None:
        if step is Step.PUBLISH_SINK:
            self.at(Moment.SECOND if self._made else Moment.FIRST)

    def after(self, step: Step) -> None:
        if step is Step.PUBLISH_SINK:
            self._made += 1
            if self._made == len(self._case.transactions):
                self.at(Moment.AFTER)


def published_into(directory: Path, *, partitioned: bool = True) -> StagedPipeline:
    """A table with a published checkpoint and a row of another writer."""
    pipeline = StagedPipeline(quick(directory / "home"), directory)
    pipeline.make_table(HOURLY, partition_by=("day",) if partitioned else ())
    pipeline.checkpoint({HOURLY: PUBLISHED}, publish=Publish.EVERY_CHECKPOINT)
    publish(pipeline.files)
    number, day = OF_ANOTHER
    write_deltalake(pipeline.tables[HOURLY], pa.table({"id": [number], "day": [day]}, SCHEMA), mode="append")
    return pipeline


def cut_of(pipeline: StagedPipeline, publisher: Publisher, mode: SinkMode) -> dict[str, Any]:
    """What a sink's cut has by its mode and publisher; makes the directory that the rows of an upsert are staged in."""
    cut: dict[str, Any] = {"publisher": publisher, "mode": mode, "replace": mode is SinkMode.COMPLETE}
    if mode is SinkMode.UPSERT:
        channel = (pipeline.directory / "channel").as_uri()
        DeltaTable.create(channel, SCHEMA)
        cut["upsert"] = UpsertCut(keys=("id",), sequence_by=None, apply_as_deletes=None, staged_in=channel, tombstones=None)
    return cut


def stage_pending(pipeline: StagedPipeline, publisher: Publisher, mode: SinkMode) -> dict[str, Any]:
    """Completes two checkpoints; returns what their cuts have that others do not."""
    cut = cut_of(pipeline, publisher, mode)
    for rows in PENDING:
        pipeline.checkpoint({HOURLY: rows}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
    return cut


def assert_right_or_refused(case: Case, directory: Path, spark: "SparkSession | None" = None) -> None:
    """Publishes twice and compares with what the page says."""
    pipeline = published_into(directory, partitioned=case.action.partitioned)
    table = path_of(pipeline.tables[HOURLY])
    if case.action.mapped and spark:
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    stage_pending(pipeline, case.publisher, case.mode)
    interruption = Interruption(case, table, spark)
    interruption.at(Moment.BEFORE)
    for _ in range(2):
        with observed_by(interruption):
            _publish(pipeline, interruption, case.error)
        if not table.exists():
            continue
        assert rows_of(table, spark if case.action.by_delta_rs is None else None) == case.rows
        if case.action.late.error is None:
            pending = [2, 3][-len(case.transactions) :]
            assert pipeline.commits(HOURLY) == [1, *pending[: case.landed]]
    assert interruption.happened


def _publish(pipeline: StagedPipeline, publishers: Publishers, error: type[StreamPipelineError] | None) -> None:
    if error is None:
        result = publish(pipeline.files, publishers=publishers)[HOURLY]
        assert result.version is not None
        return
    with pytest.raises(error) as refused:
        publish(pipeline.files, publishers=publishers)
    assert type(refused.value) is error


def rows_of(table: Path, spark: "SparkSession | None") -> Rows:
    """The first two columns of all rows, sorted; None where there is no second."""
    found = DeltaTable(str(table)).to_pyarrow_table() if spark is None else spark.read.format("delta").load(str(table)).toArrow()
    days = found.column(1).to_pylist() if found.num_columns > 1 else [None] * found.num_rows
    return sorted(zip(found.column(0).to_pylist(), days, strict=True), key=str)


def _published(rows: Rows, added: Rows, mode: SinkMode) -> Rows:
    if mode is SinkMode.COMPLETE:
        return added
    keys = {number for number, _ in added} if mode is SinkMode.UPSERT else set()
    return [row for row in rows if row[0] not in keys] + added


def replace_newest_commit(pipeline: StagedPipeline, row: Row) -> None:
    """What a writer may do that finds no file of its version, and renames its own to it when there is one.

    So does Spark on a local file system, see docs/reference/concurrent-writers.md.
    """
    newest = max((path_of(pipeline.tables[HOURLY]) / "_delta_log").glob("*.json"))
    info = {"commitInfo": {"timestamp": 0, "operation": "WRITE", "operationParameters": {}}}
    actions = [info, *({"add": line["add"]} for line in pipeline.stage(HOURLY, [row]))]
    other = newest.with_suffix(".other")
    other.write_text("".join(json.dumps(action) + "\n" for action in actions))
    os.replace(other, newest)


class ReplacesCommit:
    """Puts another writer's commit in the place of the first publication's, right after it was made."""

    def __init__(self, pipeline: StagedPipeline) -> None:
        self._pipeline, self._left = pipeline, 1

    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        if step is Step.PUBLISH_SINK and self._left:
            self._left = 0
            replace_newest_commit(self._pipeline, STRANGER)
