"""Checks the staged Parquet files of a table and their directory."""

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.storage.files import side_by_side
from spark_jobs.storage.table_uris import table_files


def check_no_file(uri: str) -> None:
    """Refuses a table directory if a file is in its place or in the place of a parent.

    Raises:
        UnsupportedTableError: There is such a file.
    """
    directory = table_files(uri).local()
    above = () if directory is None else (directory, *directory.parents)
    there = next((path for path in above if os.path.exists(path)), None)
    if there is not None and not os.path.isdir(there):
        raise UnsupportedTableError(
            f"{directory} cannot be a table's directory: {there} is a file.",
            remedy="Correct the sink's path or the parameter in it, or move the file away.",
            table=str(directory),
            file=str(there),
        )


def missing_files(uri: str, adds: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the staged files that are missing or have another size, as paths or URLs.

    Args:
        uri: URI of the table that they were staged for.
        adds: Delta's ``add`` actions, with URL-encoded paths relative to the table.

    Raises:
        StorageError: The storage does not answer.
    """
    files = table_files(uri)
    root: Path | str = files.local() or files.url
    named = [(unquote(add["path"]), int(add["size"])) for add in adds]
    looks = [partial(files.size_bytes, path) for path, _ in named]
    found = side_by_side(files, looks)
    return [f"{root}/{path}" for (path, size_bytes), here in zip(named, found, strict=True) if here != size_bytes]
