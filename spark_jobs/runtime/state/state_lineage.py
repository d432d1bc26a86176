"""Finds the files of a Spark state store that contain one of its versions.

Version v of a RocksDB store is its newest snapshot at or below v and the changelogs after it up to v. Every version has an id. A batch that
was tried twice has left two files of one version. The *lineage*, which has one id for each version, shows which files belong together.
Spark's commit log has the id of the newest version, and that version's changelog has the lineage before it, back to a snapshot or to
version 1 (``stateStore.checkpointFormatVersion=2``; ``RocksDB.loadWithCheckpointId`` of Spark 4.2 reads the same in the same order). So the
length of Spark's commit log does not matter: a changelog contains its whole lineage.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

from spark_jobs.protocol.errors import (
    BEGIN_ANEW,
    CorruptDocumentError,
    NotFoundError,
    StreamPipelineError,
    UnsupportedFormatError,
)
from spark_jobs.storage.files import Files, is_mounted, opened

VERSION_FILE = re.compile(r"\d+_[0-9a-f-]{36}\.(zip|changelog)")
"""Matches the name of a snapshot or a changelog."""
_LZ4_BLOCK = b"LZ4Block"
_LZ4_HEADER_BYTES = 21
_LZ4_RAW, _LZ4_METHOD = 0x10, 0xF0
_ZSTD = b"\x28\xb5\x2f\xfd"
_HEADER_BYTES_MAX = 1 << 18
"""Maximum size of a changelog's version and lineage (64 KiB), with a margin."""
_SHARED = {"sstFiles": ("dfsSstFileName", "SSTs"), "logFiles": ("dfsLogFileName", "logs")}
"""The field with the name of a shared file, and its directory, by list in a snapshot's metadata."""


@dataclass(frozen=True, order=True)
class StoreVersion:
    """One version of a store."""

    version: int
    id: str

    @property
    def snapshot(self) -> str:
        return f"{self.version}_{self.id}.zip"

    @property
    def changelog(self) -> str:
        return f"{self.version}_{self.id}.changelog"


def store_files(store: Files, names: set[str], newest: StoreVersion) -> list[str]:
    """Returns the files of a store that a query needs to go on from a version, relative to the store's directory.

    Args:
        store: Directory of the store.
        names: Names in it.
        newest: The version.

    Raises:
        NotFoundError: A file is missing, or does not exist yet.
        CorruptDocumentError: A file does not have the format that Spark writes.
        UnsupportedFormatError: The changelogs have an unknown compression.
    """
    if newest.snapshot in names:
        return [newest.snapshot, *_shared_files(store, newest.snapshot)]
    lineage = [*_lineage_before(store, newest.changelog), newest]
    snapshot = max((item for item in lineage if item.snapshot in names), default=None)
    if snapshot is None and lineage[0].version != 1:
        raise _gone(store, lineage[0].snapshot)
    changelogs = [item.changelog for item in lineage if snapshot is None or item.version > snapshot.version]
    for name in changelogs:
        if name not in names:
            raise _gone(store, name)
    return changelogs if snapshot is None else [snapshot.snapshot, *_shared_files(store, snapshot.snapshot), *changelogs]


def _lineage_before(store: Files, name: str) -> list[StoreVersion]:
    """Returns the lineage in a version's changelog, oldest version first."""
    changelog = f"{store.url}/{name}"
    stream = BytesIO(_decompressed(changelog, _beginning(store, name)))
    try:
        format_version = _text(stream)
        if format_version not in ("v3", "v4"):
            raise ValueError(f"a changelog of format {format_version!r} has no lineage")
        items = [StoreVersion(int(item["version"]), str(item["checkpointUniqueId"])) for item in json.loads(_text(stream))]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(changelog, error) from error
    return sorted(items)


def _text(stream: BytesIO) -> str:
    """Reads a text in the format of Java's ``DataOutput.writeUTF``. All texts here are ASCII."""
    length = int.from_bytes(stream.read(2), "big")
    data = stream.read(length)
    if len(data) < length:
        raise ValueError(f"it ends after {len(data)} of {length} bytes")
    return data.decode("ascii")


def _decompressed(changelog: str, data: bytes) -> bytes:
    """Returns the decompressed beginning of a changelog."""
    if data.startswith(_LZ4_BLOCK):
        return _lz4_blocks(changelog, data)
    if data.startswith(_ZSTD):
        return _zstd(changelog, data)
    raise UnsupportedFormatError(
        f"{changelog} is not compressed with LZ4 or Zstandard, so its lineage cannot be read.",
        remedy=f"Leave spark.sql.streaming.stateStore.compression.codec at lz4, and {BEGIN_ANEW}.",
        path=changelog,
    )


def _lz4_blocks(changelog: str, data: bytes) -> bytes:
    """Returns the content of the complete blocks in ``data``. A block has a magic word, a method, both sizes, a checksum and its bytes."""
    import pyarrow as pa

    codec, found, rest = pa.Codec("lz4_raw"), [], data
    while len(rest) >= _LZ4_HEADER_BYTES and rest.startswith(_LZ4_BLOCK):
        method = rest[len(_LZ4_BLOCK)] & _LZ4_METHOD
        stored, size = (int.from_bytes(rest[at : at + 4], "little") for at in (9, 13))
        block, rest = rest[_LZ4_HEADER_BYTES : _LZ4_HEADER_BYTES + stored], rest[_LZ4_HEADER_BYTES + stored :]
        if len(block) < stored or size == 0:
            break
        try:
            found.append(block if method == _LZ4_RAW else codec.decompress(block, decompressed_size=size, asbytes=True))
        except (pa.ArrowException, OSError) as error:
            raise _corrupt(changelog, error) from error
    return b"".join(found)


def _zstd(changelog: str, data: bytes) -> bytes:
    import pyarrow as pa

    stream, found = pa.CompressedInputStream(BytesIO(data), "zstd"), bytearray()
    try:
        while len(found) < _HEADER_BYTES_MAX and (chunk := stream.read(4096)):
            found += chunk
    except (pa.ArrowException, OSError) as error:
        if not found:  # the end of ``data`` may be truncated, but not the beginning
            raise _corrupt(changelog, error) from error
    return bytes(found)


def _shared_files(store: Files, snapshot: str) -> list[str]:
    """Returns the other files of a snapshot, which snapshots of one store share."""
    try:
        with _opened(store, snapshot) as file, zipfile.ZipFile(file) as archive:
            _, _, body = archive.read("metadata").decode().partition("\n")
        metadata: dict[str, Any] = json.loads(body)
        return [f"{directory}/{entry[field]}" for key, (field, directory) in _SHARED.items() for entry in metadata.get(key) or []]
    except StreamPipelineError:
        raise
    except Exception as error:  # an archive with one other byte raises almost anything
        raise _corrupt(f"{store.url}/{snapshot}", error) from error


def _beginning(store: Files, name: str) -> bytes:
    """Returns the first bytes of a changelog, which has its lineage there."""
    if is_mounted(store):
        with _opened(store, name) as file:
            return file.read(_HEADER_BYTES_MAX)
    with closing(store.chunks(name)) as chunks:
        return next(chunks, b"")[:_HEADER_BYTES_MAX]


@contextmanager
def _opened(store: Files, name: str) -> Iterator[IO[bytes]]:
    try:
        with opened(store, name) as file:
            yield file
    except FileNotFoundError as error:
        raise _gone(store, name) from error


def _gone(store: Files, name: str) -> NotFoundError:
    path = f"{store.url}/{name}"
    return NotFoundError(
        f"{path} is missing, but a version of Spark's state needs it.",
        remedy="Repeat: Spark may have deleted the file, or replaced it by a newer snapshot.",
        path=path,
    )


def _corrupt(path: str, error: Exception) -> CorruptDocumentError:
    return CorruptDocumentError(
        f"{path} is not a complete file of Spark's state: {error}.",
        remedy="Start again: a work directory is built from the newest checkpoint.",
        path=path,
    )
