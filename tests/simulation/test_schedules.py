"""Runs the real code in schedules that a seed decides. With any faults of its processes, each row is public once in every table."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.directed import DirectedSchedule
from tests.simulation.schedules import Outcome, Plan, Schedule, no_chaos, repeatable
from tests.support.seeds import seed

__all__ = ["seed"]
ROOT = Path(__file__).parents[2]
EVERY_CHANGE = 120
DAMAGED_TWICE = 10
EVERY_NIGHT = 4_000
OVERLAPS = "completed while the one before is published"
EVENTS = (
    *("kills before", "freezes before", "stalls before", "reboots before"),
    *("lands late", "is done, unknown", "is not done, unknown", "create restored.json"),
)


def run(number: int) -> Outcome:
    """Runs a schedule.

    Raises:
        Violation: A promise was broken. The message says how to repeat the schedule.
    """
    return repeatable(Schedule(number), str(number))


def test_every_promise_holds_under_all_faults_and_every_fault_occurs() -> None:
    happened: Counter[str] = Counter()
    for number in range(EVERY_CHANGE):
        outcome = run(number)
        happened += outcome.counts + outcome.errors
        for line in outcome.trace:
            happened.update(event for event in EVENTS if event in line)
    assert {*EVENTS, "completed by a fenced attempt", "closed", "discarded", "FencedError", OVERLAPS} <= happened.keys()


@pytest.mark.parametrize("bounded", [False, True], ids=["live", "bounded"])
def test_state_that_is_damaged_in_all_copies_is_computed_again_and_nothing_is_staged_or_published_twice(bounded: bool) -> None:
    plan = Plan(twice_damaged=True, rows=30, bounded=bounded, every_checkpoint=bounded)
    happened: Counter[str] = Counter()
    for number in range(DAMAGED_TWICE):
        happened += repeatable(Schedule(number, plan, no_chaos()), str(number)).counts
    assert happened["damaged"] >= DAMAGED_TWICE


class Surpassed(DirectedSchedule):
    """A start is decided on a checkpoint. Before it begins, the live attempt on another host completes two more, and discards that one."""

    def direct(self) -> None:
        older = self.start(0)
        self.until(older, "create manifests/1.json")
        newer = self.start(1)
        self.stop(newer, before="create attempts/2.json", after="read manifests/1.json")
        self.until(older, "delete manifests/1.json")
        self.wake(newer)


def test_a_start_whose_checkpoint_was_discarded_in_the_meantime_may_be_repeated() -> None:
    outcome = Surpassed(0, Plan(rows=30)).run()
    assert "ConflictError: Attempt 2 cannot go on from checkpoint 1: another driver has completed later checkpoints since." in (
        outcome.trace
    )


@pytest.mark.nightly
def test_every_promise_holds_in_thousands_of_schedules(seed: int) -> None:
    for number in range(seed, seed + EVERY_NIGHT):
        run(number)


def test_the_same_seed_gives_the_same_trace() -> None:
    for number in range(3):
        assert Schedule(number).run().trace == Schedule(number).run().trace


def test_the_same_seed_gives_the_same_trace_in_a_process_with_another_hash_seed() -> None:
    assert printed(1, hash_seed="1") == printed(1, hash_seed="2")


def printed(number: int, *, hash_seed: str) -> str:
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
