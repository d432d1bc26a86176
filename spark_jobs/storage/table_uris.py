"""The names of a Delta table's directory in documents, Spark and delta-rs.

Documents name a table by its *URI*: ``file:///data/table``, ``s3://bucket/table``, ``gs://bucket/table``, ``hdfs://name-node/table`` or
``abfss://container@account.dfs.core.windows.net/table``, percent-encoded. Spark needs a path or a URL without escapes.
"""

import re
from urllib.parse import quote, unquote, urlsplit

from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.object_store_kinds import is_in_object_store
from spark_jobs.storage.open import open_place

_UNREADABLE = re.compile(r"%[0-9a-fA-F]{2}|[\x00-\x1f\[\]^|\\]")
"""Matches characters in a table's path that delta-rs reads wrongly: it decodes ``%20`` twice, and its URL parser panics on the others."""
_UNREADABLE_IN_HDFS = re.compile(r"[^A-Za-z0-9/_.~-]")
"""Matches characters in the path of a table in HDFS that delta-rs reads wrongly: it does not decode escapes there."""


def uri_of(directory: Files) -> str:
    """Returns the URI of the table in a directory."""
    here = directory.local()
    if here is not None:
        return here.as_uri()
    scheme, _, rest = directory.url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority}{slash}{quote(path)}"


def table_uri(place: str) -> str:
    """Returns the URI of a table at a place that a user has named: a path or a URL.

    Raises:
        InvalidParameterError: The text is neither.
        UnsupportedTableError: The path has characters that delta-rs cannot address.
        MissingRequirementError: The package for the store is not installed.
    """
    uri = uri_of(open_place(place))
    _path(uri)
    return uri


def table_files(uri: str) -> Files:
    """Returns the files in a table's directory.

    Raises:
        UnsupportedTableError: The text is not such a URI, or has characters that delta-rs cannot address.
        MissingRequirementError: The package for the store is not installed.
    """
    path = spark_path(uri)
    return open_place(path) if is_in_store(uri) else LocalFiles(path, has_url=False)


def is_in_store(uri: str) -> bool:
    """Returns True for a table in a store, False for one in a directory of this host."""
    return is_in_object_store(uri) or urlsplit(uri).scheme == "hdfs"


def spark_path(uri: str) -> str:
    """Returns Spark's name for the directory of a table. The errors are those of :func:`table_files`."""
    path, parts = _path(uri), urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{path}" if is_in_store(uri) else path


def _path(uri: str) -> str:
    parts = urlsplit(uri)
    path = unquote(parts.path)
    is_directory = parts.scheme == "file" and parts.netloc in ("", "localhost")
    if not (is_directory or is_in_store(uri)) or parts.query or parts.fragment or not path.startswith("/"):
        raise UnsupportedTableError(
            f"Table {uri} cannot be published: only tables in directories and in stores can.",
            remedy="Give the sink a path on a local or mounted file system, or an s3:, abfss:, gs: or hdfs: URL.",
            table=uri,
        )
    if strange := _UNREADABLE.search(path) or (parts.scheme == "hdfs" and _UNREADABLE_IN_HDFS.search(path)):
        raise UnsupportedTableError(
            f"Table {uri} has {strange.group()!r} in its path, which delta-rs cannot address.",
            remedy="Put the table under a path without control characters, '[', ']', '^', '|', '\\' and escapes like '%20'; in HDFS also "
            "with letters without accents, digits, and '/', '_', '.', '~' and '-' alone.",
            table=uri,
        )
    return path
