"""Repeated runs: a drained pipeline, a repeated run id, a fresh start."""

from pathlib import Path

import pandas as pd
import pytest
from deltalake import DeltaTable
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline, RejectedError
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import Rows, assert_same, public

pytestmark = pytest.mark.spark


def _pipeline(site: Site) -> Pipeline:
    pipeline = Pipeline("again")

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "events"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "daily")))
    def daily(events: DataFrame) -> DataFrame:
        return events.groupBy(F.window("ts", "1 day")).agg(F.sum("value").alias("total"), F.count("*").alias("n"))

    return pipeline


class Params(BaseModel):
    events: str


def _reading(site: Site) -> Pipeline:
    """Declares the same pipeline with the path of its input as a parameter."""
    pipeline = Pipeline("again", params=Params)

    @pipeline.source(bounded=True, event_time="ts")
    def events(spark: SparkSession, params: Params) -> DataFrame:
        return spark.readStream.format("delta").load(params.events)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "daily")))
    def daily(events: DataFrame) -> DataFrame:
        return events.groupBy(F.window("ts", "1 day")).agg(F.sum("value").alias("total"), F.count("*").alias("n"))

    return pipeline


def _drained(site: Site) -> Site:
    """Runs a pipeline to its end under the run id "first", then adds one more version to its input."""
    inputs.append(site.home.parent / "events", inputs.events(5_000))
    site.run(_pipeline(site), run_id="first")
    inputs.append(site.home.parent / "events", inputs.events(5_000, seed=9))
    return site


@pytest.fixture
def drained(site: Site) -> Site:
    """A drained pipeline for a test that changes it."""
    return _drained(site)


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A drained pipeline for tests that leave it unchanged."""
    return _drained(Site(spark, tmp_path_factory.mktemp("kept")))


def _daily(*tables: pd.DataFrame) -> Rows:
    rows = pd.concat(tables).dropna(subset=["ts"])
    days = rows.groupby(rows["ts"].dt.floor("D"))["value"].agg(["sum", "count"])
    return Rows(
        ((day.to_pydatetime(), (day + pd.Timedelta("1 day")).to_pydatetime()), int(total), int(n))
        for day, (total, n) in days.iterrows()
    )


FIRST, SECOND = (5_000, 10, 1), (5_000, 10, 9)


@pytest.mark.parametrize("run_id", ["first", "second"])
def test_another_run_of_a_drained_pipeline_does_nothing_and_returns_the_same_checkpoint(kept: Site, run_id: str) -> None:
    before, version = public(kept.tables / "daily"), DeltaTable(str(kept.tables / "daily")).version()
    response = kept.run(_pipeline(kept), run_id=run_id)
    assert response.checkpoint == 1
    assert response.sinks["daily"].version == version  # type: ignore[index]  # a name is a text
    assert response.sinks["daily"].rows == before.total()  # type: ignore[index]  # a name is a text
    assert public(kept.tables / "daily") == before
    assert DeltaTable(str(kept.tables / "daily")).version() == version
    assert kept.checkpoints() == [1]


def test_a_fresh_start_behind_published_rows_is_refused(drained: Site) -> None:
    before = public(drained.tables / "daily")
    with pytest.raises(RejectedError, match="--on-rewind keep"):
        drained.run(_pipeline(drained), fresh=True)
    assert public(drained.tables / "daily") == before


def test_a_fresh_start_that_keeps_rows_adds_to_the_published_rows(drained: Site) -> None:
    drained.run(_pipeline(drained), fresh=True, on_rewind="keep")
    both = _daily(inputs.events(*FIRST)) + _daily(inputs.events(*FIRST), inputs.events(*SECOND))
    assert_same(public(drained.tables / "daily"), both)


def test_a_fresh_start_that_replaces_leaves_only_its_own_rows(drained: Site) -> None:
    drained.run(_pipeline(drained), fresh=True, on_rewind="replace")
    assert_same(public(drained.tables / "daily"), _daily(inputs.events(*FIRST), inputs.events(*SECOND)))
    drained.run(_pipeline(drained), run_id="first")
    assert_same(public(drained.tables / "daily"), _daily(inputs.events(*FIRST), inputs.events(*SECOND)))


def test_a_fresh_start_is_refused_if_any_earlier_incarnation_has_published_rows(drained: Site) -> None:
    drained.run(_pipeline(drained), fresh=True, on_rewind="replace", publish="external")
    before = public(drained.tables / "daily")
    with pytest.raises(RejectedError, match="daily up to checkpoint 1"):
        drained.run(_pipeline(drained), fresh=True, publish="external")
    assert public(drained.tables / "daily") == before


def test_a_fresh_start_may_abandon_rows_that_were_only_staged(spark: SparkSession, tmp_path: Path) -> None:
    site = Site(spark, tmp_path)
    inputs.append(tmp_path / "events", inputs.events(5_000))
    site.run(_pipeline(site), run_id="first", publish="external")
    for run_id in ("second", "third"):
        site.run(_pipeline(site), run_id=run_id, fresh=True, publish="external")
    assert public(site.tables / "daily").total() == 0


def test_a_run_with_a_mistyped_path_can_be_repeated_with_the_right_path(spark: SparkSession, tmp_path: Path) -> None:
    site = Site(spark, tmp_path)
    with pytest.raises(RejectedError, match="which does not exist"):
        site.run(_reading(site), params={"events": str(tmp_path / "evnets")})
    inputs.append(tmp_path / "events", inputs.events(5_000))
    site.run(_reading(site), params={"events": str(tmp_path / "events")})
    assert_same(public(site.tables / "daily"), _daily(inputs.events(*FIRST)))
