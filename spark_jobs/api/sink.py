"""Sinks: Delta tables that a stage's rows are published into."""

import os
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from spark_jobs.api.names import check_name
from spark_jobs.api.refusals import Place, suggestion
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.ids import SinkName

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/]*)?")
_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table as a stage's output. It is made if missing.

    Args:
        path: Where the table is. ``{field}`` stands for that parameter's value; ``{{`` and ``}}`` are braces.
        name: The stage's, unless given.
        mode: ``"append"``: each row of the stage's result becomes one row of the table, exactly once.
        partition_by: Columns that the table is partitioned by.
        publish: When rows become public: ``"final"`` (the default): with the final checkpoint; ``"every_checkpoint"``;
            ``"external"``: when somebody calls ``spark-jobs publish``.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    name: str | None = None
    mode: Literal["append"] = "append"
    partition_by: Sequence[str] = ()
    publish: Publish | Literal["final", "every_checkpoint", "external"] | None = None


@dataclass(frozen=True)
class Sink:
    """A declared sink, checked as far as it can be without parameters."""

    place: Place
    name: SinkName
    template: str
    fields: tuple[str, ...]
    """The parameters that the template names."""
    mode: Literal["append"]
    partition_by: tuple[str, ...]
    publish: Publish

    def check_fields(self, known: Sequence[str]) -> None:
        """Refuses a template that names a parameter that is not one of ``known``."""
        for field in self.fields:
            if field not in known:
                raise self.place.refused(
                    f"the path {self.template!r} names {field!r}, which is not a parameter that may be in a path.",
                    f"{suggestion(field, known)} Write {{{{ and }}}} for braces.",
                    field=field,
                    fields=list(known),
                )

    def table(self, values: Mapping[str, Any]) -> str:
        """Where the table is: the template with ``values`` in it, without superfluous slashes.

        Raises:
            InvalidPipelineError: A field has no value, or one that is not text or a number.
        """
        for field in self.fields:
            value = values[field]
            if not isinstance(value, str | int | float) or value == "":
                found = "nothing" if value is None or value == "" else f"a {type(value).__name__}"
                problem = f"the path {self.template!r} names {field!r}, whose value is {found}."
                raise self.place.refused(problem, f"Give {field!r} a text or a number.", field=field)
        path = self.template.format_map(dict(values))
        scheme = _SCHEME.match(path)
        root = scheme.group() if scheme else ""
        rest = re.sub("/+", "/", path[len(root) :]).rstrip("/")
        if not rest and not (scheme and (scheme.group(2) or "//").strip("/")):
            raise self.place.refused(f"{path!r} is not a table's directory.", "Name a directory below the root.", path=path)
        return root + rest


def declare_sink(place: Place, sink: object) -> Sink:
    """A stage's sink, checked; see :class:`DeltaSink`. ``place`` is the stage's."""
    if not isinstance(sink, DeltaSink):
        raise place.refused(f"sink={sink!r} is not a sink.", 'Write sink=DeltaSink("{warehouse}/table").')
    name = check_name(Place(place.pipeline, "sink", str(sink.name)), place.name if sink.name is None else sink.name)
    here = Place(place.pipeline, "sink", name)
    mode: str = sink.mode
    if mode != "append":
        problem = f"mode={mode!r} is not supported in this version."
        raise here.refused(problem, 'Use mode="append".', mode=str(mode))
    publish = Publish.FINAL if sink.publish is None else sink.publish
    allowed = [choice.value for choice in Publish]
    if publish not in allowed:
        raise here.refused(f"publish={publish!r} is unknown.", f"Choose one of: {', '.join(allowed)}.", publish=str(publish))
    template, fields = _template(here, sink.path)
    return Sink(here, SinkName(name), template, fields, sink.mode, _columns(here, sink.partition_by), Publish(publish))


def check_distinct(tables: Mapping[Sink, str]) -> None:
    """Refuses two sinks with one table, or with one table inside the other's directory, where its VACUUM would delete files."""
    seen: dict[str, Sink] = {}
    for sink, table in tables.items():
        location = _location(table)
        for other_location, other in seen.items():
            if location == other_location:
                problem = f"its table {table!r} is also the table of sink {other.name!r}."
                remedy = "Give each its own path; rows of two stages for one table are united in a stage of their own."
                raise sink.place.refused(problem, remedy, table=table, sinks=[other.name, sink.name])
            if location.startswith(f"{other_location}/") or other_location.startswith(f"{location}/"):
                problem = f"of its table {table!r} and sink {other.name!r}'s table {tables[other]!r} one is inside the other."
                raise sink.place.refused(problem, "Put them side by side.", table=table, sinks=[other.name, sink.name])
        seen[location] = sink


def _location(table: str) -> str:
    """The same text for two spellings of one place: ``file:`` or none, S3's schemes, dots."""
    scheme = _SCHEME.match(table)
    if scheme is None or scheme.group(1).lower() == "file":
        return os.path.abspath(table[scheme.end() :] if scheme else table)
    name, authority = scheme.group(1).lower(), scheme.group(2) or ""
    path = os.path.normpath(table[scheme.end() :] or "/").rstrip("/")
    return f"{'s3' if name in _S3_SCHEMES else name}:{authority}{path}"


def _template(place: Place, path: object) -> tuple[str, tuple[str, ...]]:
    """The template and the parameters it names."""
    template = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(template, str) or not template.strip("/ "):
        raise place.refused(f"path={path!r} is not a path.", 'Give one, such as DeltaSink("{warehouse}/table").')
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise place.refused(f"the path {template!r} is not a template: {error}.", "Write {{ and }} for braces.") from error
    fields = []
    for _, field, specification, conversion in parts:
        if field is None:
            continue
        if not field.isidentifier() or specification or conversion:
            problem = f"the path {template!r} has {field!r} in braces, which is more or less than a parameter's name."
            raise place.refused(problem, "Put just a name in braces; write {{ and }} for braces.", field=field)
        fields.append(field)
    return template, tuple(dict.fromkeys(fields))


def _columns(place: Place, partition_by: object) -> tuple[str, ...]:
    """The partition columns."""
    if isinstance(partition_by, str):
        raise place.refused("partition_by is a single string.", f'Write partition_by=["{partition_by}"].')
    columns = tuple(partition_by) if isinstance(partition_by, Sequence) else (partition_by,)
    if not all(isinstance(column, str) and column.strip() for column in columns):
        raise place.refused(f"partition_by={partition_by!r} is not a list of column names.", 'Write partition_by=["column"].')
    if len({column.casefold() for column in columns}) < len(columns):
        raise place.refused(f"partition_by={list(columns)} names a column twice.", "Name each once.")
    return columns
