"""Links lead from a task to pages of a running Airflow, for users who may see the task."""

import httpx
import pytest

from spark_jobs.control.channel import Channel
from spark_jobs.protocol.ids import RunId
from spark_jobs.storage.open import open_files
from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = pytest.mark.airflow


def links(task: TaskRun) -> dict[str, str]:
    """Returns the URLs of a task's links, by name."""
    found: dict[str, str] = task.airflow.get(f"{task.path}/links")["extra_links"]
    assert sorted(found) == ["Driver log", "Manifest", "Tables"]
    return found


def page(task: TaskRun, link: str, user: str = "bob") -> httpx.Response:
    """Follows a link as this user and returns the response."""
    base = f"http://127.0.0.1:{task.airflow.port}"
    assert link.startswith(f"{base}/stream-pipelines/")
    return task.airflow.call("GET", link.removeprefix(base), user=user)


def test_a_viewer_can_follow_the_links_of_a_deferred_and_of_a_finished_task(deferred: TaskRun, home: Home) -> None:
    assert "the driver says hello" in page(deferred, links(deferred)["Driver log"]).text
    assert "no checkpoint yet" in page(deferred, links(deferred)["Manifest"]).text
    home.let_end()
    deferred.reaches("success")
    assert "<td>1, final</td>" in page(deferred, links(deferred)["Manifest"]).text
    assert "3, public" in page(deferred, links(deferred)["Tables"]).text


def test_a_task_has_links_while_its_worker_waits(airflow: RunningAirflow, home: Home) -> None:
    task = airflow.trigger("waits_in_the_worker", home=home.name)
    until(home.has_begun, "the driver is at work")
    assert page(task, links(task)["Driver log"]).status_code == 200
    home.let_end()
    task.reaches("success")


def test_a_user_who_may_not_see_the_task_sees_no_page_of_it_and_a_changed_record_links_to_no_page(
    airflow: RunningAirflow, home: Home
) -> None:
    task = airflow.trigger("answers_deferred", home=home.name)
    task.reaches("success")
    for link in links(task).values():
        assert [page(task, link, user).status_code for user in ("admin", "ann", "bob", "eve")] == [200, 200, 200, 403]
        assert httpx.get(link, timeout=30.0).status_code == 401
        assert home.name not in page(task, link, "eve").text + httpx.get(link, timeout=30.0).text
        assert httpx.get(link, cookies={"_token": "forged"}, timeout=30.0).status_code in (401, 403)
    check_tampered(task, home)


def test_a_viewer_may_read_pages_but_not_trigger_runs(airflow: RunningAirflow, deferred: TaskRun, home: Home) -> None:
    airflow.unpause("live_stream_control")
    dag, run = "/api/v2/dags/live_stream_control", f"/api/v2/dags/{deferred.dag_id}/dagRuns/{deferred.run_id}"
    clear = {"dry_run": False, "dag_run_id": deferred.run_id, "task_ids": ["run"]}
    acts = [
        ("POST", f"{dag}/dagRuns", {"logical_date": None, "conf": {"action": "cancel"}}),
        ("PATCH", dag, {"is_paused": True}),
        ("PATCH", run, {"state": "failed"}),
        ("PATCH", f"/api/v2/{deferred.path}", {"new_state": "failed"}),
        ("POST", f"/api/v2/dags/{deferred.dag_id}/clearTaskInstances", clear),
    ]
    assert [airflow.call(method, path, body, "bob").status_code for method, path, body in acts] == [403] * len(acts)
    assert [airflow.call("GET", path, user="bob").status_code for path in (dag, f"{dag}/dagRuns", run)] == [200] * 3
    assert airflow.get("dags/live_stream_control/dagRuns")["total_entries"] == 0
    for link in links(deferred).values():
        shown = page(deferred, link)
        assert shown.status_code == 200
        assert not any(tag in shown.text for tag in ("<form", "<button", "<input", "<script"))
        path = link.removeprefix(f"http://127.0.0.1:{airflow.port}")
        for user in ("admin", "bob"):
            methods = ("POST", "PUT", "PATCH", "DELETE")
            assert [airflow.call(method, path, user=user).status_code for method in methods] == [405] * 4
    assert home.is_at_work()
    home.let_end()
    deferred.reaches("success")


def check_tampered(task: TaskRun, home: Home) -> None:
    """Checks that a foreign record of the task leads to no page."""
    other = home.path.with_name(f"{home.name}-other")
    Channel(open_files(str(other))).request_start(RunId("airflow/payroll/nightly/run"), parameters={})
    for directory in ("attempts", "logs"):
        (other / directory).mkdir()
    (other / "logs/driver-1.out").write_text("of the payroll")
    for place, expected in ((other, "nothing of this run"), (home.path.parent.parent, "home roots of the connection")):
        record = {"value": {"conn_id": "stream_pipeline_default", "homes": {f"file://{place}": None}}, "map_index": -1}
        changed = task.airflow.call("PATCH", f"/api/v2/{task.path}/xcomEntries/stream_pipeline", record, "ann")
        assert changed.status_code == 200
        for link in links(task).values():
            text = page(task, link).text
            assert expected in text
            assert "of the payroll" not in text
