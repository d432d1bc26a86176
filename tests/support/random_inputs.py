"""Random cases: a source with changes of rows, the rounds in which its rows arrive, and their stage and sink.

A case is drawn as data, then written round by round: as a Delta table, a folder of files, a Kafka topic, or a table with a change data
feed. Imports no code of the product.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from tests.support.kafka_broker import KafkaBroker
from tests.support.keyed_changes import changes_of_one_case

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
ROUNDS = 3
FEED_KEYS = 8
LARGE = 5 * 10**10
"""A value that the narrow type of ``size`` cannot hold."""

Change = dict[str, Any]


class Format(StrEnum):
    """The format of a source."""

    DELTA = "delta"
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"
    KAFKA = "kafka"
    FEED = "change feed"


class Kind(StrEnum):
    """The function of a stage and the mode of its sink."""

    APPEND = "append"
    UPSERT = "upsert"
    INSERT = "insert"
    HISTORY = "history"
    COMPLETE = "complete"
    TOTALS = "totals"
    """Totals by key in update mode, upserted without ``sequence_by``."""
    WINDOWS = "windows"
    DISTINCT = "distinct"


FEEDS = (Kind.APPEND, Kind.UPSERT, Kind.HISTORY)
"""The kinds whose input may be a change feed."""
TIMED = (Kind.WINDOWS, Kind.DISTINCT)
"""The kinds with a watermark. Rows that come too late in a later round are left out."""
IN_ORDER = (*TIMED, Kind.INSERT)
"""The kinds whose answer depends on the round in which a row arrives."""


@dataclass(frozen=True)
class Columns:
    """The columns of a source at some time."""

    added: bool
    """True if there is one more column, ``more``."""
    widened: bool
    """True if ``size`` is a ``LONG``. Otherwise it is an ``INT``."""

    @property
    def schema(self) -> pa.Schema:
        fields = [
            *(("number", pa.int64()), ("pair", pa.int64()), ("part", pa.string()), ("seq", pa.int64()), ("gone", pa.bool_())),
            *(("name", pa.string()), ("amount", pa.float64()), ("moment", pa.timestamp("us", "UTC"))),
            ("size", pa.int64() if self.widened else pa.int32()),
        ]
        return pa.schema([*fields, ("more", pa.string())] if self.added else fields)

    @property
    def ddl(self) -> str:
        return ", ".join(f"{field.name} {_SQL[field.type]}" for field in self.schema)


_SQL = {
    pa.int32(): "INT",
    pa.int64(): "LONG",
    pa.string(): "STRING",
    pa.bool_(): "BOOLEAN",
    pa.float64(): "DOUBLE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
}
ALL = Columns(added=True, widened=True)


@dataclass(frozen=True)
class Operation:
    """One commit of a table with a change data feed."""

    what: str
    """``merge``, ``delete`` or ``update``."""
    rows: Sequence[Change] = ()
    """The rows of a merge."""
    least: int = 0
    """The smallest key that is deleted or updated."""
    every: int = 1
    """The step between the changed keys: 1, 2 or 3."""


@dataclass(frozen=True)
class Delivery:
    """Rows that arrive at one time."""

    columns: Columns
    files: Sequence[Sequence[Change]] = ()
    operation: Operation | None = None


@dataclass(frozen=True)
class Case:
    """One source, one stage and one sink.

    Args:
        name: The name of the stage.
        format: The format of the source.
        kind: The function of the stage.
        files_per_batch: The limit of the source; None without a limit.
        relayed: True if a stage without a sink hands the rows on.
        publish_early: True if each checkpoint makes rows public, not only the last one of a round.
        widens: True if the sink's table gets the wider type, too. Otherwise its ``size`` is a ``LONG`` from the beginning.
        rounds: The deliveries before each round.
    """

    name: str
    format: Format
    kind: Kind
    files_per_batch: int | None
    relayed: bool
    publish_early: bool
    widens: bool
    rounds: Sequence[Sequence[Delivery]]

    def __str__(self) -> str:
        traits = [f"{self.format} to {self.kind}", f"{self.files_per_batch or 'all'} files a batch"]
        traits += ["relayed"] * self.relayed + ["published early"] * self.publish_early + ["the table widens"] * self.widens
        arrives = "\n".join(
            f"  round {number}, {'with more, ' * delivery.columns.added}{'wide, ' * delivery.columns.widened}"
            f"{delivery.operation or ''}{''.join(f'{chr(10)}    file {[*map(_short, file)]}' for file in delivery.files)}"
            for number, deliveries in enumerate(self.rounds)
            for delivery in deliveries
        )
        return f"{self.name}: {', '.join(traits)}\n{arrives}"

    def columns(self, round: int) -> Columns:
        """Returns the columns that are declared in a round."""
        found = [delivery.columns for deliveries in self.rounds[: round + 1] for delivery in deliveries]
        return found[-1] if found else Columns(added=False, widened=False)

    def changes(self, round: int) -> pa.Table:
        """Returns the rows that have arrived by the end of a round, with the columns of all rounds and the round of each row."""
        rows = [
            {**change, "round": number}
            for number, deliveries in enumerate(self.rounds[: round + 1])
            for delivery in deliveries
            for file in delivery.files
            for change in file
        ]
        return pa.Table.from_pylist(rows, pa.schema([*ALL.schema, pa.field("round", pa.int64())]))


def _short(change: Change) -> tuple[Any, ...]:
    return tuple(value.strftime("%d %H:%M:%S") if isinstance(value, datetime) else value for value in change.values())


def draw_case(draw: Random, name: str, kind: Kind, format: Format, tables: int) -> Case:
    """Draws a case whose rows are those of some small tables, under keys of their own."""
    if format is Format.FEED:
        rounds = [[_operation(draw) for _ in range(draw.choice((0, 1, 2, 3)))] for _ in range(ROUNDS)]
        rounds[0].insert(0, _committed(Operation("merge", [{"id": key, "name": "a", "gone": False} for key in range(FEED_KEYS)])))
    else:
        rounds = _arrivals(draw, tables)
    return Case(
        name=name,
        format=format,
        kind=kind,
        files_per_batch=draw.choice((1, 1, 2, None)),
        relayed=draw.random() < 0.25,
        publish_early=kind is not Kind.INSERT and draw.random() < 0.25,
        widens=draw.random() < 0.5,
        rounds=rounds,
    )


def _arrivals(draw: Random, tables: int) -> list[list[Delivery]]:
    """Spreads the changes of some tables over files, deliveries and rounds, in no order."""
    added, widened = draw.choice((0, 1, 2, ROUNDS)), draw.choice((1, 2, ROUNDS, ROUNDS))
    columns = [Columns(number >= added, number >= widened) for number in range(ROUNDS)]
    shape = [[draw.randint(1, 2) for _ in range(draw.choice((0, 1, 1, 2)))] for _ in range(ROUNDS)]
    if not any(shape):
        shape[draw.randrange(ROUNDS)] = [1]
    files: dict[tuple[int, int, int], list[Change]] = {
        (round, delivery, file): []
        for round, deliveries in enumerate(shape)
        for delivery, count in enumerate(deliveries)
        for file in range(count)
    }
    for number in range(tables):
        for change in changes_of_one_case(draw):
            place = draw.choice(list(files))
            files[place].append(_completed(draw, {"number": number, **change}, place[0], columns[place[0]]))
    return [
        [
            Delivery(columns[round], [files[round, delivery, file] for file in range(count)])
            for delivery, count in enumerate(deliveries)
        ]
        for round, deliveries in enumerate(shape)
    ]


def _completed(draw: Random, change: Change, round: int, columns: Columns) -> Change:
    """Returns a change with an event time, which may be late, and with the columns that exist when it arrives."""
    late_at = BEGIN + timedelta(minutes=draw.randrange(120 * (round + 1)), seconds=draw.choice((0, 0, 30)))
    change = {**change, "moment": draw.choice((None, late_at, late_at, late_at)), "size": draw.choice((None, 1, 2, 3))}
    if columns.widened and draw.random() < 0.5:
        change["size"] = LARGE + draw.randrange(3)
    return change | ({"more": draw.choice((None, "m", "n"))} if columns.added else {})


def _operation(draw: Random) -> Delivery:
    what = draw.choice(("merge", "merge", "delete", "update"))
    keys = draw.sample(range(FEED_KEYS), draw.randint(1, FEED_KEYS)) if what == "merge" else []
    rows = [{"id": key, "name": draw.choice("abc"), "gone": draw.random() < 0.3} for key in keys]
    return _committed(Operation(what, rows, draw.randrange(FEED_KEYS), draw.randint(1, 3)))


def _committed(operation: Operation) -> Delivery:
    return Delivery(Columns(added=False, widened=False), operation=operation)


class Input:
    """The input of a case, written delivery by delivery.

    Args:
        case: The case.
        path: The table or the folder.
        broker: The broker of topics.
    """

    def __init__(self, case: Case, path: Path, broker: KafkaBroker | None = None) -> None:
        self.case, self.path, self._written, self._broker = case, path, 0, broker
        if case.format is Format.KAFKA:
            self._topics.create_topic(self.topic, 2)
        elif case.format is Format.FEED:
            schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
            write_deltalake(str(path), schema.empty_table(), configuration={"delta.enableChangeDataFeed": "true"})
        else:
            path.mkdir(parents=True)
        if case.format is Format.DELTA:
            self._id, self._columns = str(uuid4()), case.columns(0)
            self._commit([_protocol(), _metadata(self._id, self._columns)])

    @property
    def topic(self) -> str:
        """Returns the name of the topic, which no other test has."""
        return topic_of(self.path)

    @property
    def _topics(self) -> KafkaBroker:
        assert self._broker is not None
        return self._broker

    def deliver(self, delivery: Delivery) -> None:
        if delivery.operation is not None:
            self._operate(delivery.operation)
            return
        if self.case.format is Format.KAFKA:
            for number, rows in enumerate(delivery.files):
                self._topics.send(self.topic, [json.dumps(_texts(row)).encode() for row in rows], number % 2)
            return
        written = [self._write(file, delivery.columns) for file in delivery.files]
        if self.case.format is Format.DELTA:
            changed = [_metadata(self._id, delivery.columns)] if delivery.columns != self._columns else []
            self._columns = delivery.columns
            self._commit([*changed, *map(_add, written)])

    def files(self) -> list[Path]:
        """Returns the files with rows."""
        return sorted(path for path in self.path.rglob("*") if path.is_file() and "_delta_log" not in path.parts)

    def feed(self) -> pa.Table:
        """Returns the change feed as delta-rs reads it."""
        table = DeltaTable(str(self.path))
        if table.version() == 0:
            columns = [("id", pa.int64()), ("name", pa.string()), ("_change_type", pa.string()), ("_commit_version", pa.int64())]
            return pa.schema(columns).empty_table()
        found = pa.table(table.load_cdf(starting_version=1, ending_version=table.version()).read_all())
        return found.select(["id", "name", "_change_type", "_commit_version"])

    def _write(self, rows: Sequence[Change], columns: Columns) -> Path:
        self._written += 1
        names, ending = columns.schema.names, "parquet" if self.case.format is Format.DELTA else self.case.format.value
        path, unfinished = self.path / f"{self._written:03}.{ending}", self.path.parent / "unfinished"
        match self.case.format:
            case Format.DELTA | Format.PARQUET:
                turned = names[self._written % len(names) :] + names[: self._written % len(names)]
                pq.write_table(pa.Table.from_pylist(list(rows), columns.schema).select(turned), unfinished)
            case Format.JSON:
                unfinished.write_text("".join(json.dumps(dict(reversed(_texts(row).items()))) + "\n" for row in rows))
            case Format.CSV:
                with unfinished.open("w") as file:
                    csv.writer(file).writerows(
                        [_texts(row).get(name) for name in names] for row in rows
                    )  # True is a BOOLEAN, too
        return unfinished.rename(path)

    def _commit(self, actions: Sequence[Mapping[str, Any]]) -> None:
        log = self.path / "_delta_log"
        log.mkdir(exist_ok=True)
        version = len(list(log.iterdir()))
        unfinished = self.path.parent / "unfinished"
        unfinished.write_text("".join(json.dumps(action) + "\n" for action in actions))
        unfinished.rename(log / f"{version:020}.json")

    def _operate(self, operation: Operation) -> None:
        table, some = DeltaTable(str(self.path)), f"id >= {operation.least} AND id % {operation.every} = 0"
        match operation.what:
            case "delete":
                table.delete(some)
            case "update":
                table.update(updates={"name": "concat(name, '+')"}, predicate=some)
            case _:
                schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())])
                rows = pa.Table.from_pylist(list(operation.rows), schema)
                merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
                merge = merge.when_matched_delete("s.gone").when_matched_update({"name": "s.name"})
                merge.when_not_matched_insert({"id": "s.id", "name": "s.name"}).execute()


def topic_of(path: Path) -> str:
    """Returns the name of the topic that takes the place of a folder."""
    return sha256(str(path).encode()).hexdigest()


def _texts(row: Change) -> Change:
    """Returns a row whose times are texts."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


def _protocol() -> Mapping[str, Any]:
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["appendOnly", "invariants", "typeWidening"]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}


_DELTA = {
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.float64(): "double",
    pa.timestamp("us", "UTC"): "timestamp",
}


def _metadata(table: str, columns: Columns) -> Mapping[str, Any]:
    widened = {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}
    fields = [
        {
            "name": field.name,
            "type": _DELTA[field.type],
            "nullable": True,
            "metadata": widened if field.name == "size" and columns.widened else {},
        }
        for field in columns.schema
    ]
    return {
        "metaData": {
            "id": table,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {"delta.enableTypeWidening": "true"},
        }
    }


def _add(path: Path) -> Mapping[str, Any]:
    status = path.stat()
    added = {"path": path.name, "partitionValues": {}, "size": status.st_size, "dataChange": True}
    return {"add": {**added, "modificationTime": int(status.st_mtime * 1000)}}
