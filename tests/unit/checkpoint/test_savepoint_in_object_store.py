"""A savepoint in an object store is created, verified, used and disposed of like one in a directory."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from spark_jobs.checkpoint.savepoint import begun_with, check_target, dispose, export, places_of, read_savepoint, verify
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, RejectedError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place
from tests.support.object_store import object_store
from tests.support.savepoint_site import SavepointSite

REQUEST = RequestId("savepoint-a")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture
def target(store: str, request: pytest.FixtureRequest) -> Files:
    return open_place(f"{store}/{request.node.name}")


@pytest.fixture
def site(tmp_path: Path) -> SavepointSite:
    return SavepointSite(tmp_path)


@pytest.fixture
def manifest(site: SavepointSite) -> Manifest:
    return site.complete([(1, "a b")], in_flight=["x.parquet"])


def test_a_savepoint_survives_the_home_and_its_tables_and_is_disposed_of_completely(
    site: SavepointSite, manifest: Manifest, target: Files
) -> None:
    savepoint = export(site.home, manifest.checkpoint, target, request=REQUEST)
    shutil.rmtree(site.root / "home")
    shutil.rmtree(site.root / "tables")
    assert verify(target) == savepoint
    assert read_savepoint(target) == (savepoint, manifest)
    assert sorted(target.paths()) == sorted(["savepoint.json", *(file.path for file in savepoint.files)])
    for _ in range(2):
        dispose(target)
        assert target.names("") == []


def test_a_repeated_export_gives_the_same_savepoint_and_another_is_refused(
    site: SavepointSite, manifest: Manifest, target: Files
) -> None:
    made = export(site.home, manifest.checkpoint, target, request=REQUEST)
    assert export(site.home, manifest.checkpoint, target, request=REQUEST) == made
    assert begun_with(site.home, target, REQUEST) == manifest
    with pytest.raises(RejectedError, match="it has checkpoint 1"):
        export(site.home, manifest.checkpoint, target, request=RequestId("savepoint-b"))
    with pytest.raises(RejectedError, match="it has checkpoint 1"):
        check_target(site.home, target, places_of([site.table], {}), RequestId("savepoint-b"))


def test_a_prefix_with_something_else_is_refused(site: SavepointSite, manifest: Manifest, target: Files) -> None:
    target.create("theirs/a", b"")
    with pytest.raises(RejectedError, match="it is not empty: it has theirs"):
        export(site.home, manifest.checkpoint, target, request=REQUEST)
    assert list(target.paths()) == ["theirs/a"]


@pytest.mark.slow
def test_simultaneous_tries_make_one_savepoint(site: SavepointSite, manifest: Manifest, target: Files) -> None:
    with ThreadPoolExecutor(4) as pool:
        tries = [pool.submit(export, site.home, manifest.checkpoint, open_place(target.url), request=REQUEST) for _ in range(4)]
        made = {each.result().model_dump_json() for each in tries}
    assert len(made) == 1
    assert verify(target).model_dump_json() in made


def test_a_missing_or_altered_file_is_named_by_its_path(site: SavepointSite, manifest: Manifest, target: Files) -> None:
    path = export(site.home, manifest.checkpoint, target, request=REQUEST).files[0].path
    target.replace(path, b"altered")
    with pytest.raises(CorruptDocumentError, match=f"{target.url}/{path} was altered"):
        verify(target)
    target.delete(path)
    with pytest.raises(CorruptDocumentError, match=f"{target.url}/{path} is missing"):
        verify(target)


def test_a_folder_object_of_a_web_console_counts_as_an_empty_directory(
    site: SavepointSite, manifest: Manifest, store: str, target: Files
) -> None:
    place = f"{target.url.removeprefix('s3:/')}/"
    urlopen(Request(f"{os.environ['AWS_ENDPOINT_URL']}{place}", data=b"", method="PUT"), timeout=30).close()
    assert target.names("") == []
    assert target.url.rpartition("/")[2] in open_place(store).names("")
    check_target(site.home, target, places_of([site.table], {}), REQUEST)
    assert export(site.home, manifest.checkpoint, target, request=REQUEST) == verify(target)
    dispose(target)
    assert target.names("") == []
