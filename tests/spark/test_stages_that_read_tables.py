"""Stages that read the tables of other stages: each round computes them again from the tables of the same checkpoint."""

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.ids import SinkName
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.staged.staged_rows import read_staged
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public
from tests.support.crashes import Point, Watched
from tests.support.systems import Crashed

pytestmark = pytest.mark.spark

DAYS_MAX = 25
EXPECTED = {
    "loans": "SELECT id, reader, at, days FROM loans WHERE days <= 25",
    "fees": "SELECT * FROM last_fees WHERE fee <= 90",
    "hourly": "SELECT date_trunc('HOUR', at) AS hour, count(*) AS n FROM loans WHERE days <= 25 GROUP BY 1",
    "report": """
        SELECT id, name, fee, rank() OVER (PARTITION BY reader ORDER BY days DESC, id) AS place FROM loans
        JOIN names USING (reader) LEFT JOIN (SELECT reader, fee FROM last_fees WHERE fee <= 90) USING (reader) WHERE days <= 25
    """,
    "first_fees": "SELECT reader, fee FROM last_fees WHERE fee <= 90 ORDER BY reader LIMIT 3",
    "busiest": "SELECT max(n) AS n FROM (SELECT count(*) AS n FROM loans WHERE days <= 25 GROUP BY date_trunc('HOUR', at))",
}


class Library:
    """Loans, fees that change, the names of readers, and a pipeline that reports them."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self._delivered = 0
        for name in ("loans", "fees"):
            (folder / name).mkdir(parents=True)
        self.name_readers("reader")

    def name_readers(self, name: str) -> None:
        names = self.site.spark.createDataFrame([(n, f"{name} {n}") for n in range(4)], "reader LONG, name STRING")
        names.write.format("delta").mode("overwrite").save(str(self.folder / "names"))

    def deliver(self, rows: int = 60) -> None:
        """Adds loans, one every three minutes, and as many fees. Fees of a reader do not come in the order of their numbers."""
        ids = pd.Series(range(self._delivered, self._delivered + rows))
        at = (pd.Timestamp("2026-03-02", tz="UTC") + pd.to_timedelta(ids * 3, unit="min")).astype("datetime64[us, UTC]")
        loans = pd.DataFrame({"id": ids, "reader": ids % 5, "at": at, "days": (ids * 7 % 31).astype("int32")})
        fees = pd.DataFrame({"reader": ids % 9, "number": ids * 53 % 211, "fee": (ids * 37 % 103).astype(float)})
        for name, frame in (("loans", loans), ("fees", fees)):
            frame.to_parquet(self.folder / "unfinished", index=False)
            (self.folder / "unfinished").rename(self.folder / name / f"{self._delivered}.parquet")
        self._delivered += rows

    def pipeline(self, days_max: int = DAYS_MAX) -> Pipeline:
        pipeline, folder, table = Pipeline("library", on_end="suspend"), self.folder, self.site.table

        @pipeline.source(bounded=True, event_time="at", watermark_delay="5 minutes", hold_watermark=True, name="new_loans")
        def read_loans(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("id LONG, reader LONG, at TIMESTAMP, days INT").parquet(str(folder / "loans"))

        @pipeline.source(bounded=True, name="new_fees")
        def read_fees(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("reader LONG, number LONG, fee DOUBLE").parquet(str(folder / "fees"))

        @pipeline.static(name="names")
        def read_names(spark: SparkSession) -> DataFrame:
            return spark.read.format("delta").load(str(folder / "names"))

        @pipeline.stage(sink=DeltaSink(table("loans")))
        def loans(new_loans: DataFrame) -> DataFrame:
            return new_loans.where(F.col("days") <= days_max)

        changes = DeltaSink(
            table("fees"), mode="upsert", keys=["reader"], sequence_by="number", apply_as_deletes="fee > 90", name="fees"
        )

        @pipeline.stage(sink=changes)
        def fees(new_fees: DataFrame) -> DataFrame:
            return new_fees

        @pipeline.stage(sink=DeltaSink(table("hourly")))
        def hourly(loans: DataFrame) -> DataFrame:
            windows = loans.groupBy(F.window("at", "1 hour").alias("w")).agg(F.count("*").alias("n"))
            return windows.select(F.col("w.start").alias("hour"), "n")

        @pipeline.stage(sink=DeltaSink(table("report"), mode="complete"), reads_tables=True)
        def report(loans: DataFrame, fees: DataFrame, names: DataFrame) -> DataFrame:
            joined = loans.join(names, "reader").join(fees.select("reader", "fee"), "reader", "left")
            return joined.selectExpr("id", "name", "fee", "rank() OVER (PARTITION BY reader ORDER BY days DESC, id) AS place")

        @pipeline.stage(sink=DeltaSink(table("first_fees"), mode="complete"), reads_tables=True)
        def first_fees(fees: DataFrame) -> DataFrame:
            return fees.orderBy("reader").limit(3).select("reader", "fee")

        @pipeline.stage(sink=DeltaSink(table("busiest"), mode="complete"), reads_tables=True)
        def busiest(hourly: DataFrame) -> DataFrame:
            return hourly.agg(F.max("n").alias("n"))

        return pipeline

    def run(self, days_max: int = DAYS_MAX, **options: object) -> None:
        self.site.run(self.pipeline(days_max), **options)

    def batch(self) -> SparkSession:
        spark = self.site.spark.newSession()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for name in ("loans", "fees"):
            spark.read.parquet(str(self.folder / name)).createOrReplaceTempView(name)
        spark.read.format("delta").load(str(self.folder / "names")).createOrReplaceTempView("names")
        spark.sql(
            "SELECT reader, max_by(number, number) AS number, max_by(fee, number) AS fee FROM fees GROUP BY reader"
        ).createOrReplaceTempView("last_fees")
        return spark

    def assert_tables(self, *names: str, days_max: int = DAYS_MAX) -> None:
        """Compares tables with batch queries over the delivered rows."""
        spark = self.batch()
        for name in names or EXPECTED.keys() - {"hourly", "busiest"}:
            query = EXPECTED[name].replace(f"days <= {DAYS_MAX}", f"days <= {days_max}")
            assert_same(public(self.site.tables / name), answer(spark.sql(query)))


@pytest.fixture
def library(site: Site, tmp_path: Path) -> Library:
    made = Library(site, tmp_path / "library")
    made.deliver()
    return made


def killed(library: Library, point: Point) -> None:
    observer = Watched(lambda each: each == point)
    with observed_by(observer), pytest.raises(Crashed):
        library.run()
    assert observer.chosen == point


def test_each_round_computes_stages_that_read_tables_from_the_tables_of_its_checkpoint(library: Library) -> None:
    library.run()
    library.assert_tables()
    library.deliver()
    library.name_readers("new reader")
    library.run()
    library.assert_tables()
    library.run()  # no new rows
    library.assert_tables()
    library.run(days_max=20, full_refresh=["loans", "hourly"])
    library.assert_tables(days_max=20)
    library.run(days_max=20, on_end="drain")  # flushes the last windows
    library.assert_tables(*EXPECTED, days_max=20)


OF_REPORTS = [
    pytest.param(Point(Step.STAGE_VERSION, 4, True), marks=pytest.mark.nightly),
    pytest.param(Point(Step.STAGE_VERSION, 4, False), marks=pytest.mark.nightly),
    Point(Step.MANIFEST_CREATE, 1, True),
]
"""Steps after the stages with streams have ended. Windows are all open, so ``hourly`` has staged a version without rows."""


@pytest.mark.parametrize("point", OF_REPORTS, ids=str)
def test_the_next_attempt_computes_stages_that_read_tables_again(library: Library, point: Point) -> None:
    library.run()
    library.deliver()
    killed(library, point)
    added = library.site.spark.createDataFrame([(10_000, 1, None, 1)], "id LONG, reader LONG, at TIMESTAMP, days INT")
    added.write.format("delta").mode("append").save(library.site.table("loans"))
    library.run()
    library.assert_tables("fees", "first_fees")
    reported = public(library.site.tables / "report", ["id"])
    assert reported[(10_000,)] == 1, "the table has changed since the killed attempt has read it"
    spark = library.batch()
    spark.sql("SELECT * FROM loans UNION ALL SELECT 10000, 1, NULL, 1").createOrReplaceTempView("loans")
    assert_same(public(library.site.tables / "report"), answer(spark.sql(EXPECTED["report"])))


# test_the_next_attempt_computes_stages_that_read_tables_again reads staged rows by day.
@pytest.mark.nightly
def test_stages_that_read_tables_read_rows_of_unpublished_checkpoints(library: Library) -> None:
    library.run(publish="external")
    library.deliver()
    library.run(publish="external")
    files = open_place(str(library.site.home))
    reported = read_staged(library.site.spark, files, "report")
    assert_same(answer(reported), answer(library.batch().sql(EXPECTED["report"])))
    publish(files, sinks=[SinkName(name) for name in EXPECTED], publishers=Publishers(lambda: library.site.spark))
    library.assert_tables()
