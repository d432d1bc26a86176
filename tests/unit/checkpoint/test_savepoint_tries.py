"""Several tries at one savepoint: by an attempt and its successor, or by two attempts that run at the same time."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jobs.checkpoint.savepoint import _identity, abandon, verify
from spark_jobs.protocol.errors import StorageError
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.system import RealSystem
from tests.support.damaged_savepoints import REQUEST, Damage, alter, cut_off, site, taken, target_of
from tests.support.savepoint_site import SavepointSite

__all__ = ["site"]


class Meanwhile(LocalFiles):
    """Files in which another process acts immediately before the savepoint document is created."""

    def __init__(self, place: Path, do: Callable[[], object]) -> None:
        super().__init__(str(place))
        self._do = do

    def create(self, path: str, data: bytes) -> None:
        if path == "savepoint.json":
            self._do()
        super().create(path, data)


class Away(LocalFiles):
    """A disk to which no file can be copied."""

    def copy(self, source: Files, named: str, path: str) -> Digest:
        raise StorageError("The disk is away.")


def test_another_try_that_begins_and_dies_meanwhile_deletes_nothing(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")], in_flight=["x.parquet"])

    def begin_and_die() -> None:
        with pytest.raises(StorageError):
            taken(site, manifest, Away(str(site.root / "savepoint")))

    found = taken(site, manifest, Meanwhile(site.root / "savepoint", begin_and_die))
    assert verify(target_of(site)) == found


class EndsMeanwhile(LocalFiles):
    """Files in which another try finishes between two reads of the directory."""

    def __init__(self, place: Path, end: Callable[[], object]) -> None:
        super().__init__(str(place))
        self._end = end

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        if path == "exporting.json":
            self._end()
        return super().read(path, max_bytes)


def test_a_savepoint_that_another_try_completes_meanwhile_is_the_result(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")])
    target_of(site).create("exporting.json", _identity(manifest, REQUEST))
    found = taken(site, manifest, EndsMeanwhile(site.root / "savepoint", lambda: taken(site, manifest)))
    assert verify(target_of(site)) == found


class RobbedOfUnfinished(RealSystem):
    """A file system in which another try has created each file and deletes our temporary file immediately before it is linked."""

    def link(self, source: str, target: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes())
        os.unlink(source)
        super().link(source, target)


def test_a_try_whose_files_another_try_deletes_as_leftovers_uses_the_files_of_the_other(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")], in_flight=["x.parquet"])
    found = taken(site, manifest, LocalFiles(site.root / "savepoint", RobbedOfUnfinished()))
    assert verify(target_of(site)) == found


@pytest.mark.parametrize("damage", [cut_off, alter], ids=["torn", "altered"])
def test_files_that_an_earlier_try_has_left_torn_are_copied_again(site: SavepointSite, damage: Damage) -> None:
    manifest = site.complete([(1, "a")], in_flight=["x.parquet"])

    def die() -> None:
        raise StorageError("The host goes down.")

    with pytest.raises(StorageError):
        taken(site, manifest, Meanwhile(site.root / "savepoint", die))
    for path in (site.root / "savepoint").rglob("*"):
        if path.is_file() and path.name != "exporting.json":
            damage(path)
    again = taken(site, manifest)
    assert verify(target_of(site)) == again


def test_a_complete_savepoint_is_not_abandoned_although_its_try_has_not_ended(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")])
    found = taken(site, manifest)
    target_of(site).create("exporting.json", _identity(manifest, REQUEST))
    abandon(manifest, target_of(site), request=REQUEST)
    assert verify(target_of(site)) == found


def test_an_unfinished_savepoint_with_a_home_inside_is_not_abandoned(site: SavepointSite) -> None:
    manifest = site.complete([(1, "a")])
    target_of(site).create("exporting.json", _identity(manifest, REQUEST))
    target_of(site).create("state/hourly/theirs/pipeline.json", b"")
    abandon(manifest, target_of(site), request=REQUEST)
    assert target_of(site).paths() == ["exporting.json", "state/hourly/theirs/pipeline.json"]
    target_of(site).delete("state/hourly/theirs")
    abandon(manifest, target_of(site), request=REQUEST)
    assert target_of(site).paths() == []
