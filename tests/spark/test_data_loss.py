"""Pinned input of a round is gone for good. If the start accepts the loss, the round goes on with the rest, and names the lost input."""

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, InterruptedRunError, Pipeline, RestartStrategy
from spark_jobs.api.source import OnGone
from spark_jobs.control.losses import LossLedger, LossState
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import InvalidParameterError, InvalidPipelineError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import RunId, StageName
from spark_jobs.protocol.losses import LostFiles, LostOffsets, LostVersions, OffsetRange, rows_at_most
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.runtime.launch import plan
from spark_jobs.runtime.start.start_plan import StartPlan
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.failing import failing_from
from tests.spark.rows import public, public_count
from tests.support.command_line import spark_jobs
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.running import Running

pytestmark = pytest.mark.spark

_TOPICS = itertools.count()
ACCEPTED = {"accept_data_loss": ["rows"]}


class Folder:
    """JSON files, one per batch. Number 4 is deleted, and number 5 is replaced by other rows of the same size."""

    lost = frozenset({40, 41, 50, 51})
    later = (98, 99)
    """The rows of the file that replaced another one. The next round reads it as a new file."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.path: Path = request.getfixturevalue("tmp_path") / "in box"
        self.path.mkdir()

    def add(self, number: int) -> None:
        self._write(number, [10 * number, 10 * number + 1])
        os.utime(self.path / f"part {number}.json", (1_700_000_000 + number,) * 2)  # Spark reads the oldest first

    def _write(self, number: int, rows: Iterable[int]) -> None:
        (self.path / f"part {number}.json").write_text("".join(json.dumps({"n": n}) + "\n" for n in rows))

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(self.path))

    def lose(self) -> None:
        (self.path / "part 4.json").unlink()
        self._write(5, [98, 99])

    def check(self, found: Any) -> None:
        assert isinstance(found, LostFiles)
        assert [Path(file.path).name for file in found.files] == ["part%204.json", "part%205.json"]
        assert all(file.size_bytes == 20 for file in found.files)


class Table:
    """A Delta table, one version per batch. It is compacted, and the file of one version is vacuumed."""

    lost = frozenset({40, 41})
    later = ()
    by_version = True

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.path: Path = request.getfixturevalue("tmp_path") / "in box"
        self.spark: SparkSession = request.getfixturevalue("spark")

    def add(self, number: int) -> None:
        rows = pa.array([10 * number, 10 * number + 1], pa.int64())
        write_deltalake(str(self.path), pa.table({"n": rows}), mode="append")

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("delta").option("maxFilesPerTrigger", 1)
        return (reader.option("startingVersion", 0) if self.by_version else reader).load(str(self.path))

    def lose(self) -> None:
        files = {path: path.read_bytes() for path in self.path.glob("*.parquet") if pq.read_table(path)["n"][0].as_py() != 40}
        DeltaTable(str(self.path)).optimize.compact()
        DeltaTable(str(self.path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
        for path, data in files.items():
            path.write_bytes(data)

    def check(self, found: Any) -> None:
        assert isinstance(found, LostVersions)
        assert found.first is None
        assert [file.rows for file in found.files] == [2]


class WholeTable(Table):
    """The same table, read as a whole at its version when the round began."""

    by_version = False


class ForgottenVersions(Table):
    """A table whose log has no entries for versions 0 to 4 any more, because the retention has removed them."""

    lost = frozenset({20, 21, 30, 31, 40, 41})

    def lose(self) -> None:
        version = DeltaTable(str(self.path)).version()
        DeltaTable(str(self.path)).create_checkpoint()
        for number in range(version):
            if number < 5:
                (self.path / "_delta_log" / f"{number:020}.json").unlink()

    def check(self, found: Any) -> None:
        assert isinstance(found, LostVersions)
        assert found.first in (2, 3)
        assert found.last == 4


class Topic:
    """A Kafka topic of two partitions. The records before an offset have expired."""

    lost = frozenset({20, 21, 30, 31, 40})
    later = ()

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.kafka: KafkaBroker = request.getfixturevalue("kafka")
        self.name = f"loss-{next(_TOPICS)}"
        self.kafka.create_topic(self.name, 2)

    def add(self, number: int) -> None:
        self.kafka.send(self.name, [str(10 * number).encode(), str(10 * number + 1).encode()], 1)

    def stream(self, spark: SparkSession) -> DataFrame:
        options = kafka_options(self.kafka, self.name, maxOffsetsPerTrigger=2)
        frame = spark.readStream.format("kafka").options(**options).load()
        return frame.select(F.col("value").cast("string").cast("long").alias("n"))

    def lose(self) -> None:
        self.kafka.expire(self.name, 1, before=9)

    def check(self, found: Any) -> None:
        assert isinstance(found, LostOffsets)
        assert found.topics == {self.name: {1: OffsetRange(first=4, end=9)}}


KINDS: list[Callable[[pytest.FixtureRequest], Any]] = [Folder, ForgottenVersions, Topic]
AT_NIGHT = [pytest.param(kind, marks=pytest.mark.nightly) for kind in (Table, WholeTable)]


class Dying:
    """Ends an attempt after it has written ``times + 1`` entries into Spark's offset log."""

    def __init__(self, times: int) -> None:
        self._times = times

    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        if step is Step.PLAN_BATCH:
            self._times -= 1
            if self._times < 0:
                raise RuntimeError("died as told")


def copying(site: Site, source: Any, flag: Path, on_gone: OnGone = OnGone.FAIL) -> Pipeline:
    """Declares a copy, and counts that are kept in a state. Both fail at 20 while the flag exists."""
    pipeline = Pipeline("copy", on_end="suspend", checkpoint=CheckpointSettings(interval="1 hour"))

    @pipeline.source(bounded=True, on_gone=on_gone)
    def rows(spark: SparkSession) -> DataFrame:
        found: DataFrame = source.stream(spark)
        return found

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select(failing_from(20, flag)("n").alias("n"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "counts"), mode="complete"))
    def counts(copy: DataFrame) -> DataFrame:
        return copy.groupBy((F.col("n") % 2).alias("odd")).count()

    return pipeline


def planned(site: Site, pipeline: Pipeline, **options: Any) -> StartPlan | Manifest:
    """Makes a dry run."""
    return plan(pipeline, open_files(str(site.home)), {}, StartOptions(**options), lambda: site.spark)[1]


def planned_elsewhere(site: Site, pipeline: Pipeline, **options: Any) -> StartPlan | Manifest:
    """Makes a dry run on a host without the work directory."""
    away = site.home / "work"
    away.rename(site.home.parent / "away")
    try:
        return planned(site, pipeline, **options)
    finally:
        (site.home.parent / "away").rename(away)


def copied(site: Site) -> list[int]:
    return sorted(row[0] for row in public(site.tables / "copy").elements())


def interrupted(site: Site, source: Any, on_gone: OnGone = OnGone.FAIL) -> Pipeline:
    """Returns a pipeline whose round was interrupted after two batches. Some of its pinned input is lost since."""
    flag = site.home.parent / "fail"
    pipeline = copying(site, source, flag, on_gone)
    for number in range(7):
        source.add(number)
    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="day 1")
    flag.unlink()
    source.lose()
    return pipeline


@pytest.mark.parametrize("kind", [*KINDS, *AT_NIGHT])
def test_an_interrupted_round_goes_on_with_the_remaining_input_once_the_loss_is_accepted(
    site: Site, request: pytest.FixtureRequest, kind: Callable[[pytest.FixtureRequest], Any]
) -> None:
    source = kind(request)
    pipeline = interrupted(site, source)
    with pytest.raises(RejectedError, match="has lost rows that stage 'copy' has not read"):
        planned(site, pipeline, run=RunId("day 1"))
    foretold = planned(site, pipeline, run=RunId("day 1"), accept_data_loss=["rows"])
    assert isinstance(foretold, StartPlan)
    source.check(*foretold.gone)
    with pytest.raises(RejectedError, match="has lost rows that stage 'copy' has not read"):
        planned_elsewhere(site, pipeline, run=RunId("day 1"))
    for _ in range(2):
        with pytest.raises(StreamPipelineError) as refused:
            site.run(pipeline, run_id="day 1")
        assert "--accept-data-loss" in refused.value.remedy
        assert not public_count(site.tables / "copy")
    site.run(pipeline, run_id="day 1", **ACCEPTED)
    everything = {10 * number + n for number in range(7) for n in range(2)}
    left = sorted(everything - source.lost)
    assert copied(site) == left
    assert public(site.tables / "counts") == Counter(Counter(n % 2 for n in left).items())
    (lost,) = site.manifest().losses
    assert (lost.input, lost.stage) == ("rows", "copy")
    source.check(lost)
    assert Rounds(open_files(str(site.home))).losses(site.manifest().round) == (lost,)
    shown = spark_jobs("status", "--home", site.home)
    assert "goes on without the lost rows of source rows" in " ".join(shown.output.split())
    source.add(8)
    site.run(pipeline, run_id="day 2")
    assert copied(site) == sorted([*left, 80, 81, *source.later])
    assert not site.manifest().losses
    for found in (planned(site, pipeline), planned_elsewhere(site, pipeline)):
        assert isinstance(found, StartPlan)
        assert not found.gone


@pytest.mark.parametrize(
    "kind", [Folder, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in (ForgottenVersions, Topic, Table))]
)
def test_an_interrupted_round_goes_on_by_itself_if_its_source_skips_lost_rows(
    site: Site, request: pytest.FixtureRequest, kind: Callable[[pytest.FixtureRequest], Any]
) -> None:
    source = kind(request)
    pipeline = interrupted(site, source, OnGone.SKIP)
    site.run(pipeline, run_id="day 1")
    everything = {10 * number + n for number in range(7) for n in range(2)}
    assert copied(site) == sorted(everything - source.lost)
    (entry,) = LossLedger(open_files(str(site.home))).entries()
    assert entry.state is LossState.OPEN, "nobody was asked"
    source.check(entry.recorded.loss)


def test_records_that_have_expired_between_two_rounds_are_in_the_ledger_and_all_others_are_public(
    site: Site, request: pytest.FixtureRequest
) -> None:
    source = Topic(request)
    pipeline = copying(site, source, site.home.parent / "fail", OnGone.SKIP)
    for number in range(5):
        source.add(number)
    site.run(pipeline, run_id="day 1")
    for number in range(5, 10):
        source.add(number)
    source.kafka.expire(source.name, 1, before=16)
    site.run(pipeline, run_id="day 2")
    (entry,) = LossLedger(open_files(str(site.home))).entries()
    lost = entry.recorded.loss
    assert isinstance(lost, LostOffsets)
    assert lost.topics == {source.name: {1: OffsetRange(first=10, end=16)}}
    assert rows_at_most(lost) == 6
    assert copied(site) == sorted(10 * number + n for number in (0, 1, 2, 3, 4, 8, 9) for n in range(2))


@pytest.mark.parametrize("kind", [Topic, pytest.param(ForgottenVersions, marks=pytest.mark.nightly)])
def test_a_later_attempt_completes_those_that_died_on_the_way_past_a_loss(
    site: Site, request: pytest.FixtureRequest, kind: Callable[[pytest.FixtureRequest], Any]
) -> None:
    """Each attempt writes one more entry into Spark's offset log than the one before and dies, until one attempt is through."""
    source = kind(request)
    pipeline = interrupted(site, source)
    deaths = itertools.count()
    while True:
        with observed_by(Dying(times := next(deaths))), suppress(StreamPipelineError):
            site.run(pipeline, run_id="day 1", accept_data_loss=["rows"] if times == 0 else [])
            break
    assert times >= 2
    everything = {10 * number + n for number in range(7) for n in range(2)}
    assert copied(site) == sorted(everything - source.lost)


def of_day(site: Site, source: Any, flag: Path) -> Pipeline:
    """Declares the same copy. Its rows have the day that a parameter names."""

    class Params(BaseModel):
        day: int

    pipeline = Pipeline("copy", on_end="suspend", params=Params, checkpoint=CheckpointSettings(interval="1 hour"))
    pipeline.source(name="rows", bounded=True)(lambda spark: source.stream(spark))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame, params: Params) -> DataFrame:
        return rows.select((failing_from(20, flag)("n") + 1000 * params.day).alias("n"))

    return pipeline


@pytest.mark.parametrize("has_checkpoint", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_round_with_an_accepted_loss_can_end_with_other_parameters(
    site: Site, request: pytest.FixtureRequest, has_checkpoint: bool
) -> None:
    """The rows that the interrupted attempt staged after the checkpoint are computed again, with the new parameters."""
    source, flag, earlier = Folder(request), site.home.parent / "fail", []
    pipeline = of_day(site, source, flag)
    if has_checkpoint:
        source.add(0)
        site.run(pipeline, run_id="day 0", params={"day": 0})
        earlier = [0, 1]
    for number in range(len(earlier) // 2, 7):
        source.add(number)
    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="day 1", params={"day": 1})
    flag.unlink()
    source.lose()
    source.add(8)
    with pytest.raises(RejectedError, match=r"with other parameters \(day\)") as refused:
        site.run(pipeline, run_id="day 2", params={"day": 2})
    assert "--accept-data-loss rows" in refused.value.remedy
    site.run(pipeline, run_id="day 2", params={"day": 2}, **ACCEPTED)
    everything = {10 * number + n for number in range(len(earlier) // 2, 7) for n in range(2)}
    ended = [*earlier, *sorted(2000 + n for n in everything - Folder.lost)]
    assert copied(site) == ended, "it ends where the interrupted round was to end"
    assert site.manifest().parameters == {"day": 2}
    (lost,) = site.manifest().losses
    source.check(lost)
    assert Rounds(open_files(str(site.home))).losses(site.manifest().round) == (lost,)
    site.run(pipeline, run_id="day 3", params={"day": 3})
    assert copied(site) == sorted([*ended, 3080, 3081, *(3000 + n for n in Folder.later)])


def test_a_round_whose_remaining_input_is_all_gone_can_end(site: Site, request: pytest.FixtureRequest) -> None:
    source = Folder(request)
    pipeline = interrupted(site, source)
    shutil.rmtree(source.path)
    source.path.mkdir()
    site.run(pipeline, run_id="day 1", accept_data_loss=["rows"])
    assert copied(site) == [0, 1, 10, 11]
    (lost,) = site.manifest().losses
    assert isinstance(lost, LostFiles)
    assert len(lost.files) == 5


def test_a_running_pipeline_goes_on_after_expired_records(site: Site, request: pytest.FixtureRequest) -> None:
    source = Topic(request)
    pipeline = Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    pipeline.source(name="rows", bounded=False)(lambda spark: source.stream(spark))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    source.add(0)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 2)
        assert spark_jobs("stop", "--home", site.home).exit_code == 0
        running.stopped()
    source.add(1)
    source.add(2)
    source.kafka.expire(source.name, 1, before=5)
    with Running(site.spark, pipeline, site.home) as running:
        error = running.ends()
    assert isinstance(error, RejectedError)
    assert "Source 'rows' has lost rows that stage 'copy' has not read: 3 offsets" in error.failed
    with Running(site.spark, pipeline, site.home, options=StartOptions(accept_data_loss=("rows",))) as running:
        running.until(lambda: public_count(site.tables / "copy") == 3)
        source.add(3)
        running.until(lambda: public_count(site.tables / "copy") == 5)
    assert copied(site) == [0, 1, 21, 30, 31]


def test_a_failing_stage_whose_records_expire_ends_the_attempt(site: Site, request: pytest.FixtureRequest) -> None:
    """No restart in place brings the records back."""
    source, flag = Topic(request), site.home.parent / "fail"
    pipeline = Pipeline(
        "live",
        checkpoint=CheckpointSettings(interval="1 second"),
        restart=RestartStrategy.fixed_delay(attempts=1_000_000, delay="100 milliseconds"),
    )
    pipeline.source(name="rows", bounded=False)(lambda spark: source.stream(spark))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(
        lambda rows: rows.select(failing_from(20, flag)("n").alias("n"))
    )
    source.add(0)
    flag.touch()
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 2)
        source.add(2)
        running.until(lambda: running.status and running.status.stages[StageName("copy")].restarts > 0)
        source.add(3)
        source.kafka.expire(source.name, 1, before=3)
        error = running.ends()
    assert isinstance(error, RejectedError)
    assert "has lost rows that stage 'copy' has not read: 1 offsets" in error.failed
    assert "--accept-data-loss rows" in error.remedy


@pytest.mark.nightly
def test_a_failing_stage_whose_records_expire_goes_on_by_itself_if_its_source_skips_them(
    site: Site, request: pytest.FixtureRequest
) -> None:
    source, flag = Topic(request), site.home.parent / "fail"
    pipeline = Pipeline(
        "live",
        checkpoint=CheckpointSettings(interval="1 second"),
        restart=RestartStrategy.fixed_delay(attempts=1_000_000, delay="100 milliseconds"),
    )
    pipeline.source(name="rows", bounded=False, on_gone="skip")(lambda spark: source.stream(spark))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(
        lambda rows: rows.select(failing_from(20, flag)("n").alias("n"))
    )
    source.add(0)
    flag.touch()
    ledger = LossLedger(open_files(str(site.home)))
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 2)
        attempt = running.head().attempt
        source.add(2)
        running.until(lambda: running.status and running.status.stages[StageName("copy")].restarts > 0)
        source.add(3)
        source.kafka.expire(source.name, 1, before=3)
        running.until(ledger.entries)
        flag.unlink()
        running.until(lambda: public_count(site.tables / "copy") == 5)
        assert running.head().attempt == attempt
    (entry,) = ledger.entries()
    assert isinstance(entry.recorded.loss, LostOffsets)
    assert entry.recorded.loss.topics == {source.name: {1: OffsetRange(first=2, end=3)}}
    assert copied(site) == [0, 1, 21, 30, 31]


def test_a_running_pipeline_goes_on_after_a_version_that_changes_rows(site: Site, tmp_path: Path) -> None:
    path, pipeline = str(tmp_path / "in"), Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    pipeline.source(name="rows", bounded=False)(lambda spark: spark.readStream.format("delta").load(path))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)

    def add(*numbers: int) -> None:
        write_deltalake(path, pa.table({"n": pa.array(numbers, pa.int64())}), mode="append")

    add(0, 1)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 2)
        DeltaTable(path).update(updates={"n": "7"}, predicate="n = 1")
        error = running.ends()
    assert isinstance(error, RejectedError)
    assert "version 1" in error.failed
    add(2)
    with Running(site.spark, pipeline, site.home, options=StartOptions(accept_data_loss=("rows",))) as running:
        running.until(lambda: public_count(site.tables / "copy") == 3)
        (lost,) = Rounds(open_files(str(site.home))).losses(running.head().round)
        DeltaTable(path).delete("n = 0")
        error = running.ends()
    assert copied(site) == [0, 1, 2]
    assert isinstance(lost, LostVersions)
    assert [(skipped.version, skipped.added_rows, skipped.removed_rows) for skipped in lost.skipped] == [(1, 2, None)]
    assert isinstance(error, RejectedError), "one loss was accepted, and not the next one"
    assert "version 3" in error.failed


def test_a_running_pipeline_goes_on_by_itself_after_versions_that_change_rows(site: Site, tmp_path: Path) -> None:
    """Checks that every row added by a version is in the table or in the ledger."""
    path, pipeline = str(tmp_path / "in"), Pipeline("live", checkpoint=CheckpointSettings(interval="1 second"))
    pipeline.source(name="rows", bounded=False, on_gone="skip")(lambda spark: spark.readStream.format("delta").load(path))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)

    def add(*numbers: int) -> None:
        write_deltalake(path, pa.table({"n": pa.array(numbers, pa.int64())}), mode="append")

    add(0, 1)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 2)
        attempt = running.head().attempt
        DeltaTable(path).update(updates={"n": "7"}, predicate="n = 1")
        add(2)
        running.until(lambda: public_count(site.tables / "copy") == 3)
        DeltaTable(path).delete("n = 0")
        add(3, 4)
        running.until(lambda: public_count(site.tables / "copy") == 5)
        assert running.head().attempt == attempt
        recorded = [entry.recorded.loss for entry in LossLedger(open_files(str(site.home))).entries()]
        assert running.head().losses == tuple(recorded)
    assert copied(site) == [0, 1, 2, 3, 4]
    in_ledger = {each.version: each.added_rows for loss in recorded if isinstance(loss, LostVersions) for each in loss.skipped}
    added = rows_added(tmp_path / "in")
    assert [version for version in sorted(added) if version in in_ledger] == [1, 3]
    assert len(copied(site)) + sum(rows or 0 for rows in in_ledger.values()) == sum(added.values())


def rows_added(table: Path) -> dict[int, int]:
    """Returns the number of rows that each version adds, from the table's own log."""
    commits = {int(path.stem): path.read_text().splitlines() for path in (table / "_delta_log").glob("*.json")}
    return {
        version: sum(json.loads(action["add"]["stats"])["numRecords"] for action in map(json.loads, lines) if "add" in action)
        for version, lines in commits.items()
    }


def test_a_loss_can_be_accepted_only_for_a_source_of_the_pipeline(site: Site, request: pytest.FixtureRequest) -> None:
    source = Folder(request)
    source.add(0)
    with pytest.raises(InvalidParameterError, match="no source 'row'"):
        site.run(copying(site, source, site.home.parent / "fail"), accept_data_loss=["row"])


def test_a_kafka_source_that_ignores_data_loss_is_refused(site: Site, request: pytest.FixtureRequest) -> None:
    source = Topic(request)
    pipeline = Pipeline("lossy")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        options = kafka_options(source.kafka, source.name, failOnDataLoss="false")
        return spark.readStream.format("kafka").options(**options).load()

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    with pytest.raises(InvalidPipelineError, match="failOnDataLoss=false"):
        site.run(pipeline)
