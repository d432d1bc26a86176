"""Sinks with mode="insert" and mode="history", in whole pipelines."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError, UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import Rows, answer, public
from tests.support.places import in_a_store_too

pytestmark = pytest.mark.spark

VERSIONS = ("valid_from", "valid_to", "is_current")
SMALL = pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("op", pa.string())])

HISTORY: dict[str, Any] = {"mode": "history", "keys": ["id"], "sequence_by": "seq", "apply_as_deletes": "op = 'delete'"}
INSERT: dict[str, Any] = {"mode": "insert", "keys": ["id"], "sequence_by": "seq"}


def _pipeline(site: Site, *columns: str, **sinks: dict[str, Any]) -> Pipeline:
    """Declares a stage for each sink. Each returns ``columns`` of the changes."""
    pipeline = Pipeline("merged", on_end="suspend")

    @pipeline.source(bounded=True)
    def changes(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "changes"))

    for name, options in sinks.items():
        sink = DeltaSink(site.table(name), **options)
        pipeline.stage(sink=sink, name=name)(lambda changes: changes.selectExpr(*columns))
    return pipeline


def _deliver(site: Site, changes: list[dict[str, Any]], schema: pa.Schema) -> None:
    write_deltalake(str(site.home.parent / "changes"), pa.Table.from_pylist(changes, schema), mode="append")


def _deliver_small(site: Site, *changes: tuple[int, int, str]) -> None:
    _deliver(site, [dict(zip(SMALL.names, change, strict=True)) for change in changes], SMALL)


def _history(site: Site) -> Rows:
    return public(site.table("versions"), ["id", "op", *VERSIONS])


def test_a_key_that_the_table_has_stays_as_it_is(site: Site) -> None:
    site.spark.sql(f"CREATE TABLE delta.`{site.tables / 'firsts'}` (id LONG, seq LONG, op STRING) USING delta")
    site.spark.sql(f"INSERT INTO delta.`{site.tables / 'firsts'}` VALUES (1, 7, 'somebody')")
    _deliver_small(site, (1, 1, "late"), (2, 9, "second"), (2, 5, "first"))
    site.run(_pipeline(site, "*", firsts=INSERT))
    _deliver_small(site, (2, 1, "later still"))
    site.run(_pipeline(site, "*", firsts=INSERT))
    assert public(site.tables / "firsts", ["id", "seq", "op"]) == {(1, 7, "somebody"): 1, (2, 5, "first"): 1}


# test_daily_rounds.py has a day without rows.
@pytest.mark.nightly
def test_rounds_without_rows_change_nothing(site: Site) -> None:
    pipeline = _pipeline(site, "*", versions=HISTORY, firsts=INSERT, merged=HISTORY | {"mode": "upsert"})
    _deliver(site, [], SMALL)
    site.run(pipeline)
    _deliver_small(site, (1, 1, "a"))
    site.run(pipeline)
    site.run(pipeline)
    assert _history(site) == {(1, "a", 1, None, True): 1}
    assert public(site.tables / "firsts", ["id", "op"]) == public(site.tables / "merged", ["id", "op"]) == {(1, "a"): 1}


# test_schema_evolution.py adds columns by day.
@pytest.mark.nightly
def test_a_history_goes_on_with_columns_that_its_stage_gains(site: Site) -> None:
    declared = HISTORY | {"schema_evolution": "add_columns", "partition_by": ["is_current"]}
    _deliver_small(site, (1, 1, "a"), (1, 9, "c"))
    site.run(_pipeline(site, "id", "seq", "op", versions=declared))
    _deliver_small(site, (1, 5, "b"), (1, 12, "delete"))
    site.run(_pipeline(site, "id", "seq", "op", "seq * 2 AS more", versions=declared), fresh=True, on_rewind="keep")
    found = public(site.tables / "versions", ["op", "valid_from", "valid_to", "is_current", "more"])
    assert found == {("a", 1, 5, False, 2): 1, ("b", 5, 9, False, 10): 1, ("c", 9, 12, False, 18): 1}


@pytest.mark.nightly
def test_rows_of_an_existing_table_become_versions_without_a_beginning(site: Site) -> None:
    site.spark.sql(f"CREATE TABLE delta.`{site.tables / 'versions'}` (id LONG, seq LONG, op STRING) USING delta")
    site.spark.sql(f"INSERT INTO delta.`{site.tables / 'versions'}` VALUES (1, 0, 'old')")
    _deliver_small(site, (1, 5, "new"))
    site.run(_pipeline(site, "*", versions=HISTORY | {"schema_evolution": "add_columns"}))
    assert _history(site) == {(1, "old", None, 5, False): 1, (1, "new", 5, None, True): 1}


@in_a_store_too
def test_a_fresh_start_that_keeps_rows_makes_the_same_versions(site: Site) -> None:
    _deliver_small(site, (1, 1, "a"), (1, 5, "delete"), (1, 3, "b"))
    site.run(_pipeline(site, "*", versions=HISTORY))
    expected = {(1, "a", 1, 3, False): 1, (1, "b", 3, 5, False): 1}
    assert _history(site) == expected
    site.run(_pipeline(site, "*", versions=HISTORY), fresh=True, on_rewind="keep")
    assert _history(site) == expected


@pytest.mark.nightly
def test_a_fresh_start_that_replaces_leaves_nothing_of_the_earlier_versions(site: Site) -> None:
    _deliver_small(site, (1, 1, "a"), (1, 5, "delete"), (2, 1, "a"))
    site.run(_pipeline(site, "*", versions=HISTORY))
    (site.home.parent / "changes").rename(site.home.parent / "before")
    _deliver_small(site, (1, 2, "b"))
    site.run(_pipeline(site, "*", versions=HISTORY), fresh=True, on_rewind="replace")
    assert _history(site) == {(1, "b", 2, None, True): 1}


def test_staged_changes_are_merged_into_a_table_that_was_changed_since(site: Site) -> None:
    pipeline = _pipeline(site, "*", versions=HISTORY | {"table_properties": {"delta.columnMapping.mode": "name"}})
    table = f"delta.`{site.tables / 'versions'}`"
    _deliver_small(site, (1, 1, "a"))
    site.run(pipeline)
    _deliver_small(site, (1, 5, "b"))
    site.run(pipeline, publish="external")
    site.spark.sql(f"ALTER TABLE {table} RENAME COLUMN op TO word")
    site.spark.sql(f"ALTER TABLE {table} RENAME COLUMN valid_to TO until")
    with pytest.raises(UnsupportedTableError, match="no longer has the column valid_to"):
        _publish(site)
    site.spark.sql(f"ALTER TABLE {table} RENAME COLUMN until TO valid_to")
    _publish(site)
    found = answer(site.spark.sql(f"SELECT word, valid_from, valid_to, is_current FROM {table}"))
    assert found == {("a", 1, 5, False): 1, ("b", 5, None, True): 1}


def _publish(site: Site) -> None:
    publish(open_files(str(site.home)), publishers=Publishers(lambda: site.spark))


@pytest.mark.nightly
def test_the_columns_of_versions_are_widened_with_the_column_that_orders_them(site: Site) -> None:
    declared = HISTORY | {"schema_evolution": "add_columns", "table_properties": {"delta.enableTypeWidening": "true"}}
    _deliver_small(site, (1, 2, "a"), (1, 8, "delete"))
    site.run(_pipeline(site, "id", "int(seq) AS seq", "op", versions=declared))
    _deliver_small(site, (1, 5 * 10**10, "b"), (1, 5, "late"))
    site.run(_pipeline(site, "id", "seq", "op", versions=declared))
    found = answer(site.spark.sql(f"SELECT op, valid_from, valid_to FROM delta.`{site.tables / 'versions'}`"))
    assert found == {("a", 2, 5): 1, ("late", 5, 8): 1, ("b", 5 * 10**10, None): 1}


def test_columns_that_a_history_fills_are_refused_in_its_stage(site: Site) -> None:
    _deliver_small(site, (1, 1, "a"))
    with pytest.raises(InvalidPipelineError, match="VALID_TO") as error:
        site.run(_pipeline(site, "*", "seq AS VALID_TO", versions=HISTORY))
    assert "Rename" in error.value.remedy
    assert not site.tables.exists()


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("valid_from INT, valid_to LONG, is_current BOOLEAN", "valid_from int"),
        ("valid_from LONG, valid_to LONG NOT NULL, is_current BOOLEAN", "valid_to bigint NOT NULL"),
        ("valid_from LONG, valid_to LONG, is_current STRING", "is_current string"),
    ],
)
def test_a_table_that_cannot_hold_versions_is_refused(site: Site, columns: str, named: str) -> None:
    table = site.tables / "versions"
    site.spark.sql(f"CREATE TABLE delta.`{table}` (id LONG, seq LONG, op STRING, {columns}) USING delta")
    _deliver_small(site, (1, 1, "a"))
    with pytest.raises(UnsupportedTableError, match=named):
        site.run(_pipeline(site, "*", versions=HISTORY))
    assert _files(table) == []


def test_a_table_without_the_columns_of_versions_is_refused(site: Site) -> None:
    table = site.tables / "versions"
    site.spark.sql(f"CREATE TABLE delta.`{table}` (id LONG, seq LONG, op STRING) USING delta")
    _deliver_small(site, (1, 1, "a"))
    with pytest.raises(UnsupportedTableError, match="valid_from, valid_to, is_current") as error:
        site.run(_pipeline(site, "*", versions=HISTORY))
    assert "add_columns" in error.value.remedy
    assert _files(table) == []


def _files(table: Path) -> list[Path]:
    return list(table.rglob("*.parquet"))
