"""Opens files of a home without following a link: neither on the way to them nor at their name.

What somebody puts into a home in place of a document must not make this process show another file.
"""

import errno
import os
import stat
from pathlib import Path

_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_THE_END = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: str | os.PathLike[str], *, directory: bool = False) -> int:
    """Opens a regular file, or a directory, for reading; the caller closes the descriptor.

    Args:
        path: Absolute, and resolved: a link in it is an error, whoever put it there and when.
        directory: Whether a directory is wanted.

    Raises:
        OSError: As :func:`os.open`; ``ENOTDIR`` or ``ELOOP`` at a link, ``EINVAL`` at a pipe, a device and the like.
    """
    parts = Path(path).parts
    above = os.open(parts[0], _ON_THE_WAY)
    try:
        for part in parts[1:-1]:
            next_one = os.open(part, _ON_THE_WAY, dir_fd=above)
            os.close(above)
            above = next_one
        descriptor = os.open(parts[-1], _AT_THE_END | (os.O_DIRECTORY if directory else 0), dir_fd=above)
    finally:
        os.close(above)
    if not directory and not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor
