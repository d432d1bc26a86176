"""One Airflow for all of these tests."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.status import read_status
from spark_jobs.storage.open import open_files
from tests.support.fake_python import make_fake_python
from tests.support.running_airflow import RunningAirflow, TaskRun, postgres, running, until

DAGS = Path(__file__).with_name("dags")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where homes are."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory, roots: Path) -> Iterator[RunningAirflow]:
    """An Airflow whose drivers act on their homes as the real ones do."""
    python = make_fake_python(tmp_path_factory.mktemp("bin"))
    extra = {"home_root": str(roots), "python": str(python)}
    environment = {
        "AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT": json.dumps({"conn_type": "stream_pipeline", "extra": extra}),
        "PYTHONPATH": str(ROOT),
    }
    directory = tmp_path_factory.mktemp("airflow")
    with postgres(tmp_path_factory.mktemp("pg")) as settings, running(directory, DAGS, environment, settings) as found:
        yield found
    for home in roots.iterdir():  # what a driver may wait for still
        (home / "go").touch()


@dataclass(frozen=True)
class Home:
    """The home of one test's pipeline."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def starts(self) -> int:
        """How many drivers were started."""
        return len(list(self.path.glob("started-*.json")))

    def is_at_work(self) -> bool:
        return self.path.exists() and driver_at_work(open_files(str(self.path)))

    def has_begun(self) -> bool:
        return self.is_at_work() and read_status(open_files(str(self.path))) is not None

    def attempts(self) -> int:
        return len(Channel(open_files(str(self.path))).attempts.numbers())

    def let_end(self) -> None:
        (self.path / "go").touch()

    def ends(self) -> None:
        until(lambda: not self.is_at_work(), f"no driver is at work in {self.name}")


@pytest.fixture
def home(roots: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    found = Home(roots / request.node.name.replace("[", "-").replace("]", "").replace(" ", "_"))
    yield found
    if found.path.exists():
        found.let_end()


@pytest.fixture
def deferred(airflow: RunningAirflow, home: Home) -> TaskRun:
    """A task that waits in the triggerer for a driver at work."""
    task = airflow.trigger("waits_deferred", home=home.name)
    task.reaches("deferred")
    until(home.has_begun, "the driver is at work")
    until(lambda: " starting" in task.log(), "the triggerer waits")
    return task
