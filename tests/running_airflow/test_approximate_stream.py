"""The example that loses rows, on a running Airflow: a person accepts the losses of one day, and has those of the next backfilled."""

import pytest
from deltalake import DeltaTable

from tests.support.control_tasks import answer, ended, task
from tests.support.running_airflow import RunningAirflow, TaskRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]


def table(run: TaskRun) -> str:
    return str(task(run, "run").xcom()["sinks"]["delays"]["table"])


def delays(run: TaskRun) -> int:
    return DeltaTable(table(run)).count()


def arrived(run: TaskRun) -> int:
    """Returns the number of flights that have arrived up to a run, from its input."""
    return DeltaTable(table(run).replace("warehouse/delays", "arrivals")).count()


def test_a_person_accepts_what_a_day_has_lost_and_has_the_next_day_backfilled(airflow: RunningAirflow) -> None:
    first = airflow.trigger("approximate_stream", day="2013-01-01")
    answer(first, "accept", task_id="choose")
    assert ended(first) == {
        **dict.fromkeys(("arrive", "run", "open_losses", "look", "choose", "accept"), "success"),
        "backfill": "skipped",
    }
    lost = sum(loss["rows_at_most"] for loss in task(first, "run").xcom()["losses"])
    assert lost > 0
    assert delays(first) == arrived(first) - lost

    second = airflow.trigger("approximate_stream", day="2013-01-02")
    answer(second, "backfill", task_id="choose")
    assert ended(second)["backfill"] == "success"
    assert task(second, "run").xcom()["losses"] != []
    assert delays(second) == arrived(second) - lost, "each flight of the second day, once"
    assert task(second, "backfill").xcom()["losses"] == []
