"""The address of a sink's table as the user wrote it: a path or a catalog name, with parameters in braces."""

import os
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jobs.api.refusals import Place, suggestion
from spark_jobs.storage.object_store_kinds import CANONICAL_SCHEMES

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/]*)?")
_SPELLINGS = {**CANONICAL_SCHEMES, "s3n": "s3"}
"""The scheme in documents, by each scheme for a place in an object store. ``s3n:`` is Hadoop's former name of ``s3a:``."""
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,2}")


@dataclass(frozen=True)
class TableAddress:
    """A complete address of a table, without parameters."""

    text: str
    named: bool
    """True for a name in Spark's catalog, False for a path or URL."""

    def __str__(self) -> str:
        return self.text

    @property
    def location(self) -> str:
        """The address in one spelling. Scheme, host, dots and the case of a name are normalized: two addresses of one place are equal."""
        if self.named:
            return f"table:{self.text.casefold()}"
        scheme = _SCHEME.match(self.text)
        if scheme is None or scheme.group(1).lower() == "file":
            return os.path.abspath(self.text[scheme.end() :] if scheme else self.text)
        name, authority = scheme.group(1).lower(), (scheme.group(2) or "").lower()
        path = os.path.normpath(self.text[scheme.end() :] or "/").rstrip("/")
        return f"{_SPELLINGS.get(name, name)}:{authority}{path}"


@dataclass(frozen=True)
class AddressTemplate:
    """An address that may contain parameters in braces."""

    text: str
    fields: tuple[str, ...]
    """The names of its parameters."""
    named: bool

    @property
    def option(self) -> str:
        """The name of the ``DeltaSink`` option that gave the address."""
        return "table" if self.named else "path"

    def check_fields(self, place: Place, known: Sequence[str]) -> None:
        """Refuses a template with a parameter that is not in ``known``."""
        for field in self.fields:
            if field not in known:
                raise place.refused(
                    f"the {self.option} {self.text!r} names {field!r}, which is not a parameter that may be in a path.",
                    f"{suggestion(field, known)} Write {{{{ and }}}} for braces.",
                    field=field,
                    fields=list(known),
                )

    def filled(self, place: Place, values: Mapping[str, Any]) -> TableAddress:
        """Returns the address with ``values`` filled in. A path has no superfluous slashes.

        Raises:
            InvalidPipelineError: A field has no value or a value that is neither text nor a number, or the result is not an address.
        """
        for field in self.fields:
            value = values[field]
            if not isinstance(value, str | int | float) or value == "":
                found = "nothing" if value is None or value == "" else f"a {type(value).__name__}"
                problem = f"the {self.option} {self.text!r} names {field!r}, whose value is {found}."
                raise place.refused(problem, f"Give {field!r} a text or a number.", field=field)
        text = self.text.format_map(dict(values))
        return TableAddress(_checked_name(place, text) if self.named else _tidy_path(place, text), self.named)


def address_template(place: Place, path: object, table: object) -> AddressTemplate:
    """Returns the address that a sink declares: exactly one of ``path`` and ``table``."""
    if (path is None) == (table is None):
        problem = "it has both a path and a table." if path is not None else "it has neither a path nor a table."
        raise place.refused(problem, 'Give one: DeltaSink("{warehouse}/table") or DeltaSink(table="schema.name").')
    named = table is not None
    given = table if named else os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str) or not given.strip("/ "):
        if named:
            raise place.refused(f"table={table!r} is not a name.", 'Give one, such as DeltaSink(table="schema.name").')
        raise place.refused(f"path={path!r} is not a path.", 'Give one, such as DeltaSink("{warehouse}/table").')
    kind = "table" if named else "path"
    try:
        parts = list(string.Formatter().parse(given))
    except ValueError as error:
        raise place.refused(f"the {kind} {given!r} is not a template: {error}.", "Write {{ and }} for braces.") from error
    fields = []
    for _, field, specification, conversion in parts:
        if field is None:
            continue
        if not field.isidentifier() or specification or conversion:
            problem = f"the {kind} {given!r} has {field!r} in braces, which is not the name of a parameter."
            raise place.refused(problem, "Put only a name in braces. Write {{ and }} for braces.", field=field)
        fields.append(field)
    if named and not fields:
        _checked_name(place, given)
    return AddressTemplate(given, tuple(dict.fromkeys(fields)), named)


def _checked_name(place: Place, name: str) -> str:
    if not _NAME.fullmatch(name):
        problem = f"table={name!r} is not a name of up to three parts of letters, digits and underscores."
        raise place.refused(problem, 'Write table="schema.name" or table="catalog.schema.name".', table=name)
    return name


def _tidy_path(place: Place, path: str) -> str:
    scheme = _SCHEME.match(path)
    root = scheme.group() if scheme else ""
    rest = re.sub("/+", "/", path[len(root) :]).rstrip("/")
    if not rest and not (scheme and (scheme.group(2) or "//").strip("/")):
        raise place.refused(f"{path!r} is not a table's directory.", "Name a directory below the root.", path=path)
    return root + rest
