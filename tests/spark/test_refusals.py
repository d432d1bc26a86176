"""A pipeline that cannot keep the promises is refused before any row is staged. The error names the cause and the remedy."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel, SecretStr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_jobs import DeltaSink, InterruptedRunError, Pipeline, RejectedError
from spark_jobs.api.load import load_pipeline
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.control.refused_starts import forget_refused_start
from spark_jobs.protocol.errors import InvalidPipelineError, UnsupportedTableError
from spark_jobs.protocol.ids import AttemptNumber, RunId
from spark_jobs.protocol.steps import Step, observed_by
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import public_count
from tests.support.command_line import spark_jobs
from tests.support.places import in_a_store_too

pytestmark = pytest.mark.spark

Change = Callable[[DataFrame], DataFrame]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("refusals") / "events"
    inputs.append(path, inputs.events(500))
    return path


def _pipeline(site: Site, events: Path, change: Change, read: Callable[[SparkSession], DataFrame] | None = None) -> Pipeline:
    pipeline = Pipeline("refused")

    @pipeline.source(bounded=True, event_time="ts")
    def rows(spark: SparkSession) -> DataFrame:
        return read(spark) if read else spark.readStream.format("delta").load(str(events))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "sink")))
    def changed(rows: DataFrame) -> DataFrame:
        return change(rows)

    return pipeline


def _own_watermark(rows: DataFrame) -> DataFrame:
    return rows.select("id", F.col("ts").alias("at")).withWatermark("at", "1 hour")


def _two_watermarks(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 hour").union(rows.where("id > 3").withWatermark("ts", "2 hours"))


_HOURS = itertools.count(1)


def _another_watermark_each_time(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", f"{next(_HOURS)} hours")


def _undeclared_stream(rows: DataFrame) -> DataFrame:
    return rows.select("id").union(rows.sparkSession.readStream.format("rate").load().select("value"))


def _waits_for_the_clock(rows: DataFrame) -> DataFrame:
    def count(key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        yield from parts

    return rows.groupBy("id").applyInPandasWithState(count, "id long", "n long", "append", "ProcessingTimeTimeout")


def _timers_by_the_clock(rows: DataFrame) -> DataFrame:
    class Nothing(StatefulProcessor):
        def init(self, handle: Any) -> None: ...

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            yield from rows

        def close(self) -> None: ...

    return rows.groupBy("id").transformWithStateInPandas(Nothing(), "id long", "append", "ProcessingTime")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_own_watermark, "'changed' calls withWatermark on a frame that is not an input as it was read"),
        (_two_watermarks, "'changed' sets two watermarks on its input 'rows'"),
        (_another_watermark_each_time, "'changed' sets other watermarks on its inputs each time it is called"),
        (_undeclared_stream, "'changed' reads a stream .* that is not one of its inputs"),
        (_waits_for_the_clock, "applyInPandasWithState with a processing-time timeout, which waits for processing time"),
        (_timers_by_the_clock, "timeMode='ProcessingTime', which waits for processing time"),
        (lambda rows: rows.groupBy("key").count(), "Spark cannot run stage 'changed' as a stream"),
        (lambda rows: rows.select("no_such_column"), "'changed' cannot be analysed"),
        (lambda rows: rows.sparkSession.range(3), "'changed' does not return a streaming frame"),
        (lambda rows: None, "'changed' does not return a streaming frame but NoneType"),
    ],
    ids=[
        "a watermark on a derived frame",
        "two watermarks on one input",
        "another watermark in each call",
        "an undeclared stream",
        "a processing-time timeout",
        "processing-time timers",
        "an aggregation without a watermark",
        "an unknown column",
        "a batch frame",
        "no frame",
    ],
)
def test_a_stage_that_cannot_keep_the_guarantees_is_refused(site: Site, events: Path, change: Change, message: str) -> None:
    with pytest.raises(InvalidPipelineError, match=message) as refused:
        site.run(_pipeline(site, events, change))
    assert refused.value.remedy
    assert not site.home.exists(), "a refused first start leaves nothing behind"
    assert not public_count(site.tables / "sink")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda spark, path: spark.readStream.format("rate").load().withColumnRenamed("timestamp", "ts"), "'rows' reads 'rate'"),
        (lambda spark, path: spark.read.format("delta").load(path), "'rows' does not return a streaming frame"),
        (
            lambda spark, path: spark.readStream.format("delta").load(path).withWatermark("ts", "1 hour"),
            "'rows' calls withWatermark itself",
        ),
        (lambda spark, path: spark.readStream.format("delta").load(path).drop("ts"), "has no column 'ts' for its event time"),
        (
            lambda spark, path: spark.readStream.format("delta").load(f"{path}/nowhere"),
            "'rows' reads .*/nowhere, which does not exist",
        ),
    ],
    ids=["an unsupported format", "a batch frame", "a watermark", "a missing event time", "a missing path"],
)
def test_a_source_that_cannot_keep_the_guarantees_is_refused(site: Site, events: Path, read: Any, message: str) -> None:
    with pytest.raises(InvalidPipelineError, match=message) as refused:
        site.run(_pipeline(site, events, lambda rows: rows.select("id"), lambda spark: read(spark, str(events))))
    assert refused.value.remedy
    assert not site.home.exists(), "a refused first start leaves nothing behind"
    assert public_count(site.tables / "sink") is None


def test_functions_that_return_frames_of_the_callers_session_are_refused_and_its_settings_stay(site: Site, events: Path) -> None:
    callers = site.spark
    callers.readStream.format("delta").load(str(events))  # Delta adds settings of its own to a session that reads a table
    settings = callers.conf.getAll
    read = _pipeline(
        site, events, lambda rows: rows.select("id"), lambda given: callers.readStream.format("delta").load(str(events))
    )
    made = _pipeline(site, events, lambda rows: callers.readStream.format("delta").load(str(events)).select("id"))
    with pytest.raises(InvalidPipelineError, match=r"'rows' returns a frame of another Spark session.*argument 'spark'"):
        site.run(read)
    with pytest.raises(InvalidPipelineError, match=r"'changed' returns a frame of another Spark session.*frame.sparkSession"):
        site.run(made)
    assert not site.home.exists(), "a refused first start leaves nothing behind"
    assert site.spark.conf.getAll == settings


@pytest.mark.parametrize(
    ("columns", "partition_by", "message"),
    [
        ("id BIGINT", [], "returns value, which the table does not have"),
        ("id BIGINT, value INT, must STRING NOT NULL", [], "lacks must"),
        ("id STRING, value INT", [], None),
        ("id BIGINT, value SMALLINT", [], None),
        ("id BIGINT, value STRUCT<a: INT>", [], "do not fit the columns"),
        ("id BIGINT, value INT", ["id"], "is partitioned by"),
        ("id BIGINT, value INT, serial BIGINT GENERATED ALWAYS AS IDENTITY", [], "identityColumns"),
    ],
    ids=[
        "a column too many",
        "a column too few",
        "a text column",
        "a narrower column",
        "another type",
        "another partitioning",
        "an identity column",
    ],
)
def test_a_table_whose_columns_do_not_fit_the_stage_is_refused_before_anything_is_staged(
    site: Site, events: Path, columns: str, partition_by: list[str], message: str | None
) -> None:
    path = site.tables / "existing"
    site.spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
    pipeline = Pipeline("refused")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(events))

    @pipeline.stage(sink=DeltaSink(str(path), partition_by=partition_by))
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select("id", "value")

    if message is None:
        site.run(pipeline)
        assert public_count(path) == 525
        return
    with pytest.raises(UnsupportedTableError, match=message) as refused:
        site.run(pipeline)
    assert refused.value.remedy
    assert public_count(path) == 0
    assert not list(path.rglob("*.parquet")), "something was staged"


def test_a_value_that_does_not_fit_a_narrower_column_fails_the_run(site: Site, events: Path) -> None:
    path = site.tables / "sink"
    site.spark.sql(f"CREATE TABLE delta.`{path}` (value TINYINT) USING delta")
    with pytest.raises(InterruptedRunError, match=r"^Stage 'changed' failed in batch 0: \[CAST_OVERFLOW"):
        site.run(_pipeline(site, events, lambda rows: rows.select("value")))
    assert public_count(path) == 0


class _FailsOnce:
    """Fails once after a step."""

    def __init__(self, which: Step) -> None:
        self._which = which
        self._failed = False

    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        if step is self._which and not self._failed:
            self._failed = True
            raise OSError("failed as told")


def test_a_stage_that_is_not_deterministic_is_found_out_when_a_batch_is_computed_again(site: Site, events: Path) -> None:
    hour = 9
    pipeline = _pipeline(site, events, lambda rows: rows.where(F.col("id") % 24 < hour).select("id"))
    with observed_by(_FailsOnce(Step.STAGE_VERSION)), pytest.raises(InterruptedRunError, match="failed as told"):
        site.run(pipeline, run_id="first")
    hour = 10
    with pytest.raises(InterruptedRunError, match="not deterministic") as found:
        site.run(pipeline, run_id="first")
    assert found.value.evidence["expected"] < found.value.evidence["found"]
    assert public_count(site.tables / "sink") == 0


def test_a_deterministic_batch_that_is_computed_again_is_staged_once(site: Site, events: Path) -> None:
    pipeline = _pipeline(site, events, lambda rows: rows.select("id"))
    with observed_by(_FailsOnce(Step.STAGE_VERSION)), pytest.raises(InterruptedRunError, match="failed as told"):
        site.run(pipeline, run_id="first")
    site.run(pipeline, run_id="first")
    assert public_count(site.tables / "sink") == 525


def test_an_error_says_which_input_of_a_pipeline_is_unknown(site: Site, events: Path) -> None:
    pipeline = _pipeline(site, events, lambda rows: rows)
    with pytest.raises(RejectedError, match="'events' is not one of its inputs"):
        pipeline.rewired({"events": lambda spark: None}, "/nowhere")


def test_the_refusal_of_a_missing_path_names_its_parameters_but_no_secret(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_JOBS_PARAM_TOKEN", "hunter-twelve")

    class Params(BaseModel):
        clicks: str
        token: SecretStr

    pipeline = Pipeline("refused", params=Params)

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession, params: Params) -> DataFrame:
        return spark.readStream.format("delta").load(params.clicks)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "sink")))
    def same(rows: DataFrame) -> DataFrame:
        return rows

    with pytest.raises(InvalidPipelineError, match="clickz") as caught:
        site.run(pipeline, params={"clicks": str(tmp_path / "clickz")})
    assert "hunter-twelve" not in str(caught.value)


ENTRY = """
from spark_jobs import DeltaSink, Pipeline

pipeline = Pipeline("refused", on_end="suspend")


@pipeline.source(bounded=True)
def rows(spark):
    return spark.readStream.format("delta").load({events!r})


@pipeline.stage(sink=DeltaSink({table!r}))
def changed(rows):
    return {returned}
"""
MISTAKES = {
    "a function that raises": "rows.select('id').limit(1 // 0)",
    "a wrong column": "rows.select('idd')",
    "no stream": "rows.groupBy('id').count().orderBy('id')",
}


class Doors:
    """The ways in which a user starts a pipeline: a notebook, the command line, and a request from Airflow."""

    def __init__(self, site: Site, events: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self._events, self._directory = site, events, directory
        session = "spark_jobs.runtime.spark.session.start_session"
        monkeypatch.setattr(session, lambda name, conf, **_: site.spark.newSession())
        self.home = open_home(site.place)
        self.channel = Channel(self.home)

    def entry(self, returned: str) -> str:
        path = self._directory / f"entry_{len(list(self._directory.iterdir()))}.py"
        path.write_text(ENTRY.format(events=str(self._events), table=self.site.table("sink"), returned=returned))
        return str(path)

    def start_in_a_notebook(self, returned: str) -> None:
        with pytest.raises(InvalidPipelineError):
            self.site.run(load_pipeline(self.entry(returned)))

    def start_on_the_command_line(self, returned: str, *options: str) -> None:
        refused = spark_jobs("run", self.entry(returned), "--home", self.site.place, *options)
        assert (refused.exit_code, "InvalidPipelineError" in refused.stderr or "Refused" in refused.stderr) == (2, True), (
            refused.stderr
        )

    def start_from_airflow(self, returned: str) -> AttemptNumber:
        request = self.channel.request_start(RunId("a task"), parameters={})
        self.start_on_the_command_line(returned, "--request", request.request)
        answer = self.channel.response(request.request)
        assert answer is not None
        assert answer.error is not None
        assert answer.error.error == "InvalidPipelineError"
        return request.attempt

    def files(self) -> dict[str, bytes]:
        """Returns the files of the home, and its cache on this host."""
        found = {path: self.home.read(path) for path in self.home.paths()}
        return found | {str(path): b"" for path in (self._directory.parent / "cache").glob("spark-jobs/homes/*")}


@pytest.fixture
def doors(site: Site, events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doors:
    (tmp_path / "entries").mkdir()
    return Doors(site, events, tmp_path / "entries", monkeypatch)


@in_a_store_too
def test_a_refused_first_start_leaves_nothing_behind(doors: Doors, tmp_path: Path) -> None:
    for returned in MISTAKES.values():
        doors.start_in_a_notebook(returned)
        doors.start_on_the_command_line(returned)
    assert [path.name for path in tmp_path.iterdir()] == ["entries"]
    attempt = doors.start_from_airflow(MISTAKES["a wrong column"])
    assert {path.partition("/")[0] for path in doors.files()} == {"requests", "responses", "runs"}
    forget_refused_start(doors.home, attempt)
    assert doors.files() == {}
    assert not doors.site.home.exists()


@in_a_store_too
def test_a_start_that_dies_between_its_plan_and_the_claim_leaves_no_file(doors: Doors) -> None:
    class Killed(BaseException):
        pass

    class Kill:
        def before(self, step: Step) -> None:
            raise Killed

        def after(self, step: Step) -> None: ...

    with observed_by(Kill()), pytest.raises(Killed):
        doors.site.run(load_pipeline(doors.entry("rows.select('id')")))
    assert doors.files() == {}


def test_a_refused_start_leaves_a_home_as_it_was(doors: Doors) -> None:
    doors.site.run(load_pipeline(doors.entry("rows.select('id')")))
    before = doors.files()
    for returned in MISTAKES.values():
        doors.start_in_a_notebook(returned)
    doors.start_from_airflow(MISTAKES["a wrong column"])
    after = doors.files()
    answered = {path for path in after if path.partition("/")[0] in ("requests", "responses", "runs")} - before.keys()
    assert len(answered) == 3 * (len(MISTAKES) + 1)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} - answered
    assert changed <= {"work/driver.lock", "work/jvm.lock", "work/spark.log"}
