"""Checks homes and savepoints against the allowed roots. A run's configuration cannot name a place outside them.

A place is resolved before it is compared: relative parts, escapes of a URL and symbolic links. The resolved place is then opened, not the
original text.
"""

import os
import socket
from collections.abc import Sequence

from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.home.places import check_home, is_inside
from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, StorageError
from spark_jobs.storage.files import Files, is_mounted, local_path
from spark_jobs.storage.open import check_create_if_absent, open_files, open_place


def open_allowed_home(home: str | None, roots: Sequence[str], work_root: str | None = None) -> Files:
    """Opens a home inside one of ``roots``. Reads and writes nothing.

    Args:
        home: A path or URL; a relative path starts at the first root.
        roots: Directories, or prefixes in stores, that may hold homes.
        work_root: The place for the work directories of homes in stores. None: each is in the cache of its home.

    Raises:
        AccessDeniedError: The home is outside every root, or is a root itself, or there are no roots.
        InvalidParameterError: The text is no path or URL of a supported kind.
    """
    place = _inside(home, roots, "home")
    return open_home(place, None if is_mounted(open_place(place)) else work_root)


def open_savepoint(savepoint: str | None, roots: Sequence[str]) -> Files:
    """Opens the directory of a savepoint inside one of ``roots``. Reads and writes nothing.

    Args:
        savepoint: A path or URL; a relative path starts at the first root.
        roots: Directories, or prefixes in object stores, that may hold savepoints.

    Raises:
        AccessDeniedError: The savepoint is outside every root, or is a root itself, or there are no roots.
        InvalidParameterError: The text is no path or URL of a supported kind.
    """
    return open_place(_inside(savepoint, roots, "savepoint"))


def _inside(asked: str | None, roots: Sequence[str], what: str) -> str:
    """Returns the resolved place of a home or a savepoint, after checking that it is inside a root."""
    if not roots:
        raise AccessDeniedError(
            f"The {what} {asked!r} is not allowed: the connection names no {what} roots.",
            remedy=f"Set {what}_root in the connection's extras to the directory, or the place in a store, that holds your {what}s.",
            **{what: asked or ""},
        )
    if asked is None or not asked.strip():  # a template may render to anything
        raise InvalidParameterError(
            f"The {what} is {asked!r}, which is no path or URL.",
            remedy=f"Give the task a {what}, or correct the template that renders it.",
            **{what: repr(asked)},
        )
    place = _resolved(open_place(f"{roots[0].rstrip('/')}/{asked}" if _is_relative(asked) else asked))
    if not any(is_inside(place, _resolved_root(root)) for root in roots):
        raise AccessDeniedError(
            f"The {what} {asked!r} is not allowed: {place} is inside none of the connection's {what} roots.",
            remedy=f"Use a {what} inside {' or '.join(roots)}, or add its root to {what}_root in the connection's extras.",
            found=place,
            roots=list(roots),
            **{what: asked},
        )
    return place


def check_roots(
    roots: Sequence[str], savepoint_roots: Sequence[str], work_root: str | None = None, *, driver_is_here: bool = True
) -> str:
    """Checks that each of ``roots`` can hold homes, and that ``savepoint_roots`` can hold or show savepoints. Leaves nothing behind.

    Args:
        roots: The roots of homes.
        savepoint_roots: The roots of savepoints.
        work_root: The work root, which homes in stores need for drivers in a cluster.
        driver_is_here: Drivers run on this host, which then has to have the work root.

    Returns:
        The findings, in words.

    Raises:
        StorageError: This host does not have a root, or may not read it.
        MissingRequirementError: A root does not support what a home needs, or the client of its store is not installed.
    """
    opened: dict[str, Files] = {}
    for root in roots:
        opened[root] = open_root(root)
        check_create_if_absent(opened[root])
    for root in savepoint_roots:
        files = open_place(root)
        if is_mounted(files) and not os.path.isdir(_resolved(files)):
            raise _not_there(_resolved(files), "savepoint")
        if is_mounted(files):
            files.names("")
        else:
            check_create_if_absent(files)
    found = f" Savepoints can be looked for in {', '.join(savepoint_roots)}." if savepoint_roots else ""
    away = [root for root, files in opened.items() if not is_mounted(files)]
    return f"{', '.join(roots)} can hold homes.{_work_root_in_words(away, work_root, driver_is_here) if away else ''}{found}"


def _work_root_in_words(away: Sequence[str], work_root: str | None, driver_is_here: bool) -> str:
    """Returns where drivers of homes in stores work, in words."""
    if not work_root:
        return f" Homes in {', '.join(away)} have no work root: drivers use their own disks and need a local master."
    if not driver_is_here:
        return f" Drivers of homes in {', '.join(away)} work in {work_root}, on their own hosts."
    work = open_place(work_root)
    if not is_mounted(work):
        check_create_if_absent(work)
    _check_work_root(work)
    return f" Drivers of homes in {', '.join(away)} work in {work_root}."


def _check_work_root(work: Files) -> None:
    """Refuses a directory that this host does not have."""
    if is_mounted(work) and not local_path(work).is_dir():
        raise _not_there(str(local_path(work)), "work")


def open_root(root: str) -> Files:
    """Opens a root itself, resolved as in :func:`open_allowed_home`.

    Raises:
        StorageError: This host does not have the root, or the store does not answer.
    """
    files = open_place(root)
    if not is_mounted(files):
        files.names("")
        return files
    place = _resolved(files)
    if not os.path.isdir(place):
        raise _not_there(place)
    return open_files(place)


def check_place(home: Files, roots: Sequence[str], work_root: str | None = None) -> None:
    """Refuses a home that cannot be made or continued at its place.

    Args:
        home: The home.
        roots: The roots of homes.
        work_root: The work root, if a driver on this host needs one.

    Raises:
        StorageError: This host does not have the home's root: a file system that is not mounted looks like a root without homes.
        RejectedError: A new home cannot begin there: see :func:`spark_jobs.home.places.check_home`.
    """
    place = _resolved(home)
    around = [found for root in roots if is_inside(place, found := _resolved_root(root))]
    if is_mounted(home) and not any(map(os.path.isdir, around)):
        raise _not_there(around[0])
    if not is_mounted(home) and work_root:
        _check_work_root(open_place(work_root))
    if Channel(home).pipeline() is None:
        check_home(home, begins=True)


def home_options(home: str, work_root: str | None) -> list[str]:
    """Returns the options that name a home on a driver's command line."""
    return ["--home", home, *(["--work-root", work_root] if work_root else [])]


def _not_there(root: str, what: str = "home") -> StorageError:
    return StorageError(
        f"The {what} root {root} does not exist on {socket.gethostname()}.",
        safe="Nothing was read or written.",
        remedy=f"Mount it on that host. If it is new: mkdir -p {root}. If it is mistyped, correct {what}_root in the connection's extras.",
        root=root,
    )


def _is_relative(home: str) -> bool:
    return not home.startswith(("/", "~")) and ":" not in home


def _resolved(place: Files) -> str:
    """Returns the real path without links and relative parts, or the URL in a store."""
    return os.path.realpath(local_path(place)) if is_mounted(place) else place.url


def _resolved_root(root: str) -> str:
    return _resolved(open_place(root))
