"""Opens tables as any reader with delta-rs does, in a directory or in a store of the tests."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place

IN_A_STORE = {"allow_http": "true"}
"""Options of delta-rs for a table in a store. It ignores them for a directory."""


def opened(table: str, version: int | None = None) -> DeltaTable:
    return DeltaTable(table, version=version, storage_options=IN_A_STORE)


def with_log(table: str) -> AbstractContextManager[Path]:
    """Returns a directory with the log of a table, for :mod:`tests.support.delta_logs`."""
    return on_a_disk(table, DELTA_LOG)


@contextmanager
def on_a_disk(table: str, below: str = "") -> Iterator[Path]:
    """Yields the directory of a table, or one with a copy of a table in a store.

    Args:
        table: The path or the URL of the table.
        below: The directory of the table that is copied. Default: all of it.
    """
    there = open_place(table)
    here = there.local()
    if here is not None:
        yield here
        return
    with TemporaryDirectory() as directory:
        copy_all(there, LocalFiles(directory), there.paths(below))
        yield Path(directory)


def copy_all(source: Files, target: Files, paths: Iterable[str]) -> None:
    """Copies files. Leaves out empty directories, which a store does not have, and files that another process deletes."""
    for path in paths:
        if source.size_bytes(path) is not None:
            with suppress(NotFoundError):
                target.copy(source, path, path)
