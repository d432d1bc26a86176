"""A whole run that loses power at any of its durable steps, and is run again.

The steps are those that a clean run passes: nothing is listed here. A loss of power forgets what was not fsynced through the storage
port. What Spark writes on its own (offsets, commits, state, Parquet files that no manifest names yet) is not behind the port: it stays,
as after the death of a process; :func:`test_all_that_a_manifest_names_survives_a_loss_of_power` takes the Parquet files away, too.
"""

from pathlib import Path

import pytest

from spark_jobs.protocol.steps import Step
from tests.support.crashes import InTurn, Point, contents, run_into, watched
from tests.support.run_site import RunSite

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

NOT_IN_A_CLEAN_RUN = {Step.INCARNATION_CLOSE}
"""Passed by a fresh start only."""


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory: pytest.TempPathFactory, one_day: Path) -> list[Point]:
    """The points of an undisturbed run."""
    return watched(RunSite(tmp_path_factory.mktemp("clean") / "site", one_day).run)


def after_the_manifest(point: Point, points: list[Point]) -> bool:
    return points.index(point) >= points.index(Point(Step.MANIFEST_CREATE, 1, before=False))


def assert_finished(site: RunSite, *, swept: bool) -> None:
    site.assert_answered()
    if swept:
        assert site.orphans() == []
    before = contents(site.directory / "warehouse")
    attempts = site.attempts()
    site.run()
    assert contents(site.directory / "warehouse") == before
    assert site.attempts() == attempts, "a finished run starts nothing"


def test_a_clean_run_passes_every_step_there_is(clean_run: list[Point]) -> None:
    assert {point.step for point in clean_run} == set(Step) - NOT_IN_A_CLEAN_RUN
    assert [point.step for point in clean_run if not point.before].count(Step.MANIFEST_CREATE) == 1


def test_a_chain_of_crashes_before_and_after_every_occurrence_of_every_step(site: RunSite, clean_run: list[Point]) -> None:
    chain = InTurn()
    while not chain.answered and run_into(site, chain.choose):
        assert len(chain.chosen) <= len(clean_run), chain.chosen
    assert_finished(site, swept=False)
    passed = {point.name for point in clean_run if point.step is not Step.SWEEP}
    assert passed == {point.name for point in chain.chosen}
