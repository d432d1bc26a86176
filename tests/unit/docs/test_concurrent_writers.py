"""The page about concurrent writers matches the tested schedules."""

from tests.support.foreign_writers import ACTIONS
from tests.support.pages import ROOT, table_rows

PAGE = ROOT / "docs/reference/concurrent-writers.md"


def test_the_page_has_every_action_with_its_outcomes() -> None:
    documented = {row.cells["another writer"]: row.cells for row in table_rows(PAGE) if "another writer" in row.cells}
    tested = {
        action.name: {
            "another writer": action.name,
            "append": action.append.value,
            "complete": action.complete.value,
            "upsert": action.upsert.value,
        }
        for action in ACTIONS
    }
    assert documented == tested


def test_every_action_can_be_done_by_delta_rs_or_spark() -> None:
    assert [action.name for action in ACTIONS if not action.by_delta_rs and not action.by_spark] == []
