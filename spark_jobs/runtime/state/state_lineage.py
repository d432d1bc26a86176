"""Which files of one of Spark's state stores hold one of its versions.

Version v of a RocksDB store is its newest snapshot at or below v and the changelogs after that one up to v. Every version has an id, and
a batch that was tried twice has left two files of one version: only the *lineage*, which names one id for each version, says what belongs
together. Spark's commit log has the id of the newest version, that version's changelog has the lineage before it, back to a snapshot or to
version 1 (``stateStore.checkpointFormatVersion=2``; the same is read in the same order by ``RocksDB.loadWithCheckpointId`` of Spark 4.2).
So nothing here asks how far back Spark's commit log goes: a changelog says the whole of its lineage itself.
"""

import json
import re
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from spark_jobs.protocol.errors import BEGIN_ANEW, CorruptDocumentError, NotFoundError, UnsupportedFormatError

VERSION_FILE = re.compile(r"\d+_[0-9a-f-]{36}\.(zip|changelog)")
"""The name of a snapshot or a changelog."""
_LZ4_BLOCK = b"LZ4Block"
_LZ4_HEADER_BYTES = 21
_LZ4_RAW, _LZ4_METHOD = 0x10, 0xF0
_ZSTD = b"\x28\xb5\x2f\xfd"
_HEADER_BYTES_MAX = 1 << 18
"""More than the version and the longest lineage that a changelog can have (64 KiB) take."""
_SHARED = {"sstFiles": ("dfsSstFileName", "SSTs"), "logFiles": ("dfsLogFileName", "logs")}
"""By the list in a snapshot's metadata: the field with the name of a file that snapshots share, and the directory that it is in."""


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


def store_files(store: Path, names: set[str], newest: StoreVersion) -> list[str]:
    """The files of a store that a query needs to go on from a version, relative to the store's directory.

    Args:
        store: The store's directory.
        names: What is in it.
        newest: The version.

    Raises:
        NotFoundError: One of them is gone, or not there yet.
        CorruptDocumentError: A file does not say what Spark writes.
        UnsupportedFormatError: The changelogs are compressed in a way that is not known here.
    """
    if newest.snapshot in names:
        return [newest.snapshot, *_shared_files(store / newest.snapshot)]
    lineage = [*_lineage_before(store / newest.changelog), newest]
    snapshot = max((item for item in lineage if item.snapshot in names), default=None)
    if snapshot is None and lineage[0].version != 1:
        raise _gone(store / lineage[0].snapshot)
    changelogs = [item.changelog for item in lineage if snapshot is None or item.version > snapshot.version]
    for name in changelogs:
        if name not in names:
            raise _gone(store / name)
    return changelogs if snapshot is None else [snapshot.snapshot, *_shared_files(store / snapshot.snapshot), *changelogs]


def _lineage_before(changelog: Path) -> list[StoreVersion]:
    """The lineage that the changelog of a version has of those before it, the oldest first."""
    with _opened(changelog) as file:
        stream = BytesIO(_decompressed(changelog, file.read(_HEADER_BYTES_MAX)))
    try:
        format_version = _text(stream)
        if format_version not in ("v3", "v4"):
            raise ValueError(f"a changelog of format {format_version!r} has no lineage")
        items = [StoreVersion(int(item["version"]), str(item["checkpointUniqueId"])) for item in json.loads(_text(stream))]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(changelog, error) from error
    return sorted(items)


def _text(stream: BytesIO) -> str:
    """A text as Java's ``DataOutput.writeUTF`` writes it; all that is written here is ASCII."""
    length = int.from_bytes(stream.read(2), "big")
    data = stream.read(length)
    if len(data) < length:
        raise ValueError(f"it ends after {len(data)} of {length} bytes")
    return data.decode("ascii")


def _decompressed(changelog: Path, data: bytes) -> bytes:
    """The beginning of a changelog."""
    if data.startswith(_LZ4_BLOCK):
        return _lz4_blocks(changelog, data)
    if data.startswith(_ZSTD):
        return _zstd(changelog, data)
    raise UnsupportedFormatError(
        f"{changelog} is compressed neither with LZ4 nor with Zstandard, and its lineage cannot be read.",
        safe="Nothing was changed.",
        remedy=f"Leave spark.sql.streaming.stateStore.compression.codec at lz4, and {BEGIN_ANEW}.",
        path=str(changelog),
    )


def _lz4_blocks(changelog: Path, data: bytes) -> bytes:
    """What the whole blocks in ``data`` hold. Each has a magic word, how it is stored, both sizes, a checksum, and its bytes."""
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


def _zstd(changelog: Path, data: bytes) -> bytes:
    import pyarrow as pa

    stream, found = pa.CompressedInputStream(BytesIO(data), "zstd"), bytearray()
    try:
        while len(found) < _HEADER_BYTES_MAX and (chunk := stream.read(4096)):
            found += chunk
    except (pa.ArrowException, OSError) as error:
        if not found:  # what was cut off at the end of ``data`` may be missed, the beginning may not
            raise _corrupt(changelog, error) from error
    return bytes(found)


def _shared_files(snapshot: Path) -> list[str]:
    """The files that a snapshot is made of besides itself; snapshots of one store share them."""
    try:
        with _opened(snapshot) as file, zipfile.ZipFile(file) as archive:
            _, _, body = archive.read("metadata").decode().partition("\n")
        metadata: dict[str, Any] = json.loads(body)
        return [f"{directory}/{entry[field]}" for key, (field, directory) in _SHARED.items() for entry in metadata.get(key) or []]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise _corrupt(snapshot, error) from error


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise _gone(path) from error


def _gone(path: Path) -> NotFoundError:
    return NotFoundError(
        f"{path} is not there, and a version of Spark's state needs it.",
        safe="Nothing was changed.",
        remedy="Repeat: Spark may have deleted it, or put a newer snapshot in its place.",
        path=str(path),
    )


def _corrupt(path: Path, error: Exception) -> CorruptDocumentError:
    return CorruptDocumentError(
        f"{path} is not a whole file of Spark's state: {error}.",
        safe="It was not used, and nothing was changed.",
        remedy="Start again: a work directory is built from the newest checkpoint.",
        path=str(path),
    )
