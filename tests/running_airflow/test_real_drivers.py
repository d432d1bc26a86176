"""Real pipelines under a running Airflow: the contents of the tables after a fault, and on SQLite."""

from pathlib import Path

import pytest

from spark_jobs.control.channel import Channel
from tests.running_airflow.conftest import DAGS, Home, at_work, connection, nothing_left
from tests.support.fake_python import make_fake_python
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS, object_store
from tests.support.run_site import RunSite
from tests.support.running_airflow import RunningAirflow, TaskRun, running, until
from tests.support.small_pipeline import deliver

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

LATE_S = 240.0


@pytest.fixture
def site(roots: Path, tmp_path: Path, request: pytest.FixtureRequest) -> RunSite:
    """Two days of events, and a directory for the home and the tables."""
    for day in (1, 2):
        deliver(tmp_path / "events", day)
    return RunSite(roots / request.node.name.replace("[", "-").replace("]", ""), tmp_path / "events")


def begun(airflow: RunningAirflow, site: RunSite, dag_id: str) -> tuple[TaskRun, Home]:
    """Triggers a task and waits until its driver has begun the attempt."""
    home = Home(site.home)
    return at_work(airflow, home, dag_id, "deferred", "running", conf=conf(site)), home


def conf(site: RunSite) -> dict[str, str]:
    return {"home": str(site.home)} | site.parameters


def assert_exactly_once(site: RunSite, task: TaskRun, home: Home) -> None:
    site.assert_answered(days=(1, 2))
    home.assert_one_result(task)


def test_a_worker_that_dies_loses_no_row_and_repeats_none(airflow: RunningAirflow, site: RunSite) -> None:
    task, home = begun(airflow, site, "small_in_the_worker")
    task.kill_worker()
    task.reaches("success", tries=2, deadline_s=LATE_S)
    assert home.attempts() == 1
    assert_exactly_once(site, task, home)


def test_a_task_that_is_marked_failed_while_it_runs_publishes_each_row_once_after_it_was_cleared(
    airflow: RunningAirflow, site: RunSite
) -> None:
    task, home = begun(airflow, site, "small_deferred")
    task.mark("failed")
    task.clear()
    task.reaches("success", tries=2, deadline_s=LATE_S)
    assert_exactly_once(site, task, home)


def test_a_run_with_airflow_on_sqlite_succeeds(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    roots, programs, directory = (tmp_path_factory.mktemp(name) for name in ("homes", "bin", "sqlite"))
    deliver(tmp_path / "events", 1)
    site = RunSite(roots / "small", tmp_path / "events")
    with (
        nothing_left(roots, programs, directory),
        running(directory, DAGS, connection(roots, make_fake_python(programs)), {}) as airflow,
    ):
        task = airflow.trigger("small_deferred", **conf(site))
        task.reaches("success", deadline_s=LATE_S)
        site.assert_answered(days=(1,))
        Home(site.home).assert_one_result(task)


def test_a_run_whose_home_is_in_an_object_store_loses_no_row_and_repeats_none(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """The worker dies while it waits, and the next try continues with the same driver."""
    work, programs, directory = (tmp_path_factory.mktemp(name) for name in ("work", "bin", "in-s3"))
    deliver(tmp_path / "events", 1)
    with object_store() as url, nothing_left(work, programs, directory, store=f"{url}/homes"):
        places = {"home_root": f"{url}/homes", "work_root": str(work)}
        site = RunSite(work, tmp_path / "events", store=f"{url}/homes/home")
        with running(directory, DAGS, connection(work, make_fake_python(programs), jars=jars(S3_JARS), **places), {}) as airflow:
            task = airflow.trigger("small_in_the_worker", **conf(site) | {"home": "home"})
            task.reaches("running", deadline_s=LATE_S)
            until(lambda: Channel(site.files()).attempts.numbers() == [1], "the driver has begun")
            task.kill_worker()
            task.reaches("success", tries=2, deadline_s=LATE_S)
            site.assert_answered(days=(1,))
            assert site.attempts() == 1
            assert task.xcom()["home"] == site.store
