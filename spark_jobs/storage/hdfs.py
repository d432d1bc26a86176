"""The storage port in HDFS, by its own protocol and without Java.

``create``: the bytes are written to an unfinished file next to the final name, which is then closed. A rename gives it its name. The name
node does this in one step, and only if the name is free. A crash leaves nothing, an invisible unfinished file, or the complete file. If
the answer to a rename is lost, the unfinished file is deleted. If the unfinished file was there, the rename has not happened and never
will. If it was not, the content under the final name decides.

Durability: a close returns when every data node of a block has acknowledged its last packet, and has fsynced the block and its directory
(the library requests that with each last packet, as ``dfs.datanode.synconclose`` does everywhere), and when the name node knows of
``dfs.namenode.replication.min`` copies, unless ``dfs.namenode.file.close.num-committed-allowed`` lets it return earlier. More copies, up
to ``dfs.replication``, follow. The name node's answers are in its edit log: on its disk, or on those of most journal nodes. Files of
other writers are as durable as they requested: Hadoop's own client leaves them in the memory of the data nodes unless
``dfs.datanode.synconclose`` is set. :meth:`HdfsFiles.sync` cannot add to that.

Leftovers of a crash are deleted as :mod:`spark_jobs.storage.local` does it; see :mod:`spark_jobs.storage.unfinished`.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from copy import copy
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hdfs_native import Client, FileReader, FileStatus, WriteOptions

from spark_jobs.background import run_all
from spark_jobs.protocol.errors import (
    ConflictError,
    InvalidParameterError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Digesting, Files, by_directory, paths_by_names, too_large
from spark_jobs.storage.hdfs_client import Calls, HdfsFailure, repeated, shared_client
from spark_jobs.storage.os_errors import other_contents, overtaken, taken, translated
from spark_jobs.storage.paths import UNFINISHED, check_root, parts_below
from spark_jobs.storage.unfinished import is_leftover, unfinished_name

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

T = TypeVar("T")
_CHUNK_BYTES = 1 << 20
_PART_BYTES = 8 << 20
"""Size of one read, which has its own time limit."""
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[0-9]{1,5})?)?")
_UNNAMEABLE = re.compile(r"[:\ud800-\udfff]")


class HdfsFiles:
    """The files below a directory of HDFS; see :class:`~spark_jobs.storage.files.Files` for the contract of each method.

    Settings are those of the directory that ``HADOOP_CONF_DIR`` names; the user is that of the Kerberos ticket, or ``HADOOP_USER_NAME``.

    Args:
        authority: ``host:port`` of a name node, a name service, or empty for the default file system of the settings.
        root: Absolute path of the directory. The first write creates it.
        retry_timeout_s: Time for which an operation is repeated that gets no answer or whose name node is not ready. One that waits for a
            data node may take a minute longer.

    Raises:
        InvalidParameterError: The root has characters that the parts of a pipeline would read differently, or is the whole file system;
            or no name node is known.
    """

    def __init__(self, authority: str, root: str, retry_timeout_s: float = 60.0) -> None:
        check_root(root)
        parts = root.strip("/").split("/")
        if not root.startswith("/") or {"", ".", ".."} & set(parts) or not _AUTHORITY.fullmatch(authority):
            raise InvalidParameterError(
                f"hdfs://{authority.rpartition('@')[2]}{root} is not the URL of a directory in HDFS.",
                remedy="Give hdfs://nameservice/directory, hdfs://host:port/directory, or hdfs:///directory.",
                path=root,
            )
        self._authority, self._root = authority, "/" + "/".join(parts)
        self._client = shared_client(authority, retry_timeout_s)

    @property
    def url(self) -> str:
        """Returns ``hdfs://authority/directory``, with three slashes for the default file system."""
        return f"hdfs://{self._authority}{self._root}"

    def below(self, directory: str) -> "HdfsFiles":
        inner = copy(self)  # with the same connections
        inner._root = self._target(directory)
        return inner

    def local(self, path: str = "") -> None:
        return None

    def create(self, path: str, data: bytes) -> None:
        target = self._target(path)

        def attempt(calls: Calls) -> None:
            self._put(calls, target, [data], lambda: self._is_same(calls, target, data))
            self._remove_leftovers(calls, target)

        self._repeated(target, attempt)

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        run_all([partial(self.create, path, data) for path, data in files])

    def replace(self, path: str, data: bytes) -> None:
        target = self._target(path)

        def attempt(calls: Calls) -> None:
            self._put(calls, target, [data], lambda: self._found(calls, target) == data, overwrite=True)
            # Also leftovers of tries whose rename had no answer: such a rename can then no longer put older bytes over these.
            self._remove_leftovers(calls, target)

        self._repeated(target, attempt)

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        target = self._target(path)
        # A writer that replaces a file deletes the blocks of the file that is being read. Then the read starts again.
        return self._repeated(target, lambda calls: self._read(calls, target, max_bytes))

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        target = self._target(path)
        opened = self._repeated(target, lambda calls: calls(lambda client: client.read(target)))
        for start in range(0, len(opened), _PART_BYTES):
            size_bytes = min(_PART_BYTES, len(opened) - start)
            part = memoryview(self._repeated(target, _part(opened, start, size_bytes)))
            yield from (bytes(part[at : at + _CHUNK_BYTES]) for at in range(0, size_bytes, _CHUNK_BYTES))

    def digest(self, path: str) -> Digest:
        read = Digesting(self.chunks(path))
        deque(read, maxlen=0)
        return read.digest

    def size_bytes(self, path: str) -> int | None:
        target = self._target(path)
        with suppress(NotFoundError):
            found = self._repeated(target, partial(self._stat, target))
            return None if found.isdir else found.length
        return None

    def link_or_copy(self, source: Path, path: str) -> None:
        target = self._target(path)

        def chunks() -> Generator[bytes, None, None]:
            with translated(str(source)), source.open("rb") as opened:
                yield from iter(lambda: opened.read(_CHUNK_BYTES), b"")

        self._copy(chunks, target)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        return self._copy(lambda: source.chunks(named), self._target(path))

    def names(self, directory: str) -> list[str]:
        target = self._target(directory) if directory else self._root
        with suppress(NotFoundError):
            found = self._repeated(target, lambda calls: self._listed(calls, target))
            return sorted(name for name in found if not UNFINISHED.fullmatch(name))
        return []

    def paths(self, directory: str = "") -> list[str]:
        return paths_by_names(self, directory)

    def delete(self, path: str) -> None:
        target = self._target(path)

        def attempt(calls: Calls) -> None:
            # Asked first: a delete is only sent to a name node that has just answered, so that it does not arrive much later.
            self._stat(target, calls)
            calls(lambda client: client.delete(target, recursive=True))

        with suppress(NotFoundError):
            self._repeated(target, attempt)

    def sync(self, *paths: str) -> None:
        for target in map(self._target, paths):
            self._repeated(target, partial(self._stat, target))

    def remove_unfinished(self, *paths: str) -> None:
        for group in by_directory(paths):
            self._remove_leftovers(Calls(self._client), *(self._target(path) for path in group))

    def _target(self, path: str) -> str:
        if found := _UNNAMEABLE.search(path):
            raise InvalidParameterError(
                f"{path!r} cannot be the name of a file in HDFS: it has the character {found[0]!r}.",
                remedy="Use a name without it.",
                path=path,
            )
        return "/".join((self._root, *parts_below(path, self.url)))

    def _place(self, target: str) -> str:
        return f"hdfs://{self._authority}{target}"

    def _repeated(self, target: str, attempt: Callable[[Calls], T]) -> T:
        return repeated(self._client, self._place(target), attempt)

    def _put(
        self, calls: Calls, target: str, chunks: Iterable[bytes], check: Callable[[], bool], *, overwrite: bool = False
    ) -> None:
        """Writes a file and gives it its name. Whatever the name node has answered, the readable content decides.

        ``check`` returns True if the name has our file, and False if it has none. It raises an error for another file.
        """
        try:
            unfinished = self._write_unfinished(calls, target, chunks)
            doubt = self._rename(calls, unfinished, target, overwrite=overwrite)
            if doubt is None or self._decided(calls, target, check, doubt):
                return
        except HdfsFailure as failure:
            if failure.kind is not ConflictError:
                raise
            if check():
                return
        raise overtaken(self._place(target))

    def _write_unfinished(self, calls: Calls, target: str, chunks: Iterable[bytes]) -> str:
        directory, _, name = target.rpartition("/")
        unfinished = f"{directory}/{unfinished_name(name)}"
        try:
            # Not by the library's own wrapper: whichever thread removes that from memory would close the file, and wait without a limit.
            writer = calls(lambda client: client.inner.create(unfinished, WriteOptions(create_parent=True)))
            try:
                for chunk in chunks:
                    calls(partial(_written, writer, chunk), moves_data=True)
                calls(lambda _: writer.close(), moves_data=True)
            except HdfsFailure as failure:
                if failure.kind is not NotFoundError:
                    raise
                raise HdfsFailure(ConflictError, "Another process has deleted the unfinished file") from failure
        except BaseException:
            self._remove_quietly(calls, unfinished)
            raise
        return unfinished

    def _rename(self, calls: Calls, unfinished: str, target: str, *, overwrite: bool) -> HdfsFailure | None:
        """Renames a file. Returns a failure if only the content under the name can show whether it happened; otherwise None.

        Raises:
            HdfsFailure: The rename has not happened, and never will.
        """
        try:
            calls(lambda client: client.rename(unfinished, target, overwrite))
        except HdfsFailure as failure:
            if not failure.in_doubt:
                self._remove_quietly(calls, unfinished)
                if failure.exists or failure.kind is NotFoundError:
                    return failure
                raise
            if self._decided(calls, target, lambda: calls(lambda client: client.delete(unfinished)), failure):
                raise  # it was there
            return failure
        return None

    def _decided(self, calls: Calls, target: str, look: Callable[[], bool], doubt: HdfsFailure) -> bool:
        """Checks the result of a rename, while there is time."""
        while True:
            try:
                return look()
            except HdfsFailure as unread:
                if not doubt.in_doubt:
                    raise
                if not unread.passing or not calls.may_repeat():
                    raise OutcomeUnknownError(
                        f"{self._place(target)} may or may not have been written: {doubt.reason}.",
                        exists="If the file exists, it is complete.",
                        remedy="Repeat with the same contents.",
                        path=self._place(target),
                    ) from unread

    def _is_same(self, calls: Calls, target: str, data: bytes) -> bool:
        found = self._found(calls, target)
        if found == data:
            return True
        if found is None and self._status(calls, target) is None:
            return False
        self._remove_leftovers(calls, target)
        raise other_contents(self._place(target), data, found)

    def _copy(self, chunks: Callable[[], Generator[bytes, None, None]], target: str) -> Digest:
        def attempt(calls: Calls) -> Digest:
            with closing(chunks()) as opened:
                passing = iter(copied := Digesting(opened))
                first = next(passing, b"")  # a missing source is reported before anything is written
                if self._status(calls, target) is not None:
                    raise taken(self._place(target))
                self._put(calls, target, chain((first,), passing), lambda: self._is_copy(calls, target, copied.digest))
            return copied.digest

        return self._repeated(target, attempt)

    def _is_copy(self, calls: Calls, target: str, copied: Digest) -> bool:
        found = self._status(calls, target)
        if found is None:
            return False
        if found.length == copied.size_bytes and not found.isdir and self.digest(target[len(self._root) + 1 :]) == copied:
            return True
        raise taken(self._place(target))

    def _read(self, calls: Calls, target: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        opened = calls(lambda client: client.read(target))
        if len(opened) > max_bytes:
            raise too_large(self._place(target), max_bytes)
        return b"".join(
            _part(opened, start, min(_PART_BYTES, len(opened) - start))(calls) for start in range(0, len(opened), _PART_BYTES)
        )

    def _found(self, calls: Calls, target: str) -> bytes | None:
        """Returns the content of a file, or None if there is none."""
        try:
            return self._read(calls, target)
        except HdfsFailure as failure:
            if failure.kind is NotFoundError:
                return None
            raise

    def _status(self, calls: Calls, target: str) -> FileStatus | None:
        try:
            return self._stat(target, calls)
        except HdfsFailure as failure:
            if failure.kind is NotFoundError:
                return None
            raise

    def _stat(self, target: str, calls: Calls) -> FileStatus:
        return calls(lambda client: client.get_file_info(target))

    def _listed(self, calls: Calls, target: str) -> dict[str, float]:
        """Returns the names inside a directory with their modification times, in seconds since 1970."""
        found = calls(lambda client: list(client.list_status(target)))
        # A file is listed as itself.
        return {each.path.rpartition("/")[2]: each.modification_time / 1000 for each in found if each.path != target}

    def _remove_quietly(self, calls: Calls, unfinished: str) -> None:
        with suppress(HdfsFailure):  # the error that brought us here matters more; leftovers have their own rule
            calls(lambda client: client.delete(unfinished))

    def _remove_leftovers(self, calls: Calls, *targets: str) -> None:
        """Deletes leftovers of crashes in a directory. The targets are complete files there."""
        directory, complete = targets[0].rpartition("/")[0], {target.rpartition("/")[2] for target in targets}
        with suppress(HdfsFailure):
            for found, changed_s in self._listed(calls, directory).items():
                if UNFINISHED.fullmatch(found) and is_leftover(found, complete, time.time() - changed_s):
                    self._remove_quietly(calls, f"{directory}/{found}")


def _part(opened: FileReader, start: int, size_bytes: int) -> Callable[[Calls], bytes]:
    return lambda calls: calls(lambda _: opened.read_range(start, size_bytes), moves_data=True)


def _written(writer: "RawFileWriter", chunk: bytes, _: Client) -> int:
    return writer.write(chunk)
