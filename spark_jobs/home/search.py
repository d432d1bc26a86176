"""Finds the homes and the savepoints below a directory, by their markers."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from spark_jobs.background import run_all
from spark_jobs.home.layout import SAVEPOINTS
from spark_jobs.home.places import Kind, kinds_of
from spark_jobs.protocol.errors import AccessDeniedError, CorruptDocumentError, InvalidParameterError
from spark_jobs.storage.files import Files

DEPTH_MAX = 3
"""Number of levels below a root that are searched: ``team/stage/pipeline``."""
PLACES_MAX = 5_000
"""Maximum number of directories to list. A root of tables with millions of directories is no root of homes."""


class Found(NamedTuple):
    """The things below a root, by their places."""

    homes: tuple[Files, ...]
    savepoints: tuple[Files, ...]
    left_out: int
    """Number of directories that were skipped because there are too many."""


def find_things(root: Files) -> Found:
    """Finds the homes and the savepoints below a root, level by level, with many listings at once. Writes nothing.

    In a home only its own savepoints are searched, and nothing inside savepoints and tables. Directories that this user may not
    list are left out, and those whose names no home may have.

    Raises:
        StorageError: The storage does not answer, or the root may not be listed.
    """
    homes, savepoints, level, listed, left_out = list[Files](), list[Files](), [root], 0, 0
    for depth in range(DEPTH_MAX + 2):  # one level more, of the savepoints of the deepest homes
        left_out += max(listed + len(level) - PLACES_MAX, 0)
        level = level[: PLACES_MAX - listed]
        listed += len(level)
        names = run_all([partial(_names, place, may_fail=depth > 0) for place in level])
        following, rooms = list[Files](), list[Files]()
        for place, found in zip(level, names, strict=True):
            kinds = kinds_of(found)
            if Kind.HOME in kinds:
                homes.append(place)
                if SAVEPOINTS in found:
                    rooms.append(place.below(SAVEPOINTS))
            elif Kind.SAVEPOINT in kinds:
                savepoints.append(place)
            elif not kinds and depth < DEPTH_MAX:
                following += _below(place, found)
        in_rooms = run_all([partial(_names, room, may_fail=True) for room in rooms])
        level = [*following, *(each for room, found in zip(rooms, in_rooms, strict=True) for each in _below(room, found))]
    return Found(tuple(homes), tuple(savepoints), left_out)


def _names(place: Files, *, may_fail: bool) -> list[str]:
    try:
        return place.names("")
    except (AccessDeniedError, CorruptDocumentError, InvalidParameterError):
        if may_fail:
            return []
        raise


def _below(place: Files, names: Iterable[str]) -> list[Files]:
    found = []
    for name in _directories(names):
        with suppress(InvalidParameterError):  # for example an invisible character: no home can be there
            found.append(place.below(name))
    return found


def _directories(names: Iterable[str]) -> list[str]:
    """Returns the names that may be directories. A store does not distinguish them from files."""
    return [name for name in names if not name.startswith((".", "_")) and not name.endswith((".json", ".parquet", ".crc"))]
