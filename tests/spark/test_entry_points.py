"""The Python entry points for notebooks, auditors and tests of pipelines: ``Pipeline.run``, ``read_staged``, ``run_pipeline``."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import spark_jobs
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RejectedError, RestartStrategy, read_staged
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.errors import InvalidParameterError, InvalidPipelineError
from spark_jobs.protocol.restart_settings import FixedDelay
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.launch import launch_in_session
from spark_jobs.storage.open import open_files
from spark_jobs.testing import run_pipeline
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count

pytestmark = pytest.mark.spark


class Params(BaseModel):
    flights: str = "/nowhere/flights"
    warehouse: str = "/nowhere/warehouse"
    factor: int = 1


def _flights() -> Pipeline:
    pipeline = Pipeline("flights", params=Params)

    @pipeline.source(bounded=True, event_time="departure")
    def departures(spark: SparkSession, params: Params) -> DataFrame:
        return spark.readStream.format("delta").load(params.flights)

    @pipeline.static
    def airports(spark: SparkSession, params: Params) -> DataFrame:
        return spark.read.format("delta").load(f"{params.warehouse}/airports")

    @pipeline.stage(sink=DeltaSink("{warehouse}/hourly", partition_by=["origin"]))
    def hourly(departures: DataFrame, airports: DataFrame, params: Params) -> DataFrame:
        counts = departures.join(airports, "origin").groupBy(F.window("departure", "1 hour").alias("hour"), "origin", "city")
        return counts.agg((F.count("*") * params.factor).alias("flights")).select("hour.start", "origin", "city", "flights")

    return pipeline


def _at(hour: int, minute: int) -> datetime:
    return datetime(2013, 1, 1, hour, minute, tzinfo=UTC)


DEPARTURES = [
    {"departure": _at(8, 30), "origin": "JFK"},
    {"departure": _at(5, 10), "origin": "EWR"},
    {"departure": _at(8, 5), "origin": "JFK"},
]
AIRPORTS = [{"origin": "JFK", "city": "New York"}, {"origin": "EWR", "city": "Newark"}]


def test_run_pipeline_returns_the_rows_that_a_pipeline_makes_of_given_rows(spark: SparkSession) -> None:
    found = run_pipeline(_flights(), {"departures": DEPARTURES, "airports": AIRPORTS}, params={"factor": 10}, spark=spark)
    rows = sorted((row.origin, row.city, row.flights) for row in found["hourly"])
    assert rows == [("EWR", "Newark", 10), ("JFK", "New York", 20)]
    assert isinstance(found["hourly"][0], Row)


def test_run_pipeline_accepts_frames_and_leaves_the_pipeline_and_its_tables_alone(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = _flights()
    before = pipeline.graph().describe()
    nothing = spark.createDataFrame([], "departure timestamp, origin string")
    assert run_pipeline(pipeline, {"departures": nothing, "airports": AIRPORTS}, params={"warehouse": str(tmp_path)}) == {
        "hourly": []
    }
    assert pipeline.graph().describe() == before
    assert list(tmp_path.iterdir()) == []


def test_run_pipeline_refuses_an_unknown_input(spark: SparkSession) -> None:
    with pytest.raises(InvalidPipelineError, match="'arrivals' is not one of its inputs.*departures"):
        run_pipeline(_flights(), {"arrivals": DEPARTURES}, spark=spark)


def _events(site: Site, **options: Any) -> Pipeline:
    pipeline = Pipeline("events", **options)

    @pipeline.source(bounded=True, event_time="ts", watermark_delay="1 hour", hold_watermark=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "events"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy"), partition_by=["region"], publish="external"))
    def copy(events: DataFrame) -> DataFrame:
        return events.select("region", "id", "ts")

    return pipeline


def test_staged_rows_can_be_read_before_anyone_else_sees_them(site: Site, temporary: Path) -> None:
    events = site.home.parent / "events"
    inputs.append(events, inputs.events(1_000))
    site.run(_events(site, on_end="suspend"), run_id="first")
    inputs.append(events, inputs.events(1_000, seed=7))
    site.run(_events(site, on_end="suspend"), run_id="second")
    first = answer(site.spark.read.format("delta").option("versionAsOf", 0).load(str(events)).select("region", "id", "ts"))
    both = answer(site.spark.read.format("delta").load(str(events)).select("region", "id", "ts"))

    assert public_count(site.tables / "copy") == 0
    assert_same(answer(read_staged(site.spark, str(site.home), "copy", 1)), first)
    assert_same(answer(read_staged(site.spark, str(site.home), "copy")), both)
    assert list(temporary.glob("staged*")) == [], "executors on other hosts would not see files of this process"
    publish(open_files(str(site.home)), type(site.manifest().checkpoint)(1))
    assert_same(answer(read_staged(site.spark, str(site.home), "copy")), both - first)
    publish(open_files(str(site.home)))
    assert_same(public(site.tables / "copy", ["region", "id", "ts"]), both)
    assert read_staged(site.spark, str(site.home), "copy").count() == 0


def test_the_error_for_staged_rows_of_an_unknown_sink_names_the_known_sinks(site: Site) -> None:
    inputs.append(site.home.parent / "events", inputs.events(100))
    site.run(_events(site))
    with pytest.raises(InvalidParameterError, match="no sink other .* It has copy"):
        read_staged(site.spark, str(site.home), "other")


def test_a_run_in_a_notebook_leaves_the_session_as_it_is(site: Site) -> None:
    inputs.append(site.home.parent / "events", inputs.events(100))
    key = "spark.sql.streaming.multipleWatermarkPolicy"
    site.spark.conf.set(key, "max")
    try:
        response = site.run(_events(site, conf={"spark.sql.files.maxPartitionBytes": "1m"}))
        assert site.spark.conf.get(key) == "max"
        assert site.spark.conf.get("spark.sql.files.maxPartitionBytes") != "1m"
    finally:
        site.spark.conf.unset(key)
    assert response.checkpoint == 1


def test_a_path_is_local_with_any_default_file_system_of_hadoop(site: Site) -> None:
    inputs.append(site.home.parent / "events", inputs.events(100))
    site.spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        response = site.run(_events(site))
        assert site.spark.conf.get("fs.defaultFS") == "hdfs://127.0.0.1:1"
    finally:
        site.spark.conf.unset("fs.defaultFS")
    assert response.checkpoint == 1


def test_a_run_in_a_notebook_refuses_settings_that_a_running_application_cannot_take(site: Site) -> None:
    with pytest.raises(RejectedError, match="sets spark.executor.memory = 9g, which a running Spark application cannot change"):
        site.run(_events(site, conf={"spark.executor.memory": "9g"}))
    assert not site.home.exists()


def test_an_attempt_records_the_settings_that_apply_to_it(site: Site) -> None:
    inputs.append(site.home.parent / "events", inputs.events(100))
    settings = CheckpointSettings(interval="5 minutes", retained=3)
    pipeline = _events(site, checkpoint=settings, restart=RestartStrategy.fixed_delay(attempts=2))
    options = StartOptions(checkpoint=CheckpointOverrides(interval_ms=30_000))
    launch_in_session(pipeline, str(site.home), {}, options, site.spark)
    attempt = Attempts(open_files(str(site.home))).latest()
    assert attempt is not None
    assert (attempt.checkpointing.interval_ms, attempt.checkpointing.retained) == (30_000, 3)
    assert attempt.restart == FixedDelay(attempts=2, delay_ms=1_000)


def test_run_pipeline_runs_a_live_pipeline_to_the_end_of_its_rows(spark: SparkSession) -> None:
    pipeline = Pipeline("live")

    @pipeline.source(bounded=False, shared=True, event_time="departure", watermark_delay="1 hour")
    def departures(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load("/nowhere")

    @pipeline.stage(sink=DeltaSink("/nowhere/hourly"), trigger_interval="1 hour")
    def hourly(departures: DataFrame) -> DataFrame:
        counts = departures.groupBy(F.window("departure", "1 hour").alias("hour")).agg(F.count("*").alias("flights"))
        return counts.select(F.hour("hour.start").alias("hour"), "flights")

    @pipeline.stage(sink=DeltaSink("/nowhere/from_jfk"))
    def from_jfk(departures: DataFrame) -> DataFrame:
        return departures.where("origin = 'JFK'").select("origin")

    rows = run_pipeline(pipeline, {"departures": DEPARTURES}, spark=spark)
    assert sorted(row["flights"] for row in rows["hourly"]) == [1, 2]
    assert len(rows["from_jfk"]) == 2


def test_a_spark_connect_session_is_refused(site: Site) -> None:
    with pytest.raises(RejectedError, match="Spark Connect sessions cannot run a pipeline"):
        _events(site).run(spark=object(), home=site.home)  # type: ignore[arg-type]  # what a Connect session is not, it is not either


def test_the_package_has_every_name_that_it_exports() -> None:
    assert all(hasattr(spark_jobs, name) for name in spark_jobs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        spark_jobs.nonsense  # noqa: B018 - looking it up is the test
