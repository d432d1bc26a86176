"""A small pipeline with many features: a stage without a sink, windows, a chain, several batches.

The module is also the entry of real drivers: ``spark-jobs run tests/support/small_pipeline.py``.
"""

import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from spark_jobs import DeltaSink, Pipeline

SINKS = ("hourly", "daily")
ROWS_A_DAY = 60
FILES_A_DAY = 2
FILES_A_BATCH = 1
FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)


class Event(NamedTuple):
    at: datetime
    origin: str


class Params(BaseModel):
    events: str
    warehouse: str


pipeline = Pipeline("small", params=Params)


@pipeline.source(bounded=True, event_time="at", watermark_delay="1 hour", hold_watermark=True)
def events(spark: Any, params: Params) -> Any:
    return spark.readStream.format("delta").option("maxFilesPerTrigger", FILES_A_BATCH).load(params.events)


@pipeline.stage
def known(events: Any) -> Any:
    return events.where("origin <> 'ZZZ'")


@pipeline.stage(sink=DeltaSink("{warehouse}/hourly", partition_by=["origin"]))
def hourly(known: Any) -> Any:
    from pyspark.sql import functions as F

    counted = known.groupBy(F.window("at", "1 hour").alias("hour"), "origin").agg(F.count("*").alias("events"))
    return counted.select("origin", "events", F.window_time("hour").alias("until"))


@pipeline.stage(sink=DeltaSink("{warehouse}/daily"))
def daily(hourly: Any) -> Any:
    from pyspark.sql import functions as F

    counted = hourly.groupBy(F.window("until", "1 day").alias("day")).agg(F.sum("events").alias("events"))
    return counted.select(F.col("day.start").alias("day"), "events")


def events_of(day: int) -> list[Event]:
    """Returns the events of one day in no order. They are always the same."""
    chosen = random.Random(day)
    seconds = (chosen.randrange(86_400) for _ in range(ROWS_A_DAY))
    return [Event(FIRST_DAY + timedelta(days=day, seconds=s), chosen.choice(["EWR", "JFK", "ZZZ"])) for s in seconds]


def deliver(path: Path | str, day: int) -> None:
    """Appends one day's events to the table that the pipeline reads, in a directory or at the URL of a store."""
    import pyarrow as pa
    from deltalake import write_deltalake

    from tests.support.opened_tables import IN_A_STORE

    rows = events_of(day)
    for part in range(FILES_A_DAY):
        at, origin = zip(*rows[part::FILES_A_DAY], strict=True)
        table = pa.table({"at": pa.array(at, pa.timestamp("us", "UTC")), "origin": list(origin)})
        write_deltalake(path, table, mode="append", storage_options=IN_A_STORE)


def answer(days: Iterable[int]) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the expected rows of the tables after all rows of these days. It uses neither Spark nor the product."""
    rows = [event for day in days for event in events_of(day) if event.origin != "ZZZ"]
    hours = Counter((event.origin, event.at.replace(minute=0, second=0, microsecond=0)) for event in rows)
    until = timedelta(hours=1) - timedelta(microseconds=1)
    return {
        "hourly": sorted((origin, count, hour + until) for (origin, hour), count in hours.items()),
        "daily": sorted(Counter(event.at.replace(hour=0, minute=0, second=0, microsecond=0) for event in rows).items()),
    }
