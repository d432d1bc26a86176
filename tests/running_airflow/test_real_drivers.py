"""Real pipelines under a running Airflow: the contents of the tables after a fault, and on SQLite."""

from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from spark_jobs.control.channel import Channel
from spark_jobs.storage.open import open_place
from spark_jobs.storage.s3_settings import S3Settings
from tests.running_airflow.conftest import DAGS, Home, at_work, connection, nothing_left
from tests.support.command_lines import CommandLines
from tests.support.fake_python import make_fake_python
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS, object_store_apart, store_connection
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


def test_a_run_with_everything_in_a_store_that_only_a_connection_names_loses_no_row_and_repeats_none(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Events, tables and home are in the store. The worker dies while it waits, and the next try continues with the same driver."""
    caches, programs, directory = (tmp_path_factory.mktemp(name) for name in ("caches", "bin", "in-s3"))
    homes = caches / "spark-jobs" / "homes"
    homes.mkdir(parents=True)
    secret = f"secret-{uuid4()}"
    with object_store_apart() as store, CommandLines() as command_lines, pytest.MonkeyPatch.context() as keys:
        keys.setenv("AWS_SECRET_ACCESS_KEY", secret)
        site = RunSite(tmp_path / "site", tmp_path / "no-events", bucket=store)
        events = f"{site.place}/events"
        deliver(events, 1)
        there = connection(tmp_path, make_fake_python(programs), jars=jars(S3_JARS), home_root=site.place, store_conn_id="lake")
        there |= {"AIRFLOW_CONN_LAKE": store_connection(), "XDG_CACHE_HOME": str(caches), "AWS_EC2_METADATA_DISABLED": "true"}
        with nothing_left(homes, programs, directory, store=site.place), ExitStack() as stack:
            with pytest.MonkeyPatch.context() as patch:
                for variable in S3Settings.VARIABLES:
                    patch.delenv(variable, raising=False)
                airflow = stack.enter_context(running(directory, DAGS, there, {}))
            task = airflow.trigger("small_in_the_worker", **conf(site) | {"home": "home", "events": events})
            task.reaches("running", deadline_s=LATE_S)
            until(lambda: Channel(site.files()).attempts.numbers() == [1], "the driver has begun")
            task.kill_worker()
            task.reaches("success", tries=2, deadline_s=LATE_S)
            site.assert_answered(days=(1,))
            assert site.attempts() == 1
            assert task.xcom()["home"] == site.documents
        written = open_place(site.place)
        shown = [path for path in written.paths("home") if secret.encode() in written.read(path)]
        logs = [
            path for path in (*directory.rglob("*"), *caches.rglob("*")) if path.is_file() and path.suffix in {".log", ".json"}
        ]
        shown += [str(path) for path in logs if secret.encode() in path.read_bytes()]
        assert shown + [line for line in command_lines.seen if secret in line] == []
