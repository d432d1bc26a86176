"""Sites for whole runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.runtime import heartbeat
from tests.support.run_site import RunSite, tests_session
from tests.support.small_pipeline import deliver


@pytest.fixture
def quiet_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat's thread writes nothing: else the operations of two runs would not come in one order, and it would die of a crash."""
    monkeypatch.setattr(heartbeat, "_INTERVAL_S", 3600.0)


@pytest.fixture(scope="session")
def one_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with one day's events, for every test that only reads it."""
    path = tmp_path_factory.mktemp("events") / "events"
    deliver(path, 0)
    return path


@pytest.fixture
def site(tmp_path: Path, one_day: Path, quiet_heartbeat: None) -> Iterator[RunSite]:
    tests_session()
    return RunSite(tmp_path / "site", one_day)
