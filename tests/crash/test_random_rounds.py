"""Random changes of inputs, random rounds and random interruptions.

After each round, every table equals DuckDB's answer over the same rows.
"""

from pathlib import Path

import pytest

from tests.support.random_rounds import KilledRounds, Plan, RandomRounds

pytestmark = pytest.mark.spark

CASES, TABLES = 9, 25
"""The number of cases, each with a source, a stage and a sink of its own, and of the tables of changes in each source."""


@pytest.mark.parametrize("number", [211, pytest.param(183, marks=pytest.mark.nightly)])
def test_each_table_is_the_answer_after_each_round_whatever_interrupts_it(number: int, tmp_path: Path) -> None:
    """The interruptions are stops, deaths, failures of the storage, missing files and lost work directories. Rows arrive in between."""
    RandomRounds(Plan(number, CASES, TABLES), tmp_path).run()


@pytest.mark.nightly
@pytest.mark.parametrize("sample", range(25))
def test_each_table_is_the_answer_each_night_with_other_inputs(sample: int, seed: int, tmp_path: Path) -> None:
    RandomRounds(Plan(seed + sample, CASES, TABLES), tmp_path).run()


@pytest.mark.nightly
@pytest.mark.parametrize("sample", range(4))
def test_each_table_is_the_answer_where_drivers_are_killed(sample: int, seed: int, tmp_path: Path) -> None:
    KilledRounds(Plan(seed + sample, CASES, TABLES), tmp_path).run()
