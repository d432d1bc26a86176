"""Random changes of inputs, random rounds and random interruptions.

After each round, every table equals DuckDB's answer over the same rows.
"""

from pathlib import Path

import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.places import IN_A_STORE, ON_A_DISK
from tests.support.random_rounds import KilledRounds, LiveRounds, Plan, RandomRounds

pytestmark = pytest.mark.spark

CASES, TABLES = 9, 25
"""The number of cases, each with a source, a stage and a sink of its own, and of the tables of changes in each source."""
PLANS = 3
"""The number of pipelines that share the cases. Each has interruptions of its own."""


# By day the plan that is stopped, dies and loses its work directory. Of the others' interruptions test_run_io_errors.py has the storage
# that fails, and test_data_loss.py the missing file; test_complete_sinks.py and test_keyed_sinks.py compare their sinks.
@pytest.mark.parametrize("part", [1, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(PLANS) if part != 1)])
def test_each_table_equals_the_answer_after_each_round_whatever_interrupts_the_round(
    part: int, bucket: str | None, tmp_path: Path
) -> None:
    """The interruptions are stops, deaths, failures of the storage, missing files and lost work directories. Rows arrive in between."""
    RandomRounds(Plan(1034, CASES // PLANS, TABLES, part), tmp_path, bucket=bucket).run()


def test_each_table_of_live_inputs_becomes_the_answer_whatever_interrupts_the_pipeline(
    kafka: KafkaBroker, bucket: str | None, tmp_path: Path
) -> None:
    LiveRounds(Plan(51, 2, TABLES, topics=True, live=True), tmp_path, kafka, bucket).run()


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
@pytest.mark.parametrize(
    ("bucket", "sample"),
    [*((ON_A_DISK, sample) for sample in range(4)), pytest.param(IN_A_STORE, 4, marks=pytest.mark.stores)],
    indirect=["bucket"],
)
def test_each_table_equals_the_answer_although_drivers_are_killed(
    sample: int, seed: int, bucket: str | None, tmp_path: Path
) -> None:
    KilledRounds(Plan(seed + sample, CASES, TABLES), tmp_path, bucket=bucket).run()
