"""Opens a pipeline's home: a directory, or a store with a cache on the driver's disk or with a workspace.

The guarantees depend on documents: small files that are created if absent. They, and the state that checkpoints name, can be in every
storage that fulfils the port's contract. A running Spark query needs a directory for its own checkpoints, and a driver needs one for its
locks and logs. In a home that is a directory the two are one.

For a home in an object store or in HDFS that directory is a *cache* on the driver's own disk. Every host can rebuild it from any
checkpoint. The rows between stages are in the store.

A cluster whose executors share no disk with the driver needs a *workspace* instead: a directory that they have mounted, as durable as the
tables. It also contains the rows between stages and the deleted keys of merges. ``pipeline.json`` names it, so only the first start needs
the option.

Invariants:

1. A document, or a file of state that a manifest names, is in the home's own storage before any document says that it is durable.
2. The first part of a path decides whether it is in the directory or in the home's own storage. There are two exceptions. A file of
   ``state`` waits in the directory from the cut until it is made durable, so that a cut moves no bytes. And the end of each file in
   ``logs`` is copied to the home's own storage, for hosts without the workspace.
3. A process that only reads documents needs no directory, and never asks for its place.
"""

import os
import socket
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from spark_jobs.home.layout import DRIVER_LOCK, IN_CACHE, IN_WORKSPACE, LOGS, PIPELINE, STATE, STATE_TRY_PARTS, WORK, WORKSPACE
from spark_jobs.home.places import Kind, check_home, check_place
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.documents import PipelineDocument
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    RejectedError,
    StorageError,
)
from spark_jobs.protocol.steps import Step, step
from spark_jobs.protocol.workspace import NamedWorkspace, WorkspaceDocument
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Files, create_document, is_here, read_document
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files, open_place

T = TypeVar("T")

_LOOK_S = 1.0
_LOOK_IN_STORES_S = 5.0


def open_home(url: str, workspace: str | None = None) -> Files:
    """Opens a home. Reads and writes nothing yet; ``open_home(files.url)`` opens the same one again.

    Args:
        url: A path or a ``file:`` URL; or ``s3://bucket/prefix`` or ``hdfs://name-node/directory``, whose credentials and addresses
            come from the environment.
        workspace: For the first start of a pipeline whose home is no directory: a directory that the driver's and the executors' hosts
            share. None: the driver has a cache on its own disk.

    Raises:
        InvalidParameterError: The URL has none of these forms, or a workspace is given for a directory.
        MissingRequirementError: The package for the store is not installed.
    """
    files = open_place(url)
    if not is_here(files):
        return DividedHome(files, open_files(workspace) if workspace else None)
    if workspace:
        raise InvalidParameterError(
            f"The home {files.url} is a directory, which is its own workspace. It cannot have the workspace {workspace}.",
            safe="Nothing was written.",
            remedy="Leave the workspace out.",
            home=files.url,
            workspace=workspace,
        )
    return files


class DividedHome:
    """A home whose documents are in a store; see :class:`~spark_jobs.storage.files.Files` for the contract of each method.

    Args:
        documents: The store.
        workspace: Workspace until there is a ``pipeline.json``.
        trusts: Returns True if the directory of this URL may be a workspace. Everyone who may write into the store can name one.
    """

    def __init__(
        self, documents: Files, workspace: Files | None = None, trusts: Callable[[str], bool] = lambda url: True
    ) -> None:
        self.documents = documents
        self._given, self._trusts = workspace, trusts
        self._recorded: Files | None = None
        self._pipeline: PipelineDocument | None = None

    @property
    def url(self) -> str:
        """Returns the URL of the documents' root."""
        return self.documents.url

    @property
    def workspace(self) -> Files | None:
        """Returns the workspace, or None if there is none or it is not trusted.

        Raises:
            CorruptDocumentError: ``pipeline.json`` is torn or altered.
        """
        named = self.named
        if named is None:
            return self._given if self._pipeline is None else None
        if self._recorded is None and self._trusts(named.url):
            same = self._given is not None and self._given.url == named.url
            self._recorded = self._given if same else open_files(named.url)
        return self._recorded

    @property
    def named(self) -> NamedWorkspace | None:
        """Returns the workspace in ``pipeline.json``, or None if it names none or before the first start has written it."""
        if self._pipeline is None:
            with suppress(NotFoundError):
                self._pipeline = read_document(self.documents, PIPELINE, PipelineDocument)
        return None if self._pipeline is None else self._pipeline.workspace

    @property
    def has_cache(self) -> bool:
        """Returns True if the driver's directory is a cache on its own disk, and not a workspace."""
        return self.named is None and self.workspace is None

    @property
    def directory(self) -> Files | None:
        """Returns the cache or the workspace, or None if the workspace is not trusted."""
        return LocalFiles(cache_of(self.url)) if self.has_cache else self.workspace

    @property
    def sees_workspace(self) -> bool:
        """Returns True if this host has the workspace, and not another directory under its path."""
        workspace, named = self.workspace, self.named
        if workspace is None or named is None:
            return workspace is not None
        try:
            return read_document(workspace, WORKSPACE, WorkspaceDocument).id == named.id
        except NotFoundError:
            return False

    def local(self, path: str = "") -> Path | None:
        directory = self.directory if self._is_apart(path) else None
        return directory.local(path) if directory else None

    def below(self, directory: str) -> Files:
        return self._at(directory).below(directory)

    def create(self, path: str, data: bytes) -> None:
        self._at(path).create(path, data)

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

    def adopt(self, source: Path, path: str) -> None:
        (self.required_directory(path) if _first(path) == STATE else self._at(path)).adopt(source, path)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        return self._at(path).copy(source, named, path)

    def names(self, directory: str) -> list[str]:
        return sorted({name for files in self._holders(directory) for name in files.names(directory)})

    def paths(self, directory: str = "") -> list[str]:
        return sorted({path for files in self._holders(directory) for path in files.paths(directory)})

    def delete(self, path: str) -> None:
        for files in reversed(self._holders(path)):  # the listing of a log is deleted last
            files.delete(path)

    def sync(self, *paths: str) -> None:
        here = [path for path in paths if self._is_apart(path)]
        if here:
            self.required_directory(here[0]).sync(*here)
        if there := [path for path in paths if not self._is_apart(path)]:
            waiting = [path for path in there if self._bring_in(path)]
            self.documents.sync(*there)
            for path in waiting:
                self._forget_waiting(path)

    def remove_unfinished(self, *paths: str) -> None:
        for path in paths:
            for files in self._holders(path):
                files.remove_unfinished(path)

    def _at(self, path: str) -> Files:
        return self.required_directory(path) if self._is_apart(path) else self.documents

    def _is_apart(self, path: str) -> bool:
        """Returns whether a path is in the cache or the workspace."""
        top = _first(path)
        return top in IN_CACHE or (top in IN_WORKSPACE and not self.has_cache)

    def _holders(self, path: str) -> list[Files]:
        """Returns the places where a file may be, the better one first."""
        top = _first(path)
        apart = self._is_apart(path)
        directory = self.directory if apart or top == STATE else None
        there = [directory] if directory else []
        if top == STATE:
            return [self.documents, *there]  # a file that still waits there may be incomplete after a crash of the host
        return [*there, self.documents] if top == LOGS else there if apart else [self.documents]

    def _found(self, path: str, look: Callable[[Files], T]) -> T:
        holders = self._holders(path)
        if _first(path) == STATE:
            holders += holders[:1]  # it may be copied between the two reads
        missing = NotFoundError(
            f"{self.url}/{path} does not exist.",
            safe="Nothing was changed.",
            remedy="Check the path; without a workspace it does not exist yet.",
            path=path,
        )
        for files in holders:
            try:
                return look(files)
            except NotFoundError as error:
                missing = error
        raise missing

    def _bring_in(self, path: str) -> bool:
        """Copies a waiting file from the directory into the home's own storage. Returns True if there was one."""
        directory = self.directory if _first(path) == STATE else None
        if directory is None:
            return False
        try:
            self.documents.copy(directory, path, path)
        except NotFoundError:
            return False
        except AlreadyExistsError:  # an earlier try has copied it
            if self.documents.digest(path) != directory.digest(path):
                raise
        return True

    def _forget_waiting(self, path: str) -> None:
        file = self.required_directory(path).local(path)
        assert file is not None
        file.unlink(missing_ok=True)
        for above in list(file.parents)[: path.count("/") - STATE_TRY_PARTS + 1]:
            with suppress(OSError):  # others wait there
                above.rmdir()

    def required_directory(self, path: str) -> Files:
        """Returns the cache or the workspace, for a file that must be in it.

        Raises:
            AccessDeniedError: The workspace is not trusted.
        """
        directory = self.directory
        if directory is None:
            assert self.named is not None
            raise AccessDeniedError(
                f"The workspace of {self.url} is {self.named.url}, which is not allowed here.",
                safe="Nothing was read or written.",
                remedy="In Airflow it must be inside the extra workspace_root of the connection.",
                home=self.url,
                workspace=self.named.url,
            )
        return directory


def look_interval_s(home: Files) -> float:
    """Returns the interval at which a driver looks for requests. In a store each look costs a request."""
    return _LOOK_IN_STORES_S if isinstance(home, DividedHome) else _LOOK_S


def workspace_of(home: Files) -> str | None:
    """Returns the URL of a home's workspace; None if the home has none.

    Raises:
        AccessDeniedError: The workspace is not trusted.
    """
    return home.required_directory(WORK).url if isinstance(home, DividedHome) and not home.has_cache else None


def cache_of(url: str) -> Path:
    """Returns the directory on this host's disk for the running queries of a home in a store.

    Raises:
        MissingRequirementError: This user has no directory for caches.
    """
    with suppress(RuntimeError):
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return caches.absolute() / "spark-jobs" / "homes" / sha256(url.encode())[:16]
    raise MissingRequirementError(
        f"The home {url} needs a directory on this host's disk for Spark's running queries, but this user has no home directory.",
        safe="Nothing was written.",
        remedy="Set XDG_CACHE_HOME to a directory for caches.",
        home=url,
    )


def check_workspace(home: Files) -> None:
    """Refuses to go on if a home's workspace is not on this host, even if an empty directory has its path.

    Raises:
        StorageError: The workspace is missing.
    """
    if isinstance(home, DividedHome) and home.named is not None and not home.sees_workspace:
        raise StorageError(
            f"{home.named.url}, the workspace of {home.url}, does not exist on {socket.gethostname()}.",
            safe="Nothing was written.",
            remedy="Mount it there under the same path. If it is lost for good, begin anew: a new home, with a savepoint.",
            home=home.url,
            workspace=home.named.url,
        )


def check_claim(home: Files, pipeline: PipelineDocument | None, given: str | None = None) -> None:
    """Refuses a start that cannot claim the home with its workspace. Writes nothing.

    Args:
        home: Home from :func:`open_home`.
        pipeline: Document of its pipeline; None before its first start.
        given: Workspace option of this start.

    Raises:
        RejectedError: The home has another workspace, or none; the workspace is in use or is something else; or the home was copied from
            another kind of place, or cannot begin there: see :func:`~spark_jobs.home.places.check_home`.
        StorageError: The home has begun, and its workspace is not on this host.
    """
    if pipeline is None:
        check_home(home, begins=True)
    if not isinstance(home, DividedHome):
        if pipeline is not None and pipeline.workspace is not None:
            raise _copied(home, "It has a workspace elsewhere.")
        return
    if pipeline is not None and pipeline.workspace is None:
        if pipeline.home != home.url:
            raise _copied(home, "It was begun elsewhere, with a part that is not here.")
        if given is not None:
            raise RejectedError(
                f"{home.url} was begun without a workspace. It cannot get {given} as one now.",
                exists="The rows between its stages are in the store.",
                safe="Nothing was changed.",
                remedy="Leave --workspace out. To go on in a workspace, take a savepoint and begin with it in a new home.",
                home=home.url,
                found=given,
            )
    if home.has_cache:
        return
    workspace = home.required_directory(WORK)
    if given is not None and open_files(given).url != workspace.url:
        raise RejectedError(
            f"The workspace of {home.url} is {workspace.url}, not {given}.",
            exists="The rows between its stages and its deleted keys are in that one.",
            safe="Nothing was changed.",
            remedy="Leave --workspace out. To go on in another one, take a savepoint and begin with it in a new home.",
            home=home.url,
            expected=workspace.url,
            found=given,
        )
    if pipeline is not None:
        check_workspace(home)
        return
    names = workspace.names("")
    check_place(Kind.WORKSPACE, workspace, names)
    left = {*names} - {WORKSPACE, LOGS}
    if workspace.paths(WORK) == [DRIVER_LOCK]:  # the driver of a requested start holds its lock already
        left -= {WORK}
    if left:
        raise _in_use(home, workspace, f"has {', '.join(sorted(left))} already")
    if WORKSPACE in names:
        _check_owner(home, workspace)


def claim_workspace(home: Files, pipeline: PipelineDocument | None, given: str | None = None) -> NamedWorkspace | None:
    """Claims the workspace of a home, once. Idempotent, durable on return. The arguments and errors are those of :func:`check_claim`.

    Returns:
        The entry for ``pipeline.json``; None if the home is a directory or has a cache.
    """
    check_claim(home, pipeline, given)
    if pipeline is not None:
        return pipeline.workspace
    if not isinstance(home, DividedHome) or home.has_cache:
        return None
    workspace = home.required_directory(WORK)
    with suppress(AlreadyExistsError), step(Step.WORKSPACE_CREATE):
        create_document(workspace, WORKSPACE, WorkspaceDocument(id=str(uuid4()), home=home.url))
    return NamedWorkspace(url=workspace.url, id=_check_owner(home, workspace).id)


def _check_owner(home: DividedHome, workspace: Files) -> WorkspaceDocument:
    """Returns the document of a workspace. Refuses one that belongs to another home."""
    claim = read_document(workspace, WORKSPACE, WorkspaceDocument)
    if claim.home != home.url:
        raise _in_use(home, workspace, f"is that of the home {claim.home}")
    return claim


def _copied(home: Files, what: str) -> RejectedError:
    return RejectedError(
        f"{home.url} cannot be continued or begun as a home here. {what}",
        safe="Nothing was changed.",
        remedy="Give another --home. To move a home, use a savepoint: spark-jobs stop, then a start with --restore.",
        home=home.url,
    )


def _in_use(home: Files, workspace: Files, what: str) -> RejectedError:
    return RejectedError(
        f"{workspace.url} cannot be the workspace of {home.url}: it {what}.",
        safe="Nothing was changed.",
        remedy="Name an empty or a new directory. Leftovers of an earlier home can be deleted with it.",
        workspace=workspace.url,
        home=home.url,
    )


def _first(path: str) -> str:
    return path.partition("/")[0]
