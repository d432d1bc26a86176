"""The system calls of the local storage, one by one, so that tests can make each of them fail."""

import os
import stat
import time
from typing import Protocol

from spark_jobs.storage.plain_files import open_plain

FILE_MODE, DIRECTORY_MODE = 0o664, 0o775
"""The modes of files and directories. Others may never write, with any umask, because documents decide what a pipeline does."""


class System(Protocol):
    """The file operations of a POSIX system. Paths are absolute. Every call raises ``OSError`` like :mod:`os`."""

    def create_file(self, path: str) -> int:
        """Makes an empty file and opens it for writing; fails if the name is taken."""
        ...

    def open(self, path: str) -> int:
        """Opens a directory, or a file for making it durable."""
        ...

    def open_file(self, path: str, root: str) -> int:
        """Opens a regular file for reading, without waiting; see :func:`~spark_jobs.storage.plain_files.open_plain`."""
        ...

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Writes some of ``data`` and returns how many bytes that were."""
        ...

    def read(self, descriptor: int, size_bytes: int) -> bytes:
        """Reads at most ``size_bytes``; nothing at the end."""
        ...

    def size_bytes(self, descriptor: int) -> int:
        """Returns the size of an open file."""
        ...

    def fsync(self, descriptor: int) -> None:
        """Makes a file's contents, or a directory's entries, durable."""
        ...

    def close(self, descriptor: int) -> None:
        """Closes the descriptor, also if it raises."""
        ...

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name. Fails if the name is taken."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Renames a file to ``target``, replacing an existing one."""
        ...

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]: ...

    def is_directory(self, path: str) -> bool:
        """Returns True if ``path`` is a directory. A symbolic link to a directory is not one."""
        ...

    def age_s(self, path: str) -> float:
        """Returns the time since the last change of ``path``, as far as the clocks agree."""
        ...


class RealSystem:
    """The operating system itself."""

    def create_file(self, path: str) -> int:
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_file(self, path: str, root: str) -> int:
        return open_plain(path, root=root)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        return os.write(descriptor, data)

    def read(self, descriptor: int, size_bytes: int) -> bytes:
        return os.read(descriptor, size_bytes)

    def size_bytes(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def link(self, source: str, target: str) -> None:
        os.link(source, target, follow_symlinks=False)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, DIRECTORY_MODE)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(os.lstat(path).st_mode)

    def age_s(self, path: str) -> float:
        return time.time() - os.lstat(path).st_mtime
