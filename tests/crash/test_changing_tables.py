"""Days that each add columns, pack, replace and merge. The run of each day dies once at a step, and is run again."""

from dataclasses import dataclass, replace
from functools import partial
from operator import eq
from pathlib import Path

import pytest

from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.steps import Step
from tests.support import changing_pipeline
from tests.support.changing_pipeline import changing
from tests.support.crashes import HOUSEKEEPING, Point, run_into, watched
from tests.support.run_site import RunSite
from tests.support.small_pipeline import deliver

pytestmark = pytest.mark.spark

DIES_AFTER = {Step.TABLE_ALTER, Step.LOG_WIDEN, Step.PACK_FILES, Step.BURY_KEYS, Step.PUBLISH_SINK}


@dataclass
class Days:
    """A site whose pipeline changes each day."""

    site: RunSite
    begun: int = 0

    def next(self) -> RunSite:
        """Begins one more day: delivers its events and deploys its pipeline."""
        day, self.begun = self.begun, self.begun + 1
        deliver(self.site.events, day)
        self.site = replace(self.site, pipeline=changing(day))
        return self.site

    @property
    def run(self) -> str:
        return f"day {self.begun - 1}"

    def end(self) -> None:
        """Runs the day to its end, and checks the tables."""
        self.site.run(self.run, on_end=OnEnd.SUSPEND)
        found, expected = changing_pipeline.public(self.site), changing_pipeline.answer(range(self.begun))
        assert {name: sorted(rows, key=str) for name, rows in expected.items()} == found
        kept = list(range(1, self.begun + 1))[-2:]
        assert self.site.checkpoints() == kept, "the newest one and its parent"


@pytest.fixture
def days(any_site: RunSite, tmp_path: Path) -> Days:
    days = Days(replace(any_site, events=tmp_path / "daily events"))
    days.next()
    days.end()
    return days


@pytest.fixture
def points(days: Days) -> list[Point]:
    """Returns the points of an undisturbed second day."""
    site = days.next()
    found = watched(lambda: site.run(days.run, on_end=OnEnd.SUSPEND))
    days.end()
    return [point for point in found if point.step not in HOUSEKEEPING]


def test_a_day_of_table_changes_that_dies_once_after_each_step_loses_and_doubles_no_row(days: Days) -> None:
    site = days.next()
    for step in (step for step in Step if step in DIES_AFTER):  # in the order in which a run passes them
        assert run_into(site, partial(is_after, step), days.run, on_end=OnEnd.SUSPEND)
    days.end()


def is_after(step: Step, point: Point) -> bool:
    return point.name == (step, False)


@pytest.mark.nightly
def test_days_of_table_changes_that_die_at_any_step_lose_and_double_no_row(days: Days, points: list[Point]) -> None:
    assert {point.step for point in points} >= DIES_AFTER
    for point in points:
        assert run_into(days.next(), partial(eq, point), days.run, on_end=OnEnd.SUSPEND) == point
        days.end()
