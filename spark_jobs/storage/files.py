"""The storage port.

Every implementation keeps these invariants, and ``tests/contract`` checks them on each:

1. When ``create`` returns, the file is durable and complete under its name. Before that no reader sees a part of it.
2. If creates of one name bring different bytes, one succeeds and the others fail. The same bytes again are a success.
3. ``read`` returns the bytes of one finished ``create`` or ``replace``, never a mix.
4. Paths are relative to the root, with ``/`` between parts. No path leads out of the root.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Protocol

from spark_jobs.background import run_all
from spark_jobs.protocol.codec import D, Document, decode, encode
from spark_jobs.protocol.errors import CorruptDocumentError, InvalidParameterError, MissingRequirementError, NotFoundError

READ_MAX_BYTES = 1 << 30
"""Maximum size of a file that is read at once."""


class Digest(NamedTuple):
    """The identity of a file's bytes."""

    size_bytes: int
    sha256: str


class Digesting:
    """Chunks that are passed on, and whose digest is known after the last one."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._size_bytes = 0
        self._hashed = sha256()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._size_bytes += len(chunk)
            self._hashed.update(chunk)
            yield chunk

    @property
    def digest(self) -> Digest:
        """Returns the digest of the chunks so far."""
        return Digest(self._size_bytes, self._hashed.hexdigest())


def bounded(chunks: Iterable[bytes], max_bytes: int, place: str) -> Iterator[bytes]:
    """Yields the chunks of a file.

    Raises:
        CorruptDocumentError: The file has more than ``max_bytes``. At most one chunk more was read.
    """
    size_bytes = 0
    for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise too_large(place, max_bytes)
        yield chunk


def lines_of(chunks: Iterable[bytes], max_bytes: int, place: str) -> Iterator[bytes]:
    """Yields the lines of a file without their ends, one at a time in memory.

    Raises:
        CorruptDocumentError: A line is longer than ``max_bytes``.
    """
    parts: list[bytes] = []
    size_bytes = 0
    for chunk in chunks:
        for number, end in enumerate(chunk.split(b"\n")):
            if number:
                yield b"".join(parts)
                parts, size_bytes = [], 0
            size_bytes += len(end)
            if size_bytes > max_bytes:
                raise too_large(place, max_bytes)
            parts.append(end)
    if size_bytes:
        yield b"".join(parts)


def too_large(place: str, max_bytes: int) -> CorruptDocumentError:
    """Returns the error for a file that is larger than its kind allows."""
    return CorruptDocumentError(
        f"{place} is larger than {max_bytes:,} bytes, the limit for its kind.",
        remedy="Check who may write there. Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
        path=place,
        expected=max_bytes,
    )


def keeps_no_first(place: str, writer: str) -> MissingRequirementError:
    """Returns the error for a place in which two creates of one name both succeed.

    Args:
        place: The URL of the place, in which nothing of the trial is left.
        writer: The writer of both files, in words.
    """
    return MissingRequirementError(
        f"{place} does not keep the first of two files that {writer} creates with one name, or does not list or delete it.",
        exists="Every guarantee needs this: of several writers of one name, one succeeds.",
        safe="Nothing was left there.",
        remedy="Use another place: a local disk, a shared file system with hard links, HDFS, Azure, Google Cloud Storage, or a store with "
        "S3's protocol that follows If-None-Match.",
        url=place,
    )


class Files(Protocol):
    """A directory of files with create-if-absent. :meth:`create` and :meth:`read` are for small ones.

    Every method raises :class:`~spark_jobs.protocol.errors.StorageError` or one of its subclasses if the storage fails. A failed call can
    be repeated.
    """

    @property
    def url(self) -> str:
        """Returns the root in a form that Spark reads, too."""
        ...

    def below(self, directory: str) -> "Files":
        """Returns the directory of this name as a root of its own, in the same storage."""
        ...

    def local(self, path: str = "") -> Path | None:
        """Returns the path on hosts that have mounted the directory, or None for a store."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Creates ``path`` with exactly ``data``. Durable on return. The same bytes again are a success.

        Raises:
            AlreadyExistsError: The file exists with other bytes.
            OutcomeUnknownError: The file may or may not exist. Read it back.
        """
        ...

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Creates several files, in less time than one :meth:`create` for each takes. All are durable on return.

        Args:
            files: The path and the bytes of each.

        Raises:
            AlreadyExistsError: One of the files exists with other bytes. Others may have been created.
            OutcomeUnknownError: Each of the files may or may not exist. Read them back.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Writes ``data`` to ``path``, whether or not it exists. Readers see old or new bytes, also after a crash, never a mix."""
        ...

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        """Returns all bytes of ``path``.

        Raises:
            NotFoundError: The file does not exist.
            CorruptDocumentError: The file is larger than ``max_bytes``, is not a regular file, or is behind a link below the root.
        """
        ...

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        """Yields the bytes of ``path``, of any size, at most a few megabytes at a time.

        Raises:
            NotFoundError: The file does not exist. Raised with the first chunk.
        """
        ...

    def digest(self, path: str) -> Digest:
        """Returns the size and the hash of ``path``, of any size.

        Raises:
            NotFoundError: The file does not exist.
        """
        ...

    def size_bytes(self, path: str) -> int | None:
        """Returns the size of a regular file, following links, or None. Does not read the file."""
        ...

    def link_or_copy(self, source: Path, path: str) -> None:
        """Links a complete, final file of this host to ``path``, or copies it if a link is not possible.

        It is not durable before :meth:`sync`. After a crash it may be missing or incomplete.

        Raises:
            NotFoundError: The source file does not exist.
            AlreadyExistsError: The name is taken.
        """
        ...

    def copy(self, source: "Files", named: str, path: str) -> Digest:
        """Copies the final file ``named`` of ``source``. Later changes of one file never affect the other.

        It is not durable before :meth:`sync`. After a crash it may be missing or incomplete. Two simultaneous copies to one name may both
        succeed. Then the later one stays.

        Returns:
            The digest of the copied bytes.

        Raises:
            NotFoundError: ``source`` has no such file.
            AlreadyExistsError: The name is taken.
            ConflictError: Another process has created the file in the meantime, or removed its directory.
        """
        ...

    def names(self, directory: str) -> list[str]:
        """Returns the names directly inside ``directory``, sorted, without unfinished files; empty if it does not exist."""
        ...

    def paths(self, directory: str = "") -> list[str]:
        """Returns the finished files below ``directory``, at any depth, relative to the root. An empty directory counts as a file."""
        ...

    def delete(self, path: str) -> None:
        """Deletes a file or a whole directory durably. A missing one is a success."""
        ...

    def sync(self, *paths: str) -> None:
        """Makes files and their names durable: copies, links, and files of another program."""
        ...

    def remove_unfinished(self, *paths: str) -> None:
        """Deletes leftovers of dead writers of existing files. A writer that is still running finds the name taken."""
        ...


def local_path(files: Files, path: str = "") -> Path:
    """Returns the path on this host, for Spark and others that need a local file.

    Raises:
        InvalidParameterError: The storage cannot be mounted.
    """
    found = files.local(path)
    if found is None:
        raise InvalidParameterError(
            f"{files.url}/{path} must be in a directory of this host, but is not.",
            remedy="Use a directory that this host has mounted.",
            path=f"{files.url}/{path}",
        )
    return found


def is_mounted(files: Files) -> bool:
    """Returns True for files in a directory, and False for files in a store, which is an object store or HDFS.

    Does not look whether this host has the directory.
    """
    return files.local() is not None


def transfer(source: Files, named: str, target: Files, path: str) -> Digest | None:
    """Puts a final file of ``source`` into ``target``.

    It calls :meth:`Files.link_or_copy` if this host has a path for the file, else :meth:`Files.copy`, and raises their errors. The file is
    not durable before :meth:`Files.sync`.

    Returns:
        The digest of the file if its bytes were read.
    """
    here = source.local(named)
    if here is None:
        return target.copy(source, named, path)
    target.link_or_copy(here, path)
    return None


def real_url(files: Files) -> str:
    """Returns the root's URL with symbolic links of this host resolved. Two spellings of one directory are equal.

    Use it only for comparisons. Documents keep the user's URL, because links may change.
    """
    return f"file://{os.path.realpath(local_path(files))}" if is_mounted(files) else files.url


def side_by_side(files: Files, looks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Returns the results of reads. Those in a store are made at the same time; a directory answers before a thread would start.

    Raises:
        Exception: The exception of the first read that failed.
    """
    return [look() for look in looks] if is_mounted(files) else run_all(looks)


@contextmanager
def opened(files: Files, path: str) -> Iterator[IO[bytes]]:
    """Opens a file for a reader that jumps in it. One in a store is copied into the host's temporary directory.

    Raises:
        NotFoundError: It is not there, in a store.
        OSError: It cannot be opened, on a disk.
    """
    here = files.local(path)
    with TemporaryFile() if here is None else here.open("rb") as found:
        if here is None:
            found.writelines(files.chunks(path))
            found.seek(0)
        yield found


def files_below(files: Files, directory: str) -> list[str]:
    """Returns the files below a directory that another program writes, relative to the root. A missing directory has none."""
    root = files.local(directory)
    if root is None:
        return files.paths(directory)
    found = (Path(above, name) for above, _, names in os.walk(root) for name in names)
    return [f"{directory}/{path.relative_to(root).as_posix()}" for path in found]


def sync_readable(files: Files, *paths: str) -> None:
    """Makes files durable that the caller reads, too. In a store, a file that can be read is durable, so this asks nothing there."""
    if is_mounted(files):
        files.sync(*paths)


def sync_below(files: Files, directory: str = "") -> None:
    """Makes files durable that another program wrote below a directory, except Hadoop's checksums. In a store every file is durable."""
    root = files.local(directory)
    if root is None:
        return
    files.sync(*(f"{directory}/{path.relative_to(root)}".lstrip("/") for path in root.rglob("[!.]*") if path.is_file()))


def paths_by_names(files: Files, directory: str = "") -> list[str]:
    """Implements :meth:`Files.paths` for a storage that can only list one directory at a time."""
    paths = [f"{directory}/{name}" if directory else name for name in files.names(directory)]
    return list(chain.from_iterable(paths_by_names(files, path) or [path] for path in paths))


def by_directory(paths: Iterable[str]) -> list[list[str]]:
    """Groups paths by directory. One call of :meth:`Files.sync` makes a group durable."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[path.rpartition("/")[0]].append(path)
    return list(found.values())


def end_copies(files: Files, paths: Iterable[str]) -> None:
    """Makes new or verified copies durable, and deletes leftovers of earlier tries."""

    def end(group: list[str]) -> None:
        files.sync(*group)
        files.remove_unfinished(*group)

    run_all([partial(end, group) for group in by_directory(paths)])


def create_document(files: Files, path: str, document: Document) -> None:
    """Creates a document; see :meth:`Files.create`."""
    files.create(path, encode(document))


def read_document(files: Files, path: str, kind: type[D]) -> D:
    """Reads a complete document.

    Raises:
        NotFoundError: The document does not exist.
        CorruptDocumentError: The document is torn, altered or too large for its kind, or is not a regular file.
    """
    return decode(kind, files.read(path, kind.max_bytes), f"{files.url}/{path}")


def read_listed(files: Files, path: str, kind: type[D]) -> D | None:
    """Reads a document that another process may create at any time, or returns None if it does not exist.

    A network file system may report a file as missing for up to a minute after it was requested too early. A listing asks the server.

    Raises:
        CorruptDocumentError: The document is torn or altered.
    """
    directory, _, name = path.rpartition("/")
    if name not in files.names(directory):
        return None
    try:
        return read_document(files, path, kind)
    except NotFoundError:  # removed in the meantime
        return None
