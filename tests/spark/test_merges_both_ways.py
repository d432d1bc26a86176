"""delta-rs and Spark make equal tables from the same staged rows, with columns of any types."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.protocol.documents import SinkMode
from spark_jobs.publication.merges import keyed_merge
from tests.support.merge_site import MergeSite

pytestmark = pytest.mark.spark

CASES = 150
"""The number of cases. They share the tables, under keys of their own, because a MERGE costs the same for one case as for all."""
PUBLICATIONS = 3
COLUMNS = {
    "number": "long",
    "Key": "double",
    "süd": "string",
    "at": "timestamp",
    "gone": "boolean",
    "op": "string",
    "a double": "double",
    "a.float": "float",
    "a byte": "byte",
    "a decimal": "decimal(20,3)",
    "a binary": "binary",
    "a day": "date",
    "noon": "timestamp_ntz",
}
KEYS = ("number", "Key", "süd", "at")
OTHERS = tuple(name for name in COLUMNS if name not in KEYS)
DELETES = "gone AND NOT op IN ('keep', 'Keep') OR op IS NULL"
MOMENTS = [
    datetime.fromisoformat("0001-01-01"),
    datetime.fromisoformat("1969-12-31T23:59:59.999999"),
    datetime.fromisoformat("2020-02-29T00:00:00.123456"),
    datetime.fromisoformat("9999-12-31"),
]
FLOATS = [0.0, -0.0, 1.5, float("nan"), -float("nan"), float("inf"), float("-inf")]
VALUES: dict[str, list[Any]] = {
    "Key": FLOATS[:5],
    "süd": ["", "a", "A", "süd", "\U0001f980", "x" * 40],
    "at": [each.replace(tzinfo=UTC) for each in MOMENTS],
    "gone": [True, False],
    "op": ["keep", "Keep", "delete"],
    "a double": FLOATS,
    "a.float": FLOATS,
    "a byte": [-128, 0, 127],
    "a decimal": [Decimal("-1.5"), Decimal("0.001"), Decimal("12345678901234567.125")],
    "a binary": [b"", b"\x00", b"\x7f", b"\xff"],
    "a day": [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    "noon": MOMENTS,
}


def changes(draw: Random, sequence: str | None) -> list[list[dict[str, Any]]]:
    """Returns changes of some keys, by publication."""
    cut: list[list[dict[str, Any]]] = [[] for _ in range(PUBLICATIONS)]
    for number in range(CASES):
        keys = [_values(draw, KEYS[1:]) for _ in range(draw.randint(1, 2))]
        for _ in range(draw.randint(1, 6)):
            row = {"number": number, **draw.choice(keys), **_values(draw, OTHERS)}
            publication = draw.choice(cut)
            if sequence is None:  # in this case a batch has each key once
                publication[:] = [each for each in publication if each["number"] != number]
            publication.append(row)
    return cut


def _values(draw: Random, names: Sequence[str]) -> dict[str, Any]:
    return {name: draw.choice([None, *VALUES[name]]) for name in names}


def at_night(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


SEEDS = range(1, 5)


@pytest.mark.parametrize(
    ("mode", "sequence", "seed"),
    [
        (SinkMode.UPSERT, "a double", 0),
        (SinkMode.INSERT, "noon", 0),
        *(at_night(SinkMode.UPSERT, name, seed) for name in (*OTHERS, None) for seed in SEEDS),
        *(at_night(SinkMode.INSERT, None, seed) for seed in SEEDS),
    ],
)
def test_delta_rs_and_spark_merge_staged_rows_into_equal_tables(
    spark: SparkSession, tmp_path: Path, mode: SinkMode, sequence: str | None, seed: int
) -> None:
    deletes = DELETES if mode is SinkMode.UPSERT else None
    by_delta_rs, by_spark = (
        MergeSite(tmp_path / name, mode, COLUMNS, keys=KEYS, sequence_by=sequence, deletes=deletes)
        for name in ("delta-rs", "spark")
    )
    for rows in changes(Random(seed), sequence):
        staged = _written(spark, by_delta_rs, pa.Table.from_pylist(rows, by_delta_rs.schema))
        by_delta_rs.publish([staged])
        _publish_by_spark(spark, by_spark, by_delta_rs.root / "staged" / staged["add"]["path"])
        for name in ("table", "graves") if by_spark.rule.tombstones else ("table",):
            found, expected = (_rows(spark, site.root / name) for site in (by_delta_rs, by_spark))
            assert (found - expected, expected - found) == (Counter(), Counter()), name
    assert _rows(spark, by_spark.root / "table").total() > CASES // 2, "a table with few rows proves nothing"


def _written(spark: SparkSession, site: MergeSite, rows: pa.Table) -> dict[str, Any]:
    """Writes a staged file with Spark, whose timestamps differ from pyarrow's. Returns its line."""
    directory = site.root / f"written-{site.version}"
    spark.createDataFrame(rows).coalesce(1).write.parquet(str(directory))
    (path,) = directory.glob("*.parquet")
    path = path.rename(site.root / "staged" / path.name)
    return {"add": {"path": path.name, "size": path.stat().st_size, "partitionValues": {}}, "batch": site.version}


def _publish_by_spark(spark: SparkSession, site: MergeSite, staged: Path) -> None:
    events = spark.read.parquet(str(staged)).selectExpr("*", f"{site.version} AS batch")
    table = DeltaTable.forPath(spark, str(site.root / "table"))
    names = {name.casefold(): name for name in COLUMNS}
    merge = keyed_merge(site.mode, site.rule, events, "batch", False, table.toDF().schema, names)
    tombstones = None
    if site.rule.tombstones:
        merge.bury(DeltaTable.forPath(spark, str(site.root / "graves")))
        tombstones = spark.read.format("delta").load(str(site.root / "graves"))
    merge.merge_into(table, tombstones)


def _rows(spark: SparkSession, table: Path) -> Counter[str]:
    """Returns the rows as text, with one NaN and, once 0 is added, one zero: a key -0.0 may be written as 0.0."""
    frame = spark.read.format("delta").load(str(table))
    listed: Sequence[str] = sorted(frame.columns)
    texts = ", ".join(f"CAST({_comparable(name)} AS STRING)" for name in listed)
    return Counter(map(repr, frame.selectExpr(f"to_json(array({texts})) AS row").toArrow()["row"].to_pylist()))


def _comparable(name: str) -> str:
    kind = COLUMNS[name]
    return f"`{name}` + 0" if kind in ("double", "float") else f"hex(`{name}`)" if kind == "binary" else f"`{name}`"
