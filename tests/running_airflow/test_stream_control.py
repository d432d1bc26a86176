"""The example that controls a supervised stream, triggered over REST as the UI's button does, with a real pipeline."""

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

BEGUN_S = 180.0


def begun_stream(airflow: RunningAirflow, home: Home) -> TaskRun:
    """The task that supervises the example's pipeline, which is at work and has a checkpoint."""
    task = airflow.trigger("live_stream")
    until(lambda: home.path.exists() and home.channel.files.names("checkpoints"), "it has a checkpoint", BEGUN_S)
    task.reaches("deferred")
    return task


def has_asked(home: Home) -> bool:
    return any(name.startswith("stop-") for name in home.channel.files.names("requests"))


def test_a_stop_over_rest_ends_with_a_savepoint_although_the_triggerer_dies_while_it_waits(
    airflow: RunningAirflow, roots: Path
) -> None:
    home = Home(roots / "live_stream")
    supervising = begun_stream(airflow, home)
    control = replace(airflow.trigger("live_stream_control", action="stop", target="saved/by-hand"), task_id="stop")
    control.reaches("deferred")
    assert has_asked(home)
    airflow.kill_triggerer()
    home.ends()
    airflow.start_triggerer()
    assert control.reaches("success")["try_number"] == 1
    assert supervising.reaches("success")["try_number"] == 1

    stopped, facts = supervising.xcom(), control.xcom()
    manifest = home.answers()[-1].checkpoint
    assert facts["checkpoint"] == stopped["checkpoint"] == manifest
    assert facts["savepoint"] == f"file://{roots}/saved/by-hand"
    savepoint = verify(open_files(facts["savepoint"]))
    assert (savepoint.checkpoint, savepoint.drained) == (manifest, False)
    assert DeltaTable(stopped["sinks"]["departed"]["table"]).count() == 842
    assert CheckpointRequests(home.channel.files).open() == ()
    others = {replace(control, task_id=name).state for name in ("approve", "drain", "savepoint", "cancel")}
    assert others == {"skipped"}
