"""Every kind of table holds the rows that it should after two rounds, whoever publishes and whoever reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.documents import SinkMode
from tests.spark.conftest import Site
from tests.spark.rows import Rows, answer, assert_same
from tests.support.engines import ENGINES, ReaderError
from tests.support.table_features import FEATURES, READERS, Feature

pytestmark = pytest.mark.spark

REGIONS = ["a b", "100%", "%41", "ü/ñ=&?#", "x'y\"z", "back\\slash", " ", "日本", None]
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "seq": pa.int64(),
        "region": pa.string(),
        "day": pa.date32(),
        "price": pa.decimal128(10, 2),
        "at": pa.timestamp("us", "UTC"),
        "value": pa.int32(),
        "name": pa.string(),
    }
)
ROUNDS = 2
BATCH_ROWS = 20


def _batch(number: int) -> pa.Table:
    """Twenty rows of twenty keys; the second round has half of the keys of the first again."""
    first = number * BATCH_ROWS - (number // 2) * BATCH_ROWS
    rows = []
    for key in range(first, first + BATCH_ROWS):
        kind = key % len(REGIONS)
        rows.append(
            {
                "id": key,
                "seq": number * BATCH_ROWS + key % 3,
                "region": REGIONS[kind],
                "day": None if kind == 1 else date(2024, 2, 28) + timedelta(days=kind),
                "price": None if kind == 2 else Decimal(kind * 1001).scaleb(-2),
                "at": None if kind == 3 else datetime(2024, 2, 28, kind, 59, 59, 999_999, tzinfo=UTC),
                "value": key - 10 * number,
                "name": f"name {key % 5}",
            }
        )
    return pa.Table.from_pylist(rows, SCHEMA)


@dataclass(frozen=True)
class Made:
    """The tables of one mode after both rounds."""

    mode: SinkMode
    site: Site
    source: Path
    publishers: Mapping[str, Any]
    """By round and sink."""

    def path(self, feature: Feature) -> Path:
        return self.site.tables / feature.key

    def rows(self, round: int) -> DataFrame:
        """The input of a round."""
        return self.site.spark.read.format("delta").load(str(self.source)).where(F.col("round") == round)

    def expected(self, feature: Feature) -> Rows:
        """Batch SQL over the whole input."""
        first, second = self.rows(0), self.rows(1)
        if self.mode is not SinkMode.COMPLETE:
            first = first.where(f"NOT ({feature.deleted})")
        rows = first.unionByName(second)
        if self.mode is not SinkMode.APPEND:
            rows.createOrReplaceTempView("all_rows")
            rows = rows.sparkSession.sql(
                "SELECT * FROM all_rows QUALIFY row_number() OVER (PARTITION BY id ORDER BY seq DESC) = 1"
            )
        return answer(rows.selectExpr(*(feature.answer or feature.staged)))


def _pipeline(mode: SinkMode, site: Site, source: Path, features: Sequence[Feature], round: int) -> Pipeline:
    pipeline = Pipeline(f"{mode.value}_tables", on_end="suspend")
    keys = {"keys": ["id"], "sequence_by": "seq"} if mode is SinkMode.UPSERT else {}

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source))

    def stage_of(feature: Feature) -> Callable[[DataFrame], DataFrame]:
        staged = feature.staged if round == 0 or feature.staged_later is None else feature.staged_later

        def stage(rows: DataFrame) -> DataFrame:
            if mode is SinkMode.COMPLETE:
                columns = [name for name in rows.columns if name != "id"]
                columns.sort(key=lambda name: name != "seq")
                rows = rows.groupBy("id").agg(F.max(F.struct(*columns)).alias("last")).select("id", "last.*")
            return rows.selectExpr(*staged)

        return stage

    for feature in features:
        sink = DeltaSink(str(site.tables / feature.key), mode=mode, **keys, **(feature.sink or {}))  # type: ignore[arg-type]
        pipeline.stage(sink=sink, name=feature.key)(stage_of(feature))
    return pipeline


def _make(mode: SinkMode, spark: SparkSession, root: Path, features: Sequence[Feature]) -> Made:
    site, source = Site(spark, root), root / "source"
    for feature in features:
        if feature.sink is None:
            spark.sql(feature.create(f"delta.`{site.tables / feature.key}`"))
    publishers: dict[str, Any] = {}
    for round in range(ROUNDS):
        for number in (2 * round, 2 * round + 1):
            rows = _batch(number)
            write_deltalake(str(source), rows.append_column("round", pa.array([round] * len(rows), pa.int32())), mode="append")
        if round:
            for feature in features:
                for statement in feature.between:
                    spark.sql(statement.format(table=f"delta.`{site.tables / feature.key}`"))
        site.run(_pipeline(mode, site, source, features, round))
        publishers |= {f"{round} {name}": cut.publisher for name, cut in site.manifest().sinks.items()}
    return Made(mode, site, source, publishers)


def _features(mode: SinkMode, *, everyday: bool) -> list[Feature]:
    return [feature for feature in FEATURES if mode in feature.modes and (mode in feature.everyday) is everyday]


@pytest.fixture(scope="module")
def make(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[SinkMode, bool], Made]:
    """Makes the tables of a mode once: those of every day, or the others."""

    @cache
    def made(mode: SinkMode, everyday: bool) -> Made:
        return _make(mode, spark, tmp_path_factory.mktemp(mode.value), _features(mode, everyday=everyday))

    return made


CASES = [
    pytest.param(mode, feature, id=f"{mode.value}-{feature.key}", marks=[] if mode in feature.everyday else pytest.mark.nightly)
    for mode in SinkMode
    for feature in FEATURES
    if mode in feature.modes
]


@pytest.mark.parametrize(("mode", "feature"), CASES)
def test_the_table_holds_the_rows_of_the_batch_answer(
    mode: SinkMode, feature: Feature, make: Callable[[SinkMode, bool], Made]
) -> None:
    made = make(mode, mode in feature.everyday)
    found = made.site.spark.read.format("delta").load(str(made.path(feature)))
    assert_same(answer(found.selectExpr(*feature.names)), made.expected(feature))


@pytest.mark.parametrize(("mode", "feature"), CASES)
def test_the_manifest_says_who_publishes(mode: SinkMode, feature: Feature, make: Callable[[SinkMode, bool], Made]) -> None:
    made = make(mode, mode in feature.everyday)
    found = {made.publishers[f"{round} {feature.key}"] for round in range(ROUNDS)}
    assert found == {feature.published_by(made.mode)}


@pytest.mark.parametrize(("mode", "feature"), CASES)
@pytest.mark.parametrize("reader", sorted(READERS))
def test_other_engines_read_the_same_rows_where_they_can(
    reader: str, mode: SinkMode, feature: Feature, make: Callable[[SinkMode, bool], Made]
) -> None:
    made = make(mode, mode in feature.everyday)
    names = [name.strip("`") for name in feature.elsewhere or feature.names]
    found = made.site.spark.read.format("delta").load(str(made.path(feature))).selectExpr(*feature.names)
    rows = answer(found.select(*(f"`{name}`" for name in names)))
    if reader not in feature.readers:
        with pytest.raises((ReaderError, AssertionError)):
            assert_same(ENGINES[reader](made.path(feature), names), rows)
        return
    assert_same(ENGINES[reader](made.path(feature), names), rows)
