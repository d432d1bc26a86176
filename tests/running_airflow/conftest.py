"""One running Airflow for all tests of this directory."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import CheckpointKind, StartResponse
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, start_request_id
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_files
from tests.support.example_copies import copy_examples
from tests.support.fake_python import make_fake_python
from tests.support.postgres import Postgres, airflow_settings, postgres
from tests.support.running_airflow import RunningAirflow, TaskRun, running, survivors, until
from tests.support.short_jvm import SHORT_RUN

DAGS = Path(__file__).with_name("dags")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "dags_examples"
LIVE, CONTROL, UPGRADE = "live_stream.py", "live_stream_control.py", "upgrade_and_rescale.py"
HANGS = {
    '"flight", "dep_delay"': 'F.udf(lambda _: __import__("time").sleep(3600), "bigint")("flight").alias("flight"), "dep_delay"'
}
"""Code that never finishes its first row, and so never completes a checkpoint."""


@dataclass(frozen=True)
class Home:
    """The home of one test's pipeline."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def channel(self) -> Channel:
        return Channel(open_files(str(self.path)))

    def asked(self, kind: str) -> list[str]:
        """Returns the requests of one kind, open or answered. An answered request is deleted, and its answer has the same name."""
        names = self.channel.files.names
        return sorted({name for name in (*names("requests"), *names("answers")) if name.startswith(f"{kind}-")})

    def starts(self) -> int:
        """Returns the number of started drivers."""
        return len(list(self.path.glob(".started-*.json")))

    def kill_driver(self) -> None:
        """Kills the driver, as a power failure would."""
        live = self.channel.attempts.latest()
        assert live is not None
        psutil.Process(live.process).kill()

    def is_at_work(self) -> bool:
        return self.path.exists() and driver_at_work(open_files(str(self.path)))

    def has_begun(self) -> bool:
        return self.is_at_work() and read_status(open_files(str(self.path))) is not None

    def attempts(self) -> int:
        return len(self.channel.attempts.numbers())

    def let_begin(self) -> None:
        """Creates the file that a slow driver waits for."""
        (self.path / ".begin").touch()

    def let_end(self) -> None:
        """Creates the file that a driver waits for."""
        (self.path / ".go").touch()

    def ends(self) -> None:
        until(lambda: not self.is_at_work(), f"no driver is at work in {self.name}")

    def answers(self) -> list[StartResponse]:
        """Returns all answers, oldest first."""
        found = (self.channel.response(start_request_id(number)) for number in self.channel.answered())
        return [answer for answer in found if answer is not None]

    def assert_one_result(self, task: TaskRun | None = None) -> None:
        """Checks that at most one attempt has completed a checkpoint, and that a successful task returned this checkpoint.

        The method reads the home's documents, because Airflow's state of the task proves nothing about the data.
        """
        store = CheckpointStore(self.channel.files)
        finals = [manifest for manifest in map(store.manifest, store.ids()) if manifest.checkpoint_kind is CheckpointKind.FINAL]
        answers = [answer for answer in self.answers() if answer.error is None]
        assert len(answers) <= len(finals) <= 1, "a driver may have died between its checkpoint and its answer"
        if task is None or task.state != "success":
            return
        (answer,), (final,) = answers, finals
        result = task.xcom()
        assert result["checkpoint"] == answer.checkpoint == final.checkpoint
        assert result["attempt"] == answer.attempt == final.attempt
        assert all(sink["version"] is not None for sink in result["sinks"].values())


@pytest.fixture(scope="package")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all homes."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(scope="package")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with postgres(tmp_path_factory.mktemp("pg")) as found:
        yield found


@pytest.fixture(scope="package")
def airflow(tmp_path_factory: pytest.TempPathFactory, roots: Path, database: Postgres) -> Iterator[RunningAirflow]:
    """An Airflow with fake drivers. After the tests no process of it is left."""
    programs, directory = tmp_path_factory.mktemp("bin"), tmp_path_factory.mktemp("airflow")
    examples = tmp_path_factory.mktemp("examples")
    environment = connection(roots, make_fake_python(programs)) | {"SPARK_JOBS_EXAMPLES": str(examples)}
    copies = tmp_path_factory.mktemp("copies") / "dags_examples"
    make_copies(copies)
    found_in = [bundle("tests", DAGS), bundle("examples", EXAMPLES), bundle("copies", copies)]
    bundles = {"DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(found_in)}
    settings = airflow_settings(database) | bundles
    with nothing_left(roots, programs, directory, examples), running(directory, DAGS, environment, settings) as found:
        yield found


def make_copies(directory: Path) -> None:
    """Copies the examples about a live stream, with a home for each test that ends its pipeline for good."""
    for name in ("drained", "raced", "beside"):
        copy_examples(directory, name, LIVE, CONTROL)
    copy_examples(directory, "upgraded", LIVE, UPGRADE)
    soon = {UPGRADE: {"minutes=10": "minutes=1"}}
    copy_examples(directory, "hangs_at_rows", LIVE, UPGRADE, changes=soon | {"pipelines/live_next.py": HANGS})
    broken = {"pipelines/live_next.py": {"pipeline = Pipeline(": "pipeline = Pipelines("}}
    copy_examples(directory, "cannot_be_loaded", LIVE, UPGRADE, changes=broken)


def bundle(name: str, path: Path) -> dict[str, Any]:
    """Returns the configuration of a bundle for a directory with DAGs."""
    classpath = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return {"name": name, "classpath": classpath, "kwargs": {"path": str(path), "refresh_interval": 5}}


def connection(roots: Path, python: Path, *, jars: Sequence[str] = (), **places: str) -> dict[str, str]:
    """Returns the environment of an Airflow whose connection allows homes in ``roots``, or has these ``places``.

    Args:
        roots: The directory of homes.
        python: The interpreter of drivers.
        jars: Jars for Spark.
        places: Extras of the connection.
    """
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"} | SHORT_RUN
    if jars:
        conf |= {"spark.jars": ",".join(jars)}
    extra = {"home_root": str(roots), "python": str(python), "master": "local[2]", "conf": json.dumps(conf)} | places
    return {
        "AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT": json.dumps({"conn_type": "stream_pipeline", "extra": extra}),
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def nothing_left(roots: Path, *directories: Path, store: str | None = None) -> Iterator[None]:
    """Ends every driver through its home after the tests, and fails if a process is left.

    Args:
        roots: The directory of the homes, or of the caches of homes in ``store``.
        directories: Other directories in which an Airflow and its drivers work.
        store: The location of homes.
    """
    try:
        yield
    finally:  # no Airflow is left that could start another driver
        homes = [open_files(str(requests.parent)) for requests in roots.rglob("requests")]
        if store is not None:
            homes += [open_home(f"{store}/{cache.name.rpartition('-')[0]}", str(roots)) for cache in roots.iterdir()]
        told = [said for files in homes if (said := not_cancelled(files))]
        _, left = psutil.wait_procs(survivors(roots, *directories), timeout=10.0)
        told += [f"{process.pid}: {' '.join(process.cmdline())}" for process in left]
        for process in left:
            process.kill()
    assert told == []


def not_cancelled(files: Files) -> str:
    """Cancels the running attempts of a home as their newest owner. Returns the reason if this failed."""
    channel = Channel(files)
    try:
        for name in files.names("requests"):
            attempt = name.removeprefix("start-").removesuffix(".json")
            if attempt.isdigit() and channel.response(start_request_id(AttemptNumber(int(attempt)))) is None:
                owners = AttemptLease(files, AttemptNumber(int(attempt)))
                owners.cancel(owners.take("the end of the tests").owner, "the tests are over")
        until(lambda: not driver_at_work(files), "no driver is at work")
    except (AssertionError, StreamPipelineError) as error:  # the drivers of other homes must still be cancelled
        return f"{files.url}: {error}"
    return ""


@pytest.fixture
def home(roots: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    """The home of one test. In the end it has at most one result."""
    found = Home(roots / request.node.name.replace("[", "-").replace("]", "").replace(" ", "_"))
    yield found
    if found.path.exists():
        found.assert_one_result()
        found.let_begin()
        found.let_end()


@pytest.fixture
def deferred(airflow: RunningAirflow, home: Home) -> TaskRun:
    """A task that waits in the triggerer for a running driver."""
    task = airflow.trigger("waits_deferred", home=home.name)
    task.reaches("deferred")
    until(home.has_begun, "the driver is at work")
    until(lambda: " starting" in task.log(), "the triggerer waits")
    return task


def at_work(airflow: RunningAirflow, home: Home, dag_id: str, *states: str, conf: dict[str, str] | None = None) -> TaskRun:
    """Triggers a DAG and waits until its driver runs and its task has one of these states."""
    task = airflow.trigger(dag_id, **(conf or {"home": home.name}))
    until(home.has_begun, "the driver is at work")
    task.reaches(*states)
    return task
