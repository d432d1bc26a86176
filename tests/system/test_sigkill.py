"""Real drivers, killed for real at every step; the next one goes on."""

import signal
from pathlib import Path

import pytest

from spark_jobs.protocol.steps import Step
from tests.support.crashes import HOUSEKEEPING, NOT_IN_A_SMALL_RUN, watched
from tests.support.drivers import Doomed, Drivers, drivers_on
from tests.support.run_site import RunSite
from tests.support.small_pipeline import SINKS, answer, deliver

pytestmark = pytest.mark.spark

IN_A_FRESH_START = [Step.INCARNATION_CLOSE, Step.SWEEP]
IN_ORDER = [step for step in Step if step not in {*HOUSEKEEPING, *NOT_IN_A_SMALL_RUN, *IN_A_FRESH_START}]
"""As they are declared: each attempt comes to the step at which the one before it died, and to the next."""
BEFORE, AFTER = True, False
Moments = dict[Step, list[bool]]
A_FEW: Moments = {
    Step.STAGE_VERSION: [BEFORE],
    Step.PUBLISH_SINK: [AFTER],
}
"""In the middle of a batch, and among the sinks."""
ALTERNATELY: Moments = {step: [number % 2 == 0] for number, step in enumerate(Step)}
BOTH: Moments = {step: [BEFORE, AFTER] for step in Step}
SWEPT: Moments = {Step.SWEEP: [BEFORE]}  # after it, an attempt has its manifest already


def assert_killed(drivers: Drivers, doom: Doomed, *options: str, run: str) -> None:
    found = drivers.run(*options, run=run, doom=doom)
    assert found.code == -signal.SIGKILL, f"{doom}: {found}"


def assert_done(drivers: Drivers, *options: str, run: str) -> None:
    found = drivers.run(*options, run=run)
    assert found.code == 0, found


def kill_in_turn(drivers: Drivers, moments: Moments) -> None:
    """Kills driver after driver, each at the next step, then does the same to a fresh start that replaces what is public."""
    for step in IN_ORDER:
        for before in moments.get(step, []):
            assert_killed(drivers, Doomed("killed", step, before), run="first")
    assert_done(drivers, run="first")
    drivers.site.assert_answered()
    fresh = ("--fresh", "--on-rewind=replace")
    for step in IN_A_FRESH_START:
        for before in moments.get(step, []):
            assert_killed(drivers, Doomed("killed", step, before), *fresh, run="second")
    assert_done(drivers, *fresh, run="second")
    drivers.wait_gone()


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(A_FEW, id="at a few"),
        pytest.param(ALTERNATELY | SWEPT, id="before or after each", marks=pytest.mark.nightly),
        pytest.param(BOTH | SWEPT, id="before and after each", marks=pytest.mark.nightly),
    ],
)
def test_drivers_killed_at_steps_lose_and_double_nothing(drivers: Drivers, moments: Moments) -> None:
    kill_in_turn(drivers, moments)
    assert_replaced(drivers.site)


@pytest.mark.nightly
def test_a_driver_killed_at_any_occurrence_of_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    deliver(tmp_path / "events", 0)
    points = watched(RunSite(tmp_path / "clean", tmp_path / "events").run)
    for number, point in enumerate(points):
        with drivers_on(RunSite(tmp_path / f"site-{number}", tmp_path / "events")) as drivers:
            assert_killed(drivers, Doomed("killed", point.step, point.before, point.occurrence), run="first")
            assert_done(drivers, run="first")
            drivers.site.assert_answered()


def assert_replaced(site: RunSite) -> None:
    """The fresh start's rows are public, alone and once, and the checkpoint of what it has replaced is discarded."""
    assert site.public() == answer([0])
    assert site.publications() == dict.fromkeys(SINKS, 2)
    assert site.checkpoints() == [2]
