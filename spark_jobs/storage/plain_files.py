"""Opens files of a home without following a link and without waiting.

Everybody who may write into a home can put a link, a pipe or a device in place of a document. It must not make a reader show another
file, wait, or read for ever.
"""

import errno
import os
import stat
from pathlib import Path

_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_THE_END = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPlainFileError(OSError):
    """The file is not a regular file, but a link, a pipe or a device."""


def open_plain(path: str | os.PathLike[str], *, root: str | os.PathLike[str] = "/", directory: bool = False) -> int:
    """Opens a regular file, or a directory, for reading; the caller closes the descriptor.

    Args:
        path: Absolute path.
        root: A directory above it. Links that lead to the root are followed. Below it every link is an error.
        directory: True opens a directory.

    Raises:
        NotPlainFileError: There is a link below the root, or the file is a pipe, a device or similar.
        OSError: As in :func:`os.open`.
    """
    *between, name = Path(path).relative_to(root).parts or (".",)
    above = os.open(root, _ON_THE_WAY & ~os.O_NOFOLLOW)
    try:
        for part in between:
            next_one = _opened(part, _ON_THE_WAY, above, path)
            os.close(above)
            above = next_one
        descriptor = _opened(name, _AT_THE_END | (os.O_DIRECTORY if directory else 0), above, path)
    finally:
        os.close(above)
    mode = os.fstat(descriptor).st_mode
    if directory or stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotPlainFileError(errno.EINVAL, "not a regular file", str(path))


def _opened(name: str, flags: int, above: int, path: str | os.PathLike[str]) -> int:
    try:
        return os.open(name, flags, dir_fd=above)
    except OSError as error:
        if error.errno == errno.ENXIO or (error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(name, above)):
            raise NotPlainFileError(error.errno, "not a regular file", str(path)) from error
        raise


def _is_link(name: str, above: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False
