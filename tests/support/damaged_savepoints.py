"""Savepoints, and what damages them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jobs.checkpoint.savepoint import export
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.savepoint import Savepoint
from spark_jobs.storage.local import LocalFiles
from tests.support.savepoint_site import SavepointSite
from tests.support.systems import quick

REQUEST = RequestId("savepoint-a")
Damage = Callable[[Path], object]


@pytest.fixture
def site(tmp_path: Path) -> SavepointSite:
    return SavepointSite(tmp_path)


def target_of(site: SavepointSite) -> LocalFiles:
    return quick(site.root / "savepoint")


def taken(site: SavepointSite, manifest: Manifest, target: LocalFiles | None = None) -> Savepoint:
    return export(site.home, manifest.checkpoint, target or target_of(site), request=REQUEST)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
