"""Other writers of a sink's table act at every moment of a publication. Spark is the publisher, the other writer, or both."""

import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier as ProcessBarrier
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from spark_jobs.protocol.documents import Publisher, SinkResult
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication.conditional_log_store import make_commits_conditional
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.spark.session import start_session
from spark_jobs.storage.open import open_files
from tests.support.crowds import DeltaRsWriter, Joins, Size, race, rounds
from tests.support.publication_schedules import (
    OF_ANOTHER,
    PUBLISHED,
    Case,
    assert_right_or_refused,
    cases,
    pending,
    published_into,
    sampled,
    stage_pending,
)
from tests.support.replaced_commits import assert_found_out_later, assert_made_again_at_once
from tests.support.seeds import seed
from tests.support.short_jvm import FEW_ROWS
from tests.support.sink_kinds import Kind, Reference, graves_in
from tests.support.spark_writers import MergingSparkWriter, SparkWriter, assert_clones_are_versions
from tests.support.staged_in_s3 import PipelineInS3
from tests.support.staged_pipeline import HOURLY, StagedPipeline
from tests.support.systems import quick
from tests.support.versitygw import versitygw_of

__all__ = ["seed"]

pytestmark = pytest.mark.spark

SPARK_AMONG_SPARK = [*cases(Publisher.SPARK, Kind, by_spark=True)]
SPARK_AMONG_DELTA_RS = [*cases(Publisher.SPARK, Kind, by_spark=False)]
DELTA_RS_AMONG_SPARK = [*cases(Publisher.DELTA_RS, (Kind.APPEND, Kind.COMPLETE), by_spark=True)]
EVERY_CASE = [*SPARK_AMONG_SPARK, *SPARK_AMONG_DELTA_RS, *DELTA_RS_AMONG_SPARK]
STRIDE = 91
"""The stride of the cases that run on every change. The first test below checks that they cover each class."""


@pytest.fixture(scope="session")
def others(spark: SparkSession) -> SparkSession:
    """The session of the other writers. They vacuum new files, which needs a setting."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return session


@pytest.mark.parametrize("case", sampled(EVERY_CASE, STRIDE))
def test_a_foreign_writer_at_any_moment_of_a_publication_breaks_no_table(
    tmp_path: Path, others: SparkSession, case: Case
) -> None:
    assert_right_or_refused(case, tmp_path, others)


def classes(case: Case) -> set[object]:
    """Returns the classes of a case: its publisher, kind and writer; its moment; its error."""
    return {(case.publisher, case.kind, case.by_spark), case.moment, case.error}


def test_the_daily_sample_of_cases_has_every_class_of_cases() -> None:
    tried, there = (set[object]().union(*map(classes, some)) for some in (EVERY_CASE[::STRIDE], EVERY_CASE))
    assert tried == there


IN_VERSITYGW = pytest.param("versitygw", marks=[pytest.mark.stores, pytest.mark.versitygw, pytest.mark.nightly])
in_s3 = pytest.mark.parametrize("place", [pytest.param("moto", marks=pytest.mark.stores), IN_VERSITYGW], indirect=True)
# On every change tests/concurrency/test_foreign_writers.py has these tests in a store.
everywhere = pytest.mark.parametrize(
    "place",
    [pytest.param(None, id="on a disk"), pytest.param("moto", marks=[pytest.mark.stores, pytest.mark.nightly]), IN_VERSITYGW],
    indirect=True,
)


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest, spark: SparkSession, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str | None]:
    """A place in the server of S3 that the parameter names. None without a server."""
    if request.param != "versitygw":
        yield store if request.param else None
        return
    with versitygw_of(spark, tmp_path_factory.mktemp("versitygw")) as found:
        yield found


@pytest.fixture
def pipeline(place: str | None, spark: SparkSession, tmp_path: Path) -> StagedPipeline:
    """A pipeline in that place, or on a disk."""
    if place is None:
        return StagedPipeline(quick(tmp_path / "home"), tmp_path)
    found = PipelineInS3(f"{place}/{uuid4()}", tmp_path)
    make_commits_conditional(spark, found.files.url)
    return found


@everywhere
@pytest.mark.nightly
@pytest.mark.parametrize("kind", [Kind.APPEND, Kind.SEQUENCED])
def test_a_publication_whose_commit_is_replaced_at_once_is_made_again(
    pipeline: StagedPipeline, spark: SparkSession, kind: Kind
) -> None:
    assert_made_again_at_once(pipeline, Publisher.SPARK, kind, Publishers(lambda: spark))


@everywhere
@pytest.mark.parametrize("kind", [Kind.APPEND, pytest.param(Kind.SEQUENCED, marks=pytest.mark.nightly)])
def test_a_publication_whose_commit_is_replaced_later_is_reported(
    pipeline: StagedPipeline, spark: SparkSession, kind: Kind
) -> None:
    assert_found_out_later(pipeline, Publisher.SPARK, kind, Publishers(lambda: spark))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("round_", range(100))
def test_several_publishers_among_many_writers_publish_each_checkpoint_once(
    tmp_path: Path, spark: SparkSession, seed: int, kind: Kind, round_: int
) -> None:
    """On every change the race in S3 below would fail."""
    crowd: list[SparkWriter] = []

    def writer(table: str, draw: random.Random, name: int) -> SparkWriter:
        crowd.append(SparkWriter(spark, table, draw, name))
        return crowd[-1]

    pipeline = StagedPipeline(quick(tmp_path / "home"), tmp_path)
    versions = race(pipeline, f"{seed} {round_}", kind, Publisher.SPARK, Publishers(lambda: spark), [writer] * 2)
    assert_clones_are_versions(crowd, spark, versions)


@in_s3
@pytest.mark.parametrize(
    ("round_", "publisher", "kind"),
    [
        pytest.param(*round_.values, publisher, kind, marks=round_.marks if kind is Kind.APPEND else pytest.mark.nightly)
        for round_ in rounds(sample=1, at_night=25)
        for publisher, kind in (
            (Publisher.DELTA_RS, Kind.APPEND),
            (Publisher.SPARK, Kind.APPEND),
            (Publisher.SPARK, Kind.SEQUENCED),
        )
    ],
)
def test_several_publishers_among_writers_with_spark_and_delta_rs_publish_each_checkpoint_once_in_s3(
    pipeline: StagedPipeline, spark: SparkSession, seed: int, publisher: Publisher, kind: Kind, round_: int
) -> None:
    size = Size() if round_ else Size(checkpoints=2, actions=3)
    by_spark: Joins = partial(SparkWriter if round_ else MergingSparkWriter, spark)
    crowd: list[Joins] = [by_spark, by_spark, DeltaRsWriter]
    race(pipeline, f"{seed} {round_}", kind, publisher, Publishers(lambda: spark), crowd, size)


class Worker:
    """The environment of a process: a Spark application, and the barrier at which it meets the other processes."""

    publishers: Publishers
    together: ProcessBarrier


def begin_worker(together: ProcessBarrier) -> None:
    Worker.together = together
    settings = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    session = start_session("publisher", settings | FEW_ROWS)
    Worker.publishers = Publishers(lambda: session)


def publish_in_a_process(url: str) -> dict[SinkName, SinkResult]:
    Worker.together.wait()
    return publish(open_files(url), publishers=Worker.publishers)


@pytest.mark.nightly
def test_two_applications_publish_each_checkpoint_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=begin_worker, initargs=(context.Barrier(2),)) as pool:
        for number in range(24):
            kind = list(Kind)[number % len(Kind)]
            pipeline = published_into(tmp_path / f"round {number}")
            cut = stage_pending(pipeline, Publisher.SPARK, kind)
            first, second = pool.map(publish_in_a_process, [pipeline.files.url] * 2)
            expected = Reference(kind, [*PUBLISHED, OF_ANOTHER])
            for rows in pending(kind):
                expected.publish(rows)
            assert first == second
            assert pipeline.commits(HOURLY) == ([1, 3] if kind is Kind.COMPLETE else [1, 2, 3])
            assert pipeline.rows(HOURLY) == sorted(expected.rows, key=str)
            assert graves_in(cut) == expected.graves
