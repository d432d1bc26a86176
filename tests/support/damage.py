"""Damages files as a disk does. Writes the checksum with which Hadoop would detect the damage."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK_BYTES = 512


def write_checksum(path: Path) -> None:
    """Writes the checksum of a file, as Hadoop does."""
    data = path.read_bytes()
    blocks = (data[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES))
    sums = b"".join(zlib.crc32(block).to_bytes(4, "big") for block in blocks)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + _BLOCK_BYTES.to_bytes(4, "big") + sums)


def flip(path: Path, at: int | None = None) -> None:
    """Changes one byte of a file under all of its names, by default the byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 0x10
    with path.open("r+b") as file:
        file.write(data)


@contextmanager
def flipped(path: Path, at: int) -> Iterator[None]:
    """Changes one byte of a file while the context is open."""
    flip(path, at)
    try:
        yield
    finally:
        flip(path, at)


@contextmanager
def deleted(path: Path) -> Iterator[None]:
    """Removes a file while the context is open."""
    elsewhere = path.with_name(f"{path.name} elsewhere")
    path.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(path)
