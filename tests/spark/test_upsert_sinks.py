"""A sink with mode="upsert" holds the last row of each key in the order of its rows, in any order of arrival."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.errors import InvalidPipelineError
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import Rows, answer, assert_same, public
from tests.support.places import in_a_store_too

pytestmark = pytest.mark.spark

COLUMNS = ["id", "region", "seq", "op", "value"]
DELETES = "op = 'delete'"


def changes(rows: int = 4_000, keys: int = 300, seed: int = 7) -> pd.DataFrame:
    """Returns changes of some keys in no order: ties, exact repetitions, null keys, deletes, rows after their delete."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "id": pd.array(random.integers(0, keys, rows), dtype="Int64"),
            "region": random.choice(["north", "süd", "east=1"], rows),
            "seq": random.integers(0, 40, rows),
            "op": random.choice(["insert", "update", "delete"], rows, p=[0.3, 0.4, 0.3]),
            "value": random.integers(0, 5, rows),
        }
    )
    table.loc[random.choice(rows, rows // 50, replace=False), "id"] = pd.NA
    return pd.concat([table, table.sample(rows // 20, random_state=seed)]).sample(frac=1, random_state=seed)


def expected(spark: SparkSession, source: str) -> Rows:
    """Returns the last change of each key unless it is a delete, from batch SQL over all changes."""
    spark.read.format("delta").load(source).createOrReplaceTempView("all_changes")
    return answer(
        spark.sql(f"""
            SELECT id, region, seq, op, value FROM (
                SELECT *, row_number() OVER (PARTITION BY id, region ORDER BY seq DESC, ({DELETES}) DESC, op DESC, value DESC) AS place
                FROM all_changes)
            WHERE place = 1 AND NOT ({DELETES})""")
    )


def pipeline_of(site: Site, **sink: object) -> Pipeline:
    pipeline = Pipeline("customers", on_end="suspend")
    options: dict[str, object] = {"keys": ["id", "region"], "sequence_by": "seq", "apply_as_deletes": DELETES} | sink

    @pipeline.source(bounded=True)
    def changes(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "changes"))

    @pipeline.stage(sink=DeltaSink(site.table("customers"), mode="upsert", **options))  # type: ignore[arg-type]
    def customers(changes: DataFrame) -> DataFrame:
        return changes

    return pipeline


def _in_rounds(site: Site, parts: Sequence[pd.DataFrame], batches: int = 1) -> None:
    for part in parts:
        inputs.write_versions(site.home.parent / "changes", part, batches)
        site.run(pipeline_of(site))


def _split(table: pd.DataFrame, rounds: int) -> list[pd.DataFrame]:
    return [table.iloc[part] for part in np.array_split(np.arange(len(table)), rounds)]


@in_a_store_too
@pytest.mark.every_version
@pytest.mark.parametrize("rounds", [2, *(pytest.param(rounds, marks=pytest.mark.nightly) for rounds in (1, 4))])
def test_the_table_has_the_last_change_of_each_key_in_any_order_of_arrival(site: Site, rounds: int, temporary: Path) -> None:
    _in_rounds(site, _split(changes(), rounds), batches=3)
    assert list(temporary.iterdir()) == []
    assert_same(public(site.table("customers"), COLUMNS), expected(site.spark, str(site.root / "changes")))


def test_a_row_that_comes_after_its_delete_does_not_come_back(site: Site) -> None:
    def change(seq: int, op: str) -> pd.DataFrame:
        return pd.DataFrame({"id": [1], "region": ["north"], "seq": [seq], "op": [op], "value": [seq]})

    _in_rounds(site, [pd.concat([change(1, "insert"), change(9, "delete")]), change(5, "update")])
    assert public(site.tables / "customers").total() == 0
    _in_rounds(site, [change(9, "update")])
    assert public(site.tables / "customers").total() == 0, "at the same time the delete wins"
    _in_rounds(site, [change(10, "insert")])
    assert public(site.tables / "customers", ["id", "value"]) == {(1, 10): 1}
    _in_rounds(site, [change(11, "update")])
    kept = {path.name.split("-")[1] for path in site.home.glob("channels/*/customers/*.parquet")}
    assert kept == {"2", "3", "4"}, "of what is merged the newest checkpoint and its parent need their last batches alone"
    burials = list(site.home.glob("tombstones/*/customers/_delta_log/*.json"))
    assert len(burials) == 2, "the table, and the one delete: checkpoints without deletes leave no versions and no files"


def test_no_file_is_in_the_tables_directory_before_the_publication(site: Site) -> None:
    inputs.write_versions(site.home.parent / "changes", changes(200), 1)
    site.run(pipeline_of(site, publish="external"))
    assert not list((site.tables / "customers").rglob("*.parquet"))
    assert site.manifest().sinks["customers"].publisher is Publisher.DELTA_RS  # type: ignore[index]


@pytest.mark.nightly
def test_the_later_batch_wins_without_sequence_by(site: Site) -> None:
    days = [
        pd.DataFrame({"id": [1, 2, 3], "region": "n", "seq": 0, "op": "insert", "value": [day, day * 2, day * 3]})
        for day in (3, 2, 1)
    ]
    for day in days:
        inputs.append(site.home.parent / "changes", day)
    site.run(pipeline_of(site, sequence_by=None))
    assert public(site.tables / "customers", ["id", "value"]) == {(1, 1): 1, (2, 2): 1, (3, 3): 1}


def test_two_rows_of_a_key_in_a_batch_are_refused_without_sequence_by(site: Site) -> None:
    twice = pd.DataFrame({"id": [1, 1], "region": "n", "seq": [1, 2], "op": "insert", "value": [1, 2]})
    inputs.append(site.home.parent / "changes", twice)
    with pytest.raises(InvalidPipelineError, match="has 1 keys"):
        site.run(pipeline_of(site, sequence_by=None))
    assert site.checkpoints() == []


@pytest.mark.nightly
def test_a_running_total_in_update_mode_is_upserted(site: Site) -> None:
    inputs.write_versions(site.home.parent / "events", inputs.events(inputs.ROWS // 5)[["id", "team", "value"]], 5)
    pipeline = Pipeline("totals")

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.home.parent / "events"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "totals"), mode="upsert", keys=["team"]), output_mode="update")
    def totals(events: DataFrame) -> DataFrame:
        return events.groupBy("team").agg(F.sum("value").alias("total"))

    site.run(pipeline)
    events_now = site.spark.read.format("delta").load(str(site.home.parent / "events"))
    assert_same(public(site.tables / "totals", ["team", "total"]), answer(events_now.groupBy("team").agg(F.sum("value"))))


def test_a_stage_after_an_upsert_stage_reads_its_changes(site: Site) -> None:
    inputs.write_versions(site.home.parent / "changes", changes(500), 2)
    pipeline = pipeline_of(site)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "log")))
    def log(customers: DataFrame) -> DataFrame:
        return customers

    site.run(pipeline)
    whole = site.spark.read.format("delta").load(str(site.home.parent / "changes"))
    assert_same(public(site.tables / "log", COLUMNS), answer(whole.select(*COLUMNS)))


@pytest.mark.nightly
def test_a_fresh_start_that_replaces_leaves_nothing_of_the_earlier_rows_and_deletes(site: Site) -> None:
    _in_rounds(site, _split(changes(1_000, seed=8), 2))
    inputs.write_versions(site.home.parent / "after", changes(500, seed=9), 1)
    (site.home.parent / "changes").rename(site.home.parent / "before")
    (site.home.parent / "after").rename(site.home.parent / "changes")
    site.run(pipeline_of(site), fresh=True, on_rewind="replace")
    assert_same(public(site.tables / "customers", COLUMNS), expected(site.spark, str(site.home.parent / "changes")))


@pytest.mark.parametrize(
    "option", [{"keys": ["nobody"]}, {"sequence_by": "nobody"}, {"apply_as_deletes": "seq"}, {"apply_as_deletes": "("}]
)
def test_an_option_that_does_not_fit_the_columns_of_the_stage_is_refused(site: Site, option: dict[str, object]) -> None:
    inputs.append(site.home.parent / "changes", changes(10))
    with pytest.raises(InvalidPipelineError):
        site.run(pipeline_of(site, **option))
    assert not site.tables.exists()


def test_rows_that_the_table_forbids_are_refused_while_they_are_staged_unless_they_are_deletes(site: Site) -> None:
    table = site.tables / "customers"
    site.spark.sql(f"CREATE TABLE delta.`{table}` (id LONG, region STRING, seq LONG, op STRING, value LONG NOT NULL) USING delta")
    site.spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT small CHECK (value < 10)")
    fine = pd.DataFrame(
        {"id": [1, 2], "region": "n", "seq": [1, 1], "op": ["insert", "delete"], "value": pd.array([1, None], "Int64")}
    )
    _in_rounds(site, [fine])
    assert public(table, ["id"]) == {(1,): 1}
    inputs.append(site.home.parent / "changes", fine.assign(seq=2, op="update", value=pd.array([11, 1], "Int64")))
    with pytest.raises(Exception, match="small"):
        site.run(pipeline_of(site))
    assert len(site.checkpoints()) == 1
