"""The example that controls a supervised stream, triggered over REST as the UI's button does, with a real pipeline."""

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.ids import AttemptNumber, start_request_id
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

BEGUN_S = 180.0


FLIGHTS = 842
"""Of the first day."""


def begun_stream(airflow: RunningAirflow, home: Home, dag_id: str = "live_stream") -> TaskRun:
    """The task that supervises an example's pipeline, which is at work and has a checkpoint."""
    task = airflow.trigger(dag_id)
    until(lambda: home.has_begun() and home.channel.files.names("checkpoints"), "it has a checkpoint", BEGUN_S)
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
    assert DeltaTable(stopped["sinks"]["departed"]["table"]).count() == FLIGHTS
    assert CheckpointRequests(home.channel.files).open() == ()
    others = {replace(control, task_id=name).state for name in ("approve", "drain", "savepoint", "cancel")}
    assert others == {"skipped"}


def test_new_code_goes_on_with_the_savepoint_and_a_cancel_ends_it_without_a_retry(airflow: RunningAirflow, roots: Path) -> None:
    home = Home(roots / "live_stream")
    supervising = begun_stream(airflow, home)
    upgrade = airflow.trigger("upgrade")
    replace(upgrade, task_id="on_trial").reaches("success", deadline_s=BEGUN_S)
    supervising.reaches("success")
    new_code = replace(upgrade, task_id="new_code")
    new_code.reaches("deferred")
    live = home.channel.attempts.latest()
    assert live is not None
    assert home.channel.request(live.request).restore is not None

    control = replace(airflow.trigger("live_stream_control", action="cancel"), task_id="cancel")
    facts = control.reaches("success") and control.xcom()
    assert (facts["attempt"], facts["cancelled"]) == (live.attempt, True)
    assert new_code.reaches("failed")["try_number"] == 1
    assert "RunCancelledError" in new_code.log()
    assert not home.is_at_work()
    assert home.channel.attempts.latest() == live
    assert {replace(upgrade, task_id=name).state for name in ("cancel_new", "old_code")} == {"skipped"}


def test_a_night_drains_what_the_one_before_has_begun_and_begins_anew(airflow: RunningAirflow, roots: Path) -> None:
    home = Home(roots / "nightly_drain")
    first = begun_stream(airflow, home, "nightly_drain")
    assert replace(first, task_id="drain").state == "skipped"
    second = airflow.trigger("nightly_drain")
    replace(second, task_id="drain").reaches("success", deadline_s=BEGUN_S)
    first.reaches("success")
    drained = first.xcom()
    assert drained["drained"]
    departed, hourly = (DeltaTable(drained["sinks"][name]["table"]).to_pyarrow_table() for name in ("departed", "hourly_delays"))
    assert sum(hourly["flights"].to_pylist()) == departed.num_rows == FLIGHTS

    until(lambda: home.attempts() == 2 and home.is_at_work(), "it has begun anew", BEGUN_S)
    second.reaches("deferred")
    restore = home.channel.request(start_request_id(AttemptNumber(2))).restore
    assert restore is not None
    assert (restore.savepoint, restore.allow_drained) == (replace(second, task_id="drain").xcom()["savepoint"], True)
    second.mark("failed")
    home.ends()
