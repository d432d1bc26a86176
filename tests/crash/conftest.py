"""Sites for whole runs."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.runtime.driver import shown_logs
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from tests.support.places import IN_A_STORE_AT_NIGHT, ON_A_DISK
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

    The threads of the heartbeat, of the cancellation and of the shown logs stay quiet: a crash would end them, and two runs would not do
    their operations in the same order.
    """
    monkeypatch.setattr(Heartbeat, "_beat", lambda heartbeat: None)
    monkeypatch.setattr(Cancellation, "_watch", lambda cancellation: None)
    monkeypatch.setattr(shown_logs, "run_every", lambda interval_s, look, name: nullcontext())
    return RunSite(tmp_path / "site", one_day)


# The durable steps are the same in both, so that by day a sample is in a store: ``in_a_store_too``.
@pytest.fixture(params=IN_A_STORE_AT_NIGHT)
def bucket(request: pytest.FixtureRequest) -> str | None:
    """The store of home and tables. None: they are on a disk."""
    return None if request.param == ON_A_DISK else request.getfixturevalue("store")


@pytest.fixture
def any_site(site: RunSite, bucket: str | None) -> RunSite:
    """A site on a disk, and one whose home and tables are in a store."""
    return replace(site, bucket=bucket)
