"""A full refresh of some tables loses power at any of its durable steps, and is run again."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.steps import Step
from tests.support import delta_logs
from tests.support.crashed_changes import OF_THE_CHANGE, assert_whole, changed
from tests.support.crashes import HOUSEKEEPING, run_into, watched
from tests.support.opened_tables import with_log
from tests.support.places import ON_A_DISK
from tests.support.run_site import RunSite
from tests.support.small_pipeline import deliver

pytestmark = pytest.mark.spark

OF_THE_REFRESH = (
    *OF_THE_CHANGE, Step.STAGE_VERSION, Step.PLAN_BATCH, Step.ACTIONS_CREATE, Step.PUBLISH_SINK, Step.RESPONSE_CREATE,
)  # fmt: skip
"""The steps of a refresh, in order: those of a start of changed code, and those of its batches and of its publication."""


@pytest.fixture(params=[("daily", "hourly"), pytest.param(("copied",), marks=pytest.mark.nightly)], ids=["state", "rows"])
def refresh(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Returns the tables that are refreshed: two with state, with the stage before them; or one without."""
    return tuple(request.param)


def after_a_day(site: RunSite) -> RunSite:
    deliver(site.events, 0)
    site = replace(site, pipeline=changed())
    site.run("day 0", on_end=OnEnd.SUSPEND)
    deliver(site.events, 1)
    return site


@pytest.fixture
def second_day(any_site: RunSite, tmp_path: Path) -> RunSite:
    """A site whose first day has run. The second day waits."""
    return after_a_day(replace(any_site, events=tmp_path / "daily events"))


def assert_replaced_once(site: RunSite, refresh: tuple[str, ...]) -> None:
    """Checks the rows, and that each refreshed table has lost its earlier rows in one transaction, with which the new ones came.

    The first day has left no rows in ``daily``.
    """
    assert_whole(site)
    for name in ("hourly", "daily", "copied"):
        with with_log(site.table(name)) as table:
            removing = [entry for entry in delta_logs.commits(table) if any("remove" in action for action in entry)]
        assert len(removing) == (1 if name in refresh and name != "daily" else 0), name
        assert all(any("add" in action for action in entry) for entry in removing)


# test_changed_pipelines.py dies after each step of a change by day, and the tests below in the steps of a refresh alone.
@pytest.mark.nightly
@pytest.mark.parametrize("bucket", [ON_A_DISK], indirect=True)
def test_a_refresh_that_dies_after_each_step_loses_and_doubles_no_row(second_day: RunSite, refresh: tuple[str, ...]) -> None:
    died = []
    for step in OF_THE_REFRESH:
        for before in (True, False):
            point = run_into(second_day, lambda point: point.name == (step, before), "day 1", full_refresh=refresh)  # noqa: B023
            died.append(point)
    assert {point.step for point in died if point} >= set(OF_THE_CHANGE) | {Step.STAGE_VERSION, Step.PLAN_BATCH}
    second_day.run("day 1", full_refresh=refresh)
    assert_replaced_once(second_day, refresh)


def test_another_run_finishes_a_refresh_that_died(second_day: RunSite, refresh: tuple[str, ...]) -> None:
    assert run_into(second_day, lambda point: point.name == (Step.STAGE_VERSION, False), "day 1", full_refresh=refresh)
    second_day.run("day 1, by hand", full_refresh=refresh)
    assert_replaced_once(second_day, refresh)


def test_a_run_without_the_option_finishes_a_refresh_that_died(second_day: RunSite) -> None:
    assert run_into(second_day, lambda point: point.name == (Step.SAVEPOINT_IMPORT, False), "day 1", full_refresh=("copied",))
    second_day.run("another")
    assert_replaced_once(second_day, ("copied",))


@pytest.mark.nightly
@pytest.mark.parametrize("bucket", [ON_A_DISK], indirect=True)
def test_a_refresh_that_dies_once_at_any_point_is_finished_by_the_next_run(
    site: RunSite, second_day: RunSite, refresh: tuple[str, ...], tmp_path: Path
) -> None:
    passed = watched(lambda: second_day.run("day 1", full_refresh=refresh))
    assert_replaced_once(second_day, refresh)
    for number, point in enumerate(point for point in passed if point.step not in HOUSEKEEPING):
        root = tmp_path / str(number)
        again = after_a_day(replace(site, directory=root / "site", events=root / "events"))
        assert run_into(again, lambda passed: passed == point, "day 1", full_refresh=refresh) == point  # noqa: B023
        again.run("day 1", full_refresh=refresh)
        assert_replaced_once(again, refresh)
