"""Each promise of ``docs/security.md`` names the tests that show it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE)))
TEST = re.compile(r"(?P<file>tests/[\w/]+\.py)::(?:(?P<group>\w+)::)?(?P<test>test_\w+)")
PROMISES = [
    line for line in PAGE.split("## What is promised")[1].splitlines() if line.startswith("| ") and "shown by" not in line
]


@pytest.mark.parametrize("named", NAMED)
def test_every_named_test_exists(named: str) -> None:
    found = TEST.fullmatch(named)
    assert found is not None
    body: list[ast.stmt] = ast.parse((ROOT / found["file"]).read_text()).body
    if found["group"]:
        (body,) = (each.body for each in body if isinstance(each, ast.ClassDef) and each.name == found["group"])
    assert found["test"] in {each.name for each in body if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_its_tests(promise: str) -> None:
    *_, shown_by = promise.strip("| ").split(" | ")
    assert "`tests/" in shown_by or shown_by == "the tests in that table"
