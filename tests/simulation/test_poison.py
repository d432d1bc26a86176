"""Rows that a stage cannot process. With any faults, each row is either in the stage's table or in the ledger."""

from collections import Counter

import pytest

from spark_jobs.runtime.round_run import RoundRun
from tests.simulation.schedules import poisoned, repeatable
from tests.simulation.stages import Site
from tests.simulation.world import Violation

EVERY_CHANGE = 24
EVENTS = ("kills before", "freezes before", "undone.json")
RECORDED_LATE = 11
"""A schedule in which a driver that is no longer live records a loss, and another one computes the batch again."""


def test_each_row_is_in_the_table_or_in_the_ledger_whatever_befalls() -> None:
    happened: Counter[str] = Counter()
    for number in range(EVERY_CHANGE):
        outcome = repeatable(poisoned(number), f"--poisoned {number}")
        happened += outcome.counts + outcome.errors
        for line in outcome.trace:
            happened.update(event for event in EVENTS if event in line)
    assert {*EVENTS, "rows are left out", "FencedError", "discarded"} <= happened.keys()


def test_what_a_driver_records_that_is_not_live_any_more_is_undone() -> None:
    def any_attempt(site: Site, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(RoundRun, "_is_of_this_work_directory", lambda run, loss: True)

    poisoned(RECORDED_LATE).run()
    with pytest.raises(Violation):
        poisoned(RECORDED_LATE).run(any_attempt)
