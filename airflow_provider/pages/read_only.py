"""A home as the pages may read it: nothing is written, no link is followed, no file is larger than a document gets."""

import errno
import os
from typing import NoReturn

from airflow_provider.drivers.plain_files import open_plain
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.system import RealSystem

DOCUMENT_MAX_BYTES = 16 << 20


def read_only(files: Files) -> Files:
    """The same home, for reading. Its methods raise the storage's errors where something is no plain, small file."""
    return LocalFiles(local_path(files), _ReadOnly())


class _ReadOnly(RealSystem):
    """The calls that the local storage makes, without those that change anything."""

    def open(self, path: str) -> int:
        descriptor = open_plain(path)
        if os.fstat(descriptor).st_size > DOCUMENT_MAX_BYTES:
            os.close(descriptor)
            raise OSError(errno.EFBIG, "larger than a document gets", path)
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
