"""The staged Parquet files of a table: where they are, and which are gone."""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_jobs.protocol.errors import AccessDeniedError, StorageError, UnsupportedTableError

_UNREADABLE = re.compile(r"%[0-9a-fA-F]{2}|[\x00-\x1f\[\]^|\\]")
"""What delta-rs gets wrong in a table's own path: it decodes ``%20`` twice, and its URL parser panics on the others."""


def table_directory(uri: str) -> Path:
    """The local directory of a table.

    Args:
        uri: A ``file:`` URI, percent-encoded as ``pathlib.Path.as_uri`` does it.

    Raises:
        UnsupportedTableError: It is no such URI, or has characters that delta-rs cannot address.
    """
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if (
        parts.scheme != "file"
        or parts.netloc not in ("", "localhost")
        or parts.query
        or parts.fragment
        or not path.startswith("/")
    ):
        raise UnsupportedTableError(
            f"Table {uri} cannot be published without a JVM: only absolute 'file:' URIs can.",
            safe="Nothing was written.",
            remedy="Give the sink a path on a local or mounted file system.",
            table=uri,
        )
    if strange := _UNREADABLE.search(path):
        raise UnsupportedTableError(
            f"Table {uri} has {strange.group()!r} in its path, which delta-rs cannot address.",
            safe="Nothing was written.",
            remedy="Put the table under a path without control characters, '[', ']', '^', '|', '\\' and escapes like '%20'.",
            table=uri,
        )
    return Path(path)


def check_no_file(directory: Path) -> None:
    """Refuses a directory that can be no table's, because a file is there, or where one above it would be.

    Raises:
        UnsupportedTableError: There is one.
    """
    there = next((path for path in (directory, *directory.parents) if os.path.exists(path)), None)
    if there is not None and not os.path.isdir(there):
        raise UnsupportedTableError(
            f"{directory} cannot be a table's directory: {there} is a file.",
            safe="Nothing was written.",
            remedy="Correct the sink's path or the parameter in it, or move the file away.",
            table=str(directory),
            file=str(there),
        )


def missing_files(table_uri: str, adds: Iterable[Mapping[str, Any]]) -> list[str]:
    """The staged files that are not there any more with the size they were staged with, as paths.

    Args:
        table_uri: The table they were staged for.
        adds: Delta's ``add`` actions; paths relative to the table, URL-encoded.

    Raises:
        StorageError: The storage does not tell.
    """
    directory = table_directory(table_uri)
    paths = ((f"{directory}/{unquote(add['path'])}", int(add["size"])) for add in adds)
    return [path for path, size_bytes in paths if _size_bytes(path, table_uri) != size_bytes]


def _size_bytes(path: str, table_uri: str) -> int | None:
    """The size of a file, None where there is none. Asked once: of two answers the second may be that it is gone."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
        raise kind(
            f"The storage of table {table_uri} fails: {error}",
            safe="Nothing was written.",
            remedy="Repair the storage and repeat.",
            table=table_uri,
            path=path,
        ) from error
    return found.st_size if stat.S_ISREG(found.st_mode) else None
