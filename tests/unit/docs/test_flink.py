"""The page about Flink's semantics lists every claim once and names tests that exist."""

import ast
import re
from functools import cache

import pytest

from tests.support.pages import ROOT, Row, table_rows

PAGE = ROOT / "docs/reference/flink.md"
GROUPS = {
    "Checkpoints after inputs have ended": ("F", 14),
    "Unaligned checkpoints": ("U", 15),
    "Recovery from local state": ("R", 17),
    "Approximate recovery": ("A", 12),
}
CLAIMS = [row for row in table_rows(PAGE) if "id" in row.cells]
TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<test>\w+)`(?P<at_night> \(at night\))?")
SHOWN = sorted({found.group() for row in CLAIMS for found in TEST.finditer(row.cells["shown by"])})


@cache
def functions_of(file: str) -> dict[str, bool]:
    """Returns the tests of a file by name, each with whether it is nightly."""
    nodes = ast.parse((ROOT / file).read_text()).body
    of_the_file = [
        ast.unparse(node.value)
        for node in nodes
        if ast.unparse(node).startswith("pytestmark = ") and isinstance(node, ast.Assign)
    ]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    marks = {each.name: [*of_the_file, *map(ast.unparse, each.decorator_list)] for each in functions}
    return {
        name: any("pytest.mark.nightly" in mark for mark in found if "parametrize" not in mark) for name, found in marks.items()
    }


def test_the_page_has_every_claim_once_and_in_its_group() -> None:
    named = [(row.heading, row.cells["id"]) for row in CLAIMS]
    assert named == [(group, f"{letter}{n}") for group, (letter, last) in GROUPS.items() for n in range(1, last + 1)]


@pytest.mark.parametrize("shown", SHOWN)
def test_a_test_that_the_page_names_exists(shown: str) -> None:
    found = TEST.fullmatch(shown)
    assert found is not None
    assert found["test"].startswith("test_")
    assert functions_of(found["file"]).get(found["test"]) is bool(found["at_night"])


@pytest.mark.parametrize("row", CLAIMS, ids=[row.cells["id"] for row in CLAIMS])
def test_each_claim_says_whether_it_holds_and_names_its_tests(row: Row) -> None:
    assert row.cells["in Flink"]
    assert re.match(r"holds(,|;|:|$| as far as tests go:| differently: \w)|does not apply: \w", row.cells["here"])
    assert re.fullmatch(rf"{TEST.pattern}(, {re.sub(r'[?]P<[a-z_]+>', '', TEST.pattern)})*", row.cells["shown by"])
