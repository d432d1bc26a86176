"""A bounded source has ended inside a stage that goes on. Its replacement holds no row back, and no row is lost or read again."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.runtime.inputs.ended_source import check_replaceable, ended_frame, is_ended, without_end_row
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.stages.watermark import held_delay_ms
from spark_jobs.storage.local import LocalFiles
from tests.spark import inputs
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.python_source import add_rows, lines_stream

pytestmark = pytest.mark.spark

Rows = Counter[tuple[Any, ...]]
DELAY, HELD = "1 minute", f"{held_delay_ms(0)} milliseconds"


def _rows(name: str, minutes: range) -> pd.DataFrame:
    """Returns one row per minute: ``ts``, ``k`` (``name``), ``n`` (the minute)."""
    times = (inputs.BEGIN + pd.to_timedelta(list(minutes), unit="min")).astype("datetime64[us, UTC]")
    return pd.DataFrame({"ts": times, "k": name, "n": list(minutes)})


@dataclass
class Place:
    """The place of a stream's rows, for each kind of source."""

    kind: str
    name: str
    root: Path
    kafka: KafkaBroker

    def add(self, minutes: range) -> None:
        rows = _rows(self.name, minutes)
        if self.kind == "delta":
            inputs.append(self.root / self.name, rows)
        elif self.kind == "python":
            add_rows(self.root / self.name, [[ts.isoformat(), k, n] for ts, k, n in rows.itertuples(index=False)])
        elif self.kind == "files":
            inputs.write_parquet(self.root / self.name / f"from {minutes.start}", rows, 1)
        else:
            topic = self._topic()
            if topic not in self.kafka.admin.list_topics().topics:
                self.kafka.create_topic(topic)
            self.kafka.send(topic, [json.dumps({"k": self.name, "n": n}).encode() for n in minutes])

    def frame(self, session: SparkSession) -> DataFrame:
        if self.kind == "delta":
            return session.readStream.format("delta").load(str(self.root / self.name))
        if self.kind == "python":
            return lines_stream(session, self.root / self.name, "ts timestamp, k string, n long")
        if self.kind == "files":
            reader = session.readStream.schema("ts timestamp, k string, n long").option("recursiveFileLookup", True)
            return reader.parquet(str(self.root / self.name))
        value = F.from_json(F.col("value").cast("string"), "k string, n long").alias("v")
        rows = session.readStream.format("kafka").options(**kafka_options(self.kafka, self._topic())).load().select(value)
        begin = int(inputs.BEGIN.timestamp())
        return rows.select(F.timestamp_seconds(F.lit(begin) + F.col("v.n") * 60).alias("ts"), "v.k", "v.n")

    def remove(self) -> None:
        if self.kind == "kafka":
            self.kafka.delete_topic(self._topic())
        else:
            shutil.rmtree(self.root / self.name)

    def _topic(self) -> str:
        return f"{self.root.name}-{self.name}".replace("_", "-").replace(" ", "-")


@dataclass
class Query:
    """A query on one checkpoint directory. Each run goes to the end of the input."""

    session: SparkSession
    directory: Path
    transform: Callable[[DataFrame, DataFrame], DataFrame]
    rows: dict[int, Rows] = field(default_factory=dict)
    """The rows of each batch. A batch that runs twice counts once."""
    state_rows: int = 0

    def run(self, history: DataFrame, live: DataFrame, **trigger: Any) -> None:
        """Runs the query. ``history`` has its watermark already."""

        def keep(frame: DataFrame, batch: int) -> None:
            self.rows[batch] = Counter(tuple(row) for row in frame.collect())

        stream = self.transform(history, live.withWatermark("ts", DELAY)).writeStream.foreachBatch(keep)
        query = stream.option("checkpointLocation", str(self.directory)).trigger(**(trigger or {"availableNow": True})).start()
        query.awaitTermination()
        progress = query.lastProgress
        self.state_rows = sum(operator["numRowsTotal"] for operator in progress["stateOperators"]) if progress else 0

    @property
    def log(self) -> SparkLog:
        return SparkLog(LocalFiles(self.directory.parent), self.directory.name)

    def watermark_minute(self) -> float:
        return (self.log.next_watermark_ms(self.log.last_commit()) / 1000 - float(inputs.BEGIN.timestamp())) / 60

    def emitted(self) -> Rows:
        return sum(self.rows.values(), Counter())

    def lines(self) -> tuple[str, ...]:
        return self.log.offsets(self.log.last_offsets()).sources


@dataclass
class Setting:
    history: Place
    live: Place
    query: Query
    columns: StructType

    @property
    def session(self) -> SparkSession:
        return self.query.session

    def with_history(self) -> None:
        """Runs the query as a stage does before the source has ended: the watermark of the source is held."""
        self.query.run(self.history.frame(self.session).withWatermark("ts", HELD), self.live.frame(self.session))

    def with_replacement(self, **trigger: Any) -> None:
        """Runs the query with the replacement. The finished source may be gone, because its columns are known."""
        marked = ended_frame(self.session, _stream_of(self.session, self.columns, self.live.root), "ts").withWatermark(
            "ts", DELAY
        )
        self.query.run(without_end_row(marked), self.live.frame(self.session), **trigger)


def _stream_of(session: SparkSession, columns: StructType | str, root: Path) -> DataFrame:
    """Returns a stream with these columns. No query reads it."""
    (root / "nothing").mkdir(exist_ok=True)
    return session.readStream.schema(columns).json(str(root / "nothing"))


KINDS = ["delta-delta", "files-python", "kafka-kafka"]
"""Pairs of kinds: that of the finished source, and that of the live one."""
ONE_HERE = [pytest.param(kinds, marks=pytest.mark.nightly if kinds != "kafka-kafka" else ()) for kinds in KINDS]
"""One pair for every run of the tests. The other pairs have tests of a join and of restarts that always run."""


@pytest.fixture
def setting(request: pytest.FixtureRequest, spark: SparkSession, kafka: KafkaBroker, tmp_path: Path) -> Callable[..., Setting]:
    def make(transform: Callable[[DataFrame, DataFrame], DataFrame]) -> Setting:
        session = session_for_run(spark)
        session.conf.set("spark.sql.streaming.metricsEnabled", "true")
        finished, unbounded = request.param.split("-")
        history, live = Place(finished, "history", tmp_path, kafka), Place(unbounded, "live", tmp_path, kafka)
        history.add(range(30))
        live.add(range(10))
        return Setting(history, live, Query(session, tmp_path / "ck", transform), history.frame(session).schema)

    return make


def _windows(history: DataFrame, live: DataFrame) -> DataFrame:
    """Counts rows per window behind a condition on a column that is no event time. Spark pushes such conditions down as far as it can."""
    rows = history.where("k = 'history'").union(live)
    counts = rows.groupBy(F.window("ts", "10 minutes"), "k").count()
    begin = int(inputs.BEGIN.timestamp())
    return counts.select("k", ((F.unix_timestamp("window.start") - begin) / 60).cast("int"), "count")


def _expected_windows(history: range, live: range, before: int) -> Rows:
    found = Counter(
        (name, minute // 10 * 10) for name, minutes in {"history": history, "live": live}.items() for minute in minutes
    )
    return Counter((name, start, count) for (name, start), count in found.items() if start + 10 <= before)


# test_a_join_keeps_the_rows_of_the_finished_source_until_the_watermark_passes_them follows the live source by day.
@pytest.mark.nightly
@pytest.mark.parametrize("setting", ONE_HERE, indirect=True)
def test_the_watermark_of_a_union_follows_the_live_source_once_the_finished_one_is_replaced(
    setting: Callable[..., Setting],
) -> None:
    made = setting(_windows)
    made.with_history()
    made.live.add(range(10, 300))
    made.with_history()
    made.with_history()
    assert made.query.watermark_minute() <= 29
    made.history.remove()
    for minutes in (range(300, 310), range(310, 320), range(320, 330)):
        made.live.add(minutes)
        made.with_replacement()
        assert made.query.watermark_minute() == minutes.stop - 2
    assert made.query.emitted() == _expected_windows(range(30), range(330), 328)


def _matches(history: DataFrame, live: DataFrame) -> DataFrame:
    """Joins each row of history with the live rows of its minute up to four hours later."""
    left = history.select(F.col("ts").alias("h_ts"), F.col("n").alias("h_n"), F.col("k").alias("h_k")).where("h_k = 'history'")
    condition = "n % 30 = h_n AND ts >= h_ts AND ts <= h_ts + INTERVAL 4 HOURS"
    return left.join(live, F.expr(condition)).select("h_n", "n")


def _expected_matches(live: range) -> Rows:
    return Counter((n % 30, n) for n in live if n - n % 30 <= 240)


@pytest.mark.parametrize("setting", KINDS[1:2], indirect=True)
def test_a_join_keeps_the_rows_of_the_finished_source_until_the_watermark_passes_them(setting: Callable[..., Setting]) -> None:
    made = setting(_matches)
    made.with_history()
    made.history.remove()
    made.with_replacement()
    for minutes in (range(10, 100), range(100, 230)):
        made.live.add(minutes)
        made.with_replacement()
        assert made.query.emitted() == _expected_matches(range(minutes.stop))
        assert made.query.state_rows >= 30
    for minutes in (range(230, 280), range(280, 400)):
        made.live.add(minutes)
        made.with_replacement()
    assert made.query.emitted() == _expected_matches(range(400))
    assert made.query.state_rows < 30, "the finished side was let go"


def _plain_condition(marked: DataFrame) -> DataFrame:
    return marked.where("ts < '9999-01-01'")


@pytest.mark.parametrize("stage", [_windows, _matches])
@pytest.mark.parametrize(
    ("drop", "moved"), [(without_end_row, False), (_plain_condition, True)], ids=["our filter", "a plain filter"]
)
def test_spark_does_not_move_the_filter_of_end_rows_below_the_watermark(
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    stage: Callable[[DataFrame, DataFrame], DataFrame],
    drop: Callable[[DataFrame], DataFrame],
    moved: bool,
) -> None:
    """Below the watermark, the user's condition or the join's null check of a key would drop the end row before the watermark sees it."""
    columns = "ts timestamp, k string, n long"
    live = lines_stream(spark, tmp_path / "live", columns).withWatermark("ts", DELAY)
    marked = ended_frame(spark, _stream_of(spark, columns, tmp_path), "ts").withWatermark("ts", DELAY)
    stage(drop(marked), live).explain("extended")
    optimized = capfd.readouterr().out.split("== Optimized Logical Plan ==")[1].split("== Physical Plan ==")[0].splitlines()
    leaf = next(number for number, line in enumerate(optimized) if "ended" in line)
    mark = max(number for number, line in enumerate(optimized[:leaf]) if "EventTimeWatermark" in line)
    assert any("Filter" in line for line in optimized[mark:leaf]) is moved
    assert any("Filter" in line for line in optimized[:mark])


@pytest.mark.nightly
@pytest.mark.parametrize("setting", KINDS[:1], indirect=True)
def test_a_replacement_survives_any_number_of_restarts(setting: Callable[..., Setting]) -> None:
    """The restart may come between a batch's plan and its commit. The replacement keeps the offsets recorded by the source before it."""
    made = setting(_windows)
    made.with_history()
    recorded = made.query.lines()[0]
    made.history.remove()
    for restart in range(1, 4):
        made.live.add(range(restart * 10, restart * 10 + 10))
        made.with_replacement()
        line = made.query.lines()[0]
        assert is_ended(line)
        assert not is_ended(recorded)
        assert json.loads(line)["ended"] == json.loads(recorded)
        last = made.query.log.last_commit()
        for name in (f"{last}", f".{last}.crc"):
            (made.query.directory / "commits" / name).unlink(missing_ok=True)
        made.with_replacement(once=True)
        assert made.query.log.last_commit() == last
    assert made.query.emitted() == _expected_windows(range(30), range(40), 38)


def test_a_replacement_without_an_event_time_emits_no_row_and_runs_no_further_batch(spark: SparkSession, tmp_path: Path) -> None:
    session = session_for_run(spark)
    for name in ("history", "live"):
        inputs.append(tmp_path / name, _rows(name, range(5)))
    read = {name: lambda name=name: session.readStream.format("delta").load(str(tmp_path / name)) for name in ("history", "live")}
    query = Query(session, tmp_path / "ck", lambda history, live: history.select("n").union(live.select("n")))
    query.run(read["history"](), read["live"]())
    ended = [ended_frame(session, read["history"](), None) for _ in range(3)]
    for frame in ended:
        query.run(frame, read["live"]())
    assert query.log.last_commit() == BatchId(1), "one batch takes the place over, and no other"
    assert query.emitted() == Counter({(n,): 2 for n in range(5)})


NESTED = """ts timestamp NOT NULL, flag boolean NOT NULL, small byte, name string NOT NULL, raw binary NOT NULL,
    price decimal(12, 3) NOT NULL, day date NOT NULL, local timestamp_ntz NOT NULL, took interval day to second NOT NULL,
    ratio double NOT NULL, tags array<string> NOT NULL, facts map<string, struct<a: int, b: array<long>>> NOT NULL, `any` variant,
    inner struct<x: int NOT NULL, y: struct<z: string NOT NULL, at: timestamp> NOT NULL, w: decimal(3, 1)> NOT NULL, last string,
    hour struct<start: timestamp, end: timestamp>"""


def test_a_replacement_has_the_columns_of_its_source(spark: SparkSession, tmp_path: Path) -> None:
    session = session_for_run(spark)
    columns = _stream_of(session, NESTED, tmp_path)
    marked = ended_frame(session, columns, "ts").withWatermark("ts", DELAY)
    assert ended_frame(session, columns, "ts").schema == columns.schema
    found = without_end_row(marked).groupBy("ts", "name", "inner", "hour").agg(F.max("price"), F.first("facts"))
    batches: list[int] = []
    query = found.writeStream.foreachBatch(lambda frame, batch: batches.append(frame.count()))
    query.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start().awaitTermination()
    log = SparkLog(LocalFiles(tmp_path), "ck")
    assert log.next_watermark_ms(log.last_commit()) == 253_402_214_400_000 - 60_000
    assert batches
    assert not any(batches)


def test_the_replacement_of_a_source_with_several_streams_keeps_an_offset_line_for_each_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = session_for_run(spark)
    for name in ("one", "two", "live"):
        inputs.append(tmp_path / name, _rows(name, range(5)))
    one, two, live = (session.readStream.format("delta").load(str(tmp_path / name)) for name in ("one", "two", "live"))
    query = Query(session, tmp_path / "ck", lambda history, live: history.union(live).groupBy(F.window("ts", "1 hour")).count())
    query.run(one.union(two).withWatermark("ts", DELAY), live)
    ended = ended_frame(session, one.union(two), "ts").withWatermark("ts", DELAY)
    query.run(without_end_row(ended), session.readStream.format("delta").load(str(tmp_path / "live")))
    assert [is_ended(line) for line in query.lines()] == [True, True, False]


def test_a_source_that_keeps_state_is_refused_before_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    inputs.append(tmp_path / "rows", _rows("rows", range(5)))
    frame = spark.readStream.format("delta").load(str(tmp_path / "rows"))
    check_replaceable(InputName("rows"), frame)
    with pytest.raises(InvalidPipelineError, match="'rows' keeps state .Deduplicate."):
        check_replaceable(InputName("rows"), frame.dropDuplicates(["k"]))
    with pytest.raises(InvalidPipelineError, match="a column of a type that it could not keep"):
        check_replaceable(InputName("rows"), frame.withColumn("age", F.expr("INTERVAL '1' YEAR")))
