"""The storage port.

Invariants that every implementation keeps, and that ``tests/contract`` checks on each:

1. When ``create`` returns, the file is durable and whole under its name; before, nobody sees a part of it.
2. Of several creates of one name exactly one succeeds; the others are told, unless they brought the same bytes.
3. ``read`` gives what a finished ``create`` or ``replace`` wrote, never a mix.
4. Paths are relative to the root, with ``/`` between parts; no path leads out of the root.
"""

import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple, Protocol

from spark_jobs.protocol.codec import D, Document, decode, encode
from spark_jobs.protocol.errors import CorruptDocumentError, InvalidParameterError, NotFoundError
from spark_jobs.storage.beside import at_once

READ_MAX_BYTES = 1 << 30
"""No file that is read at once is larger."""


class Digest(NamedTuple):
    """What tells the bytes of a file from any other's."""

    size_bytes: int
    sha256: str


class Digesting:
    """Chunks on their way from one place to another, whose digest is known once they are through."""

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
        """Of the chunks so far."""
        return Digest(self._size_bytes, self._hashed.hexdigest())


def bounded(chunks: Iterable[bytes], max_bytes: int, place: str) -> Iterator[bytes]:
    """Yields the chunks of a file.

    Raises:
        CorruptDocumentError: There are more than ``max_bytes``; at most one chunk more was read.
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
    """Returns the error for a file that is larger than any of its kind."""
    return CorruptDocumentError(
        f"{place} is larger than a file of its kind gets, {max_bytes:,} bytes.",
        safe="It was not used, and nothing was changed.",
        remedy="Look who may write there. Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
        path=place,
        expected=max_bytes,
    )


class Files(Protocol):
    """A directory of small files with create-if-absent.

    Every method raises :class:`~spark_jobs.protocol.errors.StorageError` or one of its leaves where the storage fails. Any failed
    call may be repeated.
    """

    @property
    def url(self) -> str:
        """The root, as Spark and fsspec both read it."""
        ...

    def below(self, directory: str) -> "Files":
        """The directory of this name as a root of its own, in the same storage."""
        ...

    def local(self, path: str = "") -> Path | None:
        """Where hosts that have the storage mounted find ``path``; None where it is in none that can be mounted."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Makes ``path`` with exactly ``data``; durable on return. The same bytes again are a success.

        Raises:
            AlreadyExistsError: Other bytes are there.
            OutcomeUnknownError: It may or may not exist; read it back.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Puts ``data`` under ``path`` whatever was there: old or new bytes are read, also after a crash, never a mix."""
        ...

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        """All bytes of ``path``.

        Raises:
            NotFoundError: It is not there.
            CorruptDocumentError: It is larger than ``max_bytes``, or no regular file, or a link below the root leads to it.
        """
        ...

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        """The bytes of ``path``, of any size, about a megabyte at a time.

        Raises:
            NotFoundError: It is not there; once the first chunk is asked for.
        """
        ...

    def digest(self, path: str) -> Digest:
        """The size and the hash of ``path``, of any size.

        Raises:
            NotFoundError: It is not there.
        """
        ...

    def size_bytes(self, path: str) -> int | None:
        """The size of a regular file, links followed; None where there is none. Reads nothing of it."""
        ...

    def adopt(self, source: Path, path: str) -> None:
        """Gives a whole file of this host, which nobody changes any more, the name ``path`` as well; a copy where it cannot have two.

        Not durable before :meth:`sync`. After a crash it may be missing, or not whole.

        Raises:
            NotFoundError: There is no such file.
            AlreadyExistsError: The name is taken.
        """
        ...

    def copy(self, source: "Files", named: str, path: str) -> Digest:
        """Copies the file ``named`` of ``source``, which nobody changes meanwhile: what is done to the one is never done to the other.

        Not durable before :meth:`sync`. After a crash it may be missing, or not whole.

        Returns:
            Of the bytes that were copied.

        Raises:
            NotFoundError: ``source`` has no such file.
            AlreadyExistsError: The name is taken.
            ConflictError: Somebody has made the file meanwhile, or removed its directory.
        """
        ...

    def names(self, directory: str) -> list[str]:
        """The names directly inside ``directory``, sorted; without unfinished files; empty where it does not exist."""
        ...

    def paths(self, directory: str = "") -> list[str]:
        """The finished files below ``directory``, at any depth, relative to the root; an empty directory counts as a file."""
        ...

    def delete(self, path: str) -> None:
        """Removes a file or a whole directory, durably; a missing one is a success."""
        ...

    def sync(self, *paths: str) -> None:
        """Makes files that somebody else wrote under the root durable, and their names."""
        ...

    def remove_unfinished(self, *paths: str) -> None:
        """Removes what writers that died have left of files that are there now; one that is still at it finds the name taken."""
        ...


def local_path(files: Files, path: str = "") -> Path:
    """Where something is for Spark, and for what else needs a file of the host.

    Raises:
        InvalidParameterError: It is in a storage that no host can mount.
    """
    found = files.local(path)
    if found is None:
        raise InvalidParameterError(
            f"{files.url}/{path} would have to be in a directory of this host, and is not.",
            safe="Nothing was changed.",
            remedy="Use a directory that this host has mounted.",
            path=f"{files.url}/{path}",
        )
    return found


def is_here(files: Files) -> bool:
    """Whether it is a directory of this host."""
    return files.local() is not None


def take(source: Files, named: str, target: Files, path: str) -> None:
    """Gives ``target`` a file of ``source`` that nobody changes any more: under a second name where it can have one, else a copy.

    Not durable before :meth:`Files.sync`; errors as of :meth:`Files.adopt` and :meth:`Files.copy`.
    """
    here = source.local(named)
    if here is None:
        target.copy(source, named, path)
    else:
        target.adopt(here, path)


def real_url(files: Files) -> str:
    """The root's URL without symbolic links, as this host sees them: two spellings of one directory are equal.

    For comparing. What is stored and shown is the URL that somebody gave, which may lead elsewhere tomorrow.
    """
    return f"file://{os.path.realpath(local_path(files))}" if is_here(files) else files.url


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


def sync_below(files: Files, directory: str = "") -> None:
    """Makes durable what somebody else wrote below a directory; checksum files that Hadoop adds are not. In a store all is durable."""
    root = files.local(directory)
    if root is None:
        return
    files.sync(*(f"{directory}/{path.relative_to(root)}".lstrip("/") for path in root.rglob("[!.]*") if path.is_file()))


def paths_by_names(files: Files, directory: str = "") -> list[str]:
    """:meth:`Files.paths`, of a storage that can only list one directory at a time."""
    paths = [f"{directory}/{name}" if directory else name for name in files.names(directory)]
    return list(chain.from_iterable(paths_by_names(files, path) or [path] for path in paths))


def by_directory(paths: Iterable[str]) -> list[list[str]]:
    """Paths together with those beside them: each group is made durable by one call of :meth:`Files.sync`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[path.rpartition("/")[0]].append(path)
    return list(found.values())


def end_copies(files: Files, paths: Iterable[str]) -> None:
    """Makes copies that were made, or found to be right, durable; what earlier tries at them have left goes."""

    def end(group: list[str]) -> None:
        files.sync(*group)
        files.remove_unfinished(*group)

    at_once([partial(end, group) for group in by_directory(paths)])


def create_document(files: Files, path: str, document: Document) -> None:
    """Creates a document; see :meth:`Files.create`."""
    files.create(path, encode(document))


def read_document(files: Files, path: str, kind: type[D]) -> D:
    """Reads a document, whole.

    Raises:
        NotFoundError: It is not there.
        CorruptDocumentError: It is torn or altered, larger than a document of this kind gets, or no regular file.
    """
    return decode(kind, files.read(path, kind.max_bytes), f"{files.url}/{path}")


def read_listed(files: Files, path: str, kind: type[D]) -> D | None:
    """Reads a document that somebody else makes at any time; None while it is not there.

    A network file system goes on for up to a minute to say that a file is not there once it was asked for it too early; a listing asks
    its server.

    Raises:
        CorruptDocumentError: It is torn or altered.
    """
    directory, _, name = path.rpartition("/")
    if name not in files.names(directory):
        return None
    try:
        return read_document(files, path, kind)
    except NotFoundError:  # removed meanwhile
        return None
