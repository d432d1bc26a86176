"""Other writers of a sink's table at every moment of a publication: the outcome is right, or refused and nothing is written.

The publisher and the others are delta-rs here; tests/spark/test_foreign_writers.py has those with Spark.
"""

from pathlib import Path

import pytest

from spark_jobs.protocol.documents import Publish, Publisher, SinkMode
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.protocol.steps import observed_by
from spark_jobs.publication.publisher import WITHOUT_SPARK, publish
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
from tests.support.staged_pipeline import HOURLY

__all__ = ["seed"]

WITHOUT_A_JVM = cases(Publisher.DELTA_RS, (SinkMode.APPEND, SinkMode.COMPLETE), by_spark=False)
ROUNDS, ROUNDS_AT_NIGHT = 2, 100


@pytest.mark.parametrize("case", sampled(WITHOUT_A_JVM, stride=1))
def test_a_foreign_writer_at_any_moment(tmp_path: Path, case: Case) -> None:
    assert_right_or_refused(case, tmp_path)


def test_a_publication_whose_commit_is_replaced_at_once_is_made_again(tmp_path: Path) -> None:
    pipeline = published_into(tmp_path)
    stage_pending(pipeline, Publisher.DELTA_RS, SinkMode.APPEND)
    with observed_by(ReplacesCommit(pipeline)):
        results = publish(pipeline.files)
    assert results[HOURLY].version is not None
    assert pipeline.rows(HOURLY) == sorted([*PUBLISHED, OF_ANOTHER, STRANGER, *PENDING[0], *PENDING[1]], key=str)
    assert pipeline.commits(HOURLY) == [1, 2, 3]


def test_a_publication_whose_commit_is_replaced_later_is_made_again_when_asked_for(tmp_path: Path) -> None:
    pipeline = published_into(tmp_path)
    stage_pending(pipeline, Publisher.DELTA_RS, SinkMode.APPEND)
    publish(pipeline.files)
    replace_newest_commit(pipeline, STRANGER)
    publish(pipeline.files)
    assert pipeline.rows(HOURLY) == sorted([*PUBLISHED, OF_ANOTHER, STRANGER, *PENDING[0], *PENDING[1]], key=str)
    assert pipeline.commits(HOURLY) == [1, 2, 3]


def test_a_table_that_has_lost_a_known_publication_gets_no_later_one(tmp_path: Path) -> None:
    pipeline = published_into(tmp_path)
    stage_pending(pipeline, Publisher.DELTA_RS, SinkMode.APPEND)
    publish(pipeline.files)
    replace_newest_commit(pipeline, STRANGER)
    pipeline.checkpoint({HOURLY: [(9, "a")]}, publish=Publish.EVERY_CHECKPOINT, known_published=CheckpointId(3))
    with pytest.raises(RejectedError, match="had 3 when 4 was made"):
        publish(pipeline.files)
    assert pipeline.rows(HOURLY) == sorted([*PUBLISHED, OF_ANOTHER, STRANGER, *PENDING[0]], key=str)
    assert pipeline.commits(HOURLY) == [1, 2]


@pytest.mark.parametrize("mode", [SinkMode.APPEND, SinkMode.COMPLETE])
@pytest.mark.parametrize(
    "round_", [pytest.param(n, marks=() if n < ROUNDS else pytest.mark.nightly) for n in range(ROUNDS_AT_NIGHT)]
)
def test_several_publishers_in_a_crowd_of_writers(tmp_path: Path, seed: int, mode: SinkMode, round_: int) -> None:
    race(tmp_path, f"{seed} {round_}", mode, Publisher.DELTA_RS, WITHOUT_SPARK)
