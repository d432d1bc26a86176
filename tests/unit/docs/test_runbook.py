"""The runbook has a section for each state of a pipeline."""

import re
from enum import StrEnum

import pytest

from spark_jobs.protocol.documents import RunState, StageState
from spark_jobs.protocol.errors import IncompleteError, RestartsExhaustedError, RunCancelledError
from spark_jobs.protocol.states import StopState
from tests.support.pages import ROOT, table_rows

RUNBOOK = ROOT / "docs/how-to/runbook.md"
WITHOUT_DRIVER = "the last answer, or `status`"


def found_in(column: str) -> set[str]:
    """Returns the code words in a column of the runbook's tables, from rows that explain a state and its remedy."""
    rows = [row.cells for row in table_rows(RUNBOOK) if row.cells.get(column) and row.cells["means"]]
    return {word for cells in rows for word in re.findall(r"`(\w+)`", cells[column])}


@pytest.mark.parametrize(
    ("states", "columns"),
    [
        (RunState, ["heartbeat", WITHOUT_DRIVER]),
        (StageState, ["stage"]),
        (StopState, ["stop"]),
    ],
    ids=["an attempt", "a stage", "a stop"],
)
def test_every_state_has_a_section_in_the_runbook(states: type[StrEnum], columns: list[str]) -> None:
    placed = set().union(*map(found_in, columns))
    assert {state.value for state in states} - placed == set()


@pytest.mark.parametrize(("states", "column"), [(StageState, "stage"), (StopState, "stop")], ids=["a stage", "a stop"])
def test_the_runbook_knows_no_other_states(states: type[StrEnum], column: str) -> None:
    assert found_in(column) == {state.value for state in states}


def test_every_error_that_ends_the_driver_and_needs_a_person_is_in_the_runbook() -> None:
    errors = {kind.__name__ for kind in (IncompleteError, RestartsExhaustedError, RunCancelledError)}
    assert errors - found_in(WITHOUT_DRIVER) == set()
