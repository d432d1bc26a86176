"""A task that stops a pipeline loses its worker: whenever that is, the next try rolls forward to the one savepoint that there is."""

from pathlib import Path

import pytest

from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.running_airflow.test_stream_control import BEGUN_S, has_asked
from tests.support.live_pipeline import Events, public_ids
from tests.support.running_airflow import RunningAirflow, until

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]


@pytest.mark.parametrize("gate", ["asks", "defers", "answers"])
def test_a_stop_whose_worker_dies_ends_with_one_savepoint(
    airflow: RunningAirflow, roots: Path, tmp_path: Path, gate: str
) -> None:
    home, events, warehouse = Home(roots / f"killed-{gate}"), Events(tmp_path / "events"), tmp_path / "warehouse"
    events.add(100)
    supervising = airflow.trigger("real_stream", home=home.name, events=str(events.path), warehouse=str(warehouse))
    until(lambda: public_ids(warehouse / "again") == list(range(events.rows)), "the pipeline is at work", BEGUN_S)

    stop = airflow.trigger("stops_at_gates", home=home.name, gate=gate, gates=str(tmp_path))
    until((tmp_path / "waits").exists, "the task is at the gate", BEGUN_S)
    assert has_asked(home) == (gate != "asks")
    stop.kill_worker()
    (tmp_path / "open").touch()
    assert stop.reaches("success", "failed", tries=2, deadline_s=BEGUN_S)["state"] == "success"

    assert supervising.reaches("success")["try_number"] == 1
    assert [name.split("-")[0] for name in home.channel.files.names("requests")] == ["start", "stop"]
    assert CheckpointRequests(home.channel.files).open() == ()
    (savepoint,) = (home.path / "savepoints").iterdir()
    assert stop.xcom()["savepoint"] == savepoint.as_uri()
    assert verify(open_files(savepoint.as_uri())).checkpoint == stop.xcom()["checkpoint"] == supervising.xcom()["checkpoint"]
    assert public_ids(warehouse / "again") == list(range(events.rows))
    assert home.attempts() == 1
