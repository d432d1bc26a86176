"""Sinks: the Delta tables that a stage's rows are published into."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from spark_jobs.api.address import AddressTemplate, TableAddress, address_template
from spark_jobs.api.checkpoints import Refusing
from spark_jobs.api.names import check_name
from spark_jobs.api.refusals import Place
from spark_jobs.protocol.documents import HoldLimits, Publish, SinkMode
from spark_jobs.protocol.ids import SinkName
from spark_jobs.protocol.options import choice, interval_ms

_SIZE = re.compile(r"(\d+) ?([kmg]?)i?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_APPEND_ONLY = "delta.appendOnly"
VERSION_COLUMNS = ("valid_from", "valid_to", "is_current")
"""The columns that ``mode="history"`` adds: beginning and end of a version's validity (null: still valid), and True for the current one."""
SPARK_MERGE_ABOVE_BYTES = 256 * 2**20
"""The default limit of delta-rs merges. delta-rs holds what it reads in memory (docs/adr/0030-who-merges.md)."""
_MERGE_OPTIONS = {
    SinkMode.UPSERT: ("keys", "sequence_by", "apply_as_deletes", "spark_merge_above"),
    SinkMode.INSERT: ("keys", "sequence_by", "spark_merge_above"),
    SinkMode.HISTORY: ("keys", "sequence_by", "apply_as_deletes"),
}
"""The options of the modes that merge by keys."""
_REFUSED_PROPERTIES = {
    "delta.setTransactionRetentionDuration": "the table would forget which checkpoints were published",
    "delta.feature.catalogManaged": "only its catalog may commit to such a table",
    "delta.feature.catalogOwned-preview": "only its catalog may commit to such a table",
    "delta.coordinatedCommits.commitCoordinator-preview": "only its coordinator may commit to such a table",
}


class SchemaEvolution(StrEnum):
    """The treatment of a column that the stage returns and the table lacks."""

    NONE = "none"
    """The start is refused."""
    ADD_COLUMNS = "add_columns"
    """The column is added at an attempt's start, before anything is staged. Fields of structs and wider types are added likewise."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The limits within which other tables are published without one that refuses its rows. Beyond a limit all tables wait.

    Args:
        time: Time since the first checkpoint that the table should have but does not have yet, such as ``"1 hour"``.
        size: Amount of rows that may wait for the table, such as ``"1gb"`` or a number of bytes. None: any amount.
    """

    time: str
    size: str | int | None = None


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table as a stage's output. The table is created if missing.

    Args:
        path: Path of the table. ``{field}`` stands for that parameter's value; ``{{`` and ``}}`` are braces.
        table: Its name in Spark's catalog instead, such as ``"catalog.schema.name"``; parameters as in ``path``.
        name: Name of the sink; by default that of the stage.
        mode: ``"append"``: each row of the stage's result becomes one row of the table, exactly once. ``"complete"``: each
            checkpoint replaces the table's rows by the whole result (an aggregation's). ``"upsert"``: each row replaces the row
            with the same keys. ``"insert"``: a row is added if the table has no row with the same keys. ``"history"``: each row
            is a version of its key, and the table also has ``valid_from``, ``valid_to`` and ``is_current``.
        keys: The columns that identify a row, for ``"upsert"``, ``"insert"`` and ``"history"``. Null is a key like any other.
        sequence_by: The column that orders the rows of one key. ``"upsert"``: the highest one wins, in whatever order they come; by
            default later batches win, and one batch may have each key once. ``"insert"``: the lowest of several rows of a new key
            wins; by default the row of the earliest batch. ``"history"``: the beginning of a version's validity.
        apply_as_deletes: A SQL condition on the columns, for ``"upsert"`` and ``"history"``: a row that fulfils it deletes its key.
        spark_merge_above: For ``"upsert"`` and ``"insert"``: Spark merges a publication that has to read more than about this size of
            the table's files, such as ``"1gb"`` or a number of bytes. delta-rs merges every other one, in a fraction of a second and
            without a JVM. ``0``: Spark merges always. The default is 256 MiB.
        partition_by: Columns that the table is partitioned by.
        cluster_by: Columns that a new table is clustered by.
        schema_evolution: ``"none"``: a column, or a field of a struct, that the table lacks is refused; ``"add_columns"``: it is
            added. If the table has ``delta.enableTypeWidening``, a type becomes the wider one that the stage returns.
        table_properties: Properties of a new table, Delta's and your own. An existing table must have them.
        comment: The description of a new table.
        publish: When rows become public. ``"final"``, the default if every input of the pipeline is bounded: with the final
            checkpoint, or that of a drain. ``"every_checkpoint"``, the default otherwise: with each checkpoint, also inside a round.
            ``"external"``: when somebody calls ``spark-jobs publish``.
        target_file_size: Pack the files of a checkpoint up to about this size, such as ``"128mb"`` or a number of bytes; for
            ``"append"``. By default they are published as the batches wrote them.
        hold: If the table refuses its rows, the other tables are published without it, up to these limits. By default they wait.
        computed_by: The expressions with which the stage computes columns of ``sequence_by`` and ``apply_as_deletes``, by column. They
            are only recorded: a start with another expression for the same column is refused like one with another column.
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    table: str | None = None
    name: str | None = None
    mode: SinkMode | Literal["append", "complete", "upsert", "insert", "history"] = "append"
    keys: Sequence[str] = ()
    sequence_by: str | None = None
    apply_as_deletes: str | None = None
    spark_merge_above: str | int | None = None
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    schema_evolution: SchemaEvolution | Literal["none", "add_columns"] = "none"
    table_properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    publish: Publish | Literal["final", "every_checkpoint", "external"] | None = None
    target_file_size: str | int | None = None
    hold: Hold | None = None
    computed_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableDesign:
    """The properties of a new table, which an existing table must fulfil."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    comment: str | None = None
    evolution: SchemaEvolution = SchemaEvolution.NONE
    widens: bool = False
    """True if the table gets the feature that widens types. Otherwise types are widened only if the table already has it."""


@dataclass(frozen=True)
class MergeRule:
    """The rule for merging rows with those of the table by their keys."""

    keys: tuple[str, ...]
    sequence_by: str | None
    apply_as_deletes: str | None
    version_columns: tuple[str, ...] = ()
    """:data:`VERSION_COLUMNS` with ``mode="history"``."""
    spark_above_bytes: int = SPARK_MERGE_ABOVE_BYTES
    """The number of bytes of the table's files to read above which Spark merges."""


@dataclass(frozen=True)
class Sink:
    """A declared sink, checked as far as it can be without parameters."""

    place: Place
    name: SinkName
    address: AddressTemplate
    mode: SinkMode
    merge: MergeRule | None
    """The merge rule of the modes with ``keys``; None for the others."""
    design: TableDesign
    publish: Publish
    publish_chosen: bool
    """True if the user gave ``publish``. Otherwise the graph decides, depending on whether all inputs end."""
    target_file_size_bytes: int | None
    hold: HoldLimits | None
    computed_by: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """The expressions of computed columns that order or delete rows."""

    def published(self, publish: Publish | None, *, unbounded: bool) -> "Sink":
        """Returns the sink with its publication policy in a graph.

        Args:
            publish: Overrides the sink's own policy for one run.
            unbounded: True if an input of the pipeline has no end.

        Raises:
            InvalidPipelineError: Its rows would wait for an end that never comes.
        """
        chosen = publish or (self.publish if self.publish_chosen else None)
        if chosen is Publish.FINAL and unbounded:
            raise self.place.refused(
                'publish="final" waits for the end of all inputs, but an input of the pipeline is unbounded.',
                'Use publish="every_checkpoint" or publish="external".',
                publish=Publish.FINAL.value,
            )
        default = Publish.EVERY_CHECKPOINT if unbounded else Publish.FINAL
        return dataclasses.replace(self, publish=chosen or default)

    def check_fields(self, known: Sequence[str]) -> None:
        """Refuses an address with a parameter that is not in ``known``."""
        self.address.check_fields(self.place, known)

    def table(self, values: Mapping[str, Any]) -> TableAddress:
        """Returns the address of the table.

        Raises:
            InvalidPipelineError: A field has no value or a value that is neither text nor a number.
        """
        return self.address.filled(self.place, values)

    def describe(self) -> dict[str, Any]:
        """Returns the properties that decide whether the table of an earlier run fits, as JSON values."""
        described: dict[str, Any] = {
            "name": self.name,
            self.address.option: self.address.text,
            "mode": self.mode.value,
            "partition_by": list(self.design.partition_by),
        }
        if self.merge:
            described |= {
                "keys": list(self.merge.keys),
                "sequence_by": self.merge.sequence_by,
                "apply_as_deletes": self.merge.apply_as_deletes,
            }
        if self.computed_by:
            described["computed_by"] = dict(sorted(self.computed_by.items()))
        return described


def declare_sink(place: Place, sink: object, option: str = "sink", default_name: str | None = None) -> Sink:
    """Returns the checked sink of a stage; see :class:`DeltaSink`.

    Args:
        place: Place of the stage.
        sink: Value of the option.
        option: Name of the option.
        default_name: Default for the sink's name. None: the stage's.
    """
    if not isinstance(sink, DeltaSink):
        raise place.refused(f"{option}={sink!r} is not a sink.", f'Write {option}=DeltaSink("{{warehouse}}/table").')
    name = check_name(
        Place(place.pipeline, "sink", str(sink.name)), (default_name or place.name) if sink.name is None else sink.name
    )
    here = Place(place.pipeline, "sink", name)
    mode = choice(here.refused, "mode", SinkMode, sink.mode)
    size = None if sink.target_file_size is None else _size_bytes(here, "target_file_size", sink.target_file_size, least=1)
    if size is not None and mode is not SinkMode.APPEND:
        raise here.refused(
            f'target_file_size= is for mode="append"; this one is mode="{mode.value}".',
            "Remove it: the files of the other modes are written at the publication, or replaced by the next one.",
        )
    return Sink(
        place=here,
        name=SinkName(name),
        address=address_template(here, sink.path, sink.table),
        mode=mode,
        merge=_merge_rule(here, sink, mode),
        design=_design(here, sink, mode),
        publish=choice(here.refused, "publish", Publish, Publish.FINAL if sink.publish is None else sink.publish),
        publish_chosen=sink.publish is not None,
        target_file_size_bytes=size,
        hold=_hold(here, sink),
        computed_by=MappingProxyType(dict(sink.computed_by)),
    )


def check_distinct(tables: Mapping[Sink, TableAddress]) -> None:
    """Refuses two sinks with one table, or a table inside the directory of another, whose VACUUM would delete its files."""
    seen: dict[str, Sink] = {}
    for sink, table in tables.items():
        location = table.location
        for other_location, other in seen.items():
            if location == other_location:
                problem = f"its table '{table}' is also the table of sink {other.name!r}."
                remedy = (
                    "Give each sink its own table. To write rows of two stages into one table, unite them in a further stage."
                )
                raise sink.place.refused(problem, remedy, table=str(table), sinks=[other.name, sink.name])
            if location.startswith(f"{other_location}/") or other_location.startswith(f"{location}/"):
                problem = (
                    f"one of its table '{table}' and the table '{tables[other]}' of sink {other.name!r} is inside the other."
                )
                raise sink.place.refused(problem, "Put them side by side.", table=str(table), sinks=[other.name, sink.name])
        seen[location] = sink


def _merge_rule(place: Place, sink: DeltaSink, mode: SinkMode) -> MergeRule | None:
    keys = _columns(place, "keys", sink.keys)
    texts = {"sequence_by": sink.sequence_by, "apply_as_deletes": sink.apply_as_deletes}
    for option, text in (texts | {"comment": sink.comment}).items():
        _check_text(place, option, text)
    allowed = _MERGE_OPTIONS.get(mode, ())
    size = None if sink.spark_merge_above is None else _size_bytes(place, "spark_merge_above", sink.spark_merge_above, least=0)
    for option, value in {"keys": keys or None, **texts, "spark_merge_above": size}.items():
        if value is not None and option not in allowed:
            modes = [f'"{each.value}"' for each, options in _MERGE_OPTIONS.items() if option in options]
            raise place.refused(
                f"{option}= is for mode={' and '.join(modes)}.", f"Write one of these modes, or remove {option}=."
            )
    if not allowed:
        return None
    if not keys:
        raise place.refused(f'mode="{mode.value}" needs keys.', 'Name the columns that identify a row: keys=["id"].')
    if sink.sequence_by is not None and sink.sequence_by.casefold() in {key.casefold() for key in keys}:
        raise place.refused(f"sequence_by={sink.sequence_by!r} is one of the keys.", "Name the column that orders a key's rows.")
    if mode is SinkMode.HISTORY and sink.sequence_by is None:
        raise place.refused(
            'mode="history" needs sequence_by.',
            'Name the column with the time from which a row is valid: sequence_by="changed_at".',
        )
    versions = VERSION_COLUMNS if mode is SinkMode.HISTORY else ()
    above = SPARK_MERGE_ABOVE_BYTES if size is None else size
    return MergeRule(keys, sink.sequence_by, sink.apply_as_deletes, versions, above)


def _design(place: Place, sink: DeltaSink, mode: SinkMode) -> TableDesign:
    partition_by, cluster_by = _columns(place, "partition_by", sink.partition_by), _columns(place, "cluster_by", sink.cluster_by)
    if partition_by and cluster_by:
        raise place.refused("it has both partition_by and cluster_by.", "Remove one of them: a Delta table cannot have both.")
    properties = _properties(place, sink.table_properties)
    refused = {name.casefold(): reason for name, reason in _REFUSED_PROPERTIES.items()}
    for name, value in properties.items():
        if reason := refused.get(name.casefold()):
            raise place.refused(f"the table property {name} is not allowed: {reason}.", "Remove it.", property=name)
        if name.casefold() == _APPEND_ONLY.casefold() and value.lower() == "true" and mode.removes_rows:
            raise place.refused(f'{name} cannot be used with mode="{mode.value}", which removes rows.', "Remove one of them.")
    evolution = choice(place.refused, "schema_evolution", SchemaEvolution, sink.schema_evolution)
    return TableDesign(partition_by, cluster_by, MappingProxyType(properties), sink.comment, evolution)


def _check_text(place: Place, option: str, text: object) -> None:
    if text is not None and not (isinstance(text, str) and text.strip()):
        raise place.refused(f"{option}={text!r} is not a string.", f"Give {option} a string, or remove it.")


def _properties(place: Place, properties: object) -> dict[str, str]:
    if isinstance(properties, Mapping) and all(isinstance(text, str) for pair in properties.items() for text in pair):
        return dict(properties)
    raise place.refused(
        f"table_properties={properties!r} is not a mapping of strings.", 'Write {"delta.enableChangeDataFeed": "true"}.'
    )


def _hold(place: Place, sink: DeltaSink) -> HoldLimits | None:
    if sink.hold is None:
        return None
    if not isinstance(sink.hold, Hold):
        raise place.refused(f"hold={sink.hold!r} is not a Hold.", 'Write hold=Hold(time="1 hour").')
    if sink.publish == Publish.EXTERNAL:
        raise place.refused(
            'hold= is for publications by the driver, but with publish="external" somebody else publishes.',
            "Remove hold=, or choose another policy.",
        )
    time_ms = interval_ms(Refusing(place, "hold"), "time", sink.hold.time, least_ms=1)
    size = None if sink.hold.size is None else _size_bytes(place, "hold size", sink.hold.size, least=1)
    return HoldLimits(time_ms=time_ms, size_bytes=size)


def _size_bytes(place: Place, option: str, size: object, *, least: int) -> int:
    """Returns a size in bytes. As in Spark, ``128mb`` is 128 · 2²⁰ bytes."""
    found = _SIZE.fullmatch(str(size).strip()) if isinstance(size, str | int) and not isinstance(size, bool) else None
    if found is None or int(found.group(1)) < least:
        raise place.refused(f"{option}={size!r} is not a size.", 'Write "128mb", or a number of bytes.')
    return int(found.group(1)) * _FACTORS[found.group(2).lower()]


def _columns(place: Place, option: str, columns: object) -> tuple[str, ...]:
    """Returns a list of distinct column names."""
    if isinstance(columns, str):
        raise place.refused(f"{option} is a single string.", f'Write {option}=["{columns}"].')
    found = tuple(columns) if isinstance(columns, Sequence) else (columns,)
    if not all(isinstance(column, str) and column.strip() for column in found):
        raise place.refused(f"{option}={columns!r} is not a list of column names.", f'Write {option}=["column"].')
    if len({column.casefold() for column in found}) < len(found):
        raise place.refused(f"{option}={list(found)} names a column twice.", "Name each once.")
    return found
