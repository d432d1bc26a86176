"""Tasks whose pipeline's home is in an object store, with a triggerer that has no cache."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.waits.goals import Goal, WaitFor
from airflow_provider.waits.runs import RunLook, Waited, WorkerWait
from airflow_provider.waits.shared_looks import pace_at
from spark_jobs.control.home import open_home
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.protocol.documents import RunState, Status
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import AttemptNumber, RequestId, RunId
from spark_jobs.storage.files import Files
from spark_jobs.waits.in_process import wait_here
from tests.airflow.conftest import Homes, connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import GIVEN, TaskLog, context, driver_has_started, failure, once, operator, until
from tests.support.object_store import BUCKET, object_store

URL = f"s3://{BUCKET}/homes/flights"

in_a_store = pytest.mark.parametrize("homes", [f"s3://{BUCKET}"], indirect=True)


@pytest.fixture(autouse=True)
def store() -> Iterator[None]:
    with object_store():
        yield


@pytest.fixture(params=[True, False], ids=["deferred", "in the worker"], autouse=True)
def waits_deferred(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(GIVEN, "deferrable", request.param)
    return bool(request.param)


in_the_worker = pytest.mark.parametrize("waits_deferred", [False], indirect=True)


@in_a_store
def test_a_run_is_requested_and_awaited_and_not_run_again(homes: Homes) -> None:
    first = carry_out(operator(), context())
    assert (first["home"], first["attempt"], first["checkpoint"]) == (URL, 1, 1)
    assert carry_out(operator("failed"), context()) == first
    (started,) = homes.starts()
    arguments = started["argv"]
    assert arguments[arguments.index("--work-root") + 1] == str(homes.root)
    assert (homes.path() / "logs/driver-1.out").read_text() == "the driver says hello\n"
    assert not (homes.path() / "requests").exists()


@in_a_store
def test_a_task_waits_for_a_driver_that_starts_slowly(homes: Homes) -> None:
    finish = once(driver_has_started, (homes.path() / ".go").touch)
    assert carry_out(operator("waits"), context())["checkpoint"] == 1
    finish.join()


class Looks:
    """A home that shows a driver's lock at each look. From the third look on, it shows that the attempt has begun."""

    count = 0

    def look(self, files: Files, request: RequestId, driver: object) -> RunLook:
        self.count += 1
        now = datetime.now(UTC)
        begun = Status(attempt=AttemptNumber(1), run=RunId("r"), state=RunState.RUNNING, updated_at=now, stages={})
        return RunLook(exit_code=None, ours_runs=False, at_work=True, status=begun if self.count >= 3 else None, answer=None)


@in_the_worker
@pytest.mark.parametrize(("home", "looks"), [("/data/homes/flights", 1), (URL, 3)])
def test_a_worker_hands_over_once_the_triggerer_can_see_the_driver(home: str, looks: int) -> None:
    seen, request = Looks(), RequestId("start-1")
    goal = Goal(WaitFor.FINAL_CHECKPOINT)
    wait = WorkerWait(open_home(home), request, goal, driver=None, until_seen_s=600.0, look_at=seen.look)
    found = wait_here(wait, end_s=None, timeout_s=None, log=TaskLog(), pause=lambda: None)
    assert found is Waited.SEEN
    assert seen.count == looks


@pytest.mark.parametrize(
    "waits_deferred", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["deferred", "in the worker"], indirect=True
)
@in_a_store
def test_a_driver_that_dies_is_noticed_by_its_heartbeat(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.control.liveness.HEARTBEAT_AGE_MAX_S", 1.0)
    failure(operator("silent"), InterruptedRunError)


@in_the_worker
@in_a_store
def test_a_host_without_the_cache_sees_documents_and_the_heartbeat(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = StreamPipelineHook()
    finish = once(driver_has_started, (homes.path() / ".go").touch)
    carry_out(operator("waits"), context())
    finish.join()
    elsewhere = open_home(URL)
    assert driver_at_work(elsewhere), "it was heard of a moment ago"
    monkeypatch.setattr("spark_jobs.control.liveness.HEARTBEAT_AGE_MAX_S", 0.0)
    assert not driver_at_work(elsewhere)
    until(lambda: not hook.is_at_work("flights"))
    assert elsewhere.names("responses") == ["start-1.json"]


@in_the_worker
@in_a_store
def test_without_a_work_root_a_driver_keeps_its_work_in_a_cache(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = StreamPipelineHook().settings.python
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=f"s3://{BUCKET}/homes", python=python))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert carry_out(operator(), context())["home"] == URL
    (cache,) = (tmp_path / "cache/spark-jobs/homes").iterdir()
    assert (cache / "logs/driver-1.out").read_text() == "the driver says hello\n"


@in_the_worker
def test_an_object_store_is_polled_less_often_than_a_disk() -> None:
    assert pace_at(URL, 2.0, None).longest_s == 30.0
    assert pace_at("file:///data/homes/flights", 2.0, None).longest_s == pace_at("hdfs://a:1/b", 2.0, None).longest_s == 3.0
    assert pace_at(URL, 2.0, 5.0).longest_s == 5.0
