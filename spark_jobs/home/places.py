"""Identifies places, and refuses two things at one place or one inside another.

A *place* is a directory, or a prefix in a store. A *thing* is the object that a user keeps there. A name in the directory marks its
kind:

- a home has ``pipeline.json``,
- a savepoint has ``savepoint.json``, or ``exporting.json`` while it is being made or deleted,
- a Delta table has ``_delta_log``.

A source, or a table that does not exist yet, has no marker: the pipeline names its place. A source may read a pattern of names.

Invariants:

1. No thing begins at the place of another one, inside it or around it, except a savepoint below ``savepoints/`` of its own home. A VACUUM
   of a table, a sweep of a home and a ``dispose`` delete files that they do not know. A source would read the files of a thing in it as
   rows. Only a Delta table may be both: a source, and the table of a sink.
2. Before a directory is deleted, the markers in it are checked, also further down: it is not deleted with another thing in it. The
   runtime's own tables, which the layout knows by their paths, do not count. Files are deleted by names that only the layout gives.
3. The parent places are checked when a thing begins, so a check costs the same in a home of any age.
"""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

from spark_jobs.background import run_all
from spark_jobs.home.layout import (
    ANSWERED,
    ANSWERS,
    ATTEMPTS,
    BEGUN_SAVEPOINT,
    CHECKPOINTS,
    ENDED,
    HISTORY,
    LOGS,
    MANIFESTS,
    PIPELINE,
    REQUESTS,
    RESPONSES,
    ROUNDS,
    RUNS,
    SAVEPOINT,
    SAVEPOINTS,
    STATUS,
    WORK,
    is_own_table,
    work_probe_path,
)
from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, RejectedError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.storage.files import Files, is_mounted, real_url
from spark_jobs.storage.open import PROBE, open_files, open_place
from spark_jobs.storage.table_uris import table_files

_LOG = logging.getLogger(__name__)


class Kind(StrEnum):
    """A kind of thing that a marker names."""

    HOME = "home"
    SAVEPOINT = "savepoint"
    TABLE = "table"


MARKERS = {
    PIPELINE: Kind.HOME,
    SAVEPOINT: Kind.SAVEPOINT,
    BEGUN_SAVEPOINT: Kind.SAVEPOINT,
    "_delta_log": Kind.TABLE,
}
"""The kinds by the name that marks them."""
_BEFORE_PIPELINE = frozenset(
    {ANSWERED, ANSWERS, ATTEMPTS, CHECKPOINTS, ENDED, HISTORY, LOGS, MANIFESTS}
    | {REQUESTS, RESPONSES, ROUNDS, RUNS, SAVEPOINTS, STATUS, WORK}
)
"""Documents and logs that may exist before ``pipeline.json``: a first start may have been requested and refused."""
_OF_A_TABLE = frozenset({"parquet", "json", "bin", "crc", "avro", "text", "tmp"})
"""The endings of the names in the directory of a Delta table, with those of its log and of an Iceberg log beside it."""
_STORE_URL = re.compile(r"([a-z0-9]+://[^/]*)/(.+)")


class Thing(NamedTuple):
    """An object with its own place."""

    what: str
    """A noun for an error, after "the"."""
    url: str
    """The user's URL."""
    real: str
    """A URL that is the same for all names of one place."""
    names: tuple[str | re.Pattern[str], ...] = ()
    """Names below it, and expressions for names, if a source reads a pattern."""
    ending: str = ""
    """The ending of all names that a source's pattern finds. Empty if they may have any."""
    endings: frozenset[str] = frozenset()
    """The endings of all names in it. Empty if they may have any."""
    is_read_table: bool = False
    """True for a Delta table that a source reads."""


def thing(what: str, place: Files) -> Thing:
    """Returns the thing at a place."""
    return Thing(what, place.url, real_url(place))


def kinds_of(names: Iterable[str]) -> set[Kind]:
    """Returns the kinds of a directory with these names: none without a marker, two in a broken directory."""
    return {MARKERS[name] for name in names if name in MARKERS}


def others_in(files: Files, paths: Iterable[str]) -> list[Thing]:
    """Returns other things in a home or a savepoint, by the paths of its files, except the runtime's own tables."""
    found = {}
    for path in paths:
        parts = path.split("/")
        for depth, name in enumerate(parts):
            directory = "/".join(parts[:depth])
            kind = MARKERS.get(name)
            if kind and not (kind is Kind.TABLE and is_own_table(directory)):
                found[kind, directory] = Thing(kind, f"{files.url}/{directory}", f"{real_url(files)}/{directory}")
    return list(found.values())


def has_others(files: Files, paths: Iterable[str]) -> bool:
    """Returns True if :func:`others_in` finds a thing among files to be deleted, and logs that they stay."""
    others = others_in(files, paths)
    for other in others[:1]:
        _LOG.warning("the %s %s is in %s: all files there stay", other.what, other.url, files.url)
    return bool(others)


def is_inside(place: str, other: str) -> bool:
    """Returns True if a place is below another one, by their real URLs or paths."""
    return place != other and place.startswith(f"{other.rstrip('/')}/")


def check_apart(own: Thing, others: Iterable[Thing]) -> None:
    """Refuses a thing at the place of another one, inside it, or around it.

    A thing is inside a pattern if a directory above it matches, and around it if the pattern is below it. If a wildcard matches the name
    of the thing, the pattern is below it only if a wildcard follows: then the pattern finds all names in the thing. Not so if names with
    the pattern's ending cannot be in the thing.

    Raises:
        RejectedError: Two things overlap. The error names both.
    """
    for other in others:
        how = _relation(own, other)
        if how is None:
            continue
        raise RejectedError(
            f"The {own.what} {own.url} {how} the {other.what} {other.url}.",
            exists="Cleaning up or deleting one of them would delete files of the other.",
            safe="Nothing was written.",
            remedy=f"Give the {own.what} a separate place: an empty or a new directory.",
            path=own.url,
            found=other.url,
        )


def _relation(own: Thing, other: Thing) -> str | None:
    """Returns the relation of a thing to another one in words, or None if they are apart."""
    mine, theirs = (each.real.rstrip("/").split("/") for each in (own, other))
    if mine[: len(theirs)] != theirs[: len(mine)]:
        return None
    below = mine[len(theirs) :]
    matches = (
        name == each if isinstance(each, str) else each.fullmatch(name) for name, each in zip(below, other.names, strict=False)
    )
    if not all(matches):
        return None
    if len(mine) < len(theirs):
        return "is around"
    if len(below) < len(other.names):
        by_wildcard = any(not isinstance(each, str) for each in other.names[: len(below)])
        finds_none = isinstance(other.names[len(below)], str) or (
            own.endings and other.ending and other.ending not in own.endings
        )
        return None if by_wildcard and finds_none else "is around"
    return "is also" if len(below) == len(other.names) else "is inside"


def check_place(kind: Kind, place: Files, names: Iterable[str], others: Iterable[Thing] = (), up_to: str | None = None) -> None:
    """Refuses a place where a thing of a kind cannot begin.

    Args:
        kind: Kind of the new thing. The caller handles a place that already has this kind.
        place: Place of the new thing.
        names: The names in it.
        others: Things that need no marker.
        up_to: Real URL of a parent directory, where the check stops: things around it may be around this thing, too.

    Raises:
        RejectedError: The place has another thing, or is inside or around one.
        StorageError: The storage does not answer.
    """
    own = thing(kind, place)
    at = [own._replace(what=each) for each in sorted(kinds_of(names) - {kind})]
    check_apart(own, [*at, *others])
    check_apart(own, *_above([place], up_to))


def check_home(home: Files, others: Collection[Thing] = (), *, begins: bool) -> None:
    """Refuses a place where a home cannot begin, or go on. Writes nothing.

    Args:
        home: The home.
        others: The pipeline's own things: its tables, a cache.
        begins: True if the home has no ``pipeline.json`` yet. Then the storage is checked, otherwise only the URLs.

    Raises:
        RejectedError: The place has another thing or foreign files, or is inside or around another thing.
        StorageError: The storage does not answer.
    """
    check_apart(thing(Kind.HOME, home), others)
    names = home.names("") if begins else ()
    if not begins or PIPELINE in names:  # another start has begun it in the meantime
        return
    check_place(Kind.HOME, home, names)
    foreign = [name for name in names if name not in _BEFORE_PIPELINE and not name.startswith(".") and not PROBE.fullmatch(name)]
    if foreign:
        raise RejectedError(
            f"The home {home.url} cannot begin there: it has no {PIPELINE}, and other things such as {foreign[0]}.",
            remedy="Give another --home: an empty or a new directory.",
            home=home.url,
            found=foreign[:20],
        )
    below = chain.from_iterable(home.paths(name) for name in sorted(_BEFORE_PIPELINE.intersection(names) - {SAVEPOINTS}))
    check_apart(thing(Kind.HOME, home), others_in(home, below))


def check_places(home: Files | None, tables: Mapping[SinkName, str], *, begins: bool) -> None:
    """Refuses the places of a pipeline's home and tables if they overlap, or overlap another thing. Writes nothing.

    Args:
        home: The home; None checks only the tables.
        tables: The URI of each sink's table. It may not exist yet.
        begins: As for :func:`check_home`.

    Raises:
        RejectedError: Two places overlap.
        StorageError: The storage does not answer.
    """
    places = [table_files(uri) for uri in tables.values()]
    others = [thing(f"table of sink '{sink}',", place) for sink, place in zip(tables, places, strict=True)]
    directories = [place.local() or place for place in places]
    at, above_each = run_all([partial(_kinds_in, directories, _has_marker), partial(_above, places)])
    for own, kinds, above in zip(others, at, above_each, strict=True):
        check_apart(own, [own._replace(what=each) for each in sorted(kinds - {Kind.TABLE})])
        check_apart(own, above)
    if home is None:
        return
    caches = _caches(home)
    for own, above in zip(caches, _above([open_place(own.url) for own in caches]), strict=True):
        check_apart(own, [*others, *above])
    check_home(home, [*others, *caches], begins=begins)


def check_sources(
    home: Files | None, tables: Mapping[SinkName, str], sources: Collection[Thing], partitioned: Collection[SinkName] = ()
) -> None:
    """Refuses sources and archives that overlap the pipeline's home, its cache or a table. Writes nothing.

    Args:
        home: The home; None checks only the tables.
        tables: As for :func:`check_places`.
        sources: The places of sources and archives: see :mod:`~spark_jobs.home.source_places`.
        partitioned: Sinks with a partitioned table. A value, and so the name of a directory, may have any ending.

    Raises:
        RejectedError: Two places overlap.
    """
    for sink, uri in tables.items():
        endings = frozenset[str]() if sink in partitioned else _OF_A_TABLE
        own = thing(f"table of sink '{sink}',", table_files(uri))._replace(endings=endings)
        check_apart(own, [other for other in sources if not (other.is_read_table and other.real == own.real)])
    if home is not None:
        for own in (thing(Kind.HOME, home), *_caches(home)):
            check_apart(own, sources)


def _caches(home: Files) -> list[Thing]:
    """Returns the cache of a home in a store, and its directory in a work root that is in a store. Returns nothing for a directory."""
    directory, work = home.local(WORK), home.below(work_probe_path())
    if directory is None or is_mounted(home):
        return []
    own = [thing("cache", open_files(str(directory.parent)))]
    return own if is_mounted(work) else [*own, thing("cache", open_place(work.url.rsplit("/", 2)[0]))]


def check_savepoint(home: Files, target: Files, names: Iterable[str], others: Collection[Thing]) -> None:
    """Refuses a place where a savepoint of a home cannot be. Writes nothing.

    Args:
        home: The home. Savepoints may be side by side below its ``savepoints/``.
        target: The place.
        names: The names in it.
        others: The pipeline's tables and sources.

    Raises:
        RejectedError: The place has another thing, or is inside or around one.
        StorageError: The storage does not answer.
    """
    room = f"{real_url(home)}/{SAVEPOINTS}"
    if is_inside(real_url(target), room):
        check_place(Kind.SAVEPOINT, target, names, others, up_to=room)
    else:
        check_place(Kind.SAVEPOINT, target, names, [thing(Kind.HOME, home), *others])


def check_deletable(kind: Kind, place: Files, names: Collection[str], parts: Collection[str]) -> None:
    """Refuses to delete a thing if its place also has another thing, or another thing is inside it.

    Args:
        kind: Kind of the thing to delete.
        place: Its place.
        names: The names in it.
        parts: The directories of it that would be deleted.

    Raises:
        RejectedError: There is another thing.
    """
    for other in sorted(kinds_of(names) - {kind}):
        raise RejectedError(
            f"The {kind} {place.url} cannot be deleted: a {other} is in the same directory.",
            exists=f"Files of both have the same names, so those of the {other} would be deleted.",
            safe="Nothing was deleted.",
            remedy=f"Keep the directory for as long as you need the {other}; then delete all of it by hand.",
            path=place.url,
            found=other,
        )
    for inside in others_in(place, chain.from_iterable(place.paths(part) for part in parts if part in names)):
        raise RejectedError(
            f"The {kind} {place.url} cannot be deleted: the {inside.what} {inside.url} is inside it.",
            safe="Nothing was deleted.",
            remedy=f"Move the {inside.what} to a place of its own, or delete it if nobody needs it. Then repeat the command.",
            path=place.url,
            found=inside.url,
        )


def _above(places: Sequence[Files], up_to: str | None = None) -> list[list[Thing]]:
    """Returns the things in the parent directories of each place, nearest first. A directory that we may not read counts as empty.

    Looks at all directories at the same time, and once at those above several places.
    """
    parents = [_parents(place, up_to) for place in places]
    directories = dict(chain.from_iterable(each.items() for each in parents))
    kinds = dict(zip(directories, _kinds_in(directories.values(), _seems_to_have_marker), strict=True))
    return [[Thing(kind, url, url) for url in each for kind in sorted(kinds[url])] for each in parents]


def _parents(place: Files, up_to: str | None) -> dict[str, Files | Path]:
    """Returns the parent directories of a place by their URLs, nearest first, up to one that is left out."""
    here = place.local()
    found: dict[str, Files | Path] = {}
    if here is not None:
        found.update((f"file://{directory}", directory) for directory in Path(os.path.realpath(here)).parents)
    elif in_store := _STORE_URL.fullmatch(place.url):
        parts = in_store[2].split("/")
        for count in reversed(range(len(parts))):
            url = "/".join([in_store[1], *parts[:count]])
            with suppress(InvalidParameterError):  # the root of HDFS is no directory that can be opened
                found[url] = open_place(url)
    return dict(takewhile(lambda each: each[0] != up_to, found.items()))


def _kinds_in(directories: Collection[Files | Path], has_marker: Callable[[Files | Path, str], bool]) -> list[set[Kind]]:
    """Returns the kinds of each directory without listing it: it may be large, or we may only be allowed to pass through it."""
    marked = iter(run_all([partial(has_marker, directory, name) for directory in directories for name in MARKERS]))
    return [kinds_of(name for name, is_marked in zip(MARKERS, marked, strict=False) if is_marked) for _ in directories]


def _has_marker(directory: Files | Path, name: str) -> bool:
    if isinstance(directory, Path):
        return os.path.lexists(directory / name)
    if MARKERS[name] is Kind.TABLE:
        return bool(directory.names(name))
    return directory.size_bytes(name) is not None


def _seems_to_have_marker(directory: Files | Path, name: str) -> bool:
    try:
        return _has_marker(directory, name)
    except AccessDeniedError:
        return False
