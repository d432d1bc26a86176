"""The allow-list of home roots: whatever a run's configuration says, no request leaves them.

A home is resolved before it is compared: relative parts, escapes of a URL and symbolic links. What is opened afterwards is the
resolved place, not what was asked for.
"""

import os
import socket
from collections.abc import Sequence

from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, StorageError
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import open_files


def open_home(home: str, roots: Sequence[str]) -> Files:
    """Opens a home inside one of ``roots``. Reads and writes nothing.

    Args:
        home: A path or URL; a relative path starts at the first root.
        roots: Directories that may hold homes.

    Raises:
        AccessDeniedError: It is outside every root, or is a root itself, or there are no roots.
        InvalidParameterError: It is no path or URL of a supported kind.
    """
    if not roots:
        raise AccessDeniedError(
            f"The home {home!r} is not allowed: the connection names no home roots.",
            safe="Nothing was read or written.",
            remedy="Set home_root in the connection's extras to the directory that holds your pipelines' homes.",
            home=home,
        )
    if not home.strip():
        raise InvalidParameterError(
            "The home is empty.", safe="Nothing was read or written.", remedy="Give the task a home.", home=home
        )
    asked = os.path.join(roots[0], home) if _is_relative(home) else home
    place = _resolved(asked)
    if not any(_is_inside(place, _resolved(root)) for root in roots):
        raise AccessDeniedError(
            f"The home {home!r} is not allowed: it is {place}, which is inside none of the connection's home roots.",
            safe="Nothing was read or written.",
            remedy=f"Use a home inside {' or '.join(roots)}, or add its root to home_root in the connection's extras.",
            home=home,
            found=place,
            roots=list(roots),
        )
    return open_files(place)


def open_root(root: str) -> Files:
    """Opens a root itself, resolved as for :func:`open_home`.

    Raises:
        StorageError: This host does not have it.
    """
    place = _resolved(root)
    if not os.path.isdir(place):
        raise _not_there(place)
    return open_files(place)


def check_place(home: Files, roots: Sequence[str]) -> None:
    """Refuses a place where no home can be made, or go on.

    Raises:
        StorageError: This host does not have its root: a file system that is not mounted looks like one without homes.
        InvalidParameterError: It is inside another pipeline's home, whose documents it would be taken for.
    """
    place = local_path(home)
    around = [found for root in roots if _is_inside(str(place), found := _resolved(root))]
    if not any(map(os.path.isdir, around)):
        raise _not_there(around[0])
    for above in place.parents:
        if _is_inside(str(above), max(around, key=len)) and (above / "pipeline.json").exists():
            raise InvalidParameterError(
                f"The home {home.url} is inside the home {above}.",
                safe="Nothing was written.",
                remedy="Put homes beside each other.",
                home=home.url,
                found=str(above),
            )


def _not_there(root: str) -> StorageError:
    return StorageError(
        f"The home root {root} is not there on {socket.gethostname()}.",
        safe="Nothing was read or written.",
        remedy="Mount it there. If it is new, make the directory; if it is mistyped, correct home_root in the connection's extras.",
        root=root,
    )


def _is_relative(home: str) -> bool:
    return not home.startswith(("/", "~")) and ":" not in home


def _resolved(place: str) -> str:
    """The real path that the storage would touch, without links and relative parts."""
    return os.path.realpath(local_path(open_files(place), ""))


def _is_inside(place: str, root: str) -> bool:
    return place != root and os.path.commonpath([place, root]) == root
