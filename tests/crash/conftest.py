"""Sites for whole runs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from tests.support.object_store import object_store_apart
from tests.support.places import IN_A_STORE_AT_NIGHT, ON_A_DISK
from tests.support.run_site import RunSite, small_session
from tests.support.seeds import seed
from tests.support.session_stores import store_of
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


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """A place in an S3 server."""
    with store_of(small_session(), object_store_apart()) as place:
        yield place


# The durable steps are the same in both. By day the run on a disk already finds faults that do not depend on the store.
@pytest.fixture(params=IN_A_STORE_AT_NIGHT)
def bucket(request: pytest.FixtureRequest) -> str | None:
    """The store of home and tables. None: they are on a disk."""
    return None if request.param == ON_A_DISK else request.getfixturevalue("store")


@pytest.fixture
def any_site(site: RunSite, bucket: str | None) -> RunSite:
    """A site on a disk, and one whose home and tables are in a store."""
    return replace(site, bucket=bucket)
