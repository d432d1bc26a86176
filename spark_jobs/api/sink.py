"""Sinks: Delta tables that a stage's rows are published into."""

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
from spark_jobs.api.refusals import Place, choice
from spark_jobs.protocol.documents import HoldLimits, Publish, SinkMode
from spark_jobs.protocol.ids import SinkName
from spark_jobs.protocol.options import interval_ms

_SIZE = re.compile(r"(\d+) ?([kmg]?)i?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_APPEND_ONLY = "delta.appendOnly"
VERSION_COLUMNS = ("valid_from", "valid_to", "is_current")
"""The columns that ``mode="history"`` adds: from when a version is valid, to when (null: to now), and whether it is the current one."""
_MERGE_OPTIONS = {
    SinkMode.UPSERT: ("keys", "sequence_by", "apply_as_deletes"),
    SinkMode.INSERT: ("keys", "sequence_by"),
    SinkMode.HISTORY: ("keys", "sequence_by", "apply_as_deletes"),
}
"""What the modes that merge by keys are declared with."""
_REFUSED_PROPERTIES = {
    "delta.setTransactionRetentionDuration": "the table would forget what was published into it",
    "delta.feature.catalogManaged": "such a table is committed by its catalog alone",
    "delta.feature.catalogOwned-preview": "such a table is committed by its catalog alone",
    "delta.coordinatedCommits.commitCoordinator-preview": "such a table is committed by its coordinator alone",
}


class SchemaEvolution(StrEnum):
    """What happens to a column that the stage returns and the table does not have."""

    NONE = "none"
    """The start is refused."""
    ADD_COLUMNS = "add_columns"
    """It is added to the table, at an attempt's start and before anything is staged; so are fields of structs and wider types."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """How long the other tables are published without one that refuses its rows. Beyond a limit all tables wait.

    Args:
        time: Since the first checkpoint that is due in the table and not public there, such as ``"1 hour"``.
        size: So much may wait for the table, such as ``"1gb"`` or bytes. None: any amount.
    """

    time: str
    size: str | int | None = None


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table as a stage's output. It is made if missing.

    Args:
        path: Where the table is. ``{field}`` stands for that parameter's value; ``{{`` and ``}}`` are braces.
        table: Its name in Spark's catalog instead, such as ``"catalog.schema.name"``; parameters as in ``path``.
        name: The stage's, unless given.
        mode: ``"append"``: each row of the stage's result becomes one row of the table, exactly once. ``"complete"``: each
            checkpoint replaces the table's rows by the whole result (an aggregation's). ``"upsert"``: each row replaces the row
            with the same keys. ``"insert"``: a row is added if the table has no row with the same keys. ``"history"``: each row
            is a version of its key, and the table also has ``valid_from``, ``valid_to`` and ``is_current``.
        keys: The columns that identify a row, for ``"upsert"``, ``"insert"`` and ``"history"``. Null is a key like any other.
        sequence_by: The column that orders the rows of one key. ``"upsert"``: the highest one wins, whichever came first; by
            default later batches win, and one batch may have each key once. ``"insert"``: of several rows of a new key the lowest
            one wins; by default that of the earliest batch. ``"history"``: from when a version is valid.
        apply_as_deletes: A SQL condition on the columns, for ``"upsert"`` and ``"history"``: a row for which it holds deletes its
            key.
        partition_by: Columns that the table is partitioned by.
        cluster_by: Columns that the table is clustered by, where it is made.
        schema_evolution: ``"none"``: a column, or a field of a struct, that the table lacks is refused; ``"add_columns"``: it is
            added. Where the table has ``delta.enableTypeWidening``, a type becomes the wider one that the stage returns.
        table_properties: Delta's and your own, where the table is made; a table that exists must have them.
        comment: The table's description, where it is made.
        publish: When rows become public. ``"final"``, the default where every input of the pipeline is bounded: with the final
            checkpoint, or that of a drain. ``"every_checkpoint"``, the default elsewhere: with each checkpoint, also inside a round.
            ``"external"``: when somebody calls ``spark-jobs publish``.
        target_file_size: Pack the files that a checkpoint adds up to about this size, such as ``"128mb"`` or bytes; for
            ``"append"``. By default they are published as the batches wrote them.
        hold: If the table refuses its rows, the other tables are published without it, up to these limits. By default they wait.
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    table: str | None = None
    name: str | None = None
    mode: SinkMode | Literal["append", "complete", "upsert", "insert", "history"] = "append"
    keys: Sequence[str] = ()
    sequence_by: str | None = None
    apply_as_deletes: str | None = None
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    schema_evolution: SchemaEvolution | Literal["none", "add_columns"] = "none"
    table_properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    publish: Publish | Literal["final", "every_checkpoint", "external"] | None = None
    target_file_size: str | int | None = None
    hold: Hold | None = None


@dataclass(frozen=True)
class TableDesign:
    """How a sink's table is made, and what one that exists must be."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    comment: str | None = None
    evolution: SchemaEvolution = SchemaEvolution.NONE
    widens: bool = False
    """Whether the table is given what it takes to widen types; else only one that has it is widened."""


@dataclass(frozen=True)
class MergeRule:
    """How rows are merged with those of the table by their keys."""

    keys: tuple[str, ...]
    sequence_by: str | None
    apply_as_deletes: str | None
    version_columns: tuple[str, ...] = ()
    """:data:`VERSION_COLUMNS` with ``mode="history"``."""


@dataclass(frozen=True)
class Sink:
    """A declared sink, checked as far as it can be without parameters."""

    place: Place
    name: SinkName
    address: AddressTemplate
    mode: SinkMode
    merge: MergeRule | None
    """For the modes with ``keys``."""
    design: TableDesign
    publish: Publish
    publish_chosen: bool
    """Whether ``publish`` was said; else the graph decides, by whether all inputs end."""
    target_file_size_bytes: int | None
    hold: HoldLimits | None

    def published(self, publish: Publish | None, *, unbounded: bool) -> "Sink":
        """The sink as it is in a graph.

        Args:
            publish: Instead of the sink's own policy, for one run.
            unbounded: Whether an input of the pipeline has no end.

        Raises:
            InvalidPipelineError: Its rows would wait for an end that never comes.
        """
        chosen = publish or (self.publish if self.publish_chosen else None)
        if chosen is Publish.FINAL and unbounded:
            raise self.place.refused(
                'publish="final" waits for the end of all inputs, and an input of the pipeline is unbounded.',
                'Use publish="every_checkpoint" or publish="external".',
                publish=Publish.FINAL.value,
            )
        default = Publish.EVERY_CHECKPOINT if unbounded else Publish.FINAL
        return dataclasses.replace(self, publish=chosen or default)

    def check_fields(self, known: Sequence[str]) -> None:
        """Refuses an address that names a parameter that is not one of ``known``."""
        self.address.check_fields(self.place, known)

    def table(self, values: Mapping[str, Any]) -> TableAddress:
        """Where the table is.

        Raises:
            InvalidPipelineError: A field has no value, or one that is not text or a number.
        """
        return self.address.filled(self.place, values)

    def describe(self) -> dict[str, Any]:
        """What decides whether the table of an earlier run fits: JSON values."""
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
        return described


def declare_sink(place: Place, sink: object, option: str = "sink", default_name: str | None = None) -> Sink:
    """A sink of a stage, checked; see :class:`DeltaSink`.

    Args:
        place: The stage's.
        sink: What was given.
        option: As what.
        default_name: The sink's name, unless it has one. None: the stage's.
    """
    if not isinstance(sink, DeltaSink):
        raise place.refused(f"{option}={sink!r} is not a sink.", f'Write {option}=DeltaSink("{{warehouse}}/table").')
    name = check_name(
        Place(place.pipeline, "sink", str(sink.name)), (default_name or place.name) if sink.name is None else sink.name
    )
    here = Place(place.pipeline, "sink", name)
    mode = choice(here, "mode", SinkMode, sink.mode)
    size = _size_bytes(here, "target_file_size", sink.target_file_size)
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
        publish=choice(here, "publish", Publish, Publish.FINAL if sink.publish is None else sink.publish),
        publish_chosen=sink.publish is not None,
        target_file_size_bytes=size,
        hold=_hold(here, sink),
    )


def check_distinct(tables: Mapping[Sink, TableAddress]) -> None:
    """Refuses two sinks with one table, or with one table inside the other's directory, where its VACUUM would delete files."""
    seen: dict[str, Sink] = {}
    for sink, table in tables.items():
        location = table.location
        for other_location, other in seen.items():
            if location == other_location:
                problem = f"its table '{table}' is also the table of sink {other.name!r}."
                remedy = "Give each its own; rows of two stages for one table are united in a stage of their own."
                raise sink.place.refused(problem, remedy, table=str(table), sinks=[other.name, sink.name])
            if location.startswith(f"{other_location}/") or other_location.startswith(f"{location}/"):
                problem = f"of its table '{table}' and sink {other.name!r}'s table '{tables[other]}' one is inside the other."
                raise sink.place.refused(problem, "Put them side by side.", table=str(table), sinks=[other.name, sink.name])
        seen[location] = sink


def _merge_rule(place: Place, sink: DeltaSink, mode: SinkMode) -> MergeRule | None:
    keys = _columns(place, "keys", sink.keys)
    texts = {"sequence_by": sink.sequence_by, "apply_as_deletes": sink.apply_as_deletes}
    for option, text in (texts | {"comment": sink.comment}).items():
        _check_text(place, option, text)
    allowed = _MERGE_OPTIONS.get(mode, ())
    for option, value in {"keys": keys or None, **texts}.items():
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
            'Name the column that says from when a row is valid: sequence_by="changed_at".',
        )
    versions = VERSION_COLUMNS if mode is SinkMode.HISTORY else ()
    return MergeRule(keys, sink.sequence_by, sink.apply_as_deletes, versions)


def _design(place: Place, sink: DeltaSink, mode: SinkMode) -> TableDesign:
    partition_by, cluster_by = _columns(place, "partition_by", sink.partition_by), _columns(place, "cluster_by", sink.cluster_by)
    if partition_by and cluster_by:
        raise place.refused("it has both partition_by and cluster_by.", "A Delta table has one of them: choose.")
    properties = _properties(place, sink.table_properties)
    refused = {name.casefold(): reason for name, reason in _REFUSED_PROPERTIES.items()}
    for name, value in properties.items():
        if reason := refused.get(name.casefold()):
            raise place.refused(f"the table property {name} cannot be had: {reason}.", "Remove it.", property=name)
        if name.casefold() == _APPEND_ONLY.casefold() and value.lower() == "true" and mode.removes_rows:
            raise place.refused(f'{name} does not go with mode="{mode.value}", which removes rows.', "Remove one of them.")
    evolution = choice(place, "schema_evolution", SchemaEvolution, sink.schema_evolution)
    return TableDesign(partition_by, cluster_by, MappingProxyType(properties), sink.comment, evolution)


def _check_text(place: Place, option: str, text: object) -> None:
    if text is not None and not (isinstance(text, str) and text.strip()):
        raise place.refused(f"{option}={text!r} is not a text.", f"Give {option} a text, or remove it.")


def _properties(place: Place, properties: object) -> dict[str, str]:
    if isinstance(properties, Mapping) and all(isinstance(text, str) for pair in properties.items() for text in pair):
        return dict(properties)
    raise place.refused(
        f"table_properties={properties!r} is not a mapping of texts.", 'Write {"delta.enableChangeDataFeed": "true"}.'
    )


def _hold(place: Place, sink: DeltaSink) -> HoldLimits | None:
    if sink.hold is None:
        return None
    if not isinstance(sink.hold, Hold):
        raise place.refused(f"hold={sink.hold!r} is not a hold.", 'Write hold=Hold(time="1 hour").')
    if sink.publish == Publish.EXTERNAL:
        raise place.refused(
            'hold= says what is published without the table, and with publish="external" somebody else publishes.',
            "Remove hold=, or choose another policy.",
        )
    time_ms = interval_ms(Refusing(place, "hold"), "time", sink.hold.time, least_ms=1)
    return HoldLimits(time_ms=time_ms, size_bytes=_size_bytes(place, "hold size", sink.hold.size))


def _size_bytes(place: Place, option: str, size: object) -> int | None:
    """A size as Spark writes it: ``128mb`` is 128 · 2²⁰ bytes."""
    if size is None:
        return None
    found = _SIZE.fullmatch(str(size).strip()) if isinstance(size, str | int) and not isinstance(size, bool) else None
    if found is None or int(found.group(1)) == 0:
        raise place.refused(f"{option}={size!r} is not a size.", 'Write "128mb", or a number of bytes.')
    return int(found.group(1)) * _FACTORS[found.group(2).lower()]


def _columns(place: Place, option: str, columns: object) -> tuple[str, ...]:
    """A list of distinct column names."""
    if isinstance(columns, str):
        raise place.refused(f"{option} is a single string.", f'Write {option}=["{columns}"].')
    found = tuple(columns) if isinstance(columns, Sequence) else (columns,)
    if not all(isinstance(column, str) and column.strip() for column in found):
        raise place.refused(f"{option}={columns!r} is not a list of column names.", f'Write {option}=["column"].')
    if len({column.casefold() for column in found}) < len(found):
        raise place.refused(f"{option}={list(found)} names a column twice.", "Name each once.")
    return found
