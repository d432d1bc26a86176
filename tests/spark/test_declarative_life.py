"""A Spark Declarative Pipelines project through its life: runs, kills, refreshes of tables, and its end.

After each step all tables are compared with batch queries over the same input.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from spark_jobs.api.load import load_pipeline
from spark_jobs.protocol.errors import RejectedError, UnsupportedTableError
from spark_jobs.protocol.steps import Step, observed_by
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.crashes import Point, Watched
from tests.support.systems import Crashed

pytestmark = pytest.mark.spark

SPECIFICATION = """
name: library
storage: file:///not-used
configuration: {{library.folder: "{folder}"}}
libraries: [{{glob: {{include: transformations/**}}}}]
"""
LOANS = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, sum as total, window

FOLDER = spark.conf.get("library.folder")


@dp.temporary_view
def returned() -> DataFrame:
    return spark.readStream.schema("id LONG, reader LONG, at TIMESTAMP, fee DOUBLE").parquet(f"{FOLDER}/returned").where(col("fee") > 0)


@dp.table(comment="all loans", table_properties={"delta.enableChangeDataFeed": "true"})
def loans() -> DataFrame:
    return spark.readStream.schema("id LONG, reader LONG, at TIMESTAMP, days INT").format("parquet").load(f"{FOLDER}/loans")


dp.create_streaming_table("events", schema="id LONG, reader LONG, kind STRING")

for kind, threshold in {"short": 0, "long": 20}.items():

    @dp.append_flow(target="events", name=f"{kind}_loans")
    def flow(kind=kind, threshold=threshold) -> DataFrame:
        from pyspark.sql.functions import lit

        rows = spark.readStream.table("loans").where(col("days") >= threshold)
        return rows.select("id", "reader", lit(kind).alias("kind"))


dp.create_streaming_table("fees")
dp.create_auto_cdc_flow(
    target="fees",
    source="returned",
    keys=["reader"],
    sequence_by=col("id"),
    apply_as_deletes="fee > 90",
    column_list=["reader", "id", "fee"],
    stored_as_scd_type=1,
    name="fee_changes",
)


@dp.materialized_view
def readers() -> DataFrame:
    grouped = spark.read.table("loans").groupBy("reader")
    return grouped.agg(count("*").alias("loans"), total("days").alias("days"))
"""
TABLES = """
CREATE STREAMING TABLE named AS
  SELECT loans.id, names.name FROM STREAM loans JOIN delta.`{folder}/names` AS names ON loans.reader = names.reader;

CREATE STREAMING TABLE hourly AS
  SELECT window(at, '1 hour').start AS hour, count(*) AS n FROM STREAM loans WATERMARK at DELAY OF INTERVAL 5 MINUTES
  GROUP BY window(at, '1 hour');

CREATE TEMPORARY VIEW long_loans AS SELECT * FROM loans WHERE days > 25;
CREATE MATERIALIZED VIEW longest AS SELECT id, days FROM long_loans;
CREATE MATERIALIZED VIEW borrowed AS
  SELECT loans.id, names.name FROM loans LEFT JOIN delta.`{folder}/names` AS names ON loans.reader = names.reader;
CREATE MATERIALIZED VIEW open_fees AS SELECT reader, fee, rank() OVER (ORDER BY fee DESC, reader) AS place FROM fees;
CREATE MATERIALIZED VIEW first_loans AS SELECT id FROM loans ORDER BY id LIMIT 3;
CREATE MATERIALIZED VIEW first_names AS SELECT name FROM delta.`{folder}/names` ORDER BY name LIMIT 2;
"""
OPEN_FEES = """
    SELECT reader, id, fee FROM returned
    WHERE (reader, id) IN (SELECT reader, max(id) FROM returned WHERE fee > 0 GROUP BY reader) AND fee <= 90
"""
EXPECTED = {
    "loans": "SELECT id, reader, at, days FROM loans",
    "events": "SELECT id, reader, 'short' AS kind FROM loans UNION ALL SELECT id, reader, 'long' FROM loans WHERE days >= 20",
    "fees": OPEN_FEES,
    "open_fees": f"SELECT reader, fee, rank() OVER (ORDER BY fee DESC, reader) AS place FROM ({OPEN_FEES})",
    "readers": "SELECT reader, count(*) AS loans, sum(days) AS days FROM loans GROUP BY reader",
    "named": "SELECT id, name FROM loans JOIN names USING (reader)",
    "hourly": "SELECT date_trunc('HOUR', at) AS hour, count(*) AS n FROM loans GROUP BY 1",
    "longest": "SELECT id, days FROM loans WHERE days > 25",
    "borrowed": "SELECT id, name FROM loans LEFT JOIN names USING (reader)",
    "first_loans": "SELECT id FROM loans ORDER BY id LIMIT 3",
    "first_names": "SELECT name FROM names ORDER BY name LIMIT 2",
}
OF_LOANS = ["loans", "events", "named", "hourly", "longest"]
"""The tables that read one another. The view ``readers`` is replaced with them, and ``first_names`` by each run."""


class Library:
    """A project, the files that it reads, and the places of its home and tables."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.entry = folder / "project" / "spark-pipeline.yml"
        self._delivered = 0
        (self.entry.parent / "transformations").mkdir(parents=True)
        self.entry.write_text(SPECIFICATION.format(folder=folder))
        (self.entry.parent / "transformations" / "loans.py").write_text(LOANS)
        (self.entry.parent / "transformations" / "tables.sql").write_text(TABLES.format(folder=folder))
        for name in ("loans", "returned"):
            (folder / name).mkdir()
        names = site.spark.createDataFrame([(n, f"reader {n}") for n in range(4)], "reader LONG, name STRING")
        names.write.format("delta").save(str(folder / "names"))

    def deliver(self, rows: int = 60) -> None:
        """Adds loans, one every three minutes, and as many returns."""
        ids = pd.Series(range(self._delivered, self._delivered + rows))
        at = (pd.Timestamp("2026-03-02", tz="UTC") + pd.to_timedelta(ids * 3, unit="min")).astype("datetime64[us, UTC]")
        loans = pd.DataFrame({"id": ids, "reader": ids % 5, "at": at, "days": (ids * 7 % 31).astype("int32")})
        returned = pd.DataFrame({"id": ids, "reader": ids % 9, "at": at, "fee": (ids * 37 % 103 - 5).astype(float)})
        for name, frame in (("loans", loans), ("returned", returned)):
            frame.to_parquet(self.folder / "unfinished", index=False)
            (self.folder / "unfinished").rename(self.folder / name / f"{self._delivered}.parquet")
        self._delivered += rows

    def run(self, **options: Any) -> None:
        self.site.run(load_pipeline(str(self.entry)).rewired({}, str(self.site.tables)), **options)

    def batch(self) -> SparkSession:
        spark = self.site.spark.newSession()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for name in ("loans", "returned"):
            spark.read.parquet(str(self.folder / name)).createOrReplaceTempView(name)
        spark.read.format("delta").load(str(self.folder / "names")).createOrReplaceTempView("names")
        return spark

    def assert_tables(self, *, open_hours: bool, without: tuple[str, ...] = ()) -> None:
        """Compares all tables with batch queries. Windows that are still open are not public."""
        spark = self.batch()
        for name, query in EXPECTED.items():
            if name in without:
                continue
            expected = answer(spark.sql(query))
            if name == "hourly" and open_hours:
                newest = spark.sql("SELECT date_trunc('HOUR', max(at) - INTERVAL 5 MINUTES) FROM loans").collect()[0][0]
                expected = answer(spark.sql(f"SELECT * FROM ({query}) WHERE hour < TIMESTAMP '{newest}'"))
            assert_same(public(self.site.tables / name), expected)


@pytest.fixture
def library(site: Site, tmp_path: Path) -> Library:
    made = Library(site, tmp_path / "library")
    made.deliver()
    return made


def killed_at(step: Step, library: Library, **options: Any) -> Point | None:
    """Runs until a durable step has begun, and lets the driver die there."""
    observer = Watched(lambda point: point.name == (step, True))
    with observed_by(observer), pytest.raises(Crashed):
        library.run(**options)
    return observer.chosen


@pytest.mark.nightly
def test_a_project_has_the_right_tables_after_a_kill_refreshes_and_its_end(library: Library) -> None:
    library.run()
    library.assert_tables(open_hours=True)
    library.deliver()
    assert killed_at(Step.PLAN_BATCH, library)
    library.run()
    library.assert_tables(open_hours=True)
    with pytest.raises(RejectedError, match="A full refresh of hourly also needs loans, events, named, longest"):
        library.run(full_refresh=["hourly"])
    library.deliver()
    library.run(full_refresh=["fees"])
    library.assert_tables(open_hours=True)
    library.deliver()
    assert killed_at(Step.PUBLISH_SINK, library, full_refresh=OF_LOANS, run_id="refresh")
    library.run(full_refresh=OF_LOANS, run_id="refresh")
    library.assert_tables(open_hours=True)
    library.run(on_end="drain")
    library.assert_tables(open_hours=False)


@pytest.mark.nightly
def test_a_changed_flow_is_computed_again_by_a_full_refresh_of_its_table(library: Library) -> None:
    library.run()
    library.deliver()
    file = library.entry.parent / "transformations" / "loans.py"
    file.write_text(file.read_text().replace('apply_as_deletes="fee > 90"', 'apply_as_deletes="fee > 50"'))
    with pytest.raises(RejectedError, match=r"fees cannot go on: sink was"):
        library.run()
    library.run(full_refresh=["fees"])
    library.assert_tables(open_hours=True, without=("fees", "open_fees"))
    expected = EXPECTED["fees"].replace("fee <= 90", "fee <= 50")
    assert_same(public(library.site.tables / "fees"), answer(library.batch().sql(expected)))


# test_full_refresh.py has the refusal for pipelines.
@pytest.mark.nightly
def test_a_table_of_a_project_with_rows_of_others_is_not_refreshed(library: Library) -> None:
    library.run()
    fees = library.site.tables / "fees"
    library.site.spark.createDataFrame([(99, 1, 2.0)], "reader LONG, id LONG, fee DOUBLE").write.format("delta").mode(
        "append"
    ).save(str(fees))
    with pytest.raises(UnsupportedTableError, match="1 rows that this pipeline has not published"):
        library.run(full_refresh=["fees"])
    assert public_count(fees) is not None
