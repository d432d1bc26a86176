"""A sink with mode="complete" shows exactly the whole result of its stage after each publication."""

import json

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.publication.publisher import publish
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public
from tests.support.opened_tables import opened
from tests.support.places import in_a_store_at_night

pytestmark = pytest.mark.spark

ROUNDS = 3


def _pipeline(site: Site, on_end: str = "suspend", **sink: object) -> Pipeline:
    pipeline = Pipeline("totals", on_end=on_end)  # type: ignore[arg-type]

    @pipeline.source(bounded=True)
    def events(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.root / "events"))

    @pipeline.stage(sink=DeltaSink(site.table("totals"), mode="complete", **sink))  # type: ignore[arg-type]
    def totals(events: DataFrame) -> DataFrame:
        return events.groupBy("team").agg(F.sum("value").alias("total"), F.count("*").alias("events"))

    return pipeline


def _expected(site: Site) -> DataFrame:
    events = site.spark.read.format("delta").load(str(site.root / "events"))
    return events.groupBy("team").agg(F.sum("value").alias("total"), F.count("*").alias("events"))


def _parts() -> list[pd.DataFrame]:
    rows = inputs.events(3_000)[["id", "team", "value"]]
    return [rows.iloc[part] for part in np.array_split(np.arange(len(rows)), ROUNDS)]


@in_a_store_at_night
def test_each_round_replaces_the_result_of_the_round_before(site: Site) -> None:
    for part in _parts():
        inputs.write_versions(site.root / "events", part, 3)
        site.run(_pipeline(site))
        assert_same(public(site.table("totals"), ["team", "total", "events"]), answer(_expected(site)))


def test_a_round_without_new_rows_leaves_the_table_alone(site: Site) -> None:
    inputs.write_versions(site.root / "events", _parts()[0], 2)
    site.run(_pipeline(site))
    before = opened(site.table("totals")).file_uris()
    site.run(_pipeline(site))
    assert opened(site.table("totals")).file_uris() == before
    assert_same(public(site.table("totals"), ["team", "total", "events"]), answer(_expected(site)))


def test_only_the_last_batch_of_a_checkpoint_is_published(site: Site) -> None:
    inputs.write_versions(site.root / "events", _parts()[0], 4)
    site.run(_pipeline(site, on_end="drain"))
    cut = site.manifest().sinks["totals"]  # type: ignore[index]
    lines = [json.loads(line) for line in (site.home / cut.actions.path).read_text().splitlines()]
    assert {line["batch"] for line in lines} == {site.manifest().stages["totals"].batch}  # type: ignore[index]
    assert cut.replace
    assert cut.actions.rows == len(inputs.TEAMS)


@pytest.mark.nightly
def test_rows_of_other_writers_are_replaced_too(site: Site) -> None:
    first, second, _ = _parts()
    inputs.write_versions(site.root / "events", first, 1)
    site.run(_pipeline(site))
    site.spark.sql(f"INSERT INTO delta.`{site.table('totals')}` VALUES ('nobody', 1, 1)")
    inputs.write_versions(site.root / "events", second, 1)
    site.run(_pipeline(site))
    assert_same(public(site.table("totals"), ["team", "total", "events"]), answer(_expected(site)))


@in_a_store_at_night
def test_pending_checkpoints_become_public_in_one_transaction(site: Site) -> None:
    for part in _parts():
        inputs.write_versions(site.root / "events", part, 1)
        site.run(_pipeline(site, publish="external"))
    made = opened(site.table("totals")).version()
    publish(site.files)
    assert opened(site.table("totals")).version() == made + 1
    assert_same(public(site.table("totals"), ["team", "total", "events"]), answer(_expected(site)))
