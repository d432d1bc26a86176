"""The example that loses rows, on a running Airflow: a person accepts the losses of one day, and has those of others backfilled."""

from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from spark_jobs.control.losses import LossLedger
from spark_jobs.storage.open import open_files
from tests.support.control_tasks import LATE_S, answer, ended, task
from tests.support.running_airflow import RunningAirflow, TaskRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]


def table(run: TaskRun) -> str:
    return str(task(run, "run").xcom()["sinks"]["delays"]["table"])


def arrivals(run: TaskRun) -> str:
    return table(run).replace("warehouse/delays", "arrivals")


def delays(run: TaskRun) -> int:
    return DeltaTable(table(run)).count()


def arrived(run: TaskRun) -> int:
    """Returns the number of flights that have arrived up to a run, from its input."""
    return DeltaTable(arrivals(run)).count()


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


def test_the_run_the_branch_the_choice_and_the_backfill_survive_the_death_of_every_worker_and_the_triggerer(
    airflow: RunningAirflow, roots: Path
) -> None:
    run = airflow.trigger("approximate_stream", day="2013-01-03")
    task(run, "run").reaches("running", "deferred", "success", deadline_s=LATE_S)
    lose_the_hosts(airflow)
    task(run, "look").reaches("running", "success", deadline_s=LATE_S)
    airflow.kill_workers()
    airflow.start_what_is_missing()
    task(run, "choose").reaches("awaiting_input", deadline_s=LATE_S)
    lose_the_hosts(airflow)
    answer(run, "backfill", task_id="choose")
    task(run, "backfill").reaches("running", "deferred", "success", deadline_s=LATE_S)
    lose_the_hosts(airflow)
    assert ended(run)["backfill"] == "success"
    assert LossLedger(open_files(str(roots / "approximate_stream"))).names().open == []
    assert flights_of(table(run), "2013-01-03") == flights_of(arrivals(run), "2013-01-03") != []


def lose_the_hosts(airflow: RunningAirflow) -> None:
    """Kills every worker and the triggerer, as if their hosts lost power, and starts others."""
    airflow.kill_workers()
    airflow.kill_triggerer()
    airflow.start_what_is_missing()


def flights_of(path: str, day: str) -> list[tuple[object, ...]]:
    rows = duckdb.from_arrow(DeltaTable(path).to_pyarrow_table())
    chosen = f"SELECT departure, origin, flight FROM rows WHERE CAST(departure AS VARCHAR) LIKE '{day}%' ORDER BY ALL"
    return rows.query("rows", chosen).fetchall()
