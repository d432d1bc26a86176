"""Real drivers are killed with SIGKILL at every step, and the next driver continues."""

import signal
from pathlib import Path

import pytest

from spark_jobs.protocol.steps import Step
from tests.support.crashes import HOUSEKEEPING, NOT_IN_A_SMALL_RUN, watched
from tests.support.drivers import Doomed, Drivers, drivers_on
from tests.support.places import AT_NIGHT, IN_A_STORE, ON_A_DISK
from tests.support.run_site import RunSite
from tests.support.small_pipeline import SINKS, answer, deliver

pytestmark = pytest.mark.spark

IN_A_FRESH_START = [Step.INCARNATION_CLOSE, Step.SWEEP]
IN_ORDER = [step for step in Step if step not in {*HOUSEKEEPING, *NOT_IN_A_SMALL_RUN, *IN_A_FRESH_START}]
"""Steps in the order of their declaration: each attempt reaches the step at which the previous one died, and the next step."""
BEFORE, AFTER = True, False
Moments = dict[Step, list[bool]]
A_FEW: Moments = {
    Step.STAGE_VERSION: [BEFORE],
    Step.PUBLISH_SINK: [AFTER],
}
"""One step in the middle of a batch, and one between the publications of two sinks."""
ALTERNATELY: Moments = {step: [number % 2 == 0] for number, step in enumerate(Step)}
BOTH: Moments = {step: [BEFORE, AFTER] for step in Step}
SWEPT: Moments = {Step.SWEEP: [BEFORE]}  # after the sweep, an attempt already has its manifest


def assert_killed(drivers: Drivers, doom: Doomed, *options: str, run: str) -> None:
    found = drivers.run(*options, run=run, doom=doom)
    assert found.code == -signal.SIGKILL, f"{doom}: {found}"


def assert_done(drivers: Drivers, *options: str, run: str) -> None:
    found = drivers.run(*options, run=run)
    assert found.code == 0, found


def kill_in_turn(drivers: Drivers, moments: Moments) -> None:
    """Kills one driver after the other, each at the next step. Repeats this with a fresh start that replaces the public rows."""
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


# By day the few on a disk already find faults that do not depend on the store. In a store, test_in_stores.py kills a driver between two
# checkpoints.
@pytest.mark.parametrize(
    ("bucket", "moments"),
    [
        pytest.param(ON_A_DISK, A_FEW, id="at a few"),
        pytest.param(ON_A_DISK, ALTERNATELY | SWEPT, id="before or after each", marks=pytest.mark.nightly),
        pytest.param(ON_A_DISK, BOTH | SWEPT, id="before and after each", marks=pytest.mark.nightly),
        pytest.param(IN_A_STORE, ALTERNATELY | SWEPT, id="before or after each, in S3", marks=AT_NIGHT),
    ],
    indirect=["bucket"],
)
def test_drivers_killed_at_steps_lose_and_double_nothing(drivers: Drivers, moments: Moments) -> None:
    kill_in_turn(drivers, moments)
    assert_replaced(drivers.site, is_swept=Step.SWEEP not in moments)


@pytest.mark.nightly
def test_a_driver_killed_at_any_occurrence_of_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    deliver(tmp_path / "events", 0)
    points = watched(RunSite(tmp_path / "clean", tmp_path / "events").run)
    for number, point in enumerate(points):
        with drivers_on(RunSite(tmp_path / f"site-{number}", tmp_path / "events")) as drivers:
            assert_killed(drivers, Doomed("killed", point.step, point.before, point.occurrence), run="first")
            assert_done(drivers, run="first")
            drivers.site.assert_answered()


def assert_replaced(site: RunSite, *, is_swept: bool) -> None:
    """Checks that only the fresh start's rows are public, each once, and that the replaced checkpoint is discarded.

    A driver that is killed before its sweep leaves the checkpoint. The start after it finds the run complete, and this pipeline drained.
    """
    assert site.public() == answer([0])
    assert site.publications() == dict.fromkeys(SINKS, 2)
    assert site.checkpoints() == ([2] if is_swept else [1, 2])
