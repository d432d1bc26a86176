"""Opens a home for reading by the pages: writes nothing, follows no link, and reads no file larger than 16 MiB."""

import errno
import os
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import AccessDeniedError
from spark_jobs.storage.files import Digest, Files, bounded, local_path, too_large
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.plain_files import open_plain
from spark_jobs.storage.system import RealSystem

DOCUMENT_MAX_BYTES = 16 << 20


def read_only(files: Files) -> Files:
    """Returns the same home for reading. Its methods raise storage errors for anything but plain, small files."""
    if isinstance(files, HomeInStore):
        return _ReadOnlyStore(files.documents)
    return LocalFiles(local_path(files), _ReadOnly())


class _ReadOnlyStore:
    """The documents of a home in a store. Reads no file of this host."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @property
    def url(self) -> str:
        return self._files.url

    def below(self, directory: str) -> Files:
        return _ReadOnlyStore(self._files.below(directory))

    def local(self, path: str = "") -> None:
        return None

    def read(self, path: str, max_bytes: int = DOCUMENT_MAX_BYTES) -> bytes:
        with closing(self.chunks(path)) as chunks:
            return b"".join(bounded(chunks, max_bytes, f"{self.url}/{path}"))

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        with closing(self._files.chunks(path)) as chunks:
            yield from bounded(chunks, DOCUMENT_MAX_BYTES, f"{self.url}/{path}")

    def digest(self, path: str) -> Digest:
        read = self.read(path)
        return Digest(len(read), sha256(read))

    def size_bytes(self, path: str) -> int | None:
        return self._files.size_bytes(path)

    def names(self, directory: str) -> list[str]:
        return self._files.names(directory)

    def paths(self, directory: str = "") -> list[str]:
        return self._files.paths(directory)

    def create(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        self._refuse(*(path for path, _ in files))

    def replace(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def link_or_copy(self, source: Path, path: str) -> None:
        self._refuse(path)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def sync(self, *paths: str) -> None:
        self._refuse(*paths)

    def remove_unfinished(self, *paths: str) -> None:
        self._refuse(*paths)

    def _refuse(self, *paths: str) -> NoReturn:
        raise AccessDeniedError(
            f"{', '.join(paths)}: the pages may only read.",
            remedy="Use the commands, or an operator.",
        )


class _ReadOnly(RealSystem):
    """The system calls of the local storage that change nothing."""

    def open_file(self, path: str, root: str) -> int:
        descriptor = open_plain(path)
        if os.fstat(descriptor).st_size > DOCUMENT_MAX_BYTES:
            os.close(descriptor)
            raise too_large(path, DOCUMENT_MAX_BYTES)
        return descriptor

    def listdir(self, path: str) -> list[str]:
        descriptor = open_plain(path, directory=True)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def create_file(self, path: str) -> int:
        _refuse(path)

    def link(self, source: str, target: str) -> None:
        _refuse(target)

    def replace(self, source: str, target: str) -> None:
        _refuse(target)

    def unlink(self, path: str) -> None:
        _refuse(path)

    def mkdir(self, path: str) -> None:
        _refuse(path)

    def rmdir(self, path: str) -> None:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "these pages only read", path)
