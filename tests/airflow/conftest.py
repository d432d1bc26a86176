"""An Airflow installation for the tests, and pipelines' homes without Spark."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags_examples"

if "airflow" in sys.modules:
    raise RuntimeError("Airflow was imported before its tests could choose its home.")
AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="airflow-")
EXAMPLES = Path(AIRFLOW_HOME.name) / "examples"
os.environ |= {
    "AIRFLOW_HOME": AIRFLOW_HOME.name,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "SPARK_JOBS_EXAMPLES": str(EXAMPLES),
}


def pytest_unconfigure() -> None:
    AIRFLOW_HOME.cleanup()  # a process of a parallel test run skips its exit handlers


# Airflow reads its settings at import.
from airflow_provider.drivers.local_driver import LocalDriver, start_local_driver  # noqa: E402
from spark_jobs.control.home import cache_name  # noqa: E402
from spark_jobs.storage import settings_by_bucket  # noqa: E402
from spark_jobs.storage.s3_settings import S3Settings  # noqa: E402
from tests.support.fake_python import make_fake_python  # noqa: E402
from tests.support.object_store import store_connection  # noqa: E402


@dataclass(frozen=True)
class Homes:
    """The homes under the home root of the test's connection."""

    root: Path
    store: str | None = None
    """The root of homes in a store, whose caches are in :attr:`root`."""

    def path(self, name: str = "flights") -> Path:
        return self.root / (cache_name(f"{self.store}/{name}") if self.store else name)

    def starts(self, name: str = "flights") -> list[dict[str, Any]]:
        """Returns the recorded start of each driver of this home."""
        return [json.loads(path.read_text()) for path in sorted(self.path(name).glob(".started-*.json"))]


def connection(**extra: Any) -> str:
    return json.dumps({"conn_type": "stream_pipeline", "extra": extra})


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process forget the stores that connections have named."""
    monkeypatch.setattr(settings_by_bucket, "_settings_by_name", {})
    monkeypatch.setattr(settings_by_bucket, "_names_by_bucket", {})


@pytest.fixture
def no_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection has named a store in this process."""
    in_another_process(monkeypatch)


@contextmanager
def named_in_connections(place: str, name: str = "flights") -> Iterator[None]:
    """Moves the store of the environment into a connection, and makes another one for homes and savepoints at a place in it."""
    lake = store_connection()
    roots = {"home_root": f"{place}/homes", "savepoint_root": f"{place}/savepoints"}
    with pytest.MonkeyPatch.context() as patch:
        for variable in S3Settings.VARIABLES:
            patch.delenv(variable, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AIRFLOW_CONN_LAKE", lake)
        patch.setenv(f"AIRFLOW_CONN_{name.upper()}", connection(**roots, store_conn_id="lake"))
        yield


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes triggers send their events immediately. No scheduler runs that could need time."""
    monkeypatch.setattr("airflow_provider.triggers.home.SETTLE_S", 0.0)


@pytest.fixture(scope="session")
def fake_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fake_python(tmp_path_factory.mktemp("bin"))


@pytest.fixture
def homes(tmp_path: Path, fake_python: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Homes]:
    """A connection to the fake driver that allows homes in one directory. With a parameter the homes are in this store."""
    root = tmp_path / "homes"
    root.mkdir()
    store = getattr(request, "param", None)
    places = {"home_root": f"{store}/homes", "work_root": str(root)} if store else {"home_root": str(root)}
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(**places, python=str(fake_python)))
    started: list[LocalDriver] = []

    def start(*command: Any, **arguments: Any) -> LocalDriver:
        started.append(start_local_driver(*command, **arguments))
        return started[-1]

    monkeypatch.setattr("airflow_provider.hooks.stream_pipeline.start_local_driver", start)
    yield Homes(root, places["home_root"] if store else None)
    for home in root.iterdir():  # waiting drivers end when this file exists
        (home / ".go").touch()
    assert all(driver.wait(20.0) for driver in started)
