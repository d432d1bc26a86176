"""The storage port on a POSIX file system, of one machine or shared.

``create``: the parent directories are created and fsynced. The bytes are written to an unfinished file next to the final name and
fsynced. A hard link gives the file its name. It fails if the name is taken, also by another host of a shared file system. The unfinished
name is deleted, and the directory is fsynced. A crash leaves nothing, an invisible unfinished file, or the complete file. ``create_all``
fsyncs each directory once, after its last file.

A create, a replace and :meth:`LocalFiles.remove_unfinished` delete leftovers of a crash; see :mod:`spark_jobs.storage.unfinished`. A
writer that is so slow that its file is deleted gets a ConflictError.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from spark_jobs.protocol.errors import AccessDeniedError, StorageError
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Digesting, Files, bounded, by_directory, paths_by_names, too_large
from spark_jobs.storage.os_errors import other_contents, overtaken, taken, translated, unknown_outcome
from spark_jobs.storage.paths import UNFINISHED, check_root, parts_below
from spark_jobs.storage.plain_files import NotPlainFileError
from spark_jobs.storage.system import RealSystem, System
from spark_jobs.storage.unfinished import is_leftover, unfinished_name

_CHUNK_BYTES = 1 << 20
_NO_SECOND_NAME = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors that mean that a file cannot have another name here: another file system, no hard links, another owner, too many names."""


class LocalFiles:
    """The files below a directory; see :class:`~spark_jobs.storage.files.Files` for the contract of each method.

    Args:
        root: Path of the directory. The first write creates it. A relative path starts at the current directory.
        system: The operating system, or a test's replacement.
        has_url: True if others open the directory by its :attr:`url`, which has no escapes.

    Raises:
        InvalidParameterError: The path has characters that the parts of a pipeline would read differently in a URL.
    """

    def __init__(self, root: str | os.PathLike[str], system: System | None = None, *, has_url: bool = True) -> None:
        self._root = "/" + os.path.abspath(root).lstrip("/")
        self._system = system or RealSystem()
        self._root_is_durable = False
        self._has_url = has_url
        if has_url:
            check_root(self._root)

    @property
    def url(self) -> str:
        """Returns ``file:///…`` without escapes, because neither Hadoop nor fsspec decodes them."""
        return f"file://{self._root}"

    def below(self, directory: str) -> "LocalFiles":
        return LocalFiles(self._target(directory), self._system, has_url=self._has_url)

    def local(self, path: str = "") -> Path:
        return Path(self._target(path) if path else self._root)

    def create(self, path: str, data: bytes) -> None:
        self.create_all([(path, data)])

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        created: dict[str, list[str]] = {}
        for path, data in files:
            target = self._target(path)
            directory = os.path.dirname(target)
            with translated(target):
                if directory not in created:
                    self._make_directory(directory)
                unfinished = self._write_unfinished(target, [data], durable=True)
                try:
                    self._link(unfinished, target, data)
                except BaseException:
                    self._remove_quietly(unfinished)
                    raise
            with translated(target, outcome_unknown=True), suppress(FileNotFoundError):
                self._system.unlink(unfinished)
            created.setdefault(directory, []).append(target)
        for directory, targets in created.items():
            with translated(targets[-1], outcome_unknown=True):
                self._remove_leftovers(*targets)
                self._fsync(directory)

    def replace(self, path: str, data: bytes) -> None:
        # The contents are fsynced before the rename, so that also after a crash the old or the new bytes are read.
        target = self._target(path)
        with translated(target):
            self._make_directory(os.path.dirname(target))
            unfinished = self._write_unfinished(target, [data], durable=True)
            try:
                self._system.replace(unfinished, target)
            except FileNotFoundError as error:
                raise overtaken(target) from error
            except BaseException:
                self._remove_quietly(unfinished)
                raise
            self._remove_leftovers(target)

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        target = self._target(path)
        with translated(target):
            return self._read(target, max_bytes)

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        target = self._target(path)
        with translated(target):
            yield from self._chunks(target, self._root)

    def digest(self, path: str) -> Digest:
        read = Digesting(self.chunks(path))
        deque(read, maxlen=0)
        return read.digest

    def size_bytes(self, path: str) -> int | None:
        target = self._target(path)
        try:
            found = os.stat(target)  # asked only once, because the file may be deleted between two calls
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
            raise kind(
                f"{target}: {error.strerror or error}.",
                safe="Nothing was written.",
                remedy="Repair the storage and repeat.",
                path=target,
            ) from error
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def link_or_copy(self, source: Path, path: str) -> None:
        target = self._target(path)
        with translated(os.fspath(source)):
            self._make_with_parents(os.path.dirname(target))
            try:
                self._system.link(os.fspath(source), target)
            except FileExistsError as error:
                raise taken(target) from error
            except OSError as error:
                if error.errno not in _NO_SECOND_NAME:
                    raise
                with closing(self._chunks(os.fspath(source), os.path.dirname(source))) as chunks:
                    self._copy(chunks, target)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        target = self._target(path)
        with translated(target):
            self._make_with_parents(os.path.dirname(target))
            with closing(source.chunks(named)) as chunks:
                return self._copy(chunks, target)

    def names(self, directory: str) -> list[str]:
        target = self._target(directory) if directory else self._root
        with translated(target):
            try:
                return sorted(name for name in self._system.listdir(target) if not UNFINISHED.fullmatch(name))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def paths(self, directory: str = "") -> list[str]:
        return paths_by_names(self, directory)

    def delete(self, path: str) -> None:
        # A deletion by another process is made durable, too, because the caller relies on it.
        target = self._target(path)
        with translated(target):
            with suppress(FileNotFoundError, NotADirectoryError):
                self._remove(target)
            self._fsync_nearest(os.path.dirname(target))

    def sync(self, *paths: str) -> None:
        # The writer of the files may have created their parent directories as well.
        targets = [self._target(path) for path in paths]
        for target in targets:
            with translated(target):
                self._fsync(target)
        for directory in dict.fromkeys(each for target in targets for each in self._up_to_root(os.path.dirname(target))):
            with translated(directory):
                self._fsync(directory)
        with translated(self._root):
            self._keep_root()

    def remove_unfinished(self, *paths: str) -> None:
        for group in by_directory(paths):
            self._remove_leftovers(*(self._target(path) for path in group))

    def _target(self, path: str) -> str:
        return os.path.join(self._root, *parts_below(path, self.url))

    def _up_to_root(self, directory: str) -> Iterator[str]:
        while len(directory) > len(self._root):
            yield directory
            directory = os.path.dirname(directory)
        yield self._root

    def _make_directory(self, directory: str) -> None:
        # Another process may have created an existing directory just now without having fsynced its parent.
        self._make_root()
        for each in reversed(list(self._up_to_root(directory))[:-1]):
            with suppress(FileExistsError):
                self._system.mkdir(each)
            self._fsync(os.path.dirname(each))

    def _make_root(self) -> None:
        if not self._root_is_durable:
            self._make_with_parents(self._root)
            self._keep_root()

    def _make_with_parents(self, directory: str) -> None:
        try:
            self._system.mkdir(directory)
        except FileExistsError:
            pass
        except FileNotFoundError:
            self._make_with_parents(os.path.dirname(directory))
            with suppress(FileExistsError):
                self._system.mkdir(directory)

    def _keep_root(self) -> None:
        # Spark creates directories without fsyncing their parents. A directory that we may not read was not created by us.
        directory = self._root
        while not self._root_is_durable and directory != "/":
            directory = os.path.dirname(directory)
            with suppress(PermissionError):
                self._fsync(directory)
        self._root_is_durable = True

    def _write_unfinished(self, target: str, chunks: Iterable[bytes], *, durable: bool) -> str:
        directory, name = os.path.split(target)
        unfinished = os.path.join(directory, unfinished_name(name))
        try:
            descriptor = self._system.create_file(unfinished)
            try:
                for chunk in chunks:
                    self._write(descriptor, chunk)
                if durable:
                    self._system.fsync(descriptor)
            finally:
                self._system.close(descriptor)
        except BaseException:
            self._remove_quietly(unfinished)
            raise
        return unfinished

    def _link(self, unfinished: str, target: str, data: bytes) -> None:
        """Links a file, or finds a link with our bytes. Whatever the system has answered, the readable content decides."""
        try:
            self._system.link(unfinished, target)
        except OSError as error:
            try:
                found = self._read(target)
            except (IsADirectoryError, NotPlainFileError):
                found = None
            except FileNotFoundError:
                if isinstance(error, FileExistsError | FileNotFoundError):
                    raise overtaken(target) from error
                raise error from None
            except OSError as unreadable:
                raise unknown_outcome(target, unreadable) from error
            if found != data:
                self._remove_leftovers(target)
                raise other_contents(target, data, found) from error

    def _read(self, target: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        with closing(self._chunks(target, self._root, max_bytes)) as chunks:
            return b"".join(bounded(chunks, max_bytes, target))  # the file may grow

    def _chunks(self, target: str, root: str, max_bytes: int | None = None) -> Generator[bytes, None, None]:
        descriptor = self._system.open_file(target, root)
        try:
            if max_bytes is not None and self._system.size_bytes(descriptor) > max_bytes:
                raise too_large(target, max_bytes)
            yield from iter(lambda: self._system.read(descriptor, _CHUNK_BYTES), b"")
        finally:
            self._system.close(descriptor)

    def _copy(self, chunks: Iterable[bytes], target: str) -> Digest:
        copied = Digesting(chunks)
        unfinished = self._write_unfinished(target, copied, durable=False)
        try:
            self._system.link(unfinished, target)
        except FileExistsError as error:
            raise taken(target) from error
        except FileNotFoundError as error:
            raise overtaken(target) from error
        finally:
            self._remove_quietly(unfinished)
        return copied.digest

    def _write(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._system.write(descriptor, rest) :]

    def _fsync(self, target: str) -> None:
        descriptor = self._system.open(target)
        try:
            self._system.fsync(descriptor)
        finally:
            self._system.close(descriptor)

    def _fsync_nearest(self, directory: str) -> None:
        for each in self._up_to_root(directory):
            with suppress(FileNotFoundError, NotADirectoryError):
                return self._fsync(each)

    def _remove(self, target: str) -> None:
        if not self._system.is_directory(target):
            return self._system.unlink(target)
        for name in self._system.listdir(target):
            with suppress(FileNotFoundError):
                self._remove(os.path.join(target, name))
        self._system.rmdir(target)

    def _remove_quietly(self, unfinished: str) -> None:
        with suppress(OSError):  # the error that brought us here matters more; leftovers have their own rule
            self._system.unlink(unfinished)

    def _remove_leftovers(self, *targets: str) -> None:
        """Deletes leftovers of crashes in a directory. The targets are complete files there."""
        directory, complete = os.path.dirname(targets[0]), {os.path.basename(target) for target in targets}
        with suppress(OSError):
            for found in filter(UNFINISHED.fullmatch, self._system.listdir(directory)):
                leftover = os.path.join(directory, found)
                with suppress(OSError):
                    if is_leftover(found, complete, self._system.age_s(leftover)):
                        self._system.unlink(leftover)
