"""A publication of two checkpoints, and one action of another writer at a chosen moment of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.protocol.documents import Publish, Publisher
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AppId
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers, Transaction
from tests.support.foreign_writers import ACTIONS, Action
from tests.support.opened_tables import IN_A_STORE
from tests.support.sink_kinds import Graves, Kind, Reference, Rows, cut_of, graves_in, rows_in
from tests.support.staged_pipeline import HOURLY, SCHEMA, Row, StagedPipeline, path_of
from tests.support.systems import quick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISHED: Rows = [(1, "a"), (2, "a"), (3, "b")]
OF_ANOTHER: Row = (50, "a")
"""A row that was in the table before, for the compactions and the rows that must stay."""
PENDING: list[Rows] = [[(1, "c"), (4, "c")], [(5, "b"), (4, "d")]]
PENDING_CHANGES: list[Rows] = [
    [(1, "c"), (2, "d!"), (3, "c"), (4, "c"), (4, "b"), (100, "b!")],
    [(5, "b"), (4, "d"), (2, "b"), (1, "b"), (3, "x!"), (6, "e!"), (50, "a!")],
]
"""The rows of an upsert with a rule: late rows, two of one key at once, deletes of our rows, of another's row, and of missing rows."""


def pending(kind: Kind) -> list[Rows]:
    """Returns the rows of the two checkpoints."""
    return PENDING_CHANGES if kind is Kind.SEQUENCED else PENDING


class Moment(Enum):
    """The moment of the other writer's action."""

    BEFORE = "before"
    CHECKED = "between check and opening"
    FIRST = "between opening and the first transaction"
    BURIED = "between the first transaction's tombstones and its rows"
    SECOND = "between opening and the second transaction"
    AFTER = "after the last transaction"


@dataclass(frozen=True)
class Case:
    """One schedule."""

    publisher: Publisher
    kind: Kind
    action: Action
    by_spark: bool
    moment: Moment

    def __str__(self) -> str:
        writer = "Spark" if self.by_spark else "delta-rs"
        return f"{self.publisher.value}, {self.kind.value}: {writer} {self.action.name}, {self.moment.value}"

    @property
    def makes_sense(self) -> bool:
        """True if a writer can do the action and the moment exists."""
        if not (self.action.by_spark if self.by_spark else self.action.by_delta_rs):
            return False
        if self.moment is Moment.BURIED:
            return self.kind is Kind.SEQUENCED
        return self.moment is not Moment.SECOND or len(self.transactions) > 1

    @property
    def transactions(self) -> list[Rows]:
        """Returns the rows of each transaction of the publication."""
        return pending(self.kind)[-1:] if self.kind is Kind.COMPLETE else pending(self.kind)

    @property
    def error(self) -> type[StreamPipelineError] | None:
        """Returns the error of the publication, and None if it succeeds."""
        ordered = self.kind is Kind.SEQUENCED
        outcome = self.action.late if self.moment is Moment.AFTER else self.action.outcome(self.kind.mode, ordered=ordered)
        return outcome.error(spark=self.by_spark or self.publisher is Publisher.SPARK)

    @property
    def landed(self) -> int:
        """Returns the number of transactions that are committed."""
        if self.error is None or self.moment is Moment.AFTER:
            return len(self.transactions)
        return self._made_before

    @property
    def expected(self) -> Reference:
        """Returns the expected rows: the transactions one after the other, with the other writer's in its place."""
        reference = Reference(self.kind, [*PUBLISHED, OF_ANOTHER])
        for made in range(self.landed + 1):
            if made == self._made_before:
                reference.rows = self.action.effect(reference.rows)
            if made < self.landed:
                reference.publish(self.transactions[made])
        if self.action.effect([OF_ANOTHER]) == [(OF_ANOTHER[0], None)]:
            reference.rows = self.action.effect(reference.rows)  # also to rows that come later
        return reference

    @property
    def remembers_more(self) -> bool:
        """Returns True if one more transaction has tombstones than is committed. Tombstones are written first, and do no harm."""
        return self.landed < len(self.transactions) and self.moment in (Moment.FIRST, Moment.BURIED, Moment.SECOND)

    @property
    def _made_before(self) -> int:
        return {Moment.SECOND: 1, Moment.AFTER: len(self.transactions)}.get(self.moment, 0)


def cases(publisher: Publisher, kinds: Iterable[Kind], *, by_spark: bool) -> Iterator[Case]:
    """Yields every schedule that makes sense."""
    for kind in kinds:
        for action in ACTIONS:
            for moment in Moment:
                case = Case(publisher, kind, action, by_spark, moment)
                if case.makes_sense:
                    yield case


def sampled(every: Iterable[Case], stride: int) -> list[Any]:
    """Returns all cases as parameters. Every ``stride``-th case runs on every change, the others at night."""
    return [
        pytest.param(case, id=str(case), marks=() if number % stride == 0 else pytest.mark.nightly)
        for number, case in enumerate(every)
    ]


class Interruption(Publishers):
    """Publishers, and an observer of their steps, that let another writer in once at a chosen moment."""

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
        if step is Step.BURY_KEYS:
            self.at(Moment.BURIED)
        if step is Step.PUBLISH_SINK:
            self._made += 1
            if self._made == len(self._case.transactions):
                self.at(Moment.AFTER)


def published_into(directory: Path, *, partitioned: bool = True) -> StagedPipeline:
    """Returns a pipeline in a directory that :func:`begin_published` has begun."""
    pipeline = StagedPipeline(quick(directory / "home"), directory)
    begin_published(pipeline, partitioned=partitioned)
    return pipeline


def begin_published(pipeline: StagedPipeline, *, partitioned: bool = True) -> None:
    """Makes a table with a published checkpoint and a row of another writer."""
    pipeline.make_table(HOURLY, partition_by=("day",) if partitioned else ())
    pipeline.checkpoint({HOURLY: PUBLISHED}, publish=Publish.EVERY_CHECKPOINT)
    publish(pipeline.files)
    number, day = OF_ANOTHER
    row = pa.table({"id": [number], "day": [day]}, SCHEMA)
    write_deltalake(pipeline.tables[HOURLY], row, mode="append", storage_options=IN_A_STORE)


def stage_pending(pipeline: StagedPipeline, publisher: Publisher, kind: Kind) -> Mapping[str, Any]:
    """Completes two checkpoints. Returns the special fields of their cuts."""
    cut = cut_of(pipeline, publisher, kind)
    for rows in pending(kind):
        pipeline.checkpoint({HOURLY: rows}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
    return cut


def assert_right_or_refused(case: Case, directory: Path, spark: "SparkSession | None" = None) -> None:
    """Publishes twice, and compares the outcome with the page."""
    pipeline = published_into(directory, partitioned=case.action.partitioned)
    table = path_of(pipeline.tables[HOURLY])
    if case.action.mapped and spark:
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    cut = stage_pending(pipeline, case.publisher, case.kind)
    interruption = Interruption(case, table, spark)
    interruption.at(Moment.BEFORE)
    for _ in range(2):
        with observed_by(interruption):
            _publish(pipeline, interruption, case.error)
        if not table.exists():
            continue
        assert rows_of(table, spark if case.action.by_delta_rs is None else None) == sorted(case.expected.rows, key=str)
        _assert_remembered(case, graves_in(cut))
        if case.action.late.error(spark=True) is None:
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


def _assert_remembered(case: Case, found: Graves) -> None:
    reference = case.expected
    if case.kind is Kind.SEQUENCED and case.remembers_more:
        reference.bury(case.transactions[case.landed])
    assert found == reference.graves


def rows_of(table: Path | str, spark: "SparkSession | None") -> Rows:
    """Returns the rows of a table, sorted. Spark reads them if there is a session."""
    return rows_in(
        DeltaTable(str(table)).to_pyarrow_table() if spark is None else spark.read.format("delta").load(str(table)).toArrow()
    )
