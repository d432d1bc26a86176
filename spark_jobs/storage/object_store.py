"""The storage port in an object store: S3 and stores that speak its protocol, Azure Data Lake Storage, and Google Cloud Storage.

``create`` is one request: the object is put on condition that the name is free (``If-None-Match``), which the store checks. So is a copy
of up to 8 MiB. A larger copy looks for the name first, and is then put in parts without a condition: of two simultaneous ones the later
one wins. It is visible when the last part is there. An answered put is durable. A put without an answer has written the whole object or
nothing. Parts of an abandoned upload are invisible. A lifecycle rule of the bucket can delete them.

Within a bucket of S3 the store itself copies larger objects, up to 256 MiB. Their bytes are still read, for the digest. If the store does
not copy exactly the object that was read, the copy is put in parts.

A store has no directories: a directory exists while there is an object below it. Azure may have them: Hadoop marks them by empty objects,
and an account with a hierarchical namespace keeps one until it is deleted.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import obstore
from obstore.exceptions import AlreadyExistsError as ObjectExistsError
from obstore.exceptions import BaseError, GenericError

from spark_jobs.background import run_ahead, run_all
from spark_jobs.protocol.errors import (
    InvalidParameterError,
    NotFoundError,
    StorageError,
)
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Digesting, Files, keeps_no_first, too_large
from spark_jobs.storage.object_store_client import open_client, translated_errors
from spark_jobs.storage.object_store_kinds import object_store_kind
from spark_jobs.storage.os_errors import other_contents, taken, translated
from spark_jobs.storage.paths import UNFINISHED, parts_below

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore

_LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 64 << 10
"""Chunks of this size stay in the memory that was freed last. The kernel has to clear larger ones, which takes as long as the rest."""
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
"""Number of parts of one file that are written, or read ahead, at the same time. Several files are copied at the same time."""
_PAUSES_S = (0.1, 0.4, 1.6)
_COPIED_MAX_BYTES = 256 << 20
"""The store itself copies objects of up to this size, which takes it a few seconds: a request has a time limit."""
_DELETE_TRIES = 3
_EMPTY = "InvalidRange"
"""The code of the error for a range of an empty object."""
_checked: "WeakValueDictionary[int, ObjectStore]" = WeakValueDictionary()
"""The clients, by their ``id``, of stores that have refused a second object under one name."""
_without_copies: "WeakValueDictionary[int, ObjectStore]" = WeakValueDictionary()
"""The clients, by their ``id``, of stores that have failed to copy an object: a server cannot, or the permissions do not suffice."""
T = TypeVar("T")


class ObjectStoreFiles:
    """The objects below a prefix of a bucket or a container; see :class:`~spark_jobs.storage.files.Files` for the contract of each method.

    Credentials and endpoint are those of an Airflow connection that has named the store, else of the environment (``AWS_…``, ``AZURE_…``,
    ``GOOGLE_…``) or of a role of the host. See :func:`~spark_jobs.storage.settings_by_bucket.settings_for`.

    Args:
        bucket: URL of the bucket or the container, such as ``s3://bucket``.
        prefix: Prefix of the keys, without slashes around it; empty for everything there.
        retry_timeout_s: Time for which a call is repeated while the store does not answer or is busy.
        pauses_s: Pauses between tries to create a name that another process is creating, too.

    Raises:
        InvalidParameterError: The environment has an invalid setting: an endpoint that is not a URL, or an incomplete credential. Or it is
            not known which of several stores has it.
    """

    def __init__(self, bucket: str, prefix: str, retry_timeout_s: float = 60.0, pauses_s: Sequence[float] = _PAUSES_S) -> None:
        self._pauses_s = pauses_s
        self._url = f"{bucket}/{prefix}".rstrip("/")
        self._bucket, self._prefix = bucket, prefix
        self._kind = object_store_kind(bucket)
        self._retry_timeout = timedelta(seconds=retry_timeout_s)
        self._client = open_client(bucket, self._retry_timeout)
        self._copied: set[str] = set()
        """The keys of copies that the store has answered, so that they are durable. :meth:`sync` need not check them."""

    @property
    def url(self) -> str:
        """Returns the URL, such as ``s3://bucket/prefix``."""
        return self._url

    def below(self, directory: str) -> "ObjectStoreFiles":
        return ObjectStoreFiles(self._bucket, self._key(directory), self._retry_timeout.total_seconds(), self._pauses_s)

    def local(self, path: str = "") -> None:
        return None

    def create(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with translated_errors(self._place(key), writes=True):
            self._check_conditional_writes()
            try:
                found = self._put_first(key, data, self._content)
            except (BaseError, StorageError):  # the readable content decides, whatever the store has answered
                found = self._content(key)
                if found is None:
                    raise
            if found is not None and found != data:
                raise other_contents(self._place(key), data, found)

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        run_all([partial(self.create, path, data) for path, data in files])

    def replace(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with translated_errors(self._place(key), writes=True):
            obstore.put(self._client, key, data, use_multipart=False)

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        key = self._key(path)
        with translated_errors(self._place(key)):
            found = obstore.get(self._client, key)
            if found.meta["size"] > max_bytes:
                raise too_large(self._place(key), max_bytes)
            return bytes(found.bytes())

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        key = self._key(path)
        yield from self._all_chunks(key, self._first_part(key))

    def digest(self, path: str) -> Digest:
        read = Digesting(self.chunks(path))
        deque(read, maxlen=0)
        return read.digest

    def size_bytes(self, path: str) -> int | None:
        key = self._key(path)
        with suppress(NotFoundError), translated_errors(self._place(key)):
            return obstore.head(self._client, key)["size"]
        return None

    def link_or_copy(self, source: Path, path: str) -> None:
        key = self._key(path)
        with translated(str(source)), source.open("rb") as opened:
            self._copy(iter(lambda: opened.read(_CHUNK_BYTES), b""), key)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        key = self._key(path)
        if isinstance(source, ObjectStoreFiles) and source._client is self._client and self._store_can_copy:
            return self._copy_within(source._key(named), key)
        with closing(source.chunks(named)) as chunks:
            return self._copy(chunks, key)

    def names(self, directory: str) -> list[str]:
        key = self._directory_key(directory)
        with translated_errors(self._place(key or "")):
            listed = obstore.list_with_delimiter(self._client, key)
        # Consoles create a folder as an empty object whose name ends in a slash. It is not a file in the folder.
        files = (path for found in listed["objects"] if (path := found["path"]) != (key or ""))
        paths = [*listed["common_prefixes"], *files]
        return sorted({name for path in paths if not UNFINISHED.fullmatch(name := path.rpartition("/")[2])})

    def paths(self, directory: str = "") -> list[str]:
        key = self._directory_key(directory)
        with translated_errors(self._place(key or "")):
            objects = [found for page in obstore.list(self._client, key) for found in page]
            above = {found["path"].rpartition("/")[0] for found in objects}
            # Consoles and Hadoop create a directory as an empty object whose name ends in a slash. It is listed without the slash.
            keys = [each["path"] for each in objects if each["path"] in above or each["size"] or self._is_there(each["path"])]
        paths = (found.removeprefix(f"{self._prefix}/") if self._prefix else found for found in keys if found not in above)
        return sorted(path for path in paths if not any(map(UNFINISHED.fullmatch, path.split("/"))))

    def delete(self, path: str) -> None:
        key = self._key(path)
        self._copied = {copied for copied in self._copied if copied != key and not copied.startswith(f"{key}/")}
        with translated_errors(self._place(key)):
            self._delete_tree(key)

    def sync(self, *paths: str) -> None:
        # An object is durable before it is visible.
        for path in paths:
            key = self._key(path)
            if key in self._copied:
                self._copied.discard(key)
                continue
            with translated_errors(self._place(key)):
                obstore.head(self._client, key)

    def remove_unfinished(self, *paths: str) -> None:
        pass

    def _place(self, key: str) -> str:
        return f"{self._bucket}/{key}"

    def _key(self, path: str) -> str:
        """Returns the key of the object with the prefix."""
        if found := self._kind.UNNAMEABLE.search(path):
            raise InvalidParameterError(
                f"{path!r} cannot be the name of an object: it has the character {found[0]!r}.",
                remedy="Keep it in a directory.",
                path=path,
            )
        return self._below_prefix("/".join(parts_below(path, self._url)))

    def _directory_key(self, directory: str) -> str | None:
        """Returns the key of a directory; None for the whole bucket."""
        return self._key(directory) if directory else self._prefix or None

    def _below_prefix(self, name: str) -> str:
        return f"{self._prefix}/{name}".lstrip("/")

    def _first_part(self, key: str) -> "GetResult | None":
        """Reads the first part of an object. Returns None for an empty object."""
        with translated_errors(self._place(key)):
            try:
                return obstore.get(self._client, key, options={"range": (0, _PART_BYTES)})
            except GenericError as error:
                if _EMPTY in f"{error}":
                    return None
                raise

    def _all_chunks(self, key: str, first: "GetResult | None") -> Generator[bytes, None, None]:
        """Yields the bytes of the object whose first part was read. Fails if another object has its name now."""
        if first is None:
            return
        size_bytes, e_tag = first.meta["size"], first.meta["e_tag"]
        same: GetOptions = {"if_match": e_tag} if e_tag else {}

        def read(start: int) -> list[bytes]:  # each part has its own time limit
            end = min(start + _PART_BYTES, size_bytes)
            return _pieces(obstore.get(self._client, key, options={**same, "range": (start, end)}))

        with translated_errors(self._place(key)):
            rest = run_ahead((partial(read, start) for start in range(_PART_BYTES, size_bytes, _PART_BYTES)), _PARTS_AT_ONCE)
            yield from chain.from_iterable(chain((_pieces(first),), rest))

    @property
    def _store_can_copy(self) -> bool:
        return self._kind.COPIES_OBJECTS and id(self._client) not in _without_copies

    def _copy_within(self, origin: str, key: str) -> Digest:
        """Copies an object of this bucket. The store itself copies a larger one after it was read.

        If the origin is deleted or replaced meanwhile, which a final file never is, an error may leave a copy.
        """
        first = self._first_part(origin)
        with closing(self._all_chunks(origin, first)) as chunks:
            if first is None or not _PART_BYTES < first.meta["size"] <= _COPIED_MAX_BYTES:
                return self._copy(chunks, key)
            read = Digesting(chunks)
            with translated_errors(self._place(key), writes=True):
                if self._is_there(key):
                    raise taken(self._place(key))
                deque(read, maxlen=0)
            if self._store_copies(origin, first.meta, key):
                self._copied.add(key)
                return read.digest
        with closing(self._all_chunks(origin, self._first_part(origin))) as chunks:
            return self._copy(chunks, key, replaces=True)

    def _store_copies(self, origin: str, read: "ObjectMeta", key: str) -> bool:
        """Lets the store copy an object that was read. Returns False if the copy may be missing, incomplete, or of another object.

        A store may report a failure after it has answered that it copies. To copy an object with tags needs more permissions than to read
        and to write it. So a failure is no error, but the store is not asked again.
        """
        if read["e_tag"] is None:
            return False
        try:
            with translated_errors(self._place(key)):
                obstore.copy(self._client, origin, key)
        except StorageError as error:
            if not isinstance(error, NotFoundError):
                _LOG.info("the store does not copy %s itself: %s", self._place(origin), error.failed)
                _without_copies[id(self._client)] = self._client
            return False
        with translated_errors(self._place(key)):
            copied, still_there = self._head(key), self._head(origin)
        if copied is None or still_there is None:
            return False
        return copied["size"] == read["size"] and still_there["e_tag"] == read["e_tag"]

    def _copy(self, chunks: Iterator[bytes], key: str, *, replaces: bool = False) -> Digest:
        """Puts an object.

        Args:
            chunks: Its bytes.
            key: Its key.
            replaces: True to replace an object that has the key.
        """
        copied = Digesting(chunks)
        passing = iter(copied)
        with translated_errors(self._place(key), writes=True):
            first = _beginning(passing)
            rest = next(passing, None)
            if rest is not None and not replaces and self._is_there(key):
                raise taken(self._place(key))
            try:
                if rest is not None or replaces:  # if two processes write other bytes at the same time, the later one wins
                    parts = chain((first, rest or b""), passing)
                    obstore.put(self._client, key, parts, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
                elif self._put_first(key, first, self._head) is not None:
                    raise taken(self._place(key))
            except BaseError as error:  # the store may close the connection if the object exists, or an answer was lost
                if not replaces and self._is_there(key):
                    raise taken(self._place(key)) from error
                raise
        self._copied.add(key)
        return copied.digest

    def _put_first(self, key: str, data: bytes, look: Callable[[str], T | None]) -> T | None:
        """Puts an object under a new name. Returns None, or what ``look`` finds if there is one already.

        Tries again while ``look`` finds none: a store may refuse both of two simultaneous puts (409), and another process may delete its
        object.
        """
        for pause_s in (*self._pauses_s, None):
            try:
                obstore.put(self._client, key, data, mode="create", use_multipart=False)
            except ObjectExistsError as error:
                if (found := look(key)) is not None:
                    return found
                if pause_s is None:
                    raise StorageError(
                        f"{self._place(key)}: the store refuses every try to create it, and it does not exist.",
                        safe="No object is partly written, and the call may be repeated.",
                        remedy="Repeat.",
                        path=self._place(key),
                    ) from error
                time.sleep(pause_s)
            else:
                break
        return None

    def _content(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._client, key).bytes())
        except FileNotFoundError:
            return None

    def _head(self, key: str) -> "ObjectMeta | None":
        try:
            return obstore.head(self._client, key)
        except FileNotFoundError:
            return None

    def _delete_tree(self, key: str) -> None:
        for _ in range(_DELETE_TRIES):
            # Azure and Google refuse to delete what another process has deleted, and leave some of the others.
            with suppress(FileNotFoundError):
                for keys in self._below(key):
                    obstore.delete(self._client, keys)
                break
        else:
            for each in chain.from_iterable(self._below(key)):
                self._delete_object(each)
        self._delete_object(key)

    def _delete_object(self, key: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._client, [key])

    def _below(self, key: str) -> Iterator[list[str]]:
        """Yields the keys of the objects below a key. Where there are directories, all in them are deleted first."""
        if not self._kind.HAS_DIRECTORIES:
            yield from ([each["path"] for each in found] for found in obstore.list(self._client, key))
            return
        listed = obstore.list_with_delimiter(self._client, key)
        for directory in listed["common_prefixes"]:
            self._delete_tree(directory)
        if objects := listed["objects"]:
            yield [each["path"] for each in objects]

    def _is_there(self, key: str) -> bool:
        return self._head(key) is not None

    def _check_conditional_writes(self) -> None:
        """Refuses a store that accepts a second object under one name. Its own test objects are invisible, and it deletes them."""
        if id(self._client) in _checked:
            return
        probe = self._below_prefix(f".{uuid4().hex}.tmp")
        try:
            obstore.put(self._client, probe, b"first", mode="create", use_multipart=False)
            try:
                obstore.put(self._client, probe, b"second", mode="create", use_multipart=False)
            except ObjectExistsError:
                _checked[id(self._client)] = self._client
        finally:
            obstore.delete(self._client, [probe])
        if id(self._client) not in _checked:
            raise keeps_no_first(self._url, "this process")


def _pieces(found: "GetResult") -> list[bytes]:
    """Reads a part to its end. Returns its bytes in chunks."""
    return list(found.stream(min_chunk_size=_CHUNK_BYTES))


def _beginning(chunks: Iterator[bytes]) -> bytes:
    """Takes the chunks of a first part from ``chunks``, or all if they are fewer bytes."""
    begun: list[bytes] = []
    size_bytes = 0
    for chunk in chunks:
        begun.append(chunk)
        size_bytes += len(chunk)
        if size_bytes >= _PART_BYTES:
            break
    return b"".join(begun)
