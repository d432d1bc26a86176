"""The real code in schedules that a seed decides: whatever befalls its processes, each row is public once, in every table."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.schedules import Outcome, Schedule
from tests.simulation.world import Violation
from tests.support.seeds import seed

__all__ = ["seed"]
ROOT = Path(__file__).parents[2]
EVERY_CHANGE = 200
CHUNK = 25
EVERY_NIGHT = 4_000


def run(number: int) -> Outcome:
    """Runs a schedule.

    Raises:
        Violation: It breaks a promise; says how to repeat it.
    """
    try:
        return Schedule(number).run()
    except Violation as violation:
        raise Violation(f"{violation}\nrepeat with: python -m tests.simulation {number}") from violation


@pytest.mark.parametrize("first", range(0, EVERY_CHANGE, CHUNK))
def test_every_promise_holds_whatever_befalls(first: int) -> None:
    for number in range(first, first + CHUNK):
        run(number)


@pytest.mark.nightly
def test_every_promise_holds_in_thousands_of_schedules(seed: int) -> None:
    for number in range(seed, seed + EVERY_NIGHT):
        run(number)


def test_schedules_reach_what_they_are_for() -> None:
    counts: Counter[str] = Counter()
    for number in range(60):
        outcome = run(number)
        counts += outcome.counts + outcome.errors
        for line in outcome.trace:
            counts.update(word for word in ("is killed", "is stopped", "goes down", "lands late", "unknown") if word in line)
            counts["restored"] += line.endswith("create restored.json")
    expected = {"completed by a fenced attempt", "closed", "discarded", "FencedError", "is killed", "is stopped", "goes down"}
    assert expected | {"lands late", "unknown", "restored"} <= counts.keys()


def test_the_same_seed_gives_the_same_trace() -> None:
    """In another process too, where sets of names have another order."""
    for number in range(3):
        assert Schedule(number).run().trace == Schedule(number).run().trace
        assert printed(number, "1") == printed(number, "2")


def printed(number: int, hash_seed: str) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(number)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return found.stdout
