"""A pipeline's home, opened: one directory, or documents in a store and a workspace in a directory.

What makes the guarantees are documents: small files that are created if absent. They, and the state that checkpoints name, can be in any
storage that keeps the port's promises. Spark and the hosts of a driver need a directory: for the checkpoints of running queries, for what
stages hand to each other, for the deleted keys of merges, for locks and logs. In a home that is a directory the two are one. Beside a
home in an object store or in HDFS there is a *workspace*: a directory that the driver and its executors have mounted, as lasting as the
tables. ``pipeline.json`` names it, so only the first start has to be told.

Invariants:

1. A document, and a file of state that a manifest names, is in the home's own storage before anything says that it is durable.
2. A path is in the workspace or in the home's own storage by its first part. Two are special. A file of ``state`` waits in the workspace
   from the cut until it is made durable, so that a cut moves no bytes. And the end of what is in ``logs`` is shown in the home's own
   storage, for hosts that do not have the workspace.
3. Who only reads documents needs no workspace, and never asks where it is.
"""

import socket
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from spark_jobs.home.layout import IN_WORKSPACE, LOGS, PIPELINE, STATE, STATE_TRY_PARTS, WORK, WORKSPACE
from spark_jobs.home.places import Kind, check_home, check_place
from spark_jobs.protocol.documents import PipelineDocument
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidParameterError,
    NotFoundError,
    RejectedError,
    StorageError,
)
from spark_jobs.protocol.steps import Step, step
from spark_jobs.protocol.workspace import NamedWorkspace, WorkspaceDocument
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Files, create_document, is_here, read_document
from spark_jobs.storage.open import open_files, open_place

T = TypeVar("T")

_LOOK_S = 1.0
_LOOK_IN_STORES_S = 5.0


def open_home(url: str, workspace: str | None = None) -> Files:
    """Opens a home. Reads and writes nothing yet; ``open_home(files.url)`` opens the same one again.

    Args:
        url: A path or a ``file:`` URL; or ``s3://bucket/prefix``, or ``hdfs://name-node/directory``, whose credentials and addresses
            come from the environment.
        workspace: For the first start of a pipeline whose home is no directory: a directory on the driver's and the executors' hosts.

    Raises:
        InvalidParameterError: It is none of these, or the workspace is not for such a home.
        MissingRequirementError: What speaks to the store is not installed.
    """
    files = open_place(url)
    if not is_here(files):
        return DividedHome(files, open_files(workspace) if workspace else None)
    if workspace:
        raise InvalidParameterError(
            f"The home {files.url} is a directory, which is its own workspace; {workspace} cannot be another one.",
            safe="Nothing was written.",
            remedy="Leave the workspace out.",
            home=files.url,
            workspace=workspace,
        )
    return files


class DividedHome:
    """A home whose documents are in a store; see :class:`~spark_jobs.storage.files.Files` for what each method promises.

    Args:
        documents: The store.
        workspace: Counts until ``pipeline.json`` names one.
        trusts: Whether the directory of this URL may be a workspace: who writes into the store says which one it is.
    """

    def __init__(
        self, documents: Files, workspace: Files | None = None, trusts: Callable[[str], bool] = lambda url: True
    ) -> None:
        self.documents = documents
        self._given, self._trusts = workspace, trusts
        self._recorded: Files | None = None
        self._named: NamedWorkspace | None = None

    @property
    def url(self) -> str:
        """The documents' root."""
        return self.documents.url

    @property
    def workspace(self) -> Files | None:
        """The directory; None where no start has named one yet, or one that is not trusted.

        Raises:
            CorruptDocumentError: ``pipeline.json`` is torn or altered.
        """
        named = self.named
        if named is None:
            return self._given
        if self._recorded is None and self._trusts(named.url):
            same = self._given is not None and self._given.url == named.url
            self._recorded = self._given if same else open_files(named.url)
        return self._recorded

    @property
    def named(self) -> NamedWorkspace | None:
        """The workspace that ``pipeline.json`` names; None before the first start has written it."""
        if self._named is None:
            with suppress(NotFoundError):
                self._named = read_document(self.documents, PIPELINE, PipelineDocument).workspace
        return self._named

    @property
    def sees_workspace(self) -> bool:
        """True if this host has the workspace, and not another directory under its path."""
        workspace, named = self.workspace, self.named
        if workspace is None or named is None:
            return workspace is not None
        try:
            return read_document(workspace, WORKSPACE, WorkspaceDocument).id == named.id
        except NotFoundError:
            return False

    def local(self, path: str = "") -> Path | None:
        workspace = self.workspace if _first(path) in IN_WORKSPACE else None
        return workspace.local(path) if workspace else None

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

    def adopt(self, source: Path, path: str) -> None:
        (self.required_workspace(path) if _first(path) == STATE else self._at(path)).adopt(source, path)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        return self._at(path).copy(source, named, path)

    def names(self, directory: str) -> list[str]:
        return sorted({name for files in self._holders(directory) for name in files.names(directory)})

    def paths(self, directory: str = "") -> list[str]:
        return sorted({path for files in self._holders(directory) for path in files.paths(directory)})

    def delete(self, path: str) -> None:
        for files in reversed(self._holders(path)):  # what lists a log goes last
            files.delete(path)

    def sync(self, *paths: str) -> None:
        here = [path for path in paths if _first(path) in IN_WORKSPACE]
        if here:
            self.required_workspace(here[0]).sync(*here)
        if there := [path for path in paths if _first(path) not in IN_WORKSPACE]:
            waiting = [path for path in there if self._bring_in(path)]
            self.documents.sync(*there)
            for path in waiting:
                self._forget_waiting(path)

    def remove_unfinished(self, *paths: str) -> None:
        for path in paths:
            for files in self._holders(path):
                files.remove_unfinished(path)

    def _at(self, path: str) -> Files:
        return self.required_workspace(path) if _first(path) in IN_WORKSPACE else self.documents

    def _holders(self, path: str) -> list[Files]:
        """Returns the places where a file can be, the better one first."""
        top = _first(path)
        workspace = self.workspace if top in IN_WORKSPACE or top == STATE else None
        there = [workspace] if workspace else []
        if top == STATE:
            return [self.documents, *there]  # one that still waits there was perhaps not whole when the host died
        return [*there, self.documents] if top == LOGS else there if top in IN_WORKSPACE else [self.documents]

    def _found(self, path: str, look: Callable[[Files], T]) -> T:
        holders = self._holders(path)
        if _first(path) == STATE:
            holders += holders[:1]  # it may be brought in between two looks
        missing = NotFoundError(
            f"{self.url}/{path} is not there.",
            safe="Nothing was changed.",
            remedy="Check the path; without a workspace there is nothing of it yet.",
            path=path,
        )
        for files in holders:
            try:
                return look(files)
            except NotFoundError as error:
                missing = error
        raise missing

    def _bring_in(self, path: str) -> bool:
        """Copies what waits in the workspace into the home's own storage; whether there was something."""
        workspace = self.workspace if _first(path) == STATE else None
        if workspace is None:
            return False
        try:
            self.documents.copy(workspace, path, path)
        except NotFoundError:
            return False
        except AlreadyExistsError:  # an earlier try at this has brought it in
            if self.documents.digest(path) != workspace.digest(path):
                raise
        return True

    def _forget_waiting(self, path: str) -> None:
        workspace = self.required_workspace(path)
        file = workspace.local(path)
        assert file is not None
        file.unlink(missing_ok=True)
        for above in list(file.parents)[: path.count("/") - STATE_TRY_PARTS + 1]:
            with suppress(OSError):  # others wait there
                above.rmdir()

    def required_workspace(self, path: str) -> Files:
        """Returns the workspace, for something that has to be in it.

        Raises:
            InvalidParameterError: No start has named one yet.
        """
        workspace = self.workspace
        if workspace is None and self.named is not None:
            raise AccessDeniedError(
                f"The workspace of {self.url} is {self.named.url}, which is not allowed here.",
                safe="Nothing was read or written.",
                remedy="In Airflow it has to be inside the extra workspace_root of the connection.",
                home=self.url,
                workspace=self.named.url,
            )
        if workspace is None:
            raise InvalidParameterError(
                f"The home {self.url} is no directory, and no workspace was named for it.",
                safe="Nothing was written.",
                remedy="Name one at the first start: --workspace, a directory that the driver and its executors have mounted, as lasting "
                "as the tables; in Airflow the extra workspace_root of the connection.",
                home=self.url,
                path=path,
            )
        return workspace


def look_interval_s(home: Files) -> float:
    """Returns how long a driver waits between two looks at what it was asked for; in a store each of them costs a request."""
    return _LOOK_IN_STORES_S if isinstance(home, DividedHome) else _LOOK_S


def workspace_of(home: Files) -> str | None:
    """Returns the URL of a home's workspace; None if the home is a directory.

    Raises:
        InvalidParameterError: It needs one, and none was named.
    """
    return home.required_workspace(WORK).url if isinstance(home, DividedHome) else None


def check_workspace(home: Files) -> None:
    """Refuses to go on where a home's workspace is not on this host: what looks like an empty one is none.

    Raises:
        StorageError: It is not there.
    """
    if isinstance(home, DividedHome) and home.named is not None and not home.sees_workspace:
        raise StorageError(
            f"{home.named.url}, the workspace of {home.url}, is not there on {socket.gethostname()}.",
            safe="Nothing was written.",
            remedy="Mount it there under the same path. If it is lost for good, begin anew: a new home, with a savepoint.",
            home=home.url,
            workspace=home.named.url,
        )


def claim_workspace(home: Files, pipeline: PipelineDocument | None, given: str | None = None) -> NamedWorkspace | None:
    """Makes the workspace of a home its own, once; idempotent, durable on return. For a start, before it writes into the home.

    Args:
        home: The home, as :func:`open_home` gives it.
        pipeline: Its document; None before its first start.
        given: The workspace that this start was told.

    Returns:
        What ``pipeline.json`` has to say; None where the home is a directory.

    Raises:
        InvalidParameterError: The home needs one, and none was named.
        RejectedError: It has another one, this one is in use or another thing, or the home was copied here from another kind of
            place, or cannot begin there: see :func:`~spark_jobs.home.places.check_home`.
        StorageError: The home has begun, and its workspace is not on this host.
    """
    if pipeline is None:
        check_home(home, begins=True)
    if not isinstance(home, DividedHome):
        if pipeline is not None and pipeline.workspace is not None:
            raise _copied(home, "It has a workspace elsewhere.")
        return None
    workspace = home.required_workspace(WORK)
    if pipeline is not None and pipeline.workspace is None:
        raise _copied(home, "It was a directory, with a part that is not here.")
    if given is not None and open_files(given).url != workspace.url:
        raise RejectedError(
            f"The workspace of {home.url} is {workspace.url}, not {given}.",
            exists="What its stages have handed on, and the keys that it has deleted, are in that one.",
            safe="Nothing was changed.",
            remedy="Leave --workspace out. To go on in another one, take a savepoint and begin with it in a new home.",
            home=home.url,
            expected=workspace.url,
            found=given,
        )
    if pipeline is not None:
        check_workspace(home)
        return pipeline.workspace
    names = workspace.names("")
    check_place(Kind.WORKSPACE, workspace, names)
    if left := sorted({*names} - {WORKSPACE, LOGS}):
        raise _in_use(home, workspace, f"has {', '.join(left)} already")
    with suppress(AlreadyExistsError), step(Step.WORKSPACE_CREATE):
        create_document(workspace, WORKSPACE, WorkspaceDocument(id=str(uuid4()), home=home.url))
    claim = read_document(workspace, WORKSPACE, WorkspaceDocument)
    if claim.home != home.url:
        raise _in_use(home, workspace, f"is that of the home {claim.home}")
    return NamedWorkspace(url=workspace.url, id=claim.id)


def _copied(home: Files, what: str) -> RejectedError:
    return RejectedError(
        f"{home.url} cannot be continued, or begun, as a home here. {what}",
        safe="Nothing was changed.",
        remedy="Give another --home. A home goes elsewhere as a savepoint: spark-jobs stop, then a start with --restore.",
        home=home.url,
    )


def _in_use(home: Files, workspace: Files, what: str) -> RejectedError:
    return RejectedError(
        f"{workspace.url} cannot be the workspace of {home.url}: it {what}.",
        safe="Nothing was changed.",
        remedy="Name an empty directory, or one that is not there yet. What an earlier home has left there can be deleted with it.",
        workspace=workspace.url,
        home=home.url,
    )


def _first(path: str) -> str:
    return path.partition("/")[0]
