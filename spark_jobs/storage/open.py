"""Opens the storage port for a URL or path that a user has written."""

import os
import re
from functools import partial
from os.path import expanduser
from urllib.parse import unquote
from uuid import uuid4

from spark_jobs.protocol.errors import AccessDeniedError, AlreadyExistsError, InvalidParameterError, missing_package
from spark_jobs.storage.files import Files, keeps_no_first, side_by_side
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.object_store_kinds import KIND_BY_SPELLING, KINDS
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.paths import check_root
from spark_jobs.storage.s3_settings import S3Settings

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PREFIX = r"(?:/(?P<prefix>[^/?]+(?:/[^/?]+)*))?/?"
"""Matches the prefix in the URL of a place in an object store."""
_GIVE = "Give a place such as {}."
_GIVE_A_DIRECTORY = "Give a path such as /data/pipelines/flights, or file:///data/pipelines/flights."
_IN_HDFS = "hdfs://namenode:8020/homes/flights"
_HDFS_URL = re.compile(r"hdfs://(?P<authority>[^/@?#]*)(?P<root>/.*?)/*", re.IGNORECASE | re.DOTALL)
_CREDENTIALS = re.compile(r"//.*@", re.DOTALL)
"""Matches the credentials in a URL. A secret key may contain slashes."""
_QUERY = re.compile(r"\?.*", re.DOTALL)
"""Matches the query of a URL, which may be a shared access signature."""
PROBE = re.compile(r"probe-[0-9a-f]{32}")
"""Matches leftovers of :func:`check_create_if_absent` from a dead process."""
_FILE_URL = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.IGNORECASE | re.DOTALL)


def open_files(url: str) -> Files:
    """Opens a directory. Reads and writes nothing yet; ``open_files(files.url)`` opens the same one again.

    Args:
        url: A path, ``~`` allowed, or a ``file:`` URL with one or three slashes, escapes allowed.

    Raises:
        InvalidParameterError: The text is neither, or its path has characters that parts of a pipeline would read differently.
    """
    found = _SCHEME.match(url)
    if found is None:
        path = expanduser(url)
    elif found[1].lower() == "file":
        absolute = _FILE_URL.fullmatch(url)
        if absolute is None:
            raise _refused(url, "A file: URL has the form file:///directory.", _GIVE_A_DIRECTORY)
        path = unquote(absolute[1], errors="surrogateescape")
    else:
        raise _refused_scheme(url, found[1])
    if not path.strip():
        raise _refused(url, "The text does not name a directory.", _GIVE_A_DIRECTORY)
    return LocalFiles(path)


def open_place(url: str) -> Files:
    """Opens a place: a directory as in :func:`open_files`, or one in a store.

    Args:
        url: A path or a ``file:`` URL; ``s3://bucket/prefix``, where ``s3a:`` is the same;
            ``abfss://container@account.dfs.core.windows.net/directory``, where ``abfs:`` is the same; ``gs://bucket/prefix``; or
            ``hdfs://name-node:port/directory``, a name service, or neither for the default of Hadoop. Credentials and settings come from
            the environment, or for an object store from an Airflow connection that has named it.

    Raises:
        InvalidParameterError: The text has none of these forms.
        MissingRequirementError: The package for the store is not installed.
    """
    found = _SCHEME.match(url)
    scheme = "" if found is None else found[1].lower()
    if kind := KIND_BY_SPELLING.get(scheme):
        return _open_object_store(url, kind)
    return _open_hdfs(url) if scheme == "hdfs" else open_files(url)


def _refused_scheme(url: str, scheme: str) -> InvalidParameterError:
    if scheme.lower() in (*KIND_BY_SPELLING, "hdfs"):
        reason = f"{scheme}: is not supported here. This place has to be a directory of a local or a shared POSIX file system."
        return _refused(url, reason, _GIVE_A_DIRECTORY)
    return _refused(
        url,
        f"{scheme}: is not supported. Tables, homes and savepoints are in directories of a local or a shared POSIX file system, "
        f"or in stores: {', '.join(f'{kind.SCHEME}:' for kind in KINDS)} and hdfs:.",
        f"{_GIVE_A_DIRECTORY} Or give a place in a store, such as {S3Settings.EXAMPLE}.",
    )


def _open_object_store(url: str, kind: type[ObjectStoreSettings]) -> Files:
    place = re.fullmatch(rf"[^:]+://(?P<bucket>{kind.BUCKET_NAME}){_PREFIX}", url, re.IGNORECASE)
    prefix = "" if place is None else place["prefix"] or ""
    if place is None or {".", ".."} & set(prefix.split("/")):
        raise _refused(url, f"A place in {kind.NAME} has the form {kind.FORM}.", _GIVE.format(kind.EXAMPLE))
    check_root(prefix)
    if not kind.ENDS_NAMES_WITH_DOTS and any(name.endswith(".") for name in prefix.split("/")):
        raise _refused(
            url,
            f"In {kind.CLOUD} no name of a directory ends with a dot.",
            "Give each directory a name without a dot at its end.",
        )
    bucket = place["bucket"].lower() if kind.IGNORES_CASE else place["bucket"]
    try:
        from spark_jobs.storage.object_store import ObjectStoreFiles
    except ImportError as error:
        raise missing_package(url, "obstore", kind.EXTRA) from error
    return ObjectStoreFiles(f"{kind.SCHEME}://{bucket}", prefix)


def _open_hdfs(url: str) -> Files:
    place = _HDFS_URL.fullmatch(url)
    if place is None:
        form = "A place in HDFS has the form hdfs://name-node:port/directory."
        raise _refused(url, form, _GIVE.format(_IN_HDFS))
    try:
        from spark_jobs.storage.hdfs import HdfsFiles
    except ImportError as error:
        raise missing_package(url, "hdfs-native", "hdfs") from error
    return HdfsFiles(place["authority"], place["root"])


def check_directory(files: Files) -> None:
    """Refuses a place on this host that is a file or below a file. Writes nothing.

    Raises:
        InvalidParameterError: The place is a file or below one.
    """
    root = files.local()
    if root is None:
        return
    there = next((each for each in (root, *root.parents) if os.path.exists(each)), root)
    if there.is_file():
        raise InvalidParameterError(
            f"{root} cannot be a directory: {'it' if there == root else there} is a file.",
            remedy="Name a directory, or a new one.",
            path=str(root),
            found=str(there),
        )


def check_writable(files: Files) -> None:
    """Refuses a new directory on this host that this user cannot create or write. Writes nothing. A place in a store passes.

    Raises:
        InvalidParameterError: The place is a file or below one.
        AccessDeniedError: The nearest directory that exists cannot be written.
    """
    check_directory(files)
    root = files.local()
    if root is None:
        return
    there = next(each for each in (root, *root.parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise AccessDeniedError(
            f"{root} cannot be written: this user has no right to write into {there}.",
            remedy="Name another directory, or get the right to write there.",
            path=str(root),
            found=str(there),
        )


def check_create_if_absent(files: Files) -> None:
    """Refuses a place in which two creates of one name both succeed. Every guarantee depends on this.

    Leaves nothing behind. The place may be that of a home or a table, or the root of homes or savepoints.

    Raises:
        InvalidParameterError: The place is a file.
        MissingRequirementError: The store accepts a second create, or does not list or delete created files.
        StorageError: The store cannot be written.
    """
    check_directory(files)
    probe = f"probe-{uuid4().hex}"
    try:
        files.create(probe, b"first")
        try:
            files.create(probe, b"second")
        except AlreadyExistsError:
            found, names = side_by_side(files, [partial(files.read, probe), partial(files.names, "")])
            kept = found == b"first" and probe in names
        else:
            kept = False
    finally:
        files.delete(probe)
    if not kept or probe in files.names(""):
        raise keeps_no_first(files.url, "this process")


def _refused(given: str, reason: str, remedy: str) -> InvalidParameterError:
    url = _QUERY.sub("?***", _CREDENTIALS.sub("//***@", given))
    return InvalidParameterError(f"{url!r} cannot be opened. {reason}", remedy=remedy, url=url)
