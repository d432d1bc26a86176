"""Sites for whole runs."""

from pathlib import Path

import pytest

from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from tests.support.run_site import RunSite
from tests.support.seeds import seed
from tests.support.small_pipeline import deliver

__all__ = ["seed"]


@pytest.fixture(scope="session")
def one_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with one day's events, for every test that only reads it."""
    path = tmp_path_factory.mktemp("events") / "events"
    deliver(path, 0)
    return path


@pytest.fixture
def site(tmp_path: Path, one_day: Path, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    """A site on which no run has started.

    The threads of the heartbeat and of the cancellation stay quiet: a crash would end them, and two runs would not do their operations in
    the same order.
    """
    monkeypatch.setattr(Heartbeat, "_beat", lambda heartbeat: None)
    monkeypatch.setattr(Cancellation, "_watch", lambda cancellation: None)
    return RunSite(tmp_path / "site", one_day)
