"""The example that controls a supervised stream, triggered over REST like from the UI, with a real pipeline."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from psutil import Process

from airflow_provider.triggers.home import SETTLE_S
from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.ids import AttemptNumber, start_request_id
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.support.begun_streams import BEGUN_S, begun_stream
from tests.support.live_pipeline import Events, public_ids
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]


FLIGHTS = 842
"""The number of flights on the first day."""


def suspended_driver(home: Home) -> Process:
    live = home.channel.attempts.latest()
    assert live is not None
    driver = Process(live.process)
    driver.suspend()
    return driver


def has_asked(home: Home) -> bool:
    return bool(home.asked("stop"))


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


def test_new_code_continues_from_the_savepoint_and_a_cancel_ends_its_task_without_a_retry(
    airflow: RunningAirflow, roots: Path
) -> None:
    home = Home(roots / "live_stream")
    supervising = begun_stream(airflow, home)
    upgrade = airflow.trigger("upgrade_and_rescale")
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
    roll_back = replace(upgrade, task_id="roll_back")
    roll_back.reaches("failed")
    assert "has stood its trial" in roll_back.log()
    until(lambda: upgrade.run_state == "failed", "the DAG run has ended")
    assert {replace(upgrade, task_id=name).state for name in ("cancel_new", "old_code")} == {"upstream_failed"}


def test_a_night_drains_the_round_of_the_night_before_and_begins_a_new_one(airflow: RunningAirflow, roots: Path) -> None:
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

    until(lambda: home.attempts() == 2 and home.is_at_work(), "it has started over", BEGUN_S)
    second.reaches("deferred")
    restore = home.channel.request(start_request_id(AttemptNumber(2))).restore
    assert restore is not None
    assert (restore.savepoint, restore.allow_drained) == (replace(second, task_id="drain").xcom()["savepoint"], True)
    second.mark("failed")
    home.ends()


def answer(control: TaskRun, option: str, user: str = "admin") -> int:
    """Chooses an option as a user of the UI. Returns the status of the response."""
    approve = replace(control, task_id="approve")
    approve.reaches("awaiting_input", deadline_s=BEGUN_S)
    asked_s = time.monotonic()
    until(lambda: time.monotonic() - asked_s >= SETTLE_S, "a person reads: Airflow fails a task that is answered at once")
    chosen = {"chosen_options": [option], "params_input": {}}
    return control.airflow.call("PATCH", f"/api/v2/{approve.path}/-1/hitlDetails", chosen, user).status_code


def test_a_drain_waits_for_a_person_and_happens_only_once_they_have_approved(airflow: RunningAirflow, roots: Path) -> None:
    home = Home(roots / "drained")
    supervising = begun_stream(airflow, home, "drained")
    rejected = airflow.trigger("drained_control", action="drain")
    assert answer(rejected, "Reject") == 200
    until(lambda: rejected.run_state == "success", "the DAG run has ended")
    assert {replace(rejected, task_id=name).state for name in ("stop", "drain", "savepoint", "cancel")} == {"skipped"}

    control = airflow.trigger("drained_control", action="drain")
    assert answer(control, "Approve", user="bob") == 403
    assert not has_asked(home)
    assert home.is_at_work()
    assert answer(control, "Approve", user="ann") == 200
    drain = replace(control, task_id="drain")
    assert drain.reaches("success", deadline_s=BEGUN_S)["try_number"] == 1
    assert supervising.reaches("success")["try_number"] == 1
    facts, drained = drain.xcom(), supervising.xcom()
    assert (facts["drained"], facts["checkpoint"]) == (drained["drained"], drained["checkpoint"]) == (True, facts["checkpoint"])
    assert verify(open_files(facts["savepoint"])).drained
    departed, hourly = (DeltaTable(drained["sinks"][name]["table"]).to_pyarrow_table() for name in ("departed", "hourly_delays"))
    assert sum(hourly["flights"].to_pylist()) == departed.num_rows == FLIGHTS

    again = airflow.trigger("drained")
    assert again.reaches("failed", deadline_s=BEGUN_S)["try_number"] == 1
    assert "drained" in again.log()


def test_one_dag_can_wait_for_a_pipeline_save_it_stop_it_and_dispose_of_the_savepoint(
    airflow: RunningAirflow, roots: Path, tmp_path: Path
) -> None:
    home, events, warehouse = Home(roots / "saved_and_stopped"), Events(tmp_path / "events"), tmp_path / "warehouse"
    events.add(100)
    control = airflow.trigger("saved_and_stopped", home=home.name)
    runs, save, stop, has_ended, dispose = (
        replace(control, task_id=name) for name in ("runs", "save", "stop", "has_ended", "dispose")
    )
    runs.reaches("deferred")  # no pipeline has run in this home yet
    supervising = airflow.trigger("real_stream", home=home.name, events=str(events.path), warehouse=str(warehouse))
    assert dispose.reaches("success", "failed", "upstream_failed", deadline_s=2 * BEGUN_S)["state"] == "success"

    assert (runs.xcom()["state"], runs.xcom()["attempt"]) == ("running", 1)
    saved, stopped, ended = save.xcom(), stop.xcom(), supervising.xcom()
    assert saved["checkpoint"] < stopped["checkpoint"] == ended["checkpoint"] == has_ended.xcom()["checkpoint"]
    assert dispose.xcom() == {"savepoint": saved["savepoint"]}
    (kept,) = (home.path / "savepoints").iterdir()
    assert kept.as_uri() == stopped["savepoint"] != saved["savepoint"]
    assert verify(open_files(stopped["savepoint"])).checkpoint == stopped["checkpoint"]
    assert public_ids(warehouse / "copied") == list(range(events.rows))
    assert {task.tries for task in (runs, save, stop, has_ended, dispose)} == {1}

    body = {"logical_date": None, "conf": {"home": home.name}}
    assert airflow.call("POST", "/api/v2/dags/saved_and_stopped/dagRuns", body, "bob").status_code == 403


def test_a_stop_and_a_cancel_at_the_same_time_lose_no_row_and_the_stop_is_done_once(airflow: RunningAirflow, roots: Path) -> None:
    home = Home(roots / "beside")
    supervising = begun_stream(airflow, home, "beside")
    driver = suspended_driver(home)  # the driver must find both requests at the same time
    stop, cancel = (replace(airflow.trigger("beside_control", action=action), task_id=action) for action in ("stop", "cancel"))
    for each in (stop, cancel):
        each.reaches("deferred")
    driver.resume()
    assert cancel.reaches("success", "failed", deadline_s=BEGUN_S)["state"] == "success"
    ended = supervising.reaches("success", "failed")
    assert ended["try_number"] == 1
    assert cancel.xcom()["cancelled"] is (ended["state"] == "failed")
    if cancel.xcom()["cancelled"]:
        assert "RunCancelledError" in supervising.log()
        assert stop.state == "deferred"
        supervising = airflow.trigger("beside")  # the next attempt carries out the request
    assert stop.reaches("success", deadline_s=BEGUN_S)["try_number"] == 1
    assert supervising.reaches("success")["try_number"] == 1
    assert supervising.xcom()["checkpoint"] == stop.xcom()["checkpoint"]
    assert [path.as_uri() for path in (home.path / "savepoints").iterdir()] == [stop.xcom()["savepoint"]]
    assert DeltaTable(supervising.xcom()["sinks"]["departed"]["table"]).count() == FLIGHTS


def test_one_of_two_stops_wins_and_the_other_gets_an_error_that_names_it(airflow: RunningAirflow, roots: Path) -> None:
    home = Home(roots / "raced")
    supervising = begun_stream(airflow, home, "raced")
    driver = suspended_driver(home)  # the driver must find both requests at the same time
    stops = [replace(airflow.trigger("raced_control", action="stop"), task_id="stop") for _ in range(2)]
    for stop in stops:
        stop.reaches("deferred")
    first, second = CheckpointRequests(home.channel.files).open()
    driver.resume()
    ends = {stop.reaches("success", "failed", deadline_s=BEGUN_S)["state"]: stop for stop in stops}
    winner, loser = ends["success"], ends["failed"]
    assert supervising.reaches("success")["try_number"] == 1
    answered = CheckpointRequests(home.channel.files).answer_of(first.request)
    assert answered is not None
    assert winner.xcom()["savepoint"] == answered.savepoint
    assert first.request in loser.log()
    assert second.request not in winner.log()
    assert CheckpointRequests(home.channel.files).open() == ()
    assert [path.name for path in (home.path / "savepoints").iterdir()] == [first.request]
