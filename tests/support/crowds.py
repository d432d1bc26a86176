"""Publishers that race with each other and with other writers, in no order.

Each writer records its action in each of its commits. The table's log thus gives the order of all actions. The expected rows of each
version are computed from that order.
"""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from spark_jobs.protocol.documents import Publish, Publisher
from spark_jobs.protocol.errors import ConflictError, UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from tests.support.opened_tables import IN_A_STORE, opened
from tests.support.sink_kinds import Kind, Reference, Rows, cut_of, graves_in, rows_in
from tests.support.staged_pipeline import HOURLY, SCHEMA, Row, StagedPipeline

CHECKPOINTS = 4
"""The greatest number of checkpoints, and so of the product's transaction ids."""
NOTE = "userMetadata"
"""The key of a commit's info in which a writer records its action, with delta-rs and with Spark."""
_TRIES = 20
"""The greatest number of times that a writer tries to append its first row."""


class Writer(ABC):
    """Changes a table in a random order. An action that was refused because of another writer counts as not done.

    Args:
        table: The URL of the table.
        draw: The source of random numbers.
        name: The writer's own number.
    """

    def __init__(self, table: str, draw: random.Random, name: int) -> None:
        self._table, self._draw, self._name = table, draw, name
        self._ids = count(1000 * name)
        self.added: set[int] = set()
        """The ids of the rows that this writer has added."""

    @abstractmethod
    def actions(self) -> Sequence[tuple[Callable[[], object], int]]:
        """Returns the actions of the writer, each with its weight."""

    def work(self, actions_to_do: int) -> None:
        """Appends a row, until that succeeds. Then does this number of actions."""
        # Only a change of the table's schema or properties refuses an append, and a race has few of them.
        assert any(self._try(self._append) for _ in range(_TRIES)), "the writer is always refused"
        actions, weights = zip(*self.actions(), strict=True)
        for action in self._draw.choices(actions, weights, k=actions_to_do):
            self._try(action)

    def undo(self) -> None:  # noqa: B027 - most writers have nothing to undo
        """Removes the things for which publications are refused."""

    @abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """Returns True if an action failed because of another writer's change. A race fails with any other error."""

    def _try(self, action: Callable[[], object]) -> bool:
        """Does an action. Returns False if it was refused."""
        try:
            action()
        except Exception as error:
            if not self.is_refusal(error):
                raise
            return False
        return True

    def _append(self) -> None:
        self._add(self.append)

    def _add(self, add: Callable[[int], object]) -> None:
        """Calls ``add`` with a new id, and keeps the id if that succeeds."""
        number = next(self._ids)
        add(number)
        self.added.add(number)

    @abstractmethod
    def append(self, number: int) -> None:
        """Adds the row ``(number, "x")``."""

    def _some_id(self) -> int:
        """Returns the id of a row of the product."""
        return self._draw.randint(1, CHECKPOINTS)

    def _some_version(self) -> int:
        """Returns one of the last versions before the newest."""
        newest = opened(self._table).version()
        return self._draw.randint(max(0, newest - 4), newest - 1)


def noted(did: str, **what: int) -> str:
    """Returns the record of a writer's action."""
    return json.dumps({"did": did, **what})


class DeltaRsWriter(Writer):
    """Appends, deletes, updates, compacts, vacuums, restores, adds columns and checkpoints the log with delta-rs."""

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, CommitFailedError)

    def actions(self) -> Sequence[tuple[Callable[[], object], int]]:
        return [
            (self._append, 6),
            (self._delete, 2),
            (self._update, 2),
            (self._restore, 1),
            # Beside another compaction it doubles rows: see test_two_concurrent_compactions_by_delta_rs_double_the_rows.
            (lambda: self._open().optimize.compact(commit_properties=self._note("compact")), 1 if self._name == 1 else 0),
            (lambda: self._vacuum(full=True), 1),
            (lambda: self._vacuum(full=False), 1),
            (self._add_column, 1),
            (lambda: self._open().create_checkpoint(), 1),
        ]

    def append(self, number: int) -> None:
        row = pa.table({"id": [number], "day": ["x"]}, SCHEMA)
        note = self._note("append", id=number)
        write_deltalake(self._table, row, mode="append", schema_mode="merge", commit_properties=note, storage_options=IN_A_STORE)

    def _open(self) -> DeltaTable:
        return opened(self._table)

    def _note(self, did: str, **what: int) -> CommitProperties:
        return CommitProperties(custom_metadata={NOTE: noted(did, **what)})

    def _delete(self) -> None:
        number = self._some_id()
        self._open().delete(f"id = {number}", commit_properties=self._note("delete", id=number))

    def _update(self) -> None:
        number = self._some_id()
        self._open().update({"day": "'u'"}, predicate=f"id = {number}", commit_properties=self._note("update", id=number))

    def _restore(self) -> None:
        version = self._some_version()
        self._open().restore(version, commit_properties=self._note("restore", version=version))

    def _vacuum(self, *, full: bool) -> None:
        self._open().vacuum(dry_run=False, full=full, commit_properties=self._note("vacuum"))

    def _add_column(self) -> None:
        table = self._open()
        name = f"note_{len(table.schema().fields)}"
        table.alter.add_columns([Field(name, PrimitiveType("string"))], commit_properties=self._note("add a column"))


def rounds(sample: int, at_night: int) -> list[Any]:
    """Returns the rounds of a race as parameters: some for every change, all at night."""
    return [pytest.param(number, marks=() if number < sample else pytest.mark.nightly) for number in range(at_night)]


Joins = Callable[[str, random.Random, int], Writer]
"""Makes a writer with its arguments."""


@dataclass(frozen=True)
class Size:
    """The number of checkpoints to publish, and the number of actions of each other writer after its first append."""

    checkpoints: int = CHECKPOINTS
    actions: int = 10


def race(
    pipeline: StagedPipeline,
    seed: str,
    kind: Kind,
    publisher: Publisher,
    publishers: Publishers,
    writers: Sequence[Joins],
    size: Size = Size(),
) -> list[Rows]:
    """Runs two publishers and other writers at once. Compares each version of the table with the order in its log.

    Args:
        writers: Makes the other writers, which are numbered from 1.

    Returns:
        The rows of each version.
    """
    table = pipeline.make_table(HOURLY)
    cut = cut_of(pipeline, publisher, kind)
    draw = random.Random(seed)
    staged = {number: _drawn(kind, number, draw) for number in range(1, size.checkpoints + 1)}
    for rows in staged.values():
        pipeline.checkpoint({HOURLY: rows}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
    crowd = [joins(table, random.Random(f"{seed} {name}"), name) for name, joins in enumerate(writers, start=1)]
    together = Barrier(2 + len(crowd))

    def at_once(work: Callable[[], None]) -> None:
        together.wait()
        work()

    with ThreadPoolExecutor(together.parties) as pool:
        works: list[Callable[[], None]] = [
            *[lambda: _try_to_publish(pipeline, publishers)] * 2,
            *(partial(other.work, size.actions) for other in crowd),
        ]
        for each in [pool.submit(at_once, work) for work in works]:
            each.result()
    for other in crowd:
        other.undo()
    publish(pipeline.files, publishers=publishers)
    newest = opened(table).version()
    publish(pipeline.files, publishers=publishers)
    assert opened(table).version() == newest, "publishing again changes nothing"
    reference = Reference(kind)
    versions = _in_order(pipeline, reference, staged)
    assert graves_in(cut) == reference.graves
    assert pipeline.commits(HOURLY) == ([size.checkpoints] if kind is Kind.COMPLETE else list(staged))
    notes = [note for note in map(_note_of, pipeline.log()) if note]
    assert {note["id"] for note in notes if note["did"] in ("append", "merge")} == set().union(*(other.added for other in crowd))
    return versions


def _try_to_publish(pipeline: StagedPipeline, publishers: Publishers) -> None:
    """Publishes as a retried task does. It may still be refused at the end, if another writer has not undone its action."""
    for _ in range(5):
        with suppress(ConflictError, UnsupportedTableError):
            publish(pipeline.files, publishers=publishers)
            return


def _drawn(kind: Kind, number: int, draw: random.Random) -> list[Row]:
    """Returns the rows of one checkpoint. All differ, except those of an upsert by rule, which must give equal results for equal rows."""
    if kind is not Kind.SEQUENCED:
        shared: list[Row] = [(0, f"c{number}")] if kind is Kind.UPSERT else []
        return [(number, "a"), (-number, "b"), *shared]
    return [(draw.randint(1, CHECKPOINTS), draw.choice([None, "b", "d", "d!", "f", "h!", "v", "v!"])) for _ in range(5)]


def _in_order(pipeline: StagedPipeline, reference: Reference, staged: dict[int, list[Row]]) -> list[Rows]:
    """Repeats all actions in the order of the log. Checks that every version has the same rows."""
    versions: list[Rows] = []
    log, table = pipeline.log(), pipeline.tables[HOURLY]
    assert len(log) == opened(table).version() + 1, "the log has a gap"
    for version, commit in enumerate(log):
        published = [action["txn"]["version"] for action in commit if "txn" in action]
        note = _note_of(commit)
        if published:
            reference.publish(staged[published[0]])
        elif version:
            assert note, f"nobody has noted what version {version} is: {commit}"
            reference.rows = _done(note, reference.rows, versions)
        versions.append(sorted(reference.rows, key=str))
        assert rows_in(opened(table, version).to_pyarrow_table()) == versions[-1], (version, note, published)
    return versions


def _done(note: dict[str, Any], rows: Rows, versions: list[Rows]) -> Rows:
    match note["did"]:
        case "append":
            return [*rows, (note["id"], "x")]
        case "delete":
            return [row for row in rows if row[0] != note["id"]]
        case "update":
            return [(number, "u" if number == note["id"] else day) for number, day in rows]
        case "merge":
            merged = {note["id"], note["also"]}
            missing = merged - {number for number, _ in rows}
            return [(number, "m" if number in merged else day) for number, day in rows] + [(number, "m") for number in missing]
        case "restore":
            return versions[note["version"]]
        case _:
            return rows


def _note_of(commit: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the record of another writer in a commit."""
    for action in commit:
        if NOTE in action.get("commitInfo", {}):
            note: dict[str, Any] = json.loads(action["commitInfo"][NOTE])
            return note if "did" in note else None
    return None
