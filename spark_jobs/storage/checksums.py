"""The checksum files ``.<name>.crc`` that Hadoop writes next to each file in a local directory, and this module next to others.

A reader refuses bytes that do not match the checksum, and accepts a file without one. So the checksum is deleted before a file of Spark's
is changed: a crash in between leaves the old bytes, which can be read.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress

from spark_jobs.protocol.errors import AlreadyExistsError, NotFoundError
from spark_jobs.storage.files import Files

_MAGIC = b"crc\0"
_HEADER_BYTES = 8
_SUM_BYTES = 4
_BLOCK_BYTES = 512
"""Hadoop's default."""


def checksum_name(name: str) -> str:
    """Returns the name of the checksum file of ``name``, in the same directory."""
    return f".{name}.crc"


def forget_checksum(files: Files, path: str) -> None:
    """Deletes the checksum of ``path``, if there is one."""
    files.delete(checksum_path(path))


def fits_checksum(files: Files, path: str) -> bool | None:
    """Reads a file and returns True if it matches its checksum; None if it has no checksum.

    A CRC-32 over every 512 bytes detects every change of up to four bytes in a row, and all but one in four billion others.

    Raises:
        NotFoundError: The file does not exist.
    """
    try:
        checksum = files.read(checksum_path(path))
    except NotFoundError:
        return None
    block_bytes = int.from_bytes(checksum[len(_MAGIC) : _HEADER_BYTES], "big")
    if not checksum.startswith(_MAGIC) or block_bytes <= 0:
        return False
    return checksum[_HEADER_BYTES:] == _sums(files, path, block_bytes)


def add_checksum(files: Files, path: str) -> None:
    """Writes the checksum of a final file, unless it has one. Durable on return.

    Raises:
        NotFoundError: The file does not exist.
    """
    checksum = _MAGIC + _BLOCK_BYTES.to_bytes(_HEADER_BYTES - len(_MAGIC), "big") + _sums(files, path, _BLOCK_BYTES)
    with suppress(AlreadyExistsError):
        files.create(checksum_path(path), checksum)


def add_missing_checksums(files: Files, directory: str, leave_out: Collection[str] = ()) -> None:
    """Writes the checksums of the files in a directory that have none. Needs one listing and reads only those files.

    Args:
        files: Files of the storage.
        directory: Directory of final files.
        leave_out: Names of files that may be overwritten.

    Raises:
        StorageError: The storage fails. May be repeated.
    """
    names = files.names(directory)
    known = set(names)
    for name in names:
        if name.startswith(".") or name in leave_out or checksum_name(name) in known:
            continue
        path = f"{directory}/{name}" if directory else name
        if files.size_bytes(path) is not None:  # directories have no checksum
            add_checksum(files, path)


def _sums(files: Files, path: str, block_bytes: int) -> bytes:
    with closing(files.chunks(path)) as chunks:
        return b"".join(zlib.crc32(block).to_bytes(_SUM_BYTES, "big") for block in _blocks(chunks, block_bytes))


def _blocks(chunks: Iterable[bytes], block_bytes: int) -> Iterator[memoryview]:
    left = b""
    for chunk in chunks:
        data = left + chunk
        whole = len(data) - len(data) % block_bytes
        view = memoryview(data)
        yield from (view[at : at + block_bytes] for at in range(0, whole, block_bytes))
        left = data[whole:]
    if left:
        yield memoryview(left)


def checksum_path(path: str) -> str:
    """Returns the path of the checksum of a file."""
    above, slash, name = path.rpartition("/")
    return f"{above}{slash}{checksum_name(name)}"


def rewrite(files: Files, path: str, data: bytes) -> None:
    """Replaces a file that Spark may have written and will read, durably. Either the old or the new bytes can be read."""
    forget_checksum(files, path)
    files.replace(path, data)
    files.sync(path)
