"""New code with another parallelism, on a running Airflow with a real pipeline. Either the new code stays, or the old code returns."""

import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import AttemptDocument, Manifest
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.support.begun_streams import begun_stream
from tests.support.example_copies import EXAMPLES
from tests.support.running_airflow import RunningAirflow, TaskRun, until
from tests.support.state_partitions import partitions
from tests.support.two_days import FIRST_DAY, SECOND_DAY, departures

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

LATE_S = 300.0
BEFORE, AFTER = 2, 3
"""The numbers of state partitions in the connection and in the form."""


def task(run: TaskRun, task_id: str) -> TaskRun:
    return replace(run, task_id=task_id)


def data_of(airflow: RunningAirflow, home: Home) -> tuple[Path, Path]:
    """Returns the directories of a pipeline's input and of its tables."""
    data = Path(airflow.environment["SPARK_JOBS_EXAMPLES"]) / home.name
    return data / "arrivals", data / "warehouse"


def second_day_arrives(arrivals: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "pipelines/flights_data.py"), "day", "2013-01-02", "--flights", str(arrivals)]
    subprocess.run(program, check=True, capture_output=True)


def running(airflow: RunningAirflow, roots: Path, name: str) -> tuple[Home, TaskRun]:
    """Starts a home whose old code has published the first day."""
    home = Home(roots / name)
    supervising = begun_stream(airflow, home, name)
    _, warehouse = data_of(airflow, home)
    until(lambda: departures(warehouse / "departed").total() == FIRST_DAY, "the first day is public", LATE_S)
    return home, supervising


def newest(home: Home) -> Manifest:
    store = CheckpointStore(home.channel.files)
    return store.manifest(store.ids()[-1])


def live(home: Home) -> AttemptDocument:
    found = home.channel.attempts.latest()
    assert found is not None
    return found


def drain(home: Home) -> None:
    """Flushes every window, like the command."""
    CheckpointRequests(home.channel.files).ask(request_id("end", Wanted.STOP), drain=True)
    home.ends()


def hourly(table: Path) -> dict[tuple[str, datetime], tuple[int, float | None]]:
    """Returns the published rows, and checks that each window is there once."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    found = {(row["origin"], row["hour_start"]): (row["flights"], row["mean_delay"]) for row in rows}
    assert len(found) == len(rows), "a window is there twice"
    return found


def batch(arrivals: Path, clamped_after: datetime | None) -> dict[tuple[str, datetime], tuple[int, Any]]:
    """Computes the same rows by counting. The new code counts an early departure as one with no delay."""
    delays: dict[tuple[str, datetime], list[int | None]] = defaultdict(list)
    for row in DeltaTable(str(arrivals)).to_pyarrow_table(columns=["departure", "origin", "dep_delay"]).to_pylist():
        late, departure = row["dep_delay"], row["departure"]
        if late is not None and clamped_after is not None and departure > clamped_after:
            late = max(late, 0)
        delays[row["origin"], departure.replace(minute=0, second=0, microsecond=0)].append(late)
    means = {key: [late for late in found if late is not None] for key, found in delays.items()}
    return {
        key: (len(found), pytest.approx(sum(means[key]) / len(means[key])) if means[key] else None)
        for key, found in delays.items()
    }


def assert_every_row_once(home: Home, airflow: RunningAirflow, clamped_after: datetime | None = None) -> None:
    """Checks the tables after a drain against a batch query over all arrivals."""
    arrivals, warehouse = data_of(airflow, home)
    assert departures(warehouse / "departed") == departures(arrivals)
    assert departures(arrivals).total() == FIRST_DAY + SECOND_DAY
    assert hourly(warehouse / "hourly_delays") == batch(arrivals, clamped_after)


def test_new_code_takes_over_the_state_in_other_partitions_and_every_row_is_public_once(
    airflow: RunningAirflow, roots: Path
) -> None:
    home, supervising = running(airflow, roots, "upgraded")
    assert set(partitions(newest(home)).values()) == {BEFORE}
    arrivals, warehouse = data_of(airflow, home)
    first_day = DeltaTable(str(arrivals)).to_pyarrow_table(columns=["departure"])["departure"].to_pylist()
    upgrade = airflow.trigger(
        "upgraded_upgrade", state_partitions=AFTER, conf={"spark.locality.wait": "1s"}, target="upgraded-before"
    )
    task(upgrade, "on_trial").reaches("success", deadline_s=LATE_S)
    assert supervising.reaches("success")["try_number"] == 1
    task(upgrade, "new_code").reaches("deferred")
    assert (live(home).state_partitions, set(partitions(newest(home)).values())) == (AFTER, {AFTER})
    assert "spark.locality.wait=1s" in psutil.Process(live(home).process).cmdline()

    second_day_arrives(arrivals)
    until(lambda: departures(warehouse / "departed").total() == FIRST_DAY + SECOND_DAY, "the second day is public", LATE_S)
    drain(home)
    assert set(partitions(newest(home)).values()) == {AFTER}
    assert_every_row_once(home, airflow, clamped_after=max(first_day))
    task(upgrade, "new_code").reaches("success")
    until(lambda: upgrade.run_state == "success", "the DAG run has ended")
    assert {task(upgrade, name).state for name in ("roll_back", "cancel_new", "old_code")} == {"skipped"}


@pytest.mark.parametrize("name", ["hangs_at_rows", "cannot_be_loaded"])
def test_the_old_code_comes_back_from_the_same_savepoint_in_its_own_partitions(
    airflow: RunningAirflow, roots: Path, name: str
) -> None:
    home, supervising = running(airflow, roots, name)
    arrivals, warehouse = data_of(airflow, home)
    upgrade = airflow.trigger(f"{name}_upgrade", state_partitions=AFTER)
    task(upgrade, "stop").reaches("deferred")
    scheduler = airflow.component("scheduler")
    scheduler.suspend()  # the second day must come before the new code starts
    home.ends()
    assert task(upgrade, "new_code").state == "None"
    second_day_arrives(arrivals)
    scheduler.resume()
    supervising.reaches("success")

    old_code = task(upgrade, "old_code")
    old_code.reaches("deferred", deadline_s=LATE_S)
    until(lambda: departures(warehouse / "departed").total() == FIRST_DAY + SECOND_DAY, "the second day is public", LATE_S)
    saved = task(upgrade, "stop").xcom()["savepoint"]
    verify(open_files(saved))
    restore = home.channel.request(live(home).request).restore
    assert restore is not None
    assert restore.savepoint == saved
    assert live(home).state_partitions is None
    assert set(partitions(newest(home)).values()) == {BEFORE}
    tried = {number: home.channel.attempts.read(number).state_partitions for number in home.channel.attempts.numbers()}
    assert (AFTER in tried.values()) == (name == "hangs_at_rows")

    drain(home)
    assert_every_row_once(home, airflow)
    old_code.reaches("success")
    assert task(upgrade, "new_code").state == "failed"
