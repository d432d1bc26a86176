"""Tests that each guard of the product is needed: without it a schedule breaks a promise, and the simulation finds it."""

import pytest

from tests.simulation.guards import GUARDS, Guard
from tests.simulation.schedules import Schedule
from tests.simulation.world import Violation

SEEDS = 150


def breaks_a_promise(guard: Guard, seed: int) -> bool:
    try:
        Schedule(seed, guard.plan, guard.chaos()).run(guard.switch_off)
    except Violation:
        return True
    return False


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_without_a_guard_a_schedule_breaks_a_promise(guard: Guard) -> None:
    assert any(breaks_a_promise(guard, seed) for seed in (guard.hint, *range(SEEDS)))


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_with_its_guards_the_same_schedule_breaks_no_promise(guard: Guard) -> None:
    Schedule(guard.hint, guard.plan, guard.chaos()).run()
