"""Faults of clients that stop a pipeline, and of its drivers. A stop has one answer for ever. A drain is complete or did not happen."""

from collections import Counter

import pytest

from tests.simulation.guards import Guard
from tests.simulation.schedules import Outcome, repeatable
from tests.simulation.stop_guards import STOP_GUARDS
from tests.simulation.stop_schedules import StopSchedule
from tests.simulation.world import Violation
from tests.support.seeds import seed

__all__ = ["seed"]
EVERY_CHANGE = 80
EVERY_NIGHT = 2_000
SEEDS = 150
EVENTS = (
    *("kills before", "freezes before", "reboots before", "lands late", "is done, unknown", "is not done, unknown"),
    *("create draining.json", "the work directory is lost", "create restored.json"),
)
OUTCOMES = {
    *("stopped", "answered: stop", "answered: stop, drained", "answered: savepoint", "answered: checkpoint", "told the winner"),
    *("turned down: ConflictError", "turned down: RejectedError", "completed by a fenced attempt", "FencedError"),
}


def run(number: int) -> Outcome:
    """Runs a schedule.

    Raises:
        Violation: A promise was broken. The message says how to repeat the schedule.
    """
    return repeatable(StopSchedule(number), f"--stops {number}")


def breaks_a_promise(guard: Guard, number: int) -> bool:
    try:
        StopSchedule(number, guard.plan, guard.chaos()).run(guard.switch_off)
    except Violation:
        return True
    return False


def test_every_promise_of_a_stop_holds_under_all_faults_and_every_fault_occurs() -> None:
    happened: Counter[str] = Counter()
    for number in range(EVERY_CHANGE):
        outcome = run(number)
        happened += outcome.counts + outcome.errors
        for line in outcome.trace:
            happened.update(event for event in EVENTS if event in line)
    assert {*EVENTS, *OUTCOMES} <= happened.keys()


@pytest.mark.nightly
def test_every_promise_of_a_stop_holds_in_thousands_of_schedules(seed: int) -> None:
    for number in range(seed, seed + EVERY_NIGHT):
        run(number)


def test_the_same_seed_gives_the_same_trace_of_a_stop() -> None:
    assert StopSchedule(2).run().trace == StopSchedule(2).run().trace


@pytest.mark.parametrize("guard", STOP_GUARDS, ids=str)
def test_without_a_guard_of_stops_a_schedule_breaks_a_promise(guard: Guard) -> None:
    assert any(breaks_a_promise(guard, number) for number in (guard.hint, *range(SEEDS)))


@pytest.mark.parametrize("guard", STOP_GUARDS, ids=str)
def test_with_its_guards_the_same_schedule_of_stops_breaks_no_promise(guard: Guard) -> None:
    StopSchedule(guard.hint, guard.plan, guard.chaos()).run()
