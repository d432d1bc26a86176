"""Each promise of ``docs/security.md`` names the tests that show it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE)))
PROMISES = [
    line for line in PAGE.split("## What is promised")[1].splitlines() if line.startswith("| ") and "shown by" not in line
]


@pytest.mark.parametrize("path", NAMED)
def test_a_test_that_is_named_is_there(path: str) -> None:
    assert re.search(r"^ *def test_", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_its_tests(promise: str) -> None:
    *_, shown_by = promise.strip("| ").split(" | ")
    assert "`tests/" in shown_by or shown_by == "the tests in that table"
