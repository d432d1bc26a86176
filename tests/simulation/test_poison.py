"""Rows that a stage cannot process: whatever befalls, each row is in the stage's table or in the ledger, and none is in both."""

from collections import Counter

from tests.simulation.schedules import poisoned, repeatable

EVERY_CHANGE = 24
EVENTS = ("kills before", "freezes before", "undone.json")


def test_each_row_is_in_the_table_or_in_the_ledger_whatever_befalls() -> None:
    happened: Counter[str] = Counter()
    for number in range(EVERY_CHANGE):
        outcome = repeatable(poisoned(number), f"--poisoned {number}")
        happened += outcome.counts + outcome.errors
        for line in outcome.trace:
            happened.update(event for event in EVENTS if event in line)
    assert {*EVENTS, "rows are left out", "FencedError", "discarded"} <= happened.keys()
