"""Random changes of inputs, random rounds and random interruptions.

After each round, every table equals DuckDB's answer over the same rows.
"""

from pathlib import Path

import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.random_rounds import KilledRounds, LiveRounds, Plan, RandomRounds

pytestmark = pytest.mark.spark

CASES, TABLES = 9, 25
"""The number of cases, each with a source, a stage and a sink of its own, and of the tables of changes in each source."""
PLANS = 3
"""The number of pipelines that share the cases. Each has interruptions of its own."""


# The plan that waits for the night has one stop, and sinks that test_complete_sinks.py and test_keyed_sinks.py compare by day.
@pytest.mark.parametrize("part", [pytest.param(0, marks=pytest.mark.nightly), *range(1, PLANS)])
def test_each_table_equals_the_answer_after_each_round_whatever_interrupts_the_round(part: int, tmp_path: Path) -> None:
    """The interruptions are stops, deaths, failures of the storage, missing files and lost work directories. Rows arrive in between."""
    RandomRounds(Plan(1034, CASES // PLANS, TABLES, part), tmp_path).run()


def test_each_table_of_live_inputs_becomes_the_answer_whatever_interrupts_the_pipeline(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    LiveRounds(Plan(51, 2, TABLES, topics=True, live=True), tmp_path, kafka).run()


@pytest.mark.nightly
def test_each_table_equals_the_answer_in_one_pipeline_with_all_cases(tmp_path: Path) -> None:
    RandomRounds(Plan(183, CASES, TABLES), tmp_path).run()


@pytest.mark.nightly
@pytest.mark.parametrize("sample", range(25))
def test_each_table_equals_the_answer_with_other_inputs_each_night(
    sample: int, seed: int, kafka: KafkaBroker, tmp_path: Path
) -> None:
    RandomRounds(Plan(seed + sample, CASES, TABLES, topics=True), tmp_path, kafka).run()


@pytest.mark.nightly
@pytest.mark.parametrize("sample", range(10))
def test_each_table_of_live_inputs_becomes_the_answer_with_other_inputs_each_night(
    sample: int, seed: int, kafka: KafkaBroker, tmp_path: Path
) -> None:
    LiveRounds(Plan(seed + sample, CASES, TABLES, topics=True, live=True), tmp_path, kafka).run()


@pytest.mark.nightly
@pytest.mark.parametrize("sample", range(4))
def test_each_table_equals_the_answer_although_drivers_are_killed(sample: int, seed: int, tmp_path: Path) -> None:
    KilledRounds(Plan(seed + sample, CASES, TABLES), tmp_path).run()
