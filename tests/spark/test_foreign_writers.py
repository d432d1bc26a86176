"""Other writers of a sink's table at every moment of a publication, where Spark is the publisher, the other, or both."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier as ProcessBarrier
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.protocol.documents import Publish, Publisher, SinkMode, SinkResult
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.protocol.steps import observed_by
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.session import start_session
from spark_jobs.storage.open import open_files
from tests.support.crowds import race
from tests.support.foreign_writers import STRANGER
from tests.support.publication_schedules import (
    OF_ANOTHER,
    PENDING,
    PUBLISHED,
    Case,
    ReplacesCommit,
    assert_right_or_refused,
    cases,
    published_into,
    replace_newest_commit,
    sampled,
    stage_pending,
)
from tests.support.seeds import seed
from tests.support.short_jvm import SHORT_RUN
from tests.support.staged_pipeline import HOURLY, Row

__all__ = ["seed"]

pytestmark = pytest.mark.spark

APPEND, COMPLETE, UPSERT = SinkMode.APPEND, SinkMode.COMPLETE, SinkMode.UPSERT
SPARK_AMONG_SPARK = [*cases(Publisher.SPARK, (APPEND, COMPLETE, UPSERT), by_spark=True)]
SPARK_AMONG_DELTA_RS = [*cases(Publisher.SPARK, (APPEND, COMPLETE, UPSERT), by_spark=False)]
DELTA_RS_AMONG_SPARK = [*cases(Publisher.DELTA_RS, (APPEND, COMPLETE), by_spark=True)]


@pytest.fixture(scope="session")
def others(spark: SparkSession) -> SparkSession:
    """The other writers' session. They vacuum what is new, which takes a setting."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return session


@pytest.mark.parametrize("case", sampled([*SPARK_AMONG_SPARK, *SPARK_AMONG_DELTA_RS, *DELTA_RS_AMONG_SPARK], stride=37))
def test_a_foreign_writer_at_any_moment(tmp_path: Path, others: SparkSession, case: Case) -> None:
    assert_right_or_refused(case, tmp_path, others)


MODES = [pytest.param(mode, id=mode.value) for mode in (APPEND, UPSERT)]


def rows_with(*added: Row, mode: SinkMode, checkpoints: int = 2) -> list[Row]:
    """What is in the table when so many of the pending checkpoints are public."""
    found = [*PUBLISHED, OF_ANOTHER, *added]
    for rows in PENDING[:checkpoints]:
        keys = {number for number, _ in rows} if mode is UPSERT else set()
        found = [row for row in found if row[0] not in keys] + rows
    return sorted(found, key=str)


@pytest.mark.parametrize("mode", MODES)
def test_a_publication_whose_commit_is_replaced_at_once_is_made_again(
    tmp_path: Path, spark: SparkSession, mode: SinkMode
) -> None:
    pipeline = published_into(tmp_path)
    stage_pending(pipeline, Publisher.SPARK, mode)
    with observed_by(ReplacesCommit(pipeline)):
        results = publish(pipeline.files, publishers=Publishers(lambda: spark))
    assert results[HOURLY].version is not None
    assert pipeline.rows(HOURLY) == rows_with(STRANGER, mode=mode)
    assert pipeline.commits(HOURLY) == [1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_has_lost_a_known_publication_gets_no_later_one(tmp_path: Path, spark: SparkSession, mode: SinkMode) -> None:
    pipeline = published_into(tmp_path)
    cut = stage_pending(pipeline, Publisher.SPARK, mode)
    publishers = Publishers(lambda: spark)
    publish(pipeline.files, publishers=publishers)
    replace_newest_commit(pipeline, STRANGER)
    known = CheckpointId(3)
    pipeline.checkpoint({HOURLY: [(9, "a")]}, publish=Publish.EVERY_CHECKPOINT, known_published=known, cut=cut)
    with pytest.raises(RejectedError, match="had 3 when 4 was made"):
        publish(pipeline.files, publishers=publishers)
    assert pipeline.commits(HOURLY) == [1, 2]
    publish(pipeline.files, known, publishers=publishers)
    assert pipeline.commits(HOURLY) == [1, 2, 3]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", [APPEND, COMPLETE, UPSERT])
@pytest.mark.parametrize("round_", range(10))
def test_several_publishers_in_a_crowd_of_writers(
    tmp_path: Path, spark: SparkSession, seed: int, mode: SinkMode, round_: int
) -> None:
    race(tmp_path, f"{seed} {round_}", mode, Publisher.SPARK, Publishers(lambda: spark))


class Worker:
    """What a process of its own has: a Spark application, and the barrier at which it meets the others."""

    publishers: Publishers
    together: ProcessBarrier


def begin_worker(together: ProcessBarrier) -> None:
    Worker.together = together
    settings = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    session = start_session("publisher", settings | SHORT_RUN)
    Worker.publishers = Publishers(lambda: session)


def publish_in_a_process(url: str) -> dict[SinkName, SinkResult]:
    Worker.together.wait()
    return publish(open_files(url), publishers=Worker.publishers)


@pytest.mark.nightly
def test_two_applications_publish_each_checkpoint_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=begin_worker, initargs=(context.Barrier(2),)) as pool:
        for number in range(24):
            mode = (APPEND, COMPLETE, UPSERT)[number % 3]
            pipeline = published_into(tmp_path / f"round {number}")
            stage_pending(pipeline, Publisher.SPARK, mode)
            first, second = pool.map(publish_in_a_process, [pipeline.files.url] * 2)
            assert first == second
            assert pipeline.commits(HOURLY) == ([1, 3] if mode is COMPLETE else [1, 2, 3])
            assert pipeline.rows(HOURLY) == (sorted(PENDING[-1], key=str) if mode is COMPLETE else rows_with(mode=mode))
