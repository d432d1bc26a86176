"""A source goes on where an old ``writeStream`` query stopped. Both together have written each row of the batch query once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline, RejectedError
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.storage.open import open_place
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import Rows, answer, assert_same, public, public_count
from tests.support.places import in_a_store_too
from tests.support.run_site import SMALL

pytestmark = pytest.mark.spark

Read = Callable[[SparkSession], DataFrame]
COLUMNS = ("id", "ts", "key", "value")


@dataclass(frozen=True)
class OldQuery:
    """A plain Spark query as users write it: it appends one file per batch to a Delta table."""

    read: Read
    checkpoint: str
    table: str

    def run(self, spark: SparkSession, *, batches: int | None = None) -> None:
        """Runs the query to its end, or stops it after some committed batches."""
        stream = self.read(spark).writeStream.format("delta").option("checkpointLocation", self.checkpoint)
        if batches is None:
            assert stream.trigger(availableNow=True).start(self.table).awaitTermination(60)
        for _ in range(batches or 0):
            query = stream.trigger(processingTime="1 hour").start(self.table)
            while query.status["message"] != "Waiting for next trigger":
                assert query.isActive, query.exception()
                Event().wait(0.05)
            query.stop()


@dataclass(frozen=True)
class Move:
    """An input, the old query that reads it, and the site of the pipeline that takes over."""

    site: Site
    input: str
    old: OldQuery

    @property
    def adopt(self) -> Mapping[str, str]:
        return {"rows": self.old.checkpoint}

    def pipeline(
        self, read: Read | None = None, *, table: str | None = None, **stages: Callable[[DataFrame], DataFrame]
    ) -> Pipeline:
        """Declares a source ``rows``, and a stage with a table for each function. ``table`` replaces the stage's own table."""
        pipeline = Pipeline("moved", on_end="suspend")
        pipeline.source(bounded=True, name="rows")(read or self.old.read)
        for name, function in (stages or {"copy": _same}).items():
            pipeline.stage(sink=DeltaSink(table or self.site.table(name)), inputs={"rows": "rows"}, name=name)(function)
        return pipeline

    def run(self, pipeline: Pipeline | None = None, **options: Any) -> None:
        self.site.run(pipeline or self.pipeline(), **({"adopt_offsets": self.adopt} | options))

    def both(self, sink: str = "copy") -> Rows:
        """Returns the rows that the old query and the pipeline have written together."""
        return public(self.old.table) + public(self.site.table(sink))

    def assert_nothing_happened(self) -> None:
        assert public_count(self.site.table("copy")) is None
        assert not (self.site.home / "attempts").exists()


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, bucket: str | None, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    session = spark.newSession()
    for key, value in SMALL.items():
        session.conf.set(key, value)
    return Site(session, tmp_path, f"{bucket}/{tmp_path.name}" if bucket else None)


def _old_query(site: Site, read: Read) -> OldQuery:
    return OldQuery(read, site.place_for("old checkpoint"), site.place_for("old table"))


def _same(rows: DataFrame) -> DataFrame:
    return rows


def _events(seed: int) -> pd.DataFrame:
    return inputs.events(200, seed=seed)[list(COLUMNS)]


@pytest.fixture
def delta(site: Site, tmp_path: Path) -> Move:
    path = str(tmp_path / "events")
    for seed in range(4):
        inputs.append(path, _events(seed))

    def read(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(path)

    return Move(site, path, _old_query(site, read))


@pytest.fixture
def files(site: Site) -> Move:
    path = site.place_for("files with a space")
    for seed in range(4):
        _deliver(path, seed)

    def read(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).json(path)

    return Move(site, path, _old_query(site, read))


def _deliver(path: str, seed: int) -> None:
    rows = pd.DataFrame({"id": range(seed * 10, seed * 10 + 10), "name": [f"%20/{seed}"] * 10})
    open_place(path).create(f"day {seed}%.json", rows.to_json(orient="records", lines=True).encode())


def _all_of(move: Move) -> Rows:
    if open_place(move.input).names("_delta_log"):
        return answer(move.site.spark.read.format("delta").load(move.input))
    return answer(move.site.spark.read.schema("id long, name string").json(move.input))


@pytest.mark.nightly
def test_an_old_query_that_stopped_within_the_first_snapshot_is_continued_in_its_own_table(delta: Move) -> None:
    delta.old.run(delta.site.spark, batches=2)
    inputs.append(delta.input, _events(seed=9))
    assert 200 < public(delta.old.table).total() < _all_of(delta).total()
    delta.run(delta.pipeline(table=delta.old.table))
    assert_same(public(delta.old.table), _all_of(delta))


@pytest.mark.nightly
def test_an_old_query_that_stopped_after_the_first_snapshot_is_continued_at_its_version(delta: Move) -> None:
    delta.old.run(delta.site.spark)
    for seed in (7, 8, 9):
        inputs.append(delta.input, _events(seed))
    delta.old.run(delta.site.spark, batches=1)
    delta.run()
    assert_same(delta.both(), _all_of(delta))
    assert public(delta.site.table("copy")).total() == 2 * len(_events(8))


@in_a_store_too
def test_files_that_an_old_query_has_not_read_are_read_once(files: Move) -> None:
    files.old.run(files.site.spark, batches=2)
    _deliver(files.input, 9)
    files.run()
    assert_same(files.both(), _all_of(files))
    assert public(files.site.table("copy")).total() == 30


def test_no_checkpoint_completes_if_the_old_query_still_runs(delta: Move) -> None:
    delta.old.run(delta.site.spark, batches=1)

    def copy(rows: DataFrame) -> DataFrame:
        delta.old.run(delta.site.spark)
        return rows

    with pytest.raises(RejectedError, match="has gone on by"):
        delta.run(delta.pipeline(copy=copy))
    assert delta.site.checkpoints() == []
    assert public_count(delta.site.table("copy")) == 0
    assert_same(public(delta.old.table), _all_of(delta))


@pytest.mark.nightly
def test_files_that_an_old_query_has_read_are_known_after_its_log_was_compacted(files: Move) -> None:
    for seed in range(10, 18):
        _deliver(files.input, seed)
    files.old.run(files.site.spark)
    assert "9.compact" in open_place(files.old.checkpoint).names("sources/0")
    for seed in range(30, 42):
        _deliver(files.input, seed)
    files.run(files.pipeline(lambda spark: spark.readStream.schema("id long, name string").json(files.input)))
    assert_same(files.both(), _all_of(files))
    assert public(files.site.table("copy")).total() == 120


@pytest.mark.nightly
def test_all_stages_that_read_an_adopted_source_continue_where_the_old_query_stopped(delta: Move) -> None:
    pipeline = delta.pipeline(copy=_same, few=lambda rows: rows.where("value < 0"))

    @pipeline.stage(sink=DeltaSink(delta.site.table("doubled")))
    def doubled(copy: DataFrame) -> DataFrame:
        return copy.selectExpr("value * 2 AS twice")

    delta.old.run(delta.site.spark, batches=2)
    delta.run(pipeline)
    everything = delta.site.spark.read.format("delta").load(delta.input)
    old = delta.site.spark.read.format("delta").load(delta.old.table)
    rest = everything.exceptAll(old)
    assert_same(public(delta.site.table("copy")), answer(rest))
    assert_same(public(delta.site.table("few")), answer(rest.where("value < 0")))
    assert_same(public(delta.site.table("doubled")), answer(rest.selectExpr("value * 2")))


@pytest.mark.nightly
def test_each_of_two_sources_of_a_stage_continues_where_its_own_old_query_stopped(delta: Move, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for seed in (11, 12, 13):
        inputs.append(other, _events(seed))

    def read(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(other))

    second = OldQuery(read, str(tmp_path / "second checkpoint"), str(tmp_path / "second table"))
    delta.old.run(delta.site.spark, batches=3)
    second.run(delta.site.spark, batches=1)
    pipeline = Pipeline("moved")
    pipeline.source(bounded=True, name="second")(read)
    pipeline.source(bounded=True, name="rows")(delta.old.read)

    @pipeline.stage(sink=DeltaSink(delta.site.table("copy")))
    def copy(rows: DataFrame, second: DataFrame) -> DataFrame:
        return second.union(rows)

    delta.run(pipeline, adopt_offsets={**delta.adopt, "second": second.checkpoint})
    expected = _all_of(delta) + answer(delta.site.spark.read.format("delta").load(str(other)))
    assert_same(delta.both() + public(second.table), expected)


@pytest.mark.parametrize("kind", [pytest.param("delta", marks=pytest.mark.nightly), "files"])
def test_an_adopted_source_without_new_rows_stages_nothing_and_the_next_round_reads_later_rows(
    kind: str, request: pytest.FixtureRequest
) -> None:
    move: Move = request.getfixturevalue(kind)
    move.old.run(move.site.spark)
    move.run()
    assert public_count(move.site.table("copy")) == 0
    inputs.append(move.input, _events(9)) if kind == "delta" else _deliver(move.input, 9)
    move.run(adopt_offsets={})
    assert_same(move.both(), _all_of(move))


def test_an_adopted_source_does_not_need_versions_whose_log_was_cleaned_up(delta: Move) -> None:
    """The old query has ``startingVersion``, and ran on long after the log of that version was cleaned up."""

    def read(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("startingVersion", 0).load(delta.input)

    old = OldQuery(read, delta.old.checkpoint, delta.old.table)
    for seed in range(5, 13):
        inputs.append(delta.input, _events(seed))
    old.run(delta.site.spark)
    _forget(delta.input, up_to=9)
    inputs.append(delta.input, _events(20))
    delta.run(delta.pipeline(read))
    assert_same(delta.both(), _all_of(delta))


def _forget(table: str, up_to: int) -> None:
    from deltalake import DeltaTable

    DeltaTable(table).create_checkpoint()
    for version in range(up_to + 1):
        (Path(table) / "_delta_log" / f"{version:020d}.json").unlink()


@pytest.mark.nightly
def test_a_home_adopts_offsets_only_once_unless_it_starts_fresh(delta: Move) -> None:
    delta.old.run(delta.site.spark, batches=1)
    delta.run(run_id="first", publish="external")
    checkpoint = Path(delta.old.checkpoint)
    kept = checkpoint.rename(checkpoint.with_name("kept"))
    delta.run(run_id="first", publish="external")
    kept.rename(checkpoint)
    with pytest.raises(RejectedError, match="only if nothing has been read yet"):
        delta.run(run_id="second")
    assert delta.site.checkpoints() == [1]
    delta.run(run_id="third", fresh=True)
    assert_same(delta.both(), _all_of(delta))


def test_an_old_query_with_an_uncommitted_batch_is_refused_until_the_batch_is_committed(delta: Move) -> None:
    def fails(frame: DataFrame, batch: int) -> None:
        if batch == 2:
            raise RuntimeError("as told")
        frame.write.format("delta").mode("append").save(delta.old.table)

    stream = delta.old.read(delta.site.spark).writeStream.option("checkpointLocation", delta.old.checkpoint)
    with pytest.raises(Exception, match="as told"):
        stream.foreachBatch(fails).trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(InvalidParameterError, match="last batch .* is not committed"):
        delta.run()
    assert not delta.site.home.exists()
    delta.old.run(delta.site.spark)
    inputs.append(delta.input, _events(9))
    delta.run()
    assert_same(delta.both(), _all_of(delta))


def test_a_stage_that_depends_on_earlier_rows_is_refused(delta: Move) -> None:
    delta.old.run(delta.site.spark, batches=1)
    with pytest.raises(InvalidParameterError, match=r"'copy' depends on earlier rows \(Deduplicate\)"):
        delta.run(delta.pipeline(copy=lambda rows: rows.dropDuplicates(["id"])))
    delta.assert_nothing_happened()


def test_a_stage_further_down_that_depends_on_earlier_rows_is_refused(delta: Move) -> None:
    pipeline = delta.pipeline()

    @pipeline.stage(sink=DeltaSink(delta.site.table("kinds")))
    def kinds(copy: DataFrame) -> DataFrame:
        return copy.dropDuplicates(["key"])

    delta.old.run(delta.site.spark, batches=1)
    with pytest.raises(InvalidParameterError, match="'kinds' depends on earlier rows"):
        delta.run(pipeline)
    delta.assert_nothing_happened()


def test_a_stage_that_uses_the_source_twice_is_refused(delta: Move) -> None:
    delta.old.run(delta.site.spark, batches=1)
    with pytest.raises(InvalidParameterError, match="'copy' does not read each of its streams exactly once"):
        delta.run(delta.pipeline(copy=lambda rows: rows.union(rows)))
    delta.assert_nothing_happened()


def test_an_old_query_with_state_is_refused(delta: Move) -> None:
    def read(spark: SparkSession) -> DataFrame:
        return delta.old.read(spark).dropDuplicates(["id"])

    OldQuery(read, delta.old.checkpoint, delta.old.table).run(delta.site.spark)
    with pytest.raises(InvalidParameterError, match="keeps state"):
        delta.run()
    assert not delta.site.home.exists()


def test_an_old_query_over_another_table_is_refused(delta: Move, tmp_path: Path) -> None:
    delta.old.run(delta.site.spark, batches=1)
    inputs.append(tmp_path / "another", _events(1))
    with pytest.raises(InvalidParameterError, match=r"is not the one that the query in .* read"):
        delta.run(delta.pipeline(lambda spark: spark.readStream.format("delta").load(str(tmp_path / "another"))))
    delta.assert_nothing_happened()


def test_an_old_query_over_files_elsewhere_is_refused(files: Move, tmp_path: Path) -> None:
    files.old.run(files.site.spark, batches=1)
    _deliver(str(tmp_path / "another"), 1)
    with pytest.raises(InvalidParameterError, match="which is not there"):
        files.run(files.pipeline(lambda spark: spark.readStream.schema("id long").json(str(tmp_path / "another"))))
    files.assert_nothing_happened()


@pytest.mark.nightly
def test_an_old_query_over_files_of_a_pattern_is_continued(files: Move) -> None:
    def read(spark: SparkSession) -> DataFrame:
        pattern = f"{files.input}/*.json"
        return spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).json(pattern)

    OldQuery(read, files.old.checkpoint, files.old.table).run(files.site.spark, batches=2)
    files.run(files.pipeline(read))
    assert_same(files.both(), _all_of(files))


def test_an_old_query_over_files_is_refused_for_a_delta_table(files: Move, tmp_path: Path) -> None:
    files.old.run(files.site.spark, batches=1)
    inputs.append(tmp_path / "a table", _events(1))
    with pytest.raises(InvalidParameterError, match="reads delta, but the query in .* read files"):
        files.run(files.pipeline(lambda spark: spark.readStream.format("delta").load(str(tmp_path / "a table"))))
    files.assert_nothing_happened()
