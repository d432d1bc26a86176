"""Publishers who race with each other and with a crowd of other writers, without any order."""

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from spark_jobs.protocol.documents import Publish, Publisher, SinkMode
from spark_jobs.protocol.errors import ConflictError
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from tests.support.publication_schedules import cut_of
from tests.support.staged_pipeline import HOURLY, SCHEMA, Row, StagedPipeline
from tests.support.systems import quick

CHECKPOINTS = 4


class Crowd:
    """Other writers who append, delete, compact, vacuum, add columns and write checkpoints of the log, in a drawn order.

    What was refused to one of them was not done.
    """

    def __init__(self, uri: str, draw: random.Random, first_id: int) -> None:
        self._uri, self._draw, self._next_id = uri, draw, first_id
        self.appended: set[int] = set()
        self.deleted: set[int] = set()
        """Rows of ours that are gone if they were there."""

    def work(self, actions: int) -> None:
        kinds: list[Callable[[], object]] = [
            *[self._append] * 6,
            *[self._delete] * 3,
            self._compact,
            self._vacuum,
            self._add_column,
            self._checkpoint,
        ]
        for kind in self._draw.choices(kinds, k=actions):
            with suppress(DeltaError, OSError):
                kind()

    def _append(self) -> None:
        self._next_id += 1
        row = pa.table({"id": [self._next_id], "day": ["x"]}, SCHEMA)
        self.appended.add(self._next_id)
        try:
            write_deltalake(self._uri, row, mode="append", schema_mode="merge")
        except DeltaError:
            self.appended.remove(self._next_id)
            raise

    def _delete(self) -> None:
        number = self._draw.randint(1, CHECKPOINTS)
        self.deleted.add(number)
        DeltaTable(self._uri).delete(f"id = {number}")

    def _compact(self) -> None:
        DeltaTable(self._uri).optimize.compact()

    def _vacuum(self) -> None:
        DeltaTable(self._uri).vacuum(dry_run=False)

    def _add_column(self) -> None:
        table = DeltaTable(self._uri)
        table.alter.add_columns([Field(f"note_{len(table.schema().fields)}", PrimitiveType("string"))])

    def _checkpoint(self) -> None:
        DeltaTable(self._uri).create_checkpoint()


def race(directory: Path, seed: str, mode: SinkMode, publisher: Publisher, publishers: Publishers) -> None:
    """Two publishers and a crowd of two, all at once; then compares the table with what each of them did."""
    pipeline = StagedPipeline(quick(directory / "home"), directory)
    uri = pipeline.make_table(HOURLY)
    cut = cut_of(pipeline, publisher, mode)
    for number in range(1, CHECKPOINTS + 1):
        rows: list[Row] = [(number, "a"), (-number, "b")]
        pipeline.checkpoint({HOURLY: rows}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
    crowd = [Crowd(uri, random.Random(f"{seed} {number}"), 1000 * number) for number in (1, 2)]
    together = Barrier(4)

    def publishing() -> None:
        together.wait()
        _persistently(pipeline, publishers)

    def others(writer: Crowd) -> None:
        together.wait()
        writer.work(10)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(publishing) for _ in range(2)] + [pool.submit(others, writer) for writer in crowd]
        for each in running:
            each.result()
    # Spark's log store may have replaced a version that delta-rs has written: see docs/reference/concurrent-writers.md.
    _assert_once(pipeline, mode, crowd, kept=publisher is Publisher.DELTA_RS)
    before = pipeline.rows(HOURLY)
    publish(pipeline.files, publishers=publishers)
    assert pipeline.rows(HOURLY) == before


def _persistently(pipeline: StagedPipeline, publishers: Publishers) -> None:
    """Publishes as a retried task does."""
    for _ in range(50):
        with suppress(ConflictError):
            publish(pipeline.files, publishers=publishers)
            return
    raise AssertionError("others were faster fifty times")


def _assert_once(pipeline: StagedPipeline, mode: SinkMode, crowd: list[Crowd], *, kept: bool) -> None:
    """Every row of ours is there once, except those that somebody has deleted; every row of theirs is kept, or was replaced."""
    found = Counter(number for number, _ in pipeline.rows(HOURLY))
    assert set(found.values()) == {1}
    replacing = mode is SinkMode.COMPLETE
    ours = {CHECKPOINTS} if replacing else set(range(1, CHECKPOINTS + 1))
    theirs: set[int] = set().union(*(writer.appended for writer in crowd))
    perhaps_deleted: set[int] = set().union(*(writer.deleted for writer in crowd))
    assert {-number for number in ours} | (ours - perhaps_deleted) <= set(found)
    assert set(found) - theirs <= ours | {-number for number in ours}
    if kept and not replacing:
        assert theirs <= set(found)
    assert pipeline.commits(HOURLY) == ([CHECKPOINTS] if replacing else list(range(1, CHECKPOINTS + 1)))
