"""A publisher dies before and after every durable step, and another one follows it."""

from pathlib import Path

import pytest

from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.publisher import publish
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline


class Death(BaseException):
    """The end of the process."""


class DiesAt:
    """Dies before or after the n-th occurrence of a step."""

    def __init__(self, step: Step, occurrence: int, *, before: bool) -> None:
        self._step, self._left, self._before = step, occurrence, before

    def before(self, step: Step) -> None:
        if step is self._step:
            self._left -= 1
            if self._left == 0 and self._before:
                raise Death

    def after(self, step: Step) -> None:
        if step is self._step and self._left == 0 and not self._before:
            raise Death


def staged(directory: Path, policy: Publish) -> StagedPipeline:
    """Returns two sinks with three checkpoints, the second one without rows. Nothing is public."""
    pipeline = StagedPipeline(MemoryFiles(), directory)
    pipeline.make_table(HOURLY)
    pipeline.make_table(DAILY, partition_by=())
    pipeline.checkpoint({HOURLY: [(1, "a b")], DAILY: [(1, "a")]}, publish=policy)
    pipeline.checkpoint({HOURLY: [], DAILY: []}, publish=policy)
    pipeline.checkpoint({HOURLY: [(2, None)], DAILY: [(2, "a")]}, publish=policy)
    return pipeline


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("policy", "occurrence"),
    [(Publish.FINAL, n) for n in (1, 2)] + [(Publish.EVERY_CHECKPOINT, n) for n in range(1, 7)],
)
def test_after_a_publisher_that_dies_anywhere_the_next_publisher_does_the_rest(
    tmp_path: Path, policy: Publish, occurrence: int, before: bool
) -> None:
    pipeline = staged(tmp_path, policy)
    with observed_by(DiesAt(Step.PUBLISH_SINK, occurrence, before=before)), pytest.raises(Death):
        publish(pipeline.files)
    made = len(pipeline.commits(HOURLY)) + len(pipeline.commits(DAILY))
    assert made == occurrence - before
    publish(pipeline.files)
    expected = [3] if policy is Publish.FINAL else [1, 2, 3]
    assert pipeline.commits(HOURLY) == pipeline.commits(DAILY) == expected
    assert pipeline.rows(HOURLY) == [(1, "a b"), (2, None)]
    assert pipeline.rows(DAILY) == [(1, "a"), (2, "a")]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_the_next_closer_finishes_a_closing_that_died(tmp_path: Path, before: bool) -> None:
    pipeline = staged(tmp_path, Publish.FINAL)
    app = pipeline.store.chain(pipeline.store.ids()[-1])[-1].sinks[HOURLY].app
    with observed_by(DiesAt(Step.INCARNATION_CLOSE, 1, before=before)), pytest.raises(Death):
        pipeline.close(HOURLY, app, None)
    pipeline.close(HOURLY, app, None)
    assert pipeline.commits(HOURLY) == [2**63 - 1]
