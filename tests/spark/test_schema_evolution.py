"""Columns that a stage has gained between two runs are added to its table. Rows staged before the change are published all the same."""

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same

pytestmark = pytest.mark.spark


def _pipeline(site: Site, *columns: str, evolution: str = "add_columns", **sink: object) -> Pipeline:
    pipeline = Pipeline("growing", on_end="suspend")

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "events"))

    @pipeline.stage()
    def chosen(events: DataFrame) -> DataFrame:
        return events.selectExpr(*columns)

    table = DeltaSink(str(site.tables / "growing"), schema_evolution=evolution, **sink)  # type: ignore[arg-type]

    @pipeline.stage(sink=table)
    def growing(chosen: DataFrame) -> DataFrame:
        return chosen

    return pipeline


def _arrive(site: Site, seed: int) -> None:
    events = inputs.events(300, seed=seed)
    rows = events.assign(key=events["key"].str[-1])[["id", "key", "value"]]  # ten keys: each is a partition in one of the tables
    inputs.write_versions(site.home.parent / "events", rows.drop_duplicates(["id", "key"]), 2)


def _table(site: Site) -> DataFrame:
    return site.spark.read.format("delta").load(str(site.tables / "growing"))


def _source(site: Site, versions: int) -> DataFrame:
    return site.spark.read.format("delta").option("versionAsOf", versions - 1).load(str(site.home.parent / "events"))


SINKS = [{}, {"mode": "upsert", "keys": ["id", "key"]}, {"partition_by": ["key"]}]


@pytest.mark.parametrize(
    "sink",
    [SINKS[0], *(pytest.param(sink, marks=pytest.mark.nightly) for sink in SINKS[1:])],
    ids=["append", "upsert", "partitioned"],
)
def test_a_column_that_a_stage_has_gained_is_added_and_earlier_rows_have_null_there(site: Site, sink: dict[str, Any]) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id", "key", **sink))
    _arrive(site, 2)
    grown = ("id", "key", "value * 2 AS double", "struct(id, key) AS pair")
    site.run(_pipeline(site, *grown, **sink))
    before, whole = _source(site, 2), _source(site, 4)
    added = whole.exceptAll(before)
    expected = before.selectExpr("id", "key", "CAST(null AS INT)", "CAST(null AS STRUCT<id: BIGINT, key: STRING>)").union(
        added.selectExpr(*grown)
    )
    found = _table(site).select("id", "key", "double", "pair")
    if "mode" in sink:
        expected, found = expected.dropDuplicates(["id", "key"]).select("id", "key"), found.select("id", "key")
    assert_same(answer(found), answer(expected))


@pytest.mark.nightly
def test_a_column_that_a_complete_result_has_gained_is_in_every_row(site: Site) -> None:
    def totals(*columns: str) -> Pipeline:
        pipeline = Pipeline("growing", on_end="suspend")

        @pipeline.source(bounded=True)
        def events(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").load(str(site.home.parent / "events"))

        @pipeline.stage(sink=DeltaSink(str(site.tables / "growing"), mode="complete", schema_evolution="add_columns"))
        def growing(events: DataFrame) -> DataFrame:
            return events.groupBy("key").count().selectExpr(*columns)

        return pipeline

    _arrive(site, 1)
    site.run(totals("key", "count"))
    _arrive(site, 2)
    site.run(totals("key", "count", "count * 2 AS twice"))
    counted = _source(site, 4).groupBy("key").count()
    assert_same(answer(_table(site)), answer(counted.selectExpr("key", "count", "count * 2")))


@pytest.mark.nightly
def test_a_column_that_the_source_has_gained_reaches_the_table(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "*"))
    source = f"delta.`{site.home.parent / 'events'}`"
    site.spark.sql(f"ALTER TABLE {source} ADD COLUMNS (extra STRING)")
    site.spark.sql(f"INSERT INTO {source} SELECT id, key, value, concat('extra ', id) FROM {source} LIMIT 100")
    site.run(_pipeline(site, "*"))
    whole = site.spark.read.table(source)
    assert whole.where("extra IS NOT NULL").count() == 100
    assert_same(answer(_table(site)), answer(whole))


def test_rows_staged_before_a_column_was_added_are_published_after_it(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id", "key"), publish="external")
    _arrive(site, 2)
    site.run(_pipeline(site, "id", "key", "value"), publish="external")
    assert _table(site).count() == 0
    publish(open_files(str(site.home)))
    assert _table(site).where("value IS NULL").count() == _source(site, 2).count()
    assert _table(site).count() == _source(site, 4).count()


@pytest.mark.nightly
def test_the_earlier_code_goes_on_with_the_wider_table(site: Site) -> None:
    for seed, columns in enumerate([("id", "key"), ("id", "key", "value"), ("id", "key")]):
        _arrive(site, seed)
        site.run(_pipeline(site, *columns))
    assert _table(site).count() == _source(site, 6).count()
    assert _table(site).where("value IS NOT NULL").count() == _source(site, 4).count() - _source(site, 2).count()


def test_no_column_is_added_unless_the_sink_declares_schema_evolution(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id", evolution="none"))
    _arrive(site, 2)
    with pytest.raises(UnsupportedTableError, match="returns value, which the table does not have"):
        site.run(_pipeline(site, "id", "value", evolution="none"))
    assert _table(site).columns == ["id"]


def test_a_field_that_a_struct_has_gained_is_refused_and_not_dropped_silently(site: Site) -> None:
    inputs.append(site.home.parent / "events", pd.DataFrame({"id": [1], "key": ["a"], "value": [1]}))
    site.run(_pipeline(site, "id", "struct(key) AS s", evolution="none"))
    inputs.append(site.home.parent / "events", pd.DataFrame({"id": [2], "key": ["b"], "value": [2]}))
    with pytest.raises(UnsupportedTableError, match=r"returns s\.value, which the table does not have") as refused:
        site.run(_pipeline(site, "id", "struct(key, value) AS s", evolution="none"))
    assert "ADD COLUMNS" in refused.value.remedy
    site.spark.sql(f"ALTER TABLE delta.`{site.tables / 'growing'}` ADD COLUMNS (s.value BIGINT)")
    site.run(_pipeline(site, "id", "struct(key, value) AS s", evolution="none"))
    assert _rows(site, "id", "s") == [(1, {"key": "a", "value": None}), (2, {"key": "b", "value": 2})]


GROWN = {
    "a field of a struct": ("struct(key) AS s", "struct(key, value) AS s", {"key": "a", "value": None}, {"key": "b", "value": 2}),
    "deep": (
        "struct(struct(key) AS inner) AS s",
        "struct(struct(key, value AS `more`) AS inner, id AS last) AS s",
        {"inner": {"key": "a", "more": None}, "last": None},
        {"inner": {"key": "b", "more": 2}, "last": 2},
    ),
    "in an array": (
        "array(struct(key)) AS s",
        "array(struct(key, value)) AS s",
        [{"key": "a", "value": None}],
        [{"key": "b", "value": 2}],
    ),
    "in the values of a map": (
        "map(key, array(struct(id))) AS s",
        "map(key, array(struct(id, value))) AS s",
        [("a", [{"id": 1, "value": None}])],
        [("b", [{"id": 2, "value": 2}])],
    ),
}


# test_a_column_that_a_stage_has_gained_is_added_and_earlier_rows_have_null_there adds columns by day, and tests/unit has structs.
@pytest.mark.nightly
@pytest.mark.parametrize("sink", [{}, {"mode": "upsert", "keys": ["id"]}], ids=["append", "upsert"])
def test_fields_that_structs_have_gained_are_added_at_any_depth(site: Site, sink: dict[str, Any]) -> None:
    before = [f"{old} {name}" for name, (old, *_) in zip("abcd", _named(GROWN), strict=True)]
    after = [f"{new} {name}" for name, (_, new, *_) in zip("abcd", _named(GROWN), strict=True)]
    inputs.append(site.home.parent / "events", pd.DataFrame({"id": [1], "key": ["a"], "value": [1]}))
    site.run(_pipeline(site, "id", *before, **sink))
    inputs.append(site.home.parent / "events", pd.DataFrame({"id": [2], "key": ["b"], "value": [2]}))
    site.run(_pipeline(site, "id", *after, **sink))
    first, second = _rows(site, "id", "a", "b", "c", "d")
    assert first == (1, *(old for _, _, old, _ in GROWN.values()))
    assert second == (2, *(new for _, _, _, new in GROWN.values()))
    inputs.append(site.home.parent / "events", pd.DataFrame({"id": [3], "key": ["c"], "value": [3]}))
    site.run(_pipeline(site, "id", *before, **sink))
    assert [row[0] for row in _rows(site, "id")] == [1, 2, 3], "the earlier code goes on with the wider table"


def _named(shapes: dict[str, Any]) -> list[tuple[str, str]]:
    return [(old.removesuffix("s"), new.removesuffix("s")) for old, new, *_ in shapes.values()]


def _rows(site: Site, *columns: str) -> list[tuple[Any, ...]]:
    found = _table(site).select(*columns).toArrow()
    return sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True), key=lambda row: row[0])


WIDENED = [
    ("int(value)", "bigint(value) * 10000000000"),
    ("float(value)", "double(value) / 3"),
    ("CAST(value AS DECIMAL(4, 1))", "CAST(value / 3 AS DECIMAL(9, 5))"),
    ("struct(smallint(value) AS n)", "struct(value * 10000000000 AS n, key)"),
    ("array(struct(int(value) AS n))", "array(struct(double(value) / 3 AS n))"),
]


@pytest.mark.parametrize(
    "sink",
    [
        pytest.param({}, id="append", marks=pytest.mark.nightly),
        pytest.param({"mode": "upsert", "keys": ["id"], "sequence_by": "n", "apply_as_deletes": "v0 < 0"}, id="upsert"),
    ],
)
def test_a_table_with_type_widening_takes_wider_types(site: Site, sink: dict[str, Any]) -> None:
    """The types of an upsert's key, its order and its condition are widened, too."""
    widening = {"table_properties": {"delta.enableTypeWidening": "true"}, **sink}
    events = site.home.parent / "events"
    narrow = [f"{old} AS v{number}" for number, (old, _) in enumerate(WIDENED)]
    wide = [f"{new} AS v{number}" for number, (_, new) in enumerate(WIDENED)]
    inputs.append(events, pd.DataFrame({"id": [1], "key": ["a"], "value": [1]}))
    site.run(_pipeline(site, "int(id) AS id", "int(value) AS n", *narrow, **widening))
    inputs.append(events, pd.DataFrame({"id": [2 * 10**10], "key": ["b"], "value": [2]}))
    site.run(_pipeline(site, "id", "value * 10000000000 AS n", *wide, **widening))
    spark = site.spark
    expected = spark.createDataFrame([(1, "a", 1)], "id LONG, key STRING, value LONG").selectExpr("id", "value AS n", *narrow)
    expected = expected.toArrow().to_pylist() + (
        spark.createDataFrame([(2 * 10**10, "b", 2)], "id LONG, key STRING, value LONG")
        .selectExpr("id", "value * 10000000000 AS n", *wide)
        .toArrow()
        .to_pylist()
    )
    expected[0]["v3"]["key"] = None
    assert sorted(_table(site).toArrow().to_pylist(), key=lambda row: row["id"]) == expected


def test_a_table_without_type_widening_keeps_its_types(site: Site) -> None:
    events = site.home.parent / "events"
    inputs.append(events, pd.DataFrame({"id": [1], "key": ["a"], "value": [1]}))
    site.run(_pipeline(site, "id", "int(value) AS value"))
    inputs.append(events, pd.DataFrame({"id": [2], "key": ["a"], "value": [2]}))
    site.run(_pipeline(site, "id", "value"))
    assert dict(_table(site).dtypes)["value"] == "int"
    assert _rows(site, "id", "value") == [(1, 1), (2, 2)]


def test_a_column_that_the_table_cannot_have_is_refused_by_name(site: Site) -> None:
    _arrive(site, 1)
    site.run(_pipeline(site, "id"))
    with pytest.raises(UnsupportedTableError, match="a b"):
        site.run(_pipeline(site, "id", "key AS `a b`"))
