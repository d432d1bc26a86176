"""A start with changed code loses power at any of its durable steps, and is run again."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.protocol.documents import OnEnd, RestoreFrom
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import RunId
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.protocol.steps import Step
from spark_jobs.runtime.launch import launch
from tests.spark.rows import public_count
from tests.support import small_pipeline
from tests.support.crashed_changes import OF_THE_CHANGE, assert_whole, changed
from tests.support.crashes import HOUSEKEEPING, Point, run_into, watched
from tests.support.places import ON_A_DISK
from tests.support.run_site import RunSite, small_session
from tests.support.small_pipeline import answer, deliver

pytestmark = pytest.mark.spark


@pytest.fixture
def second_day(any_site: RunSite, tmp_path: Path) -> RunSite:
    """A site whose first day has run. The second day waits for the changed code."""
    return after_a_day(replace(any_site, events=tmp_path / "daily events"))


def after_a_day(site: RunSite) -> RunSite:
    deliver(site.events, 0)
    site.run("day 0", on_end=OnEnd.SUSPEND)
    deliver(site.events, 1)
    return replace(site, pipeline=changed())


def points_of(site: RunSite) -> list[Point]:
    passed = watched(lambda: site.run("day 1"))
    assert_whole(site)
    return [point for point in passed if point.step not in HOUSEKEEPING]


def test_attempts_that_die_after_each_step_of_a_change_of_code_lose_and_double_no_row(second_day: RunSite) -> None:
    died = []
    for step in OF_THE_CHANGE:
        for before in (True, False):
            died.append(run_into(second_day, lambda point: point.name == (step, before), "day 1"))  # noqa: B023
    assert {point.step for point in died if point} == set(OF_THE_CHANGE)
    second_day.run("day 1")
    assert_whole(second_day)


@pytest.mark.nightly
@pytest.mark.parametrize("bucket", [ON_A_DISK], indirect=True)
def test_a_change_of_code_that_dies_once_at_any_point_is_finished_by_the_next_run(
    site: RunSite, second_day: RunSite, tmp_path: Path
) -> None:
    for number, point in enumerate(points_of(second_day)):
        root = tmp_path / str(number)
        again = after_a_day(replace(site, directory=root / "site", events=root / "events"))
        assert run_into(again, lambda passed: passed == point, "day 1") == point  # noqa: B023
        again.run("day 1")
        assert_whole(again)


@pytest.mark.nightly
def test_the_earlier_code_can_continue_after_a_change_that_died_before_its_first_batch(second_day: RunSite) -> None:
    """Before the first batch of the changed code, the earlier code goes on from the same checkpoint."""
    assert run_into(second_day, lambda point: point.name == (Step.ROUND_CREATE, False), "day 1")
    earlier = replace(second_day, pipeline=small_pipeline.pipeline)
    earlier.run("day 1")
    assert earlier.public() == answer(range(2))
    assert public_count(earlier.table("copied")) is None


def test_the_earlier_code_continues_from_the_savepoint_after_a_change_that_has_begun(second_day: RunSite) -> None:
    """The test follows the remedy with which the earlier code is refused."""
    assert run_into(second_day, lambda point: point.name == (Step.RESTORE_END, False), "day 1")
    earlier = replace(second_day, pipeline=small_pipeline.pipeline)
    with pytest.raises(RejectedError, match="was begun with") as caught:
        earlier.run("day 1")
    named = re.search(r"--restore (\S+)\)", caught.value.remedy)
    assert named
    options = StartOptions(run=RunId("back"), on_end=OnEnd.DRAIN, restore=RestoreFrom(savepoint=named[1]))
    launch(earlier.pipeline, earlier.files(), earlier.parameters, options, small_session)
    assert earlier.public() == answer(range(2))
