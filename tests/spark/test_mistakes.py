"""Mistakes are refused before any write, with Spark's message in one line. An error that cannot heal is not retried."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, InterruptedRunError, Pipeline, RestartStrategy
from spark_jobs.protocol.errors import InvalidPipelineError, PermanentFailureError, Retry
from tests.spark.conftest import Site
from tests.spark.rows import public_count

pytestmark = pytest.mark.spark

Change = Callable[[DataFrame], DataFrame]
Read = Callable[[SparkSession, Path], DataFrame]
MORNING = datetime(2026, 3, 2, 9, tzinfo=UTC)
FRIENDLY = ("\tat ", "== SQL", "+- ", "JVM stacktrace", "SQLSTATE")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes") / "events"
    rows = {"id": [1, 2], "word": ["a", "7"], "zero": [0, 1], "at": [MORNING, MORNING]}
    write_deltalake(
        path,
        pa.table(
            rows, schema=pa.schema([("id", "int64"), ("word", "string"), ("zero", "int64"), ("at", pa.timestamp("us", "UTC"))])
        ),
    )
    return path


def read_events(spark: SparkSession, path: Path) -> DataFrame:
    return spark.readStream.format("delta").load(str(path))


def pipeline_of(
    site: Site, events: Path, stages: Mapping[str, tuple[str, Change]], read: Read = read_events, **declared: Any
) -> Pipeline:
    """Declares stages, each with a table and its input."""
    pipeline = Pipeline("mistaken", restart=declared.pop("restart", None))

    @pipeline.source(bounded=True, **{"event_time": "at"} | declared)
    def rows(spark: SparkSession) -> DataFrame:
        return read(spark, events)

    for name, (reads, change) in stages.items():
        sink = DeltaSink(str(site.tables / name))
        pipeline.stage(name=name, inputs={"given": reads}, sink=sink)(lambda given, change=change: change(given))
    return pipeline


def refusal(site: Site, pipeline: Pipeline) -> InvalidPipelineError:
    with pytest.raises(InvalidPipelineError) as caught:
        site.run(pipeline)
    error = caught.value
    assert error.remedy
    assert not any(word in str(error) for word in FRIENDLY), str(error)
    assert not site.tables.exists(), "a table was made"
    assert not (site.home / "attempts").exists() or not any((site.home / "attempts").iterdir())
    return error


def copy(rows: DataFrame) -> DataFrame:
    return rows


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (
            lambda spark, path: spark.readStream.format("delta").load(f"{path}/nothing"),
            "/nothing, which does not exist",
        ),
        (lambda spark, path: spark.readStream.table("nothing"), "TABLE_OR_VIEW_NOT_FOUND"),
        (lambda spark, path: spark.readStream.format("json").load(str(path)), "Schema must be specified"),
        (lambda spark, path: spark.readStream.format("unheard_of").load(str(path)), "DATA_SOURCE_NOT_FOUND"),
        (lambda spark, path: read_events(spark, path).withColumn("at", F.col("word")), "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE"),
        (lambda spark, path: spark.readStream.schema("id unknown").json(str(path)), "UNSUPPORTED_DATATYPE"),
        (lambda spark, path: read_events(spark, path).select(F.col(3)), "Method col"),  # type: ignore[arg-type]
        (lambda spark, path: read_events(spark, path / missing), "NameError"),  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_a_source_that_cannot_be_read_is_refused_with_a_remedy_of_its_own(
    site: Site, events: Path, read: Read, says: str
) -> None:
    error = refusal(site, pipeline_of(site, events, {"copied": ("rows", copy)}, read))
    assert says in error.failed
    assert error.failed.startswith("Input 'rows'")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows.select("unknown"), "UNRESOLVED_COLUMN"),
        (lambda rows: rows.select(F.col("id") + F.array(F.lit(1))), "DATATYPE_MISMATCH"),
        (lambda rows: rows.selectExpr("id +"), "PARSE_SYNTAX_ERROR"),
        (lambda rows: rows.union(rows.select("id")), "NUM_COLUMNS_MISMATCH"),
        (lambda rows: rows.orderBy("id"), "Sorting is not supported on streaming"),
        (lambda rows: rows.withColumn("n", F.row_number().over(Window.partitionBy("word").orderBy("id"))), "NON_TIME_WINDOW"),
        (lambda rows: rows.where(F.lit(rows.count() > 0)), "Queries with streaming sources"),
        (lambda rows: rows.groupBy("word").count(), "STREAMING_OUTPUT_MODE"),
        (lambda rows: rows.no_such_thing, "ATTRIBUTE_NOT_SUPPORTED"),
        (lambda rows: rows.select(None.alias("x")), "AttributeError"),  # type: ignore[attr-defined]
        (lambda rows: {}["columns"], "KeyError"),  # type: ignore[index]
        (lambda rows: fail_as_nobody_knows(), "Unheard: of nobody"),
        (lambda rows: rows.where(Path("/no/such/file").read_text()), "FileNotFoundError"),
    ],
)
def test_a_stage_that_cannot_run_is_refused_before_anything_is_written(
    site: Site, events: Path, change: Change, says: str
) -> None:
    error = refusal(site, pipeline_of(site, events, {"changed": ("rows", change)}))
    assert says in error.failed
    assert "'changed'" in error.failed


class Unheard(Exception):
    pass


def fail_as_nobody_knows() -> DataFrame:
    raise Unheard("of nobody")


def refuse_connection() -> DataFrame:
    raise ConnectionRefusedError("no server")


def hide_the_connection() -> DataFrame:
    try:
        return refuse_connection()
    except ConnectionError as error:
        raise Unheard("of a client") from error


def test_the_error_of_a_function_names_its_file_and_line(site: Site, events: Path) -> None:
    error = refusal(site, pipeline_of(site, events, {"changed": ("rows", lambda rows: fail_as_nobody_knows())}))
    assert error.retry is Retry.NEVER
    assert error.evidence["stage"] == "changed"
    assert error.evidence["file"] == __file__
    assert Path(__file__).read_text().splitlines()[error.evidence["line"] - 1].strip() == 'raise Unheard("of nobody")'
    assert f"(line {error.evidence['line']} of {__file__})" in error.failed


@pytest.mark.parametrize("function", [refuse_connection, hide_the_connection])
def test_a_function_whose_server_is_away_is_called_again_by_a_retry(
    site: Site, events: Path, function: Callable[[], DataFrame]
) -> None:
    pipeline = pipeline_of(site, events, {"changed": ("rows", lambda rows: function())})
    with pytest.raises(InterruptedRunError, match=r"Stage 'changed' cannot be analysed: .*\(line") as caught:
        site.run(pipeline)
    assert caught.value.retry is Retry.WITH_BACKOFF
    assert "Java process" not in str(caught.value)
    assert not site.tables.exists()


def test_every_input_is_checked_also_if_an_earlier_input_has_a_mistake(site: Site, events: Path) -> None:
    pipeline = Pipeline("mistaken")

    def read_nothing(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(f"{events}/nothing")

    for name in ("one", "two", "three"):
        pipeline.source(name=name, bounded=True)(read_nothing)
    pipeline.stage(name="joined")(lambda one, two: one.join(two, "id"))
    pipeline.stage(name="behind", sink=DeltaSink(str(site.tables / "behind")))(lambda joined, three: joined.union(three))
    error = refusal(site, pipeline)
    assert [mistake["input"] for mistake in error.evidence["mistakes"]] == ["one", "two", "three"]


def test_one_error_names_a_table_that_does_not_fit_and_the_mistake_of_another_stage(site: Site, events: Path) -> None:
    write_deltalake(site.tables / "right", pa.table({"id": ["text"]}), mode="error")
    stages = {"wrong": ("rows", lambda rows: rows.select("unknown")), "right": ("rows", lambda rows: rows.select("id", "word"))}
    with pytest.raises(InvalidPipelineError, match="2 mistakes were found") as caught:
        site.run(pipeline_of(site, events, stages))
    assert "Stage 'wrong'" in caught.value.failed
    assert "The stage of sink 'right'" in caught.value.failed


def lose_the_event_time(rows: DataFrame) -> DataFrame:
    def same(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            yield part[["id", "at"]]

    return rows.mapInPandas(same, "id long, at timestamp")


def count_by_hour(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("at", "1 hour")).count().select("count")


def test_a_wrong_second_stage_is_found_before_the_first_one_runs(site: Site, events: Path) -> None:
    stages = {"mapped": ("rows", lose_the_event_time), "counted": ("mapped", count_by_hour)}
    error = refusal(site, pipeline_of(site, events, stages))
    assert "Spark cannot run stage 'counted' as a stream: [STREAMING_OUTPUT_MODE" in error.failed
    assert "event_time= on the source, or on the stage before" in error.remedy


def test_the_remedy_of_a_lost_event_time_can_be_followed(site: Site, events: Path) -> None:
    pipeline = pipeline_of(site, events, {})
    pipeline.stage(event_time="at", name="mapped", inputs={"given": "rows"})(lambda given: lose_the_event_time(given))
    sink = DeltaSink(str(site.tables / "counted"))
    pipeline.stage(name="counted", inputs={"given": "mapped"}, sink=sink)(lambda given: count_by_hour(given))
    site.run(pipeline)
    assert public_count(site.tables / "counted") == 1


def test_the_mistakes_of_all_stages_are_in_one_error(site: Site, events: Path) -> None:
    stages = {
        "first": ("rows", lambda rows: rows.select("unknown")),
        "second": ("rows", lambda rows: rows.orderBy("id")),
        "behind": ("first", copy),
        "right": ("rows", copy),
    }
    error = refusal(site, pipeline_of(site, events, stages))
    assert error.failed.startswith("2 mistakes were found. 1. Stage 'first' cannot be analysed")
    assert [mistake["stage"] for mistake in error.evidence["mistakes"]] == ["first", "second"]


def fails_with(error: Callable[[Any], Any]) -> Change:
    return lambda rows: rows.select(F.udf(error, "long", useArrow=False)("zero").alias("id"))


def import_nothing(number):  # type: ignore[no-untyped-def]
    import no_such_module  # type: ignore[import-not-found]

    return no_such_module.of(number)


def refuse_as_a_server_does(number):  # type: ignore[no-untyped-def]
    raise ConnectionError("no server")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows.select((F.lit(1) / F.col("zero")).alias("id")), "[DIVIDE_BY_ZERO]"),
        (lambda rows: rows.select(F.col("word").cast("int").alias("id")), "[CAST_INVALID_INPUT]"),
        pytest.param(
            lambda rows: rows.select(F.raise_error(F.lit("bad row")).cast("int").alias("id")),
            "[USER_RAISED_EXCEPTION]",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            fails_with(import_nothing), "ModuleNotFoundError: No module named 'no_such_module'", marks=pytest.mark.nightly
        ),
        (fails_with(lambda number: 1 // number), "ZeroDivisionError"),
        pytest.param(fails_with(lambda number: None + number), "TypeError", marks=pytest.mark.nightly),
    ],
)
def test_an_error_that_the_same_rows_would_cause_again_is_not_retried(
    site: Site, events: Path, change: Change, says: str
) -> None:
    again = RestartStrategy.fixed_delay(attempts=1000, delay="1 second")
    with pytest.raises(PermanentFailureError) as caught:
        site.run(pipeline_of(site, events, {"changed": ("rows", change)}, restart=again))
    error = caught.value
    assert error.failed.startswith("Stage 'changed' failed in batch 0: ")
    assert says in error.failed
    assert error.retry is Retry.NEVER
    assert not any(word in str(error) for word in (*FRIENDLY, "Traceback")), str(error)


def test_an_error_that_may_heal_is_retried(site: Site, events: Path) -> None:
    with pytest.raises(InterruptedRunError, match="ConnectionError: no server") as caught:
        site.run(pipeline_of(site, events, {"changed": ("rows", fails_with(refuse_as_a_server_does))}))
    assert caught.value.retry is Retry.WITH_BACKOFF


@pytest.mark.parametrize("find_session", [SparkSession.getActiveSession, lambda: SparkSession.builder.getOrCreate()])
def test_a_stage_may_use_the_active_session(site: Site, events: Path, find_session: Callable[[], SparkSession]) -> None:
    def by_sql(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("seen_here_only")
        return find_session().sql("SELECT id FROM seen_here_only")

    before = SparkSession.getActiveSession()
    site.run(pipeline_of(site, events, {"changed": ("rows", by_sql)}))
    assert public_count(site.tables / "changed") == 2
    assert SparkSession.getActiveSession() is before
