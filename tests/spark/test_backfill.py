"""Rows that stages have passed over are processed later, by mended code: each table then equals a batch query over the whole input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy, Tolerate, consistent_versions
from spark_jobs.control.home import HomeInStore
from spark_jobs.control.losses import LossLedger, LossState
from spark_jobs.protocol.errors import FencedError, HomeInUseError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import LossId, RunId, StageName
from spark_jobs.protocol.losses import StagedFile
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.runtime.launch import launch
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import assert_same, public, public_count
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.poison_rows import FilesAndVersions, direct, ids, scoring, units
from tests.support.running import Running, lose

pytestmark = pytest.mark.spark
NONE: frozenset[int] = frozenset()


def ledger_of(site: Site) -> LossLedger:
    return LossLedger(open_files(str(site.home)))


def backfill(site: Site, pipeline: Pipeline, losses: Sequence[LossId] = (), **options: Any) -> None:
    site.run(pipeline, backfill=losses or ledger_of(site).can_be_backfilled(), **options)


def states(site: Site) -> set[LossState]:
    return {entry.state for entry in ledger_of(site).entries()}


# test_staged_rows_are_backfilled_into_every_kind_of_table_also_without_the_work_directory backfills a round by day.
@pytest.mark.nightly
def test_files_and_versions_of_several_rounds_are_backfilled_once_and_without_new_rows(site: Site, tmp_path: Path) -> None:
    numbers, mended = FilesAndVersions(site, tmp_path), direct_of(site, tmp_path)
    poisoned = direct(site, numbers.read, scoring(frozenset({7, 33, 50})))
    numbers.add()
    site.run(poisoned, run_id="first")
    numbers.add()
    site.run(poisoned, run_id="second")
    numbers.assert_adds_up()
    losses = ledger_of(site).can_be_backfilled()
    with pytest.raises(StreamPipelineError, match="cannot be scored"):
        backfill(site, poisoned)
    assert states(site) == {LossState.OPEN}
    numbers.add()
    site.run(poisoned, run_id="third")
    numbers.assert_adds_up()
    numbers.add()
    backfill(site, mended, run_id="backfill")
    assert states(site) == {LossState.BACKFILLED}
    assert (site.manifest().losses, site.manifest().backfilled) == ((), tuple(sorted(losses)))
    for name in numbers.read:
        assert ids(site.tables / name) == list(range(120))
        assert site.manifest().stages[StageName(f"{name}_scored")].input_rows == {
            "rows": sum(loss.rows for loss in units(site, f"{name}_scored"))
        }
    backfill(site, mended, losses, run_id="backfill")
    with pytest.raises(RejectedError, match=r"Loss \S+ cannot be backfilled: it is backfilled"):
        backfill(site, mended, losses, run_id="another")
    site.run(mended)
    for name in numbers.read:
        assert ids(site.tables / name) == list(range(160))
    assert not list(numbers.folder.glob("part-*")), "nothing needs the files any more"


def direct_of(site: Site, root: Path) -> Pipeline:
    return direct(site, FilesAndVersions(site, root).read, scoring(NONE))


def test_records_of_kafka_are_backfilled_one_loss_after_the_other(kafka: KafkaBroker, site: Site, tmp_path: Path) -> None:
    kafka.create_topic("backfilled", 2)
    kafka.send("backfilled", [str(number).encode() for number in range(30)], 0)
    kafka.send("backfilled", [str(number).encode() for number in range(100, 130)], 1)
    options = kafka_options(kafka, "backfilled", startingOffsets="earliest")

    def load(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("kafka").options(**options).load().select(F.expr("bigint(string(value))").alias("id"))

    site.run(direct(site, {"records": load}, scoring(frozenset({0, 17, 129}))))
    assert len(units(site, "records_scored")) == 3
    mended = direct(site, {"records": load}, scoring(NONE))
    first, *others = ledger_of(site).can_be_backfilled()
    backfill(site, mended, [first])
    assert ids(site.tables / "records") == sorted({*range(30), *range(100, 130)} - {17, 129})
    backfill(site, mended, others)
    assert ids(site.tables / "records") == sorted({*range(30), *range(100, 130)})


@dataclass
class Diamond:
    """A pipeline of stages that read each other: ``copied`` is scored into an append table, an upsert and an insert, with expectations."""

    site: Site
    root: Path
    options: dict[str, Any] = field(default_factory=dict)
    rows: int = 0

    def add(self, count: int = 40) -> None:
        numbers = self.site.spark.range(self.rows, self.rows + count)
        numbers.repartitionByRange(4, "id").write.mode("append").format("delta").save(str(self.root / "events"))
        self.rows += count

    def pipeline(self, poison: frozenset[int] = NONE) -> Pipeline:
        score, tolerate = scoring(poison), Tolerate(after=1, rows="1000 per hour")
        score_known = scoring(frozenset({12, 26}) if poison else NONE)
        pipeline = Pipeline("diamond", restart=RestartStrategy.none(), **self.options)
        bounded = "checkpoint" not in self.options

        @pipeline.source(bounded=bounded)
        def events(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").load(str(self.root / "events"))

        @pipeline.stage
        def copied(events: DataFrame) -> DataFrame:
            return events.select("id", (F.col("id") % 10).alias("key")).repartition(8)

        @pipeline.stage(
            tolerate=tolerate,
            sink=self._sink("scored", partition_by=["key"]),
            expect={"even": "id % 2 = 0"},
            violations=self._sink("odd"),
        )
        def scored(copied: DataFrame) -> DataFrame:
            return copied.select(score("id").alias("id"), "key")

        @pipeline.stage(sink=self._sink("newest", mode="upsert", keys=["key"], sequence_by="id"))
        def newest(scored: DataFrame) -> DataFrame:
            return scored

        @pipeline.stage(tolerate=tolerate, sink=self._sink("known", mode="insert", keys=["id"]))
        def known(scored: DataFrame) -> DataFrame:
            return scored.select(score_known("id").alias("id"))

        return pipeline

    def _sink(self, name: str, **options: Any) -> DeltaSink:
        return DeltaSink(str(self.site.tables / name), **options)

    def public_rows(self) -> int:
        return sum(public_count(self.site.tables / name) or 0 for name in ("scored", "odd"))

    def is_whole(self) -> bool:
        return self.public_rows() == self.rows

    def assert_whole(self) -> None:
        even = list(range(0, self.rows, 2))
        assert ids(self.site.tables / "scored") == even
        assert ids(self.site.tables / "odd") == list(range(1, self.rows, 2))
        assert ids(self.site.tables / "known") == even
        newest = {number % 10: number for number in even}
        assert sorted(public(self.site.tables / "newest", ["key", "id"]).elements()) == sorted(newest.items())


SUSPENDED: dict[str, Any] = {"on_end": "suspend"}
POISON = frozenset({3, 8, 22})


@pytest.mark.parametrize("on_end", [pytest.param("suspend", marks=pytest.mark.nightly), "drain"])
def test_staged_rows_are_backfilled_into_every_kind_of_table_also_without_the_work_directory(
    site: Site, tmp_path: Path, on_end: str
) -> None:
    diamond = Diamond(site, tmp_path, {"on_end": on_end})
    diamond.add()
    site.run(diamond.pipeline(POISON))
    assert not diamond.is_whole()
    lose(site.home / "work")
    while ledger_of(site).can_be_backfilled():  # the rows of a loss may be lost again to a stage downstream
        backfill(site, diamond.pipeline())
    diamond.assert_whole()


@pytest.mark.nightly
def test_staged_rows_are_kept_through_later_rounds_until_they_are_backfilled(site: Site, tmp_path: Path) -> None:
    diamond = Diamond(site, tmp_path, SUSPENDED)
    for _ in range(4):
        diamond.add(20)
        site.run(diamond.pipeline(POISON))
    while ledger_of(site).can_be_backfilled():
        backfill(site, diamond.pipeline())
    diamond.assert_whole()
    for _ in range(3):
        diamond.add(20)
        site.run(diamond.pipeline())
    diamond.assert_whole()
    kept = {path.name for path in (site.home / "channels").rglob("*.parquet")}
    left = {loss.unit.file for stage in ("scored", "known") for loss in units(site, stage) if isinstance(loss.unit, StagedFile)}
    assert left
    assert not kept & left, "a closed loss keeps no file"


# test_a_later_backfill_on_another_host_fences_the_first_and_each_row_is_public_once backfills by day.
@pytest.mark.nightly
def test_a_pipeline_without_an_end_goes_on_after_its_losses_are_backfilled(site: Site, tmp_path: Path) -> None:
    diamond = Diamond(site, tmp_path, {"checkpoint": CheckpointSettings(interval="1 second", retained=2)})
    diamond.add()
    with Running(site.spark, diamond.pipeline(POISON), site.home) as running:
        running.until(lambda: diamond.public_rows() + lost_rows(site) == diamond.rows)
    options = StartOptions(backfill=ledger_of(site).can_be_backfilled())
    with Running(site.spark, diamond.pipeline(), site.home, options=options) as running:
        running.until(diamond.is_whole)
        diamond.add()
        running.until(diamond.is_whole)
        running.until(lambda: public_count(site.tables / "known") == diamond.rows / 2)
        running.until(lambda: not running.head().losses)
    diamond.assert_whole()
    assert LossState.OPEN not in states(site)


def lost_rows(site: Site) -> int:
    return sum(loss.rows for loss in units(site, "scored"))


class DyingInTurn:
    """Lets each attempt die at the next durable step that no attempt before it has reached: before it, and after it."""

    STEPS = (
        *(Step.ROUND_CREATE, Step.PLAN_BATCH, Step.STAGE_FILES, Step.STAGE_VERSION, Step.MANIFEST_CREATE),
        *(Step.LOSS_BACKFILL, Step.PUBLISH_SINK, Step.RESPONSE_CREATE),
    )

    def __init__(self) -> None:
        self.points: set[tuple[Step, bool]] = set()
        self.died = True

    def before(self, step: Step) -> None:
        self._pass((step, True))

    def after(self, step: Step) -> None:
        self._pass((step, False))

    def _pass(self, point: tuple[Step, bool]) -> None:
        if point[0] in self.STEPS and point not in self.points and not self.died:
            self.points.add(point)
            self.died = True
            raise KeyboardInterrupt(f"dies at {point}")


def test_a_backfill_that_dies_at_each_of_its_durable_steps_stages_every_row_once(site: Site, tmp_path: Path) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    numbers.add()
    read = {"versions": numbers.read["versions"]}
    site.run(direct(site, read, scoring(frozenset({7}))))
    losses, observer, mended = ledger_of(site).can_be_backfilled(), DyingInTurn(), direct(site, read, scoring(NONE))
    with observed_by(observer):
        while observer.died:
            observer.died = False
            try:
                backfill(site, mended, losses, run_id="backfill")
            except KeyboardInterrupt:
                assert observer.died
    assert {step for step, _ in observer.points} == set(observer.STEPS)
    assert states(site) == {LossState.BACKFILLED}
    assert ids(site.tables / "versions") == list(range(40))


def test_rows_that_a_stage_with_state_would_receive_are_not_backfilled(site: Site, tmp_path: Path) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    numbers.add()

    def pipeline(score: Callable[[str], Column]) -> Pipeline:
        found = direct(site, {"versions": numbers.read["versions"]}, score)

        @found.stage(sink=DeltaSink(str(site.tables / "counted"), mode="complete"))
        def counted(versions_scored: DataFrame) -> DataFrame:
            return versions_scored.groupBy((F.col("id") % 2).alias("odd")).count()

        return found

    site.run(pipeline(scoring(frozenset({7}))))
    before = public(site.tables / "versions", ["id"])
    with pytest.raises(RejectedError, match="cannot be backfilled: stage 'counted' keeps a state"):
        backfill(site, pipeline(scoring(NONE)))
    assert_same(public(site.tables / "versions", ["id"]), before)
    assert states(site) == {LossState.OPEN}


def test_rows_whose_source_files_are_gone_are_not_backfilled(site: Site, tmp_path: Path) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    numbers.add()
    site.run(direct(site, {"files": numbers.read["files"]}, scoring(frozenset({7}))))
    (left,) = numbers.folder.glob("part-*")
    left.unlink()
    mended = direct(site, {"files": numbers.read["files"]}, scoring(NONE))
    with pytest.raises(RejectedError, match=r"Loss 1-1 cannot be backfilled: source files in .* cannot be read"):
        backfill(site, mended)
    assert states(site) == {LossState.OPEN}
    left.write_text("")
    with pytest.raises(
        RejectedError, match=r"Loss 1-1 of stage 'files_scored' cannot be backfilled: .* had 10 rows, and has 0 now"
    ):
        backfill(site, mended)


# test_rows_that_a_stage_with_state_would_receive_are_not_backfilled has the refusal by day.
@pytest.mark.nightly
def test_rows_of_a_source_with_several_streams_are_not_backfilled(site: Site, tmp_path: Path) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    numbers.add()
    both = {"both": lambda spark: numbers.read["files"](spark).union(numbers.read["versions"](spark))}
    site.run(direct(site, both, scoring(frozenset({7}))))
    with pytest.raises(RejectedError, match="cannot be backfilled: source 'both' has several streams"):
        backfill(site, direct(site, both, scoring(NONE)))
    assert states(site) == {LossState.OPEN}


class BackfillingBetween:
    """Starts another backfill, once, just before a backfill stages its rows. It is to be refused."""

    def __init__(self, other: Callable[[], None]) -> None:
        self._other, self.refused = other, list[str]()

    def before(self, step: Step) -> None:
        if step is Step.STAGE_VERSION and not self.refused:
            with pytest.raises(HomeInUseError) as refused:
                self._other()
            self.refused.append(refused.value.failed)

    def after(self, step: Step) -> None:
        pass


def test_one_of_two_simultaneous_backfills_is_refused_and_each_row_is_public_once(site: Site, tmp_path: Path) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    numbers.add()
    read = {"versions": numbers.read["versions"]}
    site.run(direct(site, read, scoring(frozenset({7}))))
    losses, mended = ledger_of(site).can_be_backfilled(), direct(site, read, scoring(NONE))
    between = BackfillingBetween(lambda: backfill(site, mended, losses, run_id="second"))
    with observed_by(between):
        backfill(site, mended, losses, run_id="first")
    assert len(between.refused) == 1
    with pytest.raises(RejectedError, match="it is backfilled"):
        backfill(site, mended, losses, run_id="second")
    assert ids(site.tables / "versions") == list(range(40))


class Overtaken:
    """Runs another backfill to its end, once, just before a backfill completes its checkpoint."""

    def __init__(self, other: Callable[[], None]) -> None:
        self._other, self.is_overtaken = other, False

    def before(self, step: Step) -> None:
        if step is Step.MANIFEST_CREATE and not self.is_overtaken:
            self.is_overtaken = True
            self._other()

    def after(self, step: Step) -> None:
        pass


def test_a_later_backfill_on_another_host_fences_the_first_and_each_row_is_public_once(site: Site, tmp_path: Path) -> None:
    """The hosts share the documents of the home, and no lock. The first one is about to complete its checkpoint."""
    numbers = FilesAndVersions(site, tmp_path)
    numbers.add()
    read = {"versions": numbers.read["versions"]}
    first, second = (HomeInStore(LocalFiles(tmp_path / "documents"), LocalFiles(tmp_path / host)) for host in ("first", "second"))
    mended, ledger = direct(site, read, scoring(NONE)), LossLedger(first)

    def run(home: HomeInStore, pipeline: Pipeline, run: str, losses: Sequence[LossId] = ()) -> None:
        launch(pipeline, home, {}, StartOptions(run=RunId(run), backfill=tuple(losses)), lambda: site.spark)

    run(first, direct(site, read, scoring(frozenset({7, 33}))), "poisoned")
    losses = ledger.can_be_backfilled()
    assert len(losses) == 2
    overtaken = Overtaken(lambda: run(second, mended, "second", losses))
    with observed_by(overtaken), pytest.raises(FencedError):
        run(first, mended, "first", losses)
    assert overtaken.is_overtaken
    assert {entry.state for entry in ledger.entries()} == {LossState.BACKFILLED}
    with pytest.raises(RejectedError, match="it is backfilled"):
        run(first, mended, "first", losses)
    assert ids(site.tables / "versions") == list(range(40))


# A backfill that dies at each step and another loss are tested by day, each by itself.
@pytest.mark.nightly
def test_another_loss_of_an_older_round_can_be_backfilled_after_a_failed_backfill(site: Site, tmp_path: Path) -> None:
    numbers = FilesAndVersions(site, tmp_path)
    read = {"versions": numbers.read["versions"]}
    poisoned, mended = direct(site, read, scoring(frozenset({7, 33, 50}))), direct(site, read, scoring(NONE))
    for _ in range(2):
        numbers.add()
        site.run(poisoned)
    *older, newest = ledger_of(site).can_be_backfilled()
    assert len(older) == 2
    with pytest.raises(StreamPipelineError, match="cannot be scored"):
        backfill(site, poisoned, older[:1])
    backfill(site, mended, older[1:])
    assert ledger_of(site).can_be_backfilled() == [older[0], newest]
    backfill(site, mended)
    assert states(site) == {LossState.BACKFILLED}
    assert ids(site.tables / "versions") == list(range(80))
    assert consistent_versions(str(site.home), exact=True).exact
