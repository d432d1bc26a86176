"""Sites for real drivers, and stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.azurite import azurite
from tests.support.drivers import Drivers, drivers_on
from tests.support.google_cloud import google_cloud
from tests.support.hdfs_cluster import hdfs_cluster
from tests.support.object_store import object_store, object_store_apart
from tests.support.places import ON_A_DISK
from tests.support.run_site import RunSite
from tests.support.seeds import seed
from tests.support.small_pipeline import deliver
from tests.support.versitygw import versitygw

__all__ = ["seed"]


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The store of home and tables, for tests with the parameter ``in a store``. None: they are on a disk."""
    if getattr(request, "param", ON_A_DISK) == ON_A_DISK:
        yield None
        return
    with object_store_apart() as place:
        yield place


@pytest.fixture
def drivers(tmp_path: Path, bucket: str | None) -> Iterator[Drivers]:
    """Drivers on a new site."""
    deliver(tmp_path / "events", 0)
    with drivers_on(RunSite(tmp_path / "site", tmp_path / "events", bucket=bucket)) as found:
        yield found


@pytest.fixture
def in_s3() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture
def in_versitygw(tmp_path: Path) -> Iterator[str]:
    with versitygw(tmp_path / "versitygw") as url:
        yield url


@pytest.fixture
def in_azure() -> Iterator[str]:
    with azurite() as url:
        yield url


@pytest.fixture
def in_google() -> Iterator[str]:
    with google_cloud() as url:
        yield url


@pytest.fixture
def in_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with hdfs_cluster(tmp_path / "hdfs") as cluster:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.settings))
        yield f"hdfs://{cluster.authority}"
