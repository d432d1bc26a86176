"""A shop whose pipeline changes between two runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import StreamPipelineError
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public
from tests.support.crashes import contents

ALL = ("orders", "refunds", "hourly")
HOURS = "SELECT window.start AS hour, count(*) AS events FROM events GROUP BY window(at, '1 hour')"


class Shop:
    """A daily pipeline and the events that it reads. Each test chooses the stages."""

    def __init__(self, site: Site) -> None:
        self.site, self.events, self.payments = site, site.home.parent / "events", site.home.parent / "payments"
        self._days, self.form = 0, "delta"
        self.begin: dict[str, Any] = {}
        """For each stage that does not begin at the beginning: its starting point."""

    def deliver(self) -> None:
        """Adds the events and payments of the next day: one event every 40 minutes, of each kind in turn."""
        first = self._days * 36
        minutes = [40 * number for number in range(first, first + 36)]
        at = pa.array([minute * 60 * 1_000_000 for minute in minutes], pa.timestamp("us", "UTC"))
        kinds = ["order" if minute % 80 else "refund" for minute in minutes]
        write_deltalake(self.events, pa.table({"id": minutes, "at": at, "kind": kinds}), mode="append")
        write_deltalake(self.payments, pa.table({"paid": minutes}), mode="append")
        self._days += 1

    def pipeline(self, *stages: str, **sinks: dict[str, Any]) -> Pipeline:
        """Declares some of these stages, with options of their sinks: the orders, the refunds, the events per hour, the payments."""
        made = Pipeline("shop", on_end="suspend")
        own = {"event_time": "at", "watermark_delay": "90 minutes", "hold_watermark": True}
        if {"orders", "refunds", "hourly"} & set(stages):
            made.source(bounded=True, name="events", **own)(self._reading(self.events))  # type: ignore[arg-type]
        if "paid" in stages:
            made.source(bounded=True, name="payments")(self._reading(self.payments))

        def orders(events: DataFrame) -> DataFrame:
            return events.where("kind = 'order'")

        def refunds(events: DataFrame) -> DataFrame:
            return events.where("kind = 'refund'")

        def hourly(events: DataFrame) -> DataFrame:
            counted = events.groupBy(F.window("at", "1 hour").alias("hour")).agg(F.count("*").alias("events"))
            return counted.select(F.col("hour.start").alias("hour"), "events")

        def paid(payments: DataFrame) -> DataFrame:
            return payments

        functions: dict[str, Callable[..., DataFrame]] = {"orders": orders, "refunds": refunds, "hourly": hourly, "paid": paid}
        for name in stages:
            sink = DeltaSink(str(self.site.tables / name), **sinks.get(name, {}))
            made.stage(sink=sink, begin=self.begin.get(name, "earliest"))(functions[name])
        return made

    def _reading(self, path: Path) -> Callable[[SparkSession], DataFrame]:
        if self.form == "delta":
            return lambda spark: spark.readStream.format("delta").load(str(path))
        schema = "id BIGINT, at TIMESTAMP, kind STRING"
        return lambda spark: spark.readStream.schema(schema).format(self.form).load(str(path))

    def run(self, pipeline: Pipeline, **options: Any) -> None:
        self.site.run(pipeline, **options)

    def batch(self, query: str) -> Any:
        session = self.site.spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        session.read.format("delta").load(str(self.events)).createOrReplaceTempView("events")
        session.read.format("delta").load(str(self.payments)).createOrReplaceTempView("payments")
        return answer(session.sql(query))

    def assert_kind(self, table: str, kind: str) -> None:
        found = public(self.site.tables / table, ["id", "at", "kind"])
        assert_same(found, self.batch(f"SELECT id, at, kind FROM events WHERE kind = '{kind}'"))

    def assert_hours(self) -> None:
        """Checks that every hour of all days is public once after a drain, also the hour that was open during the change."""
        assert_same(public(self.site.tables / "hourly"), self.batch(HOURS))

    def refused(self, pipeline: Pipeline, **options: Any) -> StreamPipelineError:
        """Returns the error of a run. Checks that the run has changed nothing but the requests and answers."""
        before = documents(self.site.home)
        with pytest.raises(StreamPipelineError) as caught:
            self.run(pipeline, **options)
        assert documents(self.site.home) == before
        return caught.value


def documents(home: Path) -> dict[str, str]:
    """Returns the documents that decide the state of a home. Requests and their answers do not."""
    parts = ("attempts", "rounds", "manifests", "savepoints", "state")
    return {path: digest for path, digest in contents(home).items() if path.startswith(parts)}
