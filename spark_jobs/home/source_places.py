"""Returns the places that a pipeline reads: folders of files with their archives, patterns of names, and Delta tables.

Kafka and other kinds of sources have no place.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from urllib.parse import unquote, urlsplit

from spark_jobs.home.places import Thing, thing
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownDelta, KnownFiles, KnownSource
from spark_jobs.storage.open import open_place
from spark_jobs.storage.paths import check_root

_SPECIAL = re.compile(r"[*?\[]")
_ENDING = re.compile(r"\.(\w+)$")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def source_places(sources: Mapping[InputName, Collection[KnownSource]]) -> list[Thing]:
    """Returns the places of sources, by their recorded identities. A place that this host cannot open is left out."""
    found = []
    for name, streams in sources.items():
        what = f"source '{name}',"
        for known in streams:
            with suppress(InvalidParameterError, MissingRequirementError):
                if isinstance(known, KnownDelta):
                    found.append(thing(what, open_place(known.path))._replace(is_read_table=True))
                elif isinstance(known, KnownFiles):
                    found += _folders(what, known.path)
    return found


def archive_places(archives: Mapping[InputName, str]) -> list[Thing]:
    """Returns the places to which files of sources are moved, by source. A place that this host cannot open is left out."""
    found = []
    for name, place in archives.items():
        with suppress(InvalidParameterError, MissingRequirementError):
            found.append(thing(f"archive of source '{name}',", open_place(place)))
    return found


def _folders(what: str, url: str) -> Iterator[Thing]:
    """Yields the place of a URL as Spark's file source records it: one for each pattern without braces."""
    parts = urlsplit(url)
    root = "" if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}"
    for path in _alternatives(unquote(parts.path)):
        names = path.strip("/").split("/")
        fixed = list(takewhile(_is_plain, names))
        place = thing(what, open_place("/".join([root, *fixed]) if fixed else f"{root}/"))
        ending = _ENDING.search(names[-1])
        expressions = tuple(_expression(name) for name in names[len(fixed) :])
        yield place._replace(url=url, names=expressions, ending=ending[1].lower() if ending else "")


def _is_plain(name: str) -> bool:
    """Returns True if a name is no pattern, and can be that of a place of ours."""
    try:
        check_root(name)
    except InvalidParameterError:
        return False
    return True


def _alternatives(pattern: str) -> Sequence[str]:
    """Returns the patterns that a pattern with braces stands for, as in Hadoop: ``{a,b/c}`` stands for ``a`` and ``b/c``."""
    depth, start, commas = 0, 0, list[int]()
    at = 0
    while at < len(pattern):
        match pattern[at]:
            case "\\":
                at += 1
            case "{":
                if not depth:
                    start, commas = at, [at]
                depth += 1
            case "," if depth == 1:
                commas.append(at)
            case "}" if depth:
                depth -= 1
                if not depth:
                    ends = [*commas[1:], at]
                    choices = [pattern[begin + 1 : end] for begin, end in zip(commas, ends, strict=True)]
                    return [found for choice in choices for found in _alternatives(pattern[:start] + choice + pattern[at + 1 :])]
        at += 1
    return [pattern]


def _expression(name: str) -> str | re.Pattern[str]:
    """Returns the expression for a name in a pattern without braces, or the name itself. One that Hadoop refuses matches every name."""
    if not _SPECIAL.search(_ESCAPED.sub("", name)):
        return _ESCAPED.sub(r"\1", name)
    text, at, in_class = "", 0, False
    while at < len(name):
        char = name[at]
        if char == "\\" and at + 1 < len(name):
            at += 1
            text += re.escape(name[at])
        elif in_class:
            in_class = char != "]"
            is_first = name[at - 1] == "["
            text += "^" if char == "!" and is_first else char if char in "]-^" else re.escape(char)
        elif char == "[":
            in_class = True
            text += char
        else:
            text += {"*": ".*", "?": "."}.get(char) or re.escape(char)
        at += 1
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        return re.compile(".*", re.DOTALL)
