"""The checksum that Hadoop keeps beside each file that it writes in a directory: ``.<name>.crc``.

A reader refuses bytes that do not fit it, and takes a file without one as it is. So whoever changes a file of Spark's takes the checksum
away first: a crash between the two leaves the old bytes, and they can be read.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing

from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.storage.files import Files

_MAGIC = b"crc\0"
_HEADER_BYTES = 8
_SUM_BYTES = 4


def checksum_name(name: str) -> str:
    """What the checksum of the file ``name`` is called, in the same directory."""
    return f".{name}.crc"


def forget_checksum(files: Files, path: str) -> None:
    """Deletes the checksum of ``path``, if there is one."""
    files.delete(checksum_path(path))


def fits_checksum(files: Files, path: str) -> bool | None:
    """Reads a file and returns whether it fits the checksum beside it; None if it has no checksum.

    A CRC-32 over every 512 bytes notices each change of up to four bytes in a row, and of others all but one in four billion.

    Raises:
        NotFoundError: The file is not there.
    """
    try:
        checksum = files.read(checksum_path(path))
    except NotFoundError:
        return None
    block_bytes = int.from_bytes(checksum[len(_MAGIC) : _HEADER_BYTES], "big")
    if not checksum.startswith(_MAGIC) or block_bytes <= 0:
        return False
    with closing(files.chunks(path)) as chunks:
        found = b"".join(zlib.crc32(block).to_bytes(_SUM_BYTES, "big") for block in _blocks(chunks, block_bytes))
    return checksum[_HEADER_BYTES:] == found


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
    """Puts ``data`` under ``path``, which Spark may have written and is going to read, durably: the old bytes are there, or the new."""
    forget_checksum(files, path)
    files.replace(path, data)
    files.sync(path)
