"""A user changes a sink's table between two runs, in the middle of a round, and before staged rows become public."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InterruptedRunError, NotFoundError, UnsupportedTableError
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.table_uris import table_uri
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.support.places import in_a_store_at_night

pytestmark = pytest.mark.spark

UPSERT = {"mode": "upsert", "keys": ["id"]}
RULED = {**UPSERT, "sequence_by": "value", "apply_as_deletes": "value < -100"}
COLUMNS = "id LONG, value INT, note STRING, gps STRUCT<pitch: INT>"
BEFORE = ("id", "int(value) AS value", "key AS note", "struct(int(value) AS pitch) AS gps")
AFTER = ("id", "value AS amount", "struct(value AS pitch, key AS yaw) AS gps")
TRACE = [  # a column that is added and removed leaves a table feature behind
    "ALTER TABLE {table} ADD CONSTRAINT some CHECK (value <> 77)",
    "ALTER TABLE {table} DROP CONSTRAINT some",
]
CHANGES = [
    "ALTER TABLE {table} ADD COLUMNS (extra STRING FIRST, more STRUCT<a: INT, b: STRING> AFTER id)",
    "ALTER TABLE {table} ALTER COLUMN id COMMENT 'a number'",
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'team' = 'us')",
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true', 'delta.enableChangeDataFeed' = 'true')",
    "ALTER TABLE {table} ALTER COLUMN value TYPE BIGINT",
    "ALTER TABLE {table} ALTER COLUMN gps.pitch TYPE BIGINT",
    "ALTER TABLE {table} ADD COLUMNS (gps.yaw STRING FIRST)",
    "ALTER TABLE {table} RENAME COLUMN value TO amount",
    "ALTER TABLE {table} DROP COLUMN note",
    "ALTER TABLE {table} ADD CONSTRAINT small CHECK (amount < 1000)",
    "OPTIMIZE {table} ZORDER BY (amount)",
    "ALTER TABLE {table} CLUSTER BY (amount)",
    "OPTIMIZE {table}",
]


def _pipeline(site: Site, columns: tuple[str, ...], **sink: Any) -> Pipeline:
    pipeline = Pipeline("changed", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.root / "rows"))

    @pipeline.stage(sink=DeltaSink(site.table("kept"), **sink))
    def kept(rows: DataFrame) -> DataFrame:
        return rows.selectExpr(*columns)

    return pipeline


def _deliver(site: Site, *rows: tuple[int, int | None]) -> None:
    table = pd.DataFrame({"id": [number for number, _ in rows], "value": pd.array([value for _, value in rows], "Int64")})
    inputs.append(site.root / "rows", table.assign(key="k"))


def _change(site: Site, *statements: str) -> None:
    for statement in statements:
        site.spark.sql(statement.format(table=f"delta.`{site.table('kept')}`"))


def _create(site: Site, properties: str = "'team' = 'nobody'") -> None:
    _change(site, f"CREATE TABLE {{table}} ({COLUMNS}) USING delta TBLPROPERTIES ({properties})")


def _table(site: Site, *columns: str) -> list[tuple[Any, ...]]:
    rows = site.spark.read.format("delta").load(site.table("kept")).selectExpr(*columns).collect()
    return sorted(tuple(row) for row in rows)


def _publish(site: Site) -> None:
    publish(site.files, publishers=Publishers(lambda: site.spark))


SEEN = ("id", "amount", "gps.pitch", "gps.yaw", "extra")
EARLIER, LATER = (1, 10, 10, None, None), (2, 20, 20, "k", None)


@in_a_store_at_night
@pytest.mark.parametrize("sink", [pytest.param({}, id="append"), pytest.param(UPSERT, id="upsert", marks=pytest.mark.nightly)])
def test_rows_staged_before_many_changes_of_their_table_are_published_after_them(site: Site, sink: dict[str, Any]) -> None:
    _create(site)
    _deliver(site, (1, 10))
    site.run(_pipeline(site, BEFORE, **sink), publish="external")
    _change(site, *TRACE, *CHANGES)
    _deliver(site, (2, 20))
    site.run(_pipeline(site, AFTER, **sink), publish="external")
    assert _table(site, *SEEN) == []
    _publish(site)
    assert _table(site, *SEEN) == [EARLIER, LATER]


# test_rows_staged_before_many_changes_of_their_table_are_published_after_them has all changes by day.
@pytest.mark.nightly
@pytest.mark.parametrize("sink", [{}, UPSERT], ids=["append", "upsert"])
def test_an_interrupted_round_goes_on_after_many_changes_of_its_table(site: Site, sink: dict[str, Any]) -> None:
    _create(site)
    _deliver(site, (1, 10))
    _deliver(site, (2, 20))
    broken = ("id", "int(if(id = 1, value, raise_error('no'))) AS value", *BEFORE[2:])
    with pytest.raises(InterruptedRunError, match="no"):
        site.run(_pipeline(site, broken, **sink))
    _change(site, *TRACE, *CHANGES)
    site.run(_pipeline(site, AFTER, **sink))
    assert _table(site, *SEEN) == [EARLIER, LATER]
    assert len(site.manifest().sinks["kept"].staged_for) == 2  # type: ignore[index]


# test_rows_staged_before_many_changes_of_their_table_are_published_after_them has all changes by day.
@pytest.mark.nightly
@pytest.mark.parametrize("sink", [{}, UPSERT], ids=["append", "upsert"])
def test_each_round_goes_on_after_another_change_of_its_table(site: Site, sink: dict[str, Any]) -> None:
    """The stage returns the same columns until the last change."""
    _create(site)
    steps = [TRACE, CHANGES[:5], CHANGES[5:7], CHANGES[7:]]
    for day, changes in enumerate(steps):
        _deliver(site, (day, day))
        site.run(_pipeline(site, BEFORE, **sink))
        _change(site, *changes)
    _deliver(site, (9, 9))
    site.run(_pipeline(site, AFTER, **sink))
    assert _table(site, "id", "amount", "gps.pitch", "gps.yaw") == [*((day, day, day, None) for day in range(4)), (9, 9, 9, "k")]


def test_the_refusal_of_rows_that_break_a_new_constraint_has_their_number_and_a_remedy_that_works(site: Site) -> None:
    _create(site)
    _deliver(site, (1, 10), (2, 20), (3, None))
    site.run(_pipeline(site, BEFORE), publish="external")
    _change(site, "ALTER TABLE {table} ADD CONSTRAINT large CHECK (value > 15)")
    with pytest.raises(UnsupportedTableError, match=r"2 rows break large \(value > 15\)") as refused:
        _publish(site)
    assert "DROP CONSTRAINT" in refused.value.remedy
    assert _table(site, "id") == []
    _change(site, "ALTER TABLE {table} DROP CONSTRAINT large")
    _publish(site)
    assert _table(site, "id") == [(1,), (2,), (3,)]


# test_the_refusal_of_rows_that_break_a_new_constraint_has_their_number_and_a_remedy_that_works is the same for appended rows.
@pytest.mark.nightly
def test_the_refusal_of_merged_rows_that_break_a_new_constraint_has_a_remedy_that_works(site: Site) -> None:
    sink = RULED
    _create(site)
    _deliver(site, (1, 10), (2, 20))
    site.run(_pipeline(site, BEFORE, **sink), publish="external")
    _change(site, "ALTER TABLE {table} ADD CONSTRAINT large CHECK (value > 15)")
    with pytest.raises(UnsupportedTableError, match="large"):
        _publish(site)
    _change(site, "ALTER TABLE {table} DROP CONSTRAINT large")
    _deliver(site, (3, 5))  # the channel of the upsert forgets the constraint, too
    site.run(_pipeline(site, BEFORE, **sink), publish="external")
    _publish(site)
    assert _table(site, "id") == [(1,), (2,), (3,)]


def _versions(site: Site, sink: str) -> int:
    (log,) = (site.home / "channels").glob(f"*/{sink}/_delta_log")
    return len(list(log.glob("*.json")))


def test_a_new_constraint_holds_for_later_rounds_and_changes_the_channel_once(site: Site) -> None:
    sink, before = RULED, 0
    _create(site, "'delta.constraints.large' = 'value > 5 OR value IS NULL'")
    for day in range(3):
        _deliver(site, (day, 10 + day))
        site.run(_pipeline(site, BEFORE, **sink))
        if before:
            assert _versions(site, "kept") == before, "no round changes the channel again"
        before = _versions(site, "kept")
    _deliver(site, (9, 1))
    with pytest.raises(InterruptedRunError, match="large"):
        site.run(_pipeline(site, BEFORE, **sink))


def test_a_table_that_no_longer_fits_its_staged_rows_is_refused_until_it_is_changed_back(site: Site) -> None:
    _create(site)
    _deliver(site, (1, 10))
    site.run(_pipeline(site, BEFORE), publish="external")
    path = site.table("kept")
    other = site.spark.sql("SELECT 5L AS id, 'text' AS value, 'n' AS note, struct(1 AS pitch) AS gps")
    other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    with pytest.raises(UnsupportedTableError, match="has string in value, and had integer") as refused:
        _publish(site)
    assert "--fresh" in refused.value.remedy
    same = other.selectExpr("id", "5 AS value", "note", "gps")
    same.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    _publish(site)
    assert _table(site, "id", "value") == [(1, 10), (5, 5)]


def test_a_table_without_pending_rows_may_change_to_the_new_columns_of_its_stage(site: Site) -> None:
    _create(site)
    _deliver(site, (1, 10))
    site.run(_pipeline(site, BEFORE))
    other = site.spark.sql("SELECT 5L AS id, 'text' AS value")
    other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(site.table("kept"))
    _deliver(site, (2, 20))
    site.run(_pipeline(site, ("id", "concat('t', value) AS value")))
    assert _table(site, "id", "value") == [(2, "t20"), (5, "text")]


def test_a_start_does_not_create_a_table_again_whose_rows_were_public(site: Site) -> None:
    """Its directory may only be missing because it is not mounted."""
    _deliver(site, (1, 10))
    site.run(_pipeline(site, BEFORE))
    _deliver(site, (2, 20))
    table, away = Path(site.table("kept")), site.root / "away"
    table.rename(away)
    with pytest.raises(NotFoundError, match=r"Sink kept: table .* is missing, and checkpoint 1 publishes into it\."):
        site.run(_pipeline(site, BEFORE))
    assert not table.exists()
    away.rename(table)
    site.run(_pipeline(site, BEFORE))
    assert _table(site, "id") == [(1,), (2,)]


@in_a_store_at_night
@pytest.mark.parametrize("after_log_checkpoint", [False, True])
def test_a_property_that_was_set_without_spark_is_seen_by_spark_and_stops_no_stream(
    site: Site, after_log_checkpoint: bool
) -> None:
    uri = table_uri(site.table("kept"))
    _create(site)
    _change(site, "INSERT INTO {table} VALUES (1, 1, 'a', NULL)")
    copies = site.table("copies")

    def copy_new_rows() -> None:
        rows = site.spark.readStream.format("delta").load(site.table("kept")).writeStream.format("delta")
        rows.option("checkpointLocation", str(site.root / "copies")).trigger(availableNow=True).start(copies).awaitTermination()

    copy_new_rows()
    if after_log_checkpoint:
        open_table(uri).write_checkpoint()
    open_table(uri).set_property("complete_until", "10:00")
    _change(site, "INSERT INTO {table} VALUES (2, 2, 'b', NULL)")
    copy_new_rows()
    properties = {row.key: row.value for row in site.spark.sql(f"SHOW TBLPROPERTIES delta.`{site.table('kept')}`").collect()}
    assert (properties["team"], properties["complete_until"]) == ("nobody", "10:00")
    assert _table(site, "id", "value", "note") == [(1, 1, "a"), (2, 2, "b")]
    assert sorted(row.id for row in site.spark.read.format("delta").load(copies).collect()) == [1, 2]
