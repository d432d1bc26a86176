"""A table follows the change data feed of another one. It has the same rows after any changes in any commits."""

import random

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import FEED_DELETES, FEED_SEQUENCE, DeltaSink, Pipeline
from spark_jobs.protocol.errors import RejectedError
from tests.spark.conftest import Site
from tests.support.places import AT_NIGHT, IN_A_STORE, ON_A_DISK

pytestmark = pytest.mark.spark

KEYS = 6


def _pipeline(site: Site) -> Pipeline:
    pipeline = Pipeline("copied", on_end="suspend")

    @pipeline.source(bounded=True)
    def feed(spark: SparkSession) -> DataFrame:
        changes = spark.readStream.format("delta").option("readChangeFeed", True).option("startingVersion", 0)
        return changes.option("maxFilesPerTrigger", 1).load(site.table("original"))

    sink = DeltaSink(site.table("copy"), mode="upsert", keys=["id"], sequence_by="sequence", apply_as_deletes="deleted")

    @pipeline.stage(sink=sink)
    def copy(feed: DataFrame) -> DataFrame:
        return feed.selectExpr("id", "name", f"{FEED_SEQUENCE} AS sequence", f"{FEED_DELETES} AS deleted").repartition(2)

    return pipeline


def _values(draw: random.Random, rows: int) -> str:
    keys = draw.sample(range(KEYS), rows)
    return ", ".join(f"({key}L, 'n{draw.randrange(3)}', {str(draw.random() < 0.4).lower()})" for key in keys)


def _change(site: Site, draw: random.Random) -> None:
    """Makes one commit, after which each key has at most one row."""
    table, some = f"delta.`{site.table('original')}`", draw.randrange(KEYS)
    given = f"(SELECT * FROM VALUES {_values(draw, draw.randint(1, KEYS))} AS s(id, name, gone)) s"
    statements = [
        f"MERGE INTO {table} t USING {given} ON t.id = s.id WHEN MATCHED AND gone THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (id, name)",
        f"INSERT OVERWRITE {table} SELECT id, name FROM {given}",  # as a complete sink writes
        f"DELETE FROM {table} WHERE id = {some}",
        f"UPDATE {table} SET id = 3 - id WHERE id IN (1, 2)",  # changes the keys
        f"UPDATE {table} SET name = concat(name, '+') WHERE id >= {some}",
    ]
    site.spark.sql(draw.choice(statements))


@pytest.mark.parametrize(
    ("bucket", "seed"),
    [
        (ON_A_DISK, 1),
        *(pytest.param(ON_A_DISK, seed, marks=pytest.mark.nightly) for seed in range(2, 30)),
        # by day tests/spark/test_sources.py reads a source in a store, and the first case a feed on a disk
        pytest.param(IN_A_STORE, 1, marks=AT_NIGHT),
    ],
    indirect=["bucket"],
)
def test_a_copy_through_the_change_feed_has_the_rows_of_the_original_table(site: Site, seed: int) -> None:
    draw = random.Random(seed)
    table = f"delta.`{site.table('original')}`"
    site.spark.sql(
        f"CREATE TABLE {table} (id LONG, name STRING) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    site.spark.sql(f"INSERT INTO {table} SELECT id, 'first' FROM range({KEYS})")
    for _ in range(2):
        for _ in range(4):
            _change(site, draw)
        site.run(_pipeline(site))
        copied = site.spark.read.format("delta").load(site.table("copy"))
        assert sorted(map(tuple, copied.select("id", "name").collect())) == sorted(
            map(tuple, site.spark.read.table(table).select("id", "name").collect())
        )
        assert copied.where("deleted").count() == 0


# test_a_copy_through_the_change_feed_has_the_rows_of_the_original_table follows a feed by day.
@pytest.mark.nightly
def test_a_source_that_was_refused_for_changed_rows_can_follow_its_change_feed_as_a_new_source(site: Site) -> None:
    """The table had no feed at the versions that could not be read."""
    original, options = site.tables / "original", dict[str, str]()
    pipeline, table = Pipeline("copied", on_end="suspend"), f"delta.`{original}`"

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").options(**options).load(str(original))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select("id")

    site.spark.sql(f"CREATE TABLE {table} (id LONG) USING delta")
    site.spark.sql(f"INSERT INTO {table} VALUES (1), (2)")
    site.run(pipeline, run_id="day 1")
    site.spark.sql(f"UPDATE {table} SET id = 3 WHERE id = 2")
    with pytest.raises(
        RejectedError, match="Source 'rows' changes rows, and stage 'copy' reads only rows that are added"
    ) as refused:
        site.run(pipeline, run_id="day 2")
    assert "readChangeFeed=true" in refused.value.remedy
    site.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    options["readChangeFeed"] = "true"
    site.run(pipeline, run_id="day 2", new_sources=["rows"])
    site.spark.sql(f"DELETE FROM {table} WHERE id = 1")
    site.run(pipeline, run_id="day 3")
    copied = site.spark.read.format("delta").load(str(site.tables / "copy"))
    assert sorted(row["id"] for row in copied.collect()) == [1, 1, 1, 2, 3], (
        "what was read, the table as it was, and the deleted row"
    )


def test_the_sequence_of_a_change_feed_orders_commits_and_puts_deletes_before_inserts(spark: SparkSession) -> None:
    kinds = ["delete", "insert", "update_preimage", "update_postimage"]
    rows = [(kind, version) for version in (4, 5) for kind in kinds]
    feed = spark.createDataFrame(rows, "_change_type STRING, _commit_version LONG")
    found = feed.selectExpr(
        "_change_type", "_commit_version", f"{FEED_SEQUENCE} AS sequence", f"{FEED_DELETES} AS gone"
    ).collect()
    assert {row["_change_type"] for row in found if row["gone"]} == {"delete", "update_preimage"}
    going = {row["sequence"] for row in found if row["gone"] and row["_commit_version"] == 5}
    staying = {row["sequence"] for row in found if not row["gone"] and row["_commit_version"] == 5}
    before = {row["sequence"] for row in found if row["_commit_version"] == 4}
    assert max(before) < min(going) <= max(going) < min(staying)
