"""The files of a state store that contain a version."""

from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, UnsupportedFormatError
from spark_jobs.runtime.state.state_lineage import StoreVersion, store_files
from spark_jobs.storage.local import LocalFiles
from tests.support.state_stores import Store, changelog, lz4_blocks, store_id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state/0/0")


def chosen(store: Store, newest: StoreVersion) -> list[str]:
    return store_files(LocalFiles(store.directory), {path.name for path in store.directory.iterdir()}, newest)


def write(store: Store, versions: int) -> list[StoreVersion]:
    return [store.write(100 + number) for number in range(versions)]


def test_every_version_is_needed_if_there_is_no_snapshot(store: Store) -> None:
    versions = write(store, 4)
    assert chosen(store, versions[2]) == [each.changelog for each in versions[:3]]


def test_the_newest_snapshot_of_the_lineage_replaces_all_earlier_versions(store: Store) -> None:
    versions = write(store, 7)
    store.snapshot(versions[1])
    files = store.snapshot(versions[3], ["000001-" + store_id(10_001) + ".sst"])
    assert chosen(store, versions[5]) == [
        versions[3].snapshot,
        *(f"SSTs/{name}" for name in files),
        versions[4].changelog,
        versions[5].changelog,
    ]


def test_a_snapshot_after_the_version_is_not_used(store: Store) -> None:
    versions = write(store, 5)
    store.snapshot(versions[4])
    assert chosen(store, versions[3]) == [each.changelog for each in versions[:4]]


def test_a_snapshot_of_the_version_itself_is_enough_without_any_changelog(store: Store) -> None:
    (version,) = write(store, 1)
    files = store.snapshot(version)
    (store.directory / version.changelog).unlink()
    assert chosen(store, version) == [version.snapshot, *(f"SSTs/{name}" for name in files)]


def test_files_of_a_failed_try_of_a_batch_are_not_used(store: Store) -> None:
    versions = write(store, 5)
    other = Store(store.directory, list(versions[:2]))
    dead = [other.write(900 + number) for number in range(3)]
    other.snapshot(dead[1])
    assert chosen(store, versions[4]) == [each.changelog for each in versions]
    assert chosen(store, dead[2])[-1] == dead[2].changelog
    assert dead[1].snapshot in chosen(store, dead[2])


def test_versions_that_spark_has_purged_are_not_needed_behind_a_snapshot(store: Store) -> None:
    versions = write(store, 130)
    store.snapshot(versions[120])
    for each in versions[:120]:
        (store.directory / each.changelog).unlink()
    assert chosen(store, versions[129])[0] == versions[120].snapshot


@pytest.mark.parametrize("gone", [0, 2, 4])
def test_a_version_that_is_gone_is_not_found(store: Store, gone: int) -> None:
    versions = write(store, 5)
    (store.directory / versions[gone].changelog).unlink()
    with pytest.raises(NotFoundError) as missing:
        chosen(store, versions[4])
    assert missing.value.evidence["path"].endswith(versions[gone].changelog)


def test_a_lineage_that_begins_with_a_snapshot_needs_it(store: Store) -> None:
    versions = write(store, 3)
    store.snapshot(versions[2])
    versions += write(store, 2)
    assert chosen(store, versions[4])[0] == versions[2].snapshot
    (store.directory / versions[2].snapshot).unlink()
    with pytest.raises(NotFoundError, match=versions[2].snapshot):
        chosen(store, versions[4])


@pytest.mark.parametrize(
    ("compressed", "lineage"),
    [
        (lz4_blocks, 3),
        (lambda data: lz4_blocks(data, block_bytes=64), 3),
        (lambda data: pa.Codec("zstd").compress(data, asbytes=True), 3),
        (lambda data: pa.Codec("zstd").compress(data + bytes(range(256)) * 4_000, asbytes=True), 800),
        (lambda data: lz4_blocks(data + bytes(range(256)) * 4_000), 800),
    ],
)
@pytest.mark.slow
def test_a_lineage_with_any_compression_of_spark_is_read(store: Store, compressed: object, lineage: int) -> None:
    versions = write(store, lineage)
    newest = StoreVersion(lineage + 1, store_id(7))
    assert callable(compressed)
    (store.directory / newest.changelog).write_bytes(compressed(changelog(versions)))
    assert chosen(store, newest) == [each.changelog for each in [*versions, newest]]


@pytest.mark.parametrize(
    "data",
    [
        b"LZ4Block",
        lz4_blocks(b"\0\2v4\0\x09[{"),
        lz4_blocks(changelog([], format_version="v2")),
        lz4_blocks(b"\0\2v4\0\4null"),
        b"LZ4Block\x25\4\0\0\0\4\0\0\0\0\0\0\0\xff\xff\xff\xff",
        b"\x28\xb5\x2f\xfd\xff",
    ],
)
def test_a_changelog_without_a_lineage_is_corrupt_by_name(store: Store, data: bytes) -> None:
    (version,) = write(store, 1)
    (store.directory / version.changelog).write_bytes(data)
    with pytest.raises(CorruptDocumentError, match=version.changelog):
        chosen(store, version)


def test_another_compression_is_refused_with_a_remedy(store: Store) -> None:
    (version,) = write(store, 1)
    (store.directory / version.changelog).write_bytes(b"\x82SNAPPY\0")
    with pytest.raises(UnsupportedFormatError, match=r"compression\.codec at lz4"):
        chosen(store, version)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 torn"])
def test_a_torn_snapshot_is_corrupt_by_name(store: Store, data: bytes) -> None:
    (version,) = write(store, 1)
    (store.directory / version.snapshot).write_bytes(data)
    with pytest.raises(CorruptDocumentError, match=version.snapshot):
        chosen(store, version)
