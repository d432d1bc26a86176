"""Days that each add columns, pack, replace and merge; each day's run dies once at a step, and is run again."""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.steps import Step
from tests.support import changing_pipeline
from tests.support.changing_pipeline import changing
from tests.support.crashes import HOUSEKEEPING, NOT_IN_A_SMALL_RUN, Point, run_into, watched
from tests.support.run_site import RunSite
from tests.support.small_pipeline import deliver

pytestmark = pytest.mark.spark

ONLY_HERE = NOT_IN_A_SMALL_RUN - {Step.COMMIT_BATCH}


@dataclass
class Days:
    """A site whose pipeline is another one each day."""

    site: RunSite
    begun: int = 0

    def next(self) -> RunSite:
        """One more day: its events are there, and its pipeline is deployed."""
        day, self.begun = self.begun, self.begun + 1
        deliver(self.site.events, day)
        self.site = replace(self.site, pipeline=changing(day))
        return self.site

    @property
    def run(self) -> str:
        return f"day {self.begun - 1}"

    def end(self) -> None:
        """Runs the day to its end, and looks at the tables."""
        self.site.run(self.run, on_end=OnEnd.SUSPEND)
        found, expected = changing_pipeline.public(self.site.directory / "warehouse"), changing_pipeline.answer(range(self.begun))
        assert {name: sorted(rows, key=str) for name, rows in expected.items()} == found
        assert self.site.checkpoints() == list(range(1, self.begun + 1))


@pytest.fixture
def days(site: RunSite, tmp_path: Path) -> Days:
    days = Days(replace(site, events=tmp_path / "daily events"))
    days.next()
    days.end()
    return days


@pytest.fixture
def points(days: Days) -> list[Point]:
    """Those of an undisturbed second day."""
    site = days.next()
    found = watched(lambda: site.run(days.run, on_end=OnEnd.SUSPEND))
    days.end()
    return [point for point in found if point.step not in HOUSEKEEPING]


def crash_on_a_day_each(days: Days, points: list[Point]) -> None:
    for point in points:
        assert run_into(days.next(), lambda passed: passed == point, days.run, on_end=OnEnd.SUSPEND) == point
        days.end()


def test_days_that_die_at_a_step_of_changing_tables_lose_and_double_nothing(days: Days, points: list[Point], seed: int) -> None:
    assert {point.step for point in points} >= ONLY_HERE
    kinds = {point.name: point for point in points if point.step in ONLY_HERE and not point.before}
    crash_on_a_day_each(days, [*kinds.values(), *Random(seed).sample(points, 2)])


@pytest.mark.nightly
def test_days_that_die_at_any_step_of_changing_tables_lose_and_double_nothing(days: Days, points: list[Point]) -> None:
    crash_on_a_day_each(days, points)
