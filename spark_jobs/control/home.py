"""Opens a pipeline's home: a directory, or a place in a store with a cache.

The guarantees depend on documents: small files that are created if absent. They, and everything that a checkpoint names, can be in every
storage that fulfils the port's contract. A running Spark query needs a *work directory* for its own checkpoints, and a driver needs a
directory for its locks and logs. If the home is a directory, they are in it.

A home in an object store or in HDFS has a *cache*: a directory with the driver's locks and logs, and with the work directories. A start on
any host can do without it, and builds a work directory from a checkpoint. The cache is on the driver's own disk, or below a *work root*: a
directory that the executors of a cluster share with the driver. A work root may also be in a store. Then it has the work directories, and
the cache is on the driver's own disk.

Invariants:

1. A document, or a file of state that a manifest names, is in the store before any document says that it is durable.
2. The path decides whether a file is in the cache, in a work directory, or in the store. There are two exceptions. If the work directory
   is on a disk, a cut links large files of ``state`` into the cache, and copies them into the store later. And the end of each file in
   ``logs`` is copied to the store, for hosts without the cache.
3. A process that only reads documents needs no cache, and never asks for its place.
"""

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from spark_jobs.home.layout import IN_CACHE, LOGS, STATE, STATE_TRY_PARTS, WORK, is_in_work_directory
from spark_jobs.home.places import check_home
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.documents import PipelineDocument
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    RejectedError,
)
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Files, is_mounted
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from spark_jobs.storage.user_cache import user_cache

T = TypeVar("T")

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._]")
_NAME_MAX_CHARS = 40
_LOOK_S = 1.0
_LOOK_IN_STORES_S = 5.0


def open_home(url: str, work_root: str | None = None) -> Files:
    """Opens a home. Reads and writes nothing yet; ``open_home(files.url, work_root)`` opens the same one again.

    Args:
        url: A path or a ``file:`` URL; or one of a store, as :func:`~spark_jobs.storage.open.open_place` takes it.
        work_root: The place for the work directories of a home in a store. If it is a directory, it has the whole cache. None: the cache is
            in the directory of this user's caches.

    Raises:
        InvalidParameterError: The URL or the work root has none of these forms, or a work root is given for a directory.
        MissingRequirementError: The package for the store is not installed.
    """
    files = open_place(url)
    if is_mounted(files):
        if work_root:
            raise InvalidParameterError(
                f"The home {files.url} is a directory, which has its own work directories. It cannot have the work root {work_root}.",
                remedy="Leave the work root out.",
                home=files.url,
                work_root=work_root,
            )
        return files
    if not work_root:
        return HomeInStore(files)
    place = open_place(work_root).below(cache_name(files.url))
    return HomeInStore(files, cache=place) if is_mounted(place) else HomeInStore(files, work=place)


class HomeInStore:
    """A home whose documents are in a store; see :class:`~spark_jobs.storage.files.Files` for the contract of each method.

    Args:
        documents: The store.
        cache: The directory for locks, logs and files of state that wait. None: one in the directory of this user's caches.
        work: The place with the work directories. None: the cache.
    """

    def __init__(self, documents: Files, cache: Files | None = None, work: Files | None = None) -> None:
        self.documents = documents
        self._cache = cache
        self._work = work
        self._linked = set[str]()
        """Files of states that this process has put into the cache and not yet into the store. They are complete."""

    @property
    def url(self) -> str:
        """Returns the URL of the home in the store."""
        return self.documents.url

    @property
    def cache(self) -> Files:
        """Returns the directory for locks, logs and files of state that wait.

        Raises:
            MissingRequirementError: This user has no directory for caches.
        """
        if self._cache is None:
            self._cache = LocalFiles(_caches(self.url)).below(cache_name(self.url))
        return self._cache

    @property
    def work(self) -> Files:
        """Returns the place with the work directories."""
        return self._work or self.cache

    def local(self, path: str = "") -> Path | None:
        return self._at(path).local(path) if _is_apart(path) else None

    def below(self, directory: str) -> Files:
        return self._at(directory).below(directory)

    def create(self, path: str, data: bytes) -> None:
        self._at(path).create(path, data)

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        for place, group in groupby(files, key=lambda file: self._at(file[0])):
            place.create_all(group)

    def replace(self, path: str, data: bytes) -> None:
        self._at(path).replace(path, data)

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        return self._found(path, lambda files: files.read(path, max_bytes))

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        def begun(files: Files) -> tuple[bytes, Generator[bytes, None, None]]:
            chunks = files.chunks(path)
            return next(chunks, b""), chunks

        first, rest = self._found(path, begun)
        with closing(rest):
            yield first
            yield from rest

    def digest(self, path: str) -> Digest:
        return self._found(path, lambda files: files.digest(path))

    def size_bytes(self, path: str) -> int | None:
        return next((found for files in self._holders(path) if (found := files.size_bytes(path)) is not None), None)

    def link_or_copy(self, source: Path, path: str) -> None:
        if _first(path) != STATE:
            self._at(path).link_or_copy(source, path)
            return
        self.cache.link_or_copy(source, path)
        self._linked.add(path)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        return self._at(path).copy(source, named, path)

    def names(self, directory: str) -> list[str]:
        return sorted({name for files in self._holders(directory) for name in files.names(directory)})

    def paths(self, directory: str = "") -> list[str]:
        return sorted({path for files in self._holders(directory) for path in files.paths(directory)})

    def delete(self, path: str) -> None:
        for files in reversed(self._holders(path)):  # the place that readers ask first is deleted last
            files.delete(path)
        self._linked.discard(path)

    def sync(self, *paths: str) -> None:
        for files in (self.cache, self._work):
            here = [path for path in paths if _is_apart(path) and self._at(path) is files]
            if files is not None and here:
                files.sync(*here)
        if there := [path for path in paths if not _is_apart(path)]:
            waiting = [path for path in there if self._bring_in(path)]
            self.documents.sync(*there)
            for path in waiting:
                self._forget_waiting(path)

    def remove_unfinished(self, *paths: str) -> None:
        for path in paths:
            for files in self._holders(path):
                files.remove_unfinished(path)

    def _at(self, path: str) -> Files:
        if not _is_apart(path):
            return self.documents
        return self.work if is_in_work_directory(path) else self.cache

    def _holders(self, path: str) -> list[Files]:
        """Returns the places where a file may be, the better one first."""
        top = _first(path)
        if top == STATE and path in self._linked:
            return [self.cache, self.documents]
        if top == STATE:
            return [self.documents, self.cache]  # a file that still waits there may be incomplete after a crash of the host
        if top == LOGS:
            return [self.cache, self.documents]
        if path == WORK and self._work is not None:
            return [self.cache, self._work]
        return [self._at(path)]

    def _found(self, path: str, look: Callable[[Files], T]) -> T:
        holders = self._holders(path)
        if _first(path) == STATE:
            holders += holders[:1]  # it may be copied between the two reads
        missing = NotFoundError(
            f"{self.url}/{path} does not exist.",
            remedy="Check the path.",
            path=path,
        )
        for files in holders:
            try:
                return look(files)
            except NotFoundError as error:
                missing = error
        raise missing

    def _bring_in(self, path: str) -> bool:
        """Copies a waiting file from the cache into the store. Returns True if there was one."""
        if _first(path) != STATE:
            return False
        try:
            self.documents.copy(self.cache, path, path)
        except NotFoundError:
            return False
        except AlreadyExistsError:  # an earlier try has copied it
            if self.documents.digest(path) != self.cache.digest(path):
                raise
        return True

    def _forget_waiting(self, path: str) -> None:
        file = self.cache.local(path)
        assert file is not None
        file.unlink(missing_ok=True)
        self._linked.discard(path)
        for above in list(file.parents)[: path.count("/") - STATE_TRY_PARTS + 1]:
            with suppress(OSError):  # others wait there
                above.rmdir()


def look_interval_s(home: Files) -> float:
    """Returns the interval at which a driver looks for requests. In a store each look costs a request."""
    return _LOOK_IN_STORES_S if isinstance(home, HomeInStore) else _LOOK_S


def cache_name(url: str) -> str:
    """Returns the name of the cache of a home in a store, which differs from that of every other home."""
    last = _NOT_IN_NAMES.sub("_", url.rpartition("/")[2])[:_NAME_MAX_CHARS]
    return f"{last}-{sha256(url.encode())[:16]}"


def _caches(url: str) -> Path:
    """Returns the directory of the caches of this user's homes."""
    if own := user_cache():
        return own / "homes"
    raise MissingRequirementError(
        f"The home {url} needs a directory on this host's disk for Spark's running queries, but this user has no home directory.",
        remedy="Set XDG_CACHE_HOME to a directory for caches.",
        home=url,
    )


def check_claim(home: Files, pipeline: PipelineDocument | None) -> None:
    """Refuses a start that cannot claim the home. Writes nothing.

    Args:
        home: Home from :func:`open_home`.
        pipeline: Document of its pipeline; None before its first start.

    Raises:
        RejectedError: The home was copied from another place, or cannot begin there: see :func:`~spark_jobs.home.places.check_home`.
    """
    if pipeline is None:
        check_home(home, begins=True)
    elif pipeline.home != place_of(home):
        raise RejectedError(
            f"{home.url} cannot be continued as a home here: it was begun "
            f"{'in a directory' if pipeline.home is None else f'at {pipeline.home}'} and copied.",
            exists="A copy would publish its checkpoints under the numbers of the original.",
            remedy="Give another --home. To move a home, use a savepoint: spark-jobs stop, then a start with --restore.",
            home=home.url,
        )


def place_of(home: Files) -> str | None:
    """Returns the entry for ``pipeline.json``: the URL of a home in a store. None for a directory, which may be moved."""
    return None if is_mounted(home) else home.url


def _is_apart(path: str) -> bool:
    """Returns True if a path is in the cache or in a work directory."""
    return _first(path) in IN_CACHE


def _first(path: str) -> str:
    return path.partition("/")[0]
