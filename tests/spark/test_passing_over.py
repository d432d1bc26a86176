"""A stage fails at some rows in each try. It goes on without their files, and the ledger has every row of those files."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy, Tolerate
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.losses import LedgerEntry, LossLedger, LossState
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import StageState
from spark_jobs.protocol.errors import InvalidPipelineError, RestartsExhaustedError, StreamPipelineError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.losses import PassedOver, Records, StagedFile
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.growing_table import Events
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.poison_rows import POISON, FilesAndVersions, direct, ids, scoring, units
from tests.support.running import Running, lose
from tests.support.stopped_pipelines import restored

pytestmark = pytest.mark.spark


def pipeline_of(site: Site, events: Events, rows: str = "1000 per hour", **options: Any) -> Pipeline:
    """Declares a copy with four files per batch, a stage that scores it row by row, and a stage that counts it per minute."""
    options = {"checkpoint": CheckpointSettings(interval="1 second", retained=3)} | options
    pipeline = Pipeline("poisoned", restart=RestartStrategy.none(), **options)
    events.source(pipeline)
    score, tolerate = scoring(), Tolerate(after=2, rows=rows)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied"), publish="every_checkpoint"))
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at").repartition(4)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "scored"), publish="every_checkpoint"), tolerate=tolerate)
    def scored(copied: DataFrame) -> DataFrame:
        return copied.select(score("id").alias("id"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes"), publish="every_checkpoint"), tolerate=tolerate)
    def minutes(copied: DataFrame) -> DataFrame:
        counts = copied.groupBy(F.window("at", "1 minute").alias("minute")).agg(
            F.count("*").alias("events"), F.max(score("id")).alias("newest")
        )
        return counts.select(F.col("minute.start").alias("minute"), "events", "newest")

    return pipeline


def passed_over(running: Running, stage: str) -> list[LedgerEntry]:
    entries = LossLedger(running.files).entries()
    return [each for each in entries if each.recorded.loss.stage == stage and each.state is not LossState.UNDONE]


def left_out(site: Site, running: Running, stage: str) -> list[int]:
    """Returns the rows of the files that the ledger names, read from the files."""
    found = list[int]()
    for entry in passed_over(running, stage):
        loss = entry.recorded.loss
        assert isinstance(loss, PassedOver)
        assert isinstance(loss.unit, StagedFile)
        (path,) = (site.tables / "copied").rglob(loss.unit.file)
        rows = pq.read_table(path)["id"].to_pylist()
        assert (loss.input, loss.rows, loss.unit.size_bytes) == ("copied", len(rows), path.stat().st_size)
        assert re.fullmatch(r"ValueError: record \d+ cannot be scored", loss.error)
        found += rows
    return sorted(found)


def has_passed_over(site: Site, events: Events, running: Running) -> bool:
    """Returns True if both stages have passed over each row that fails them."""
    poison = {number for number in POISON if number < events.rows}
    return all(poison <= set(left_out(site, running, stage)) for stage in ("scored", "minutes"))


def assert_adds_up(site: Site, events: Events, running: Running, *, drained: bool = False) -> None:
    """Checks that each table equals a batch query over the rows that are not in the ledger."""
    assert sorted(n for (n,) in public(site.tables / "copied", ["id"]).elements()) == list(range(events.rows))
    lost = left_out(site, running, "scored")
    assert len(lost) == len(set(lost)) < events.rows / 2
    scored = sorted(n for (n,) in public(site.tables / "scored", ["id"]).elements())
    assert scored == sorted(set(range(events.rows)) - set(lost))
    if drained:
        rows = site.spark.range(events.rows).where(~F.col("id").isin(left_out(site, running, "minutes")))
        counts = rows.groupBy(F.window(F.timestamp_seconds("id"), "1 minute").alias("minute"))
        expected = counts.agg(F.count("*").alias("events"), F.max("id").alias("newest"))
        assert_same(public(site.tables / "minutes"), answer(expected.select("minute.start", "events", "newest")))


class DyingAtALoss:
    """Fails the process as soon as a loss is in the ledger, before the stage leaves its file out."""

    def __init__(self) -> None:
        self.died = False

    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        if step is Step.LOSS_RECORD:
            self.died = True
            raise KeyboardInterrupt("dies here")


def test_stages_go_on_without_files_that_fail_them_also_after_a_death_and_a_lost_work_directory(
    site: Site, tmp_path: Path
) -> None:
    events, observer = Events(tmp_path / "events"), DyingAtALoss()
    pipeline = pipeline_of(site, events)
    events.add(200)
    with observed_by(observer), Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "scored") == events.rows)
        events.add(100)
        assert isinstance(running.ends(), KeyboardInterrupt)
    assert observer.died
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: has_passed_over(site, events, running))
        running.until(lambda: public_count(site.tables / "copied") == events.rows)
        running.until(lambda: public_count(site.tables / "scored") == events.rows - len(left_out(site, running, "scored")))
        assert running.status
        assert StageState.FAILED not in {stage.state for stage in running.status.stages.values()}
        ledger = [entry.recorded.loss for stage in ("scored", "minutes") for entry in passed_over(running, stage)]
        running.until(lambda: {loss.id for loss in running.head().losses} == {loss.id for loss in ledger})
        assert_adds_up(site, events, running)
    lose(site.home / "work")
    with Running(site.spark, pipeline, site.home) as running:
        events.add(100)
        running.until(lambda: has_passed_over(site, events, running))
        CheckpointRequests(running.files).ask(request_id("drain", Wanted.STOP), drain=True)
        running.stopped()
    assert_adds_up(site, events, running, drained=True)


def test_a_bounded_run_fails_beyond_the_tolerance_of_a_stage_and_is_completed_with_a_higher_tolerance(
    site: Site, tmp_path: Path
) -> None:
    events = Events(tmp_path / "events", bounded=True)
    events.later(249)
    strict, lenient = (pipeline_of(site, events, rows=rows) for rows in ("5 per hour", "1000 per hour"))
    events.end()
    with Running(site.spark, strict, site.home) as running:
        error = running.ends()
        assert isinstance(error, RestartsExhaustedError)
        assert "tolerates the loss of 5 rows in 3600 s. It has passed over 0, and fails with another" in error.failed
        assert LossLedger(running.files).entries() == []
    with Running(site.spark, lenient, site.home) as running:
        running.stopped()
    assert_adds_up(site, events, running, drained=True)


class Counting(StatefulProcessor):
    """Counts the rows of a key, and returns the number when a timer that the first row has set expires."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        if not self._count.exists():
            self._handle.registerTimer(86_400_000)
        before = self._count.get()[0] if self._count.exists() else 0
        self._count.update((before + sum(map(len, rows)),))
        yield pd.DataFrame()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"odd": [key[0]], "n": [self._count.get()[0]]})

    def close(self) -> None:
        pass


def every_kind_of_stage(site: Site, events: Events, score: Callable[[str], Column]) -> Pipeline:
    """Declares stages without a state, with windows, with a join and with timers. Each scores the rows of the source."""
    pipeline = Pipeline("kinds", restart=RestartStrategy.none())
    events.source(pipeline)

    def stage(function: Callable[..., DataFrame]) -> None:
        sink = DeltaSink(str(site.tables / function.__name__))
        pipeline.stage(sink=sink, tolerate=Tolerate(after=1, rows="1000 per hour"))(function)

    @pipeline.stage
    def copied(events: DataFrame) -> DataFrame:
        return events.select(F.col("id").alias("other"))

    @stage
    def stateless(events: DataFrame) -> DataFrame:
        return events.select(score("id").alias("id"))

    @stage
    def windows(events: DataFrame) -> DataFrame:
        counts = events.groupBy(F.window("at", "10 seconds").alias("time")).agg(
            F.count("*").alias("n"), F.sum(score("id")).alias("total")
        )
        return counts.select("n", "total")

    @stage
    def joined(events: DataFrame, copied: DataFrame) -> DataFrame:
        return events.select(score("id").alias("id")).join(copied, F.col("id") == F.col("other")).select("id")

    @stage
    def timers(events: DataFrame) -> DataFrame:
        rows = events.select((score("id") % 2).alias("odd"), "at")
        return rows.groupBy("odd").transformWithStateInPandas(Counting(), "odd long, n long", "append", "EventTime")

    return pipeline


# Kinds of sources, with bad rows in batches anywhere, are tested by day.
@pytest.mark.nightly
def test_every_kind_of_stage_goes_on_without_bad_rows_in_its_first_a_later_and_its_last_batch(site: Site, tmp_path: Path) -> None:
    events = Events(tmp_path / "events", bounded=True)
    events.later(9, 10, 10, 10, 10, 9)
    events.end()
    site.run(every_kind_of_stage(site, events, scoring(frozenset({0, 34, 59}))))
    left = set(range(60)) - {0, *range(30, 40), 59}
    for stage in ("stateless", "windows", "joined", "timers"):
        lost = units(site, stage)
        assert sorted(loss.rows for loss in lost) == [1, 1, 10], stage
        assert {loss.input for loss in lost} == {"events"}, stage
    assert ids(site.tables / "stateless") == ids(site.tables / "joined") == sorted(left)
    tens = [[number for number in left if number // 10 == ten] for ten in range(6)]
    windows = sorted((len(each), sum(each)) for each in tens if each)
    assert sorted(public(site.tables / "windows", ["n", "total"]).elements()) == windows
    odd = sum(number % 2 for number in left)
    assert sorted(public(site.tables / "timers", ["odd", "n"]).elements()) == [(0, len(left) - odd), (1, odd)]


def test_a_stage_without_tolerance_fails_and_once_mended_runs_the_planned_batch_with_all_its_rows(
    site: Site, tmp_path: Path
) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    numbers.add()
    read = {"versions": numbers.read["versions"]}

    def planned() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (site.home / "work").rglob("offsets/*") if path.name.isdigit()}

    with pytest.raises(StreamPipelineError, match="record 33 cannot be scored"):
        site.run(direct(site, read, scoring(frozenset({33})), tolerate=None), run_id="run")
    before = planned()
    assert before
    assert LossLedger(open_files(str(site.home))).entries() == []
    site.run(direct(site, read, scoring(frozenset()), tolerate=None), run_id="run")
    assert {path: planned()[path] for path in before} == before
    assert ids(site.tables / "versions") == list(range(40))


# test_stages_go_on_without_files_that_fail_them_also_after_a_death_and_a_lost_work_directory has both in stages of their own.
@pytest.mark.nightly
def test_stages_that_read_a_folder_and_a_table_go_on_without_the_files_that_fail_them_also_after_a_death(
    site: Site, tmp_path: Path
) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    poisoned = direct(site, numbers.read, scoring(frozenset({7, 33})))
    numbers.add()
    with observed_by(DyingAtALoss()), pytest.raises(KeyboardInterrupt):
        site.run(poisoned, run_id="first")
    site.run(poisoned, run_id="first")
    numbers.assert_adds_up()
    for name in numbers.read:
        cut = site.manifest().stages[StageName(f"{name}_scored")]
        assert cut.input_rows == {"rows": 40 - len(numbers.left_out(name))}
    assert len(list(numbers.folder.glob("part-*"))) == 2, "a file stays as long as rows of it are not processed"
    numbers.add()
    site.run(poisoned, run_id="second")
    assert all(len(units(site, f"{name}_scored")) == 2 for name in numbers.read)
    numbers.assert_adds_up()


# The test above has the same with bounded sources, and the one of Kafka has an unbounded source.
@pytest.mark.nightly
def test_stages_of_unbounded_sources_go_on_without_files_that_fail_them_also_in_a_new_work_directory(
    site: Site, tmp_path: Path
) -> None:
    numbers, poison = FilesAndVersions(site, tmp_path), frozenset({7, 45, 79})
    poisoned = direct(site, numbers.read, scoring(poison), bounded=False)
    numbers.add()
    with Running(site.spark, poisoned, site.home) as running:
        running.until(lambda: numbers.is_read(frozenset({7})))
    lose(site.home / "work")
    with Running(site.spark, poisoned, site.home) as running:
        numbers.add()
        running.until(lambda: numbers.is_read(poison))
        numbers.assert_adds_up()


# test_stages_go_on_without_files_that_fail_them_also_after_a_death_and_a_lost_work_directory restores a checkpoint by day.
@pytest.mark.nightly
def test_a_restore_leaves_out_the_losses_of_its_savepoint_and_finds_later_losses_again(site: Site, tmp_path: Path) -> None:
    numbers, poison = FilesAndVersions(site, tmp_path), frozenset({7, 45})
    poisoned = direct(site, numbers.read, scoring(poison), bounded=False)
    numbers.add()
    savepoint = tmp_path / "savepoint"
    with Running(site.spark, poisoned, site.home) as running:
        running.until(lambda: numbers.is_read(frozenset({7})))
        running.until(lambda: len(running.head().losses) == len(numbers.read))
        CheckpointRequests(running.files).ask(request_id("kept", Wanted.SAVEPOINT), target=open_files(str(savepoint)).url)
        running.until(lambda: CheckpointRequests(running.files).answer_of(request_id("kept", Wanted.SAVEPOINT)))
        numbers.add()
        running.until(lambda: numbers.is_read(poison))
        before = {name: numbers.left_out(name) for name in numbers.read}
    other = Site(site.spark, tmp_path / "other")
    again = FilesAndVersions(other, tmp_path)
    expected = {name: sorted(set(range(40, numbers.rows)) - gone) for name, gone in before.items()}
    poisoned = direct(other, again.read, scoring(poison), bounded=False)
    with Running(site.spark, poisoned, other.home, options=restored(savepoint)) as running:
        running.until(lambda: all(public_count(other.tables / name) == len(rows) for name, rows in expected.items()))
    assert {name: again.left_out(name) for name in again.read} == before
    assert {name: ids(other.tables / name) for name in again.read} == expected, "the rows since the savepoint"


def test_a_stage_that_reads_kafka_goes_on_without_exactly_the_records_that_fail_it(
    kafka: KafkaBroker, site: Site, tmp_path: Path
) -> None:
    kafka.create_topic("poisoned", 2)
    kafka.send("poisoned", [str(number).encode() for number in range(30)], 0)
    kafka.send("poisoned", [str(number).encode() for number in range(100, 130)], 1)
    options = kafka_options(kafka, "poisoned", startingOffsets="earliest")

    def load(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("kafka").options(**options).load().select(F.expr("bigint(string(value))").alias("id"))

    site.run(direct(site, {"records": load}, scoring(frozenset({0, 17, 129}))))
    lost = [loss.unit for loss in units(site, "records_scored")]
    places = [(unit.partition, unit.first, unit.end) for unit in lost if isinstance(unit, Records)]
    assert sorted(places) == [(0, 0, 1), (0, 17, 18), (1, 29, 30)]
    assert ids(site.tables / "records") == sorted({*range(30), *range(100, 130)} - {0, 17, 129})
    assert site.manifest().stages[StageName("records_scored")].input_rows == {"rows": 57}


def test_a_tolerant_stage_of_a_change_feed_is_refused_before_anything_is_written(site: Site, tmp_path: Path) -> None:
    table = tmp_path / "changing"
    options = {"delta.enableChangeDataFeed": "true"}
    site.spark.range(5).write.format("delta").options(**options).save(str(table))

    def load(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("readChangeFeed", "true").load(str(table))

    with pytest.raises(InvalidPipelineError, match="reads source 'feed', of which no part can be passed over"):
        site.run(direct(site, {"feed": load}, F.col))
    assert not (site.tables / "feed").exists()
