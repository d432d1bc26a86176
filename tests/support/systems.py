"""Operating systems that fail or lose power.

Both work on a real directory that other processes may use at the same time, and both are thread-safe.
"""

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from threading import Lock, RLock
from typing import Any, cast

from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.os_errors import translated
from spark_jobs.storage.system import RealSystem, System


class QuickSystem(RealSystem):
    """The real system without fsync. No test can see what a disk has kept, except with a :class:`CrashSystem`."""

    def fsync(self, descriptor: int) -> None:
        os.fstat(descriptor)


def quick(root: Path) -> LocalFiles:
    """Returns the files below ``root``, for tests that prepare or check them."""
    return LocalFiles(root, QuickSystem())


class _Observed:
    """A system that sends every call through ``_operation``."""

    def __init__(self, inner: System | None = None) -> None:
        self._inner: System = inner or QuickSystem()
        self.trace: list[str] = []
        """Every operation so far, with its path."""

    @property
    def operations(self) -> int:
        """The number of operations so far."""
        return len(self.trace)

    def _operation(self, name: str, subject: object) -> AbstractContextManager[None]:
        raise NotImplementedError

    def create_file(self, path: str) -> int:
        with self._operation("create_file", path):
            return self._inner.create_file(path)

    def open(self, path: str) -> int:
        with self._operation("open", path):
            return self._inner.open(path)

    def open_file(self, path: str, root: str) -> int:
        with self._operation("open", path):
            return self._inner.open_file(path, root)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        with self._operation("write", descriptor):
            return self._inner.write(descriptor, data)

    def read(self, descriptor: int, size_bytes: int) -> bytes:
        with self._operation("read", descriptor):
            return self._inner.read(descriptor, size_bytes)

    def size_bytes(self, descriptor: int) -> int:
        return self._inner.size_bytes(descriptor)

    def fsync(self, descriptor: int) -> None:
        with self._operation("fsync", descriptor):
            self._inner.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        with self._operation("close", descriptor):
            self._inner.close(descriptor)

    def link(self, source: str, target: str) -> None:
        with self._operation("link", target):
            self._inner.link(source, target)

    def replace(self, source: str, target: str) -> None:
        with self._operation("replace", target):
            self._inner.replace(source, target)

    def unlink(self, path: str) -> None:
        with self._operation("unlink", path):
            self._inner.unlink(path)

    def mkdir(self, path: str) -> None:
        with self._operation("mkdir", path):
            self._inner.mkdir(path)

    def rmdir(self, path: str) -> None:
        with self._operation("rmdir", path):
            self._inner.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        with self._operation("listdir", path):
            return self._inner.listdir(path)

    def is_directory(self, path: str) -> bool:
        with self._operation("is_directory", path):
            return self._inner.is_directory(path)

    def age_s(self, path: str) -> float:
        with self._operation("age_s", path):
            return self._inner.age_s(path)


class FaultSystem(_Observed):
    """Raises an ``OSError`` at one operation.

    A failing write has written half; a failing close has closed. Any other failing operation has not happened, unless only its answer is
    lost.

    Args:
        fail_at: The index of the operation that fails. None: no operation fails.
        code: A code of :mod:`errno`.
        lasting: True if all later operations fail, too (a close still closes).
        answer_lost: True if the operation has happened all the same, as over a network.
        inner: The system that performs the operations.
    """

    def __init__(
        self,
        fail_at: int | None = None,
        code: int = errno.EIO,
        *,
        lasting: bool = False,
        answer_lost: bool = False,
        inner: System | None = None,
    ) -> None:
        super().__init__(inner)
        self._fail_at, self._code, self._lasting, self._answer_lost = fail_at, code, lasting, answer_lost
        self._lock = Lock()
        self.injected = False
        """True if an operation has failed. A sweep over all indexes ends with the first system without an injected failure."""

    def heal(self) -> None:
        """Lets every later operation succeed."""
        with self._lock:
            self._fail_at = None

    def _hit(self, name: str, subject: object) -> bool:
        with self._lock:
            index = len(self.trace)
            self.trace.append(f"{name} {subject}")
            hit = self._fail_at is not None and (index == self._fail_at or (self._lasting and index > self._fail_at))
            self.injected |= hit
            return hit

    @contextmanager
    def _operation(self, name: str, subject: object) -> Iterator[None]:
        hit = self._hit(name, subject)
        if hit and name != "close" and not self._answer_lost:
            raise self._error()
        yield
        if hit:
            raise self._error()

    def create_file(self, path: str) -> int:
        hit = self._hit("create_file", path)
        if hit and not self._answer_lost:
            raise self._error()
        descriptor = self._inner.create_file(path)
        if hit:
            self._inner.close(descriptor)
            raise self._error()
        return descriptor

    def open(self, path: str) -> int:
        if self._hit("open", path):
            raise self._error()
        return self._inner.open(path)

    def open_file(self, path: str, root: str) -> int:
        if self._hit("open", path):
            raise self._error()
        return self._inner.open_file(path, root)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if self._hit("write", descriptor):
            self._inner.write(descriptor, data if self._answer_lost else data[: len(data) // 2])
            raise self._error()
        return self._inner.write(descriptor, data)

    def _error(self) -> OSError:
        return OSError(self._code, os.strerror(self._code))


def every_fault(code: int, *, lasting: bool = False, answer_lost: bool = False) -> Iterator[FaultSystem]:
    """Yields a system for each operation index, until one of them has failed nothing. Use each system before you take the next one."""
    for index in count():
        system = FaultSystem(index, code, lasting=lasting, answer_lost=answer_lost)
        yield system
        if not system.injected:
            return


class Crashed(BaseException):
    """The machine has lost power, and the process does nothing more. Not an ``Exception``, so that no product code survives it."""


@dataclass(frozen=True)
class _Change:
    """A change of a directory that is not durable."""

    directory: str
    undo: Callable[[], None]
    removed: str | None = None
    """The directory that this change has removed."""


class CrashSystem(_Observed):
    """Loses everything in a crash that was not fsynced.

    The directory always shows the state on a running machine. ``crash`` turns it into the state after the next boot: contents that were not
    fsynced are gone, and changes to directories that were not fsynced are undone, the worst that POSIX allows. After it every call raises
    :class:`Crashed`. No call really waits for a disk.

    Args:
        root: Contains all files that the system is used on. Existing files count as durable.
        crash_before: The index of the operation before which the crash comes. None: only ``crash`` causes one.
        seed: With a seed, a share of the lost data survives: a beginning of each file, the first changes of each directory.
        foreign: Patterns of the names of files that other writers make below the root (``*.parquet``). They are lost, too,
            unless they and the directories that name them were fsynced through this system.
    """

    def __init__(
        self, root: str | Path, *, crash_before: int | None = None, seed: int | None = None, foreign: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._root = os.path.abspath(root)
        self._crash_before, self._foreign = crash_before, foreign
        self._random = None if seed is None else random.Random(seed)
        self._lock = RLock()
        self._paths: dict[int, str] = {}
        self._changes: list[_Change] = []
        self._written: set[int] = set()
        """The inodes of files that this system has made and not fsynced."""
        self._synced = {os.lstat(path).st_ino for path in self._walk()}
        self._named = set(self._walk())
        """Paths whose entry in their directory is durable."""
        self.crashed = False

    def crash(self) -> None:
        """Loses power now. A second crash changes nothing."""
        with self._lock:
            if self.crashed:
                return
            self.crashed = True
            for descriptor in self._paths:
                os.close(descriptor)
            for change in reversed(self._lost_changes()):
                with suppress(FileNotFoundError, FileExistsError, NotADirectoryError):
                    change.undo()
            self._lose_contents()

    @contextmanager
    def _operation(self, name: str, subject: object) -> Iterator[None]:
        with self._lock:
            if self.operations == self._crash_before:
                self.crash()
            if self.crashed:
                raise Crashed(f"before {name} {subject}")
            self.trace.append(f"{name} {self._paths.get(subject, subject) if isinstance(subject, int) else subject}")
            yield

    def create_file(self, path: str) -> int:
        with self._operation("create_file", path):
            descriptor = self._inner.create_file(path)
            inode = os.fstat(descriptor).st_ino
            self._paths[descriptor] = path
            self._written.add(inode)
            self._synced.discard(inode)
            self._change(path, lambda: _unlink_if_same(path, inode))
            return descriptor

    def open(self, path: str) -> int:
        with self._operation("open", path):
            descriptor = self._inner.open(path)
            self._paths[descriptor] = path
            return descriptor

    def open_file(self, path: str, root: str) -> int:
        with self._operation("open", path):
            descriptor = self._inner.open_file(path, root)
            self._paths[descriptor] = path
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._operation("close", descriptor):
            del self._paths[descriptor]
            self._inner.close(descriptor)

    def fsync(self, descriptor: int) -> None:
        with self._operation("fsync", descriptor):
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self._keep_entries(self._paths[descriptor])
            else:
                self._written.discard(found.st_ino)
                self._synced.add(found.st_ino)

    def link(self, source: str, target: str) -> None:
        with self._operation("link", target):
            self._inner.link(source, target)
            inode = os.lstat(target).st_ino
            self._change(target, lambda: _unlink_if_same(target, inode))

    def replace(self, source: str, target: str) -> None:
        with self._operation("replace", target):
            inode, old = os.lstat(source).st_ino, self._taken_away(target)
            self._inner.replace(source, target)

            def undo() -> None:
                if os.lstat(target).st_ino == inode:
                    os.rename(target, source)
                    self._restore(target, old)

            self._change(target, undo)

    def unlink(self, path: str) -> None:
        with self._operation("unlink", path):
            old = self._taken_away(path)
            self._inner.unlink(path)
            self._change(path, lambda: self._restore(path, old))

    def mkdir(self, path: str) -> None:
        with self._operation("mkdir", path):
            self._inner.mkdir(path)
            self._change(path, lambda: shutil.rmtree(path))

    def rmdir(self, path: str) -> None:
        with self._operation("rmdir", path):
            self._inner.rmdir(path)
            self._change(path, lambda: os.mkdir(path), removed=path)

    def _change(self, path: str, undo: Callable[[], None], removed: str | None = None) -> None:
        self._changes.append(_Change(os.path.dirname(path), undo, removed))

    def _keep_entries(self, directory: str) -> None:
        kept: list[_Change] = []
        for change in self._changes:
            if change.directory != directory:
                kept.append(change)
            elif change.removed is not None:
                # Changes inside it can no longer come back.
                below = change.removed + "/"
                kept = [other for other in kept if not f"{other.directory}/".startswith(below)]
        self._changes = kept
        self._named = {path for path in self._named if os.path.dirname(path) != directory}
        self._named.update(os.path.join(directory, name) for name in os.listdir(directory))

    def _lost_changes(self) -> list[_Change]:
        if self._random is None:
            return self._changes
        directories = [change.directory for change in self._changes]
        surviving = {each: self._random.randint(0, directories.count(each)) for each in sorted(set(directories))}
        lost = []
        for change in self._changes:
            surviving[change.directory] -= 1
            if surviving[change.directory] < 0:
                lost.append(change)
        return lost

    def _lose_contents(self) -> None:
        for path in list(self._walk()):
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode):
                continue
            foreign = any(fnmatch(os.path.basename(path), pattern) for pattern in self._foreign)
            if foreign and found.st_ino not in self._written and not self._is_named(path) and self._loses_all():
                os.unlink(path)
            elif found.st_ino in self._written or (foreign and found.st_ino not in self._synced):
                os.truncate(path, self._random.randint(0, found.st_size) if self._random else 0)

    def _loses_all(self) -> bool:
        return self._random is None or self._random.random() < 0.5

    def _is_named(self, path: str) -> bool:
        while len(path) > len(self._root):
            if path not in self._named:
                return False
            path = os.path.dirname(path)
        return True

    def _taken_away(self, path: str) -> bytes | None:
        """Returns the content with which a file that is about to lose this name would come back."""
        with suppress(FileNotFoundError, IsADirectoryError):
            found = os.lstat(path)
            contents = b"" if found.st_ino in self._written else Path(path).read_bytes()
            if found.st_nlink == 1:  # the next file may get its inode
                self._written.discard(found.st_ino)
                self._synced.discard(found.st_ino)
            return contents
        return None

    def _restore(self, path: str, contents: bytes | None) -> None:
        if contents is not None:
            with open(path, "xb") as file:
                file.write(contents)
                self._synced.add(os.fstat(file.fileno()).st_ino)
                self._written.discard(os.fstat(file.fileno()).st_ino)

    def _walk(self) -> Iterator[str]:
        for directory, directories, files in os.walk(self._root):
            yield from (os.path.join(directory, name) for name in (*directories, *files))


def failing_with(files: Files, system: System | None) -> Files:
    """Returns a place in a store whose client fails together with a system. The store keeps what it has done.

    The client dies with a :class:`CrashSystem`. Each of its calls is an operation of a :class:`FaultSystem`, which may fail.
    """
    match system:
        case CrashSystem():
            return cast(Files, _UntilCrash(files, system))
        case FaultSystem():
            return cast(Files, _WithFaults(files, system))
    return files


class _UntilCrash:
    """Looks up each operation in ``files``, until the crash."""

    def __init__(self, files: Files, system: CrashSystem) -> None:
        self._files, self._system = files, system

    def below(self, directory: str) -> "_UntilCrash":
        return _UntilCrash(self._files.below(directory), self._system)

    def __getattr__(self, name: str) -> Any:
        if self._system.crashed:
            raise Crashed(f"before {name} in {self._files.url}")
        return getattr(self._files, name)


class _WithFaults:
    """Does each call in ``files`` as an operation of a system."""

    def __init__(self, files: Files, system: FaultSystem) -> None:
        self._files, self._system = files, system

    def below(self, directory: str) -> "_WithFaults":
        return _WithFaults(self._files.below(directory), self._system)

    @property
    def url(self) -> str:
        return self._files.url

    def local(self, path: str = "") -> Path | None:
        return self._files.local(path)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            place = f"{self.url}/{arguments[0] if arguments and isinstance(arguments[0], str) else ''}"
            with translated(place), self._system._operation(name, place):
                return getattr(self._files, name)(*arguments)

        return call


def _unlink_if_same(path: str, inode: int) -> None:
    if os.lstat(path).st_ino == inode:
        os.unlink(path)
