"""The refusals that are retried, and how long the other tables are published without the one that refuses."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import CheckpointKind, HoldLimits, Manifest, Publish
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    ConflictError,
    CorruptDocumentError,
    FencedError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    RunCancelledError,
    StorageError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication import publisher
from spark_jobs.publication.evidence import consistent_versions
from spark_jobs.publication.holds import hold_ends, may_heal
from spark_jobs.publication.publisher import WITHOUT_SPARK, Publication, publish, publish_due
from spark_jobs.publication.transactions import DeltaRsTransaction
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline

HOUR = timedelta(hours=1)
HOLD = HoldLimits(time_ms=3_600_000, size_bytes=None)


@pytest.mark.parametrize("kind", [AccessDeniedError, ConflictError, OutcomeUnknownError, StorageError, UnsupportedTableError])
def test_a_refusal_that_a_person_can_undo_is_retried(kind: type[StreamPipelineError]) -> None:
    assert may_heal(kind("It does not work."))


@pytest.mark.parametrize("kind", [CorruptDocumentError, FencedError, NotFoundError, RejectedError, RunCancelledError])
def test_an_error_that_cannot_heal_is_not_retried(kind: type[StreamPipelineError]) -> None:
    assert not may_heal(kind("It does not work."))


class Tables:
    """Two tables of an unbounded pipeline. One of them has a hold and can be made to refuse."""

    def __init__(self, pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pipeline, self._patch = pipeline, monkeypatch
        self.hold: HoldLimits | None = HOLD
        self._number = 0

    def checkpoint(self, age: timedelta = timedelta(), **changes: Any) -> Manifest:
        """Completes a checkpoint of this age that adds a row to each table."""
        self._number += 1
        cuts: dict[str, Any] = {
            "publish": Publish.EVERY_CHECKPOINT,
            "checkpoint_kind": CheckpointKind.PERIODIC,
            "completed_at": datetime.now(UTC) - age,
        }
        rows = {sink: [(self._number, "a")] for sink in (HOURLY, DAILY)}
        return self.pipeline.checkpoint(rows, cut={"hold": self.hold}, **cuts | changes)

    def refuse(self, sink: SinkName, error: StreamPipelineError, *, at_commit: bool) -> Callable[[], None]:
        """Makes a table refuse publications. Returns a function that ends this."""
        owner, name = (DeltaRsTransaction, "publish") if at_commit else (publisher, "prepare")
        real = getattr(owner, name)

        def refusing(*arguments: Any, **options: Any) -> Any:
            if self.pipeline.tables[sink] in (getattr(arguments[1], "table", ""), self._table_of(arguments)):
                raise error
            return real(*arguments, **options)

        self._patch.setattr(owner, name, refusing)
        return lambda: self._patch.setattr(owner, name, real)

    def _table_of(self, arguments: Any) -> str:
        return self.pipeline.tables[arguments[2]] if isinstance(arguments[1], Manifest) else ""

    def publish(self, manifest: Manifest) -> Publication:
        return publish_due(self.pipeline.files, manifest.checkpoint, WITHOUT_SPARK, holds=True)

    def rows(self) -> tuple[list[int], list[int]]:
        hourly, daily = ([number for number, _ in self.pipeline.rows(sink)] for sink in (HOURLY, DAILY))
        return hourly, daily


@pytest.fixture
def tables(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> Tables:
    return Tables(pipeline, monkeypatch)


@pytest.mark.parametrize("refusing", [HOURLY, DAILY])
@pytest.mark.parametrize("at_commit", [False, True])
def test_other_tables_are_published_without_a_table_that_refuses_which_later_gets_each_row_once(
    tables: Tables, refusing: SinkName, *, at_commit: bool
) -> None:
    accept = tables.refuse(refusing, UnsupportedTableError("It refuses."), at_commit=at_commit)
    for _ in range(3):
        published = tables.publish(tables.checkpoint())
        assert (list(published.held), published.results()[refusing].version) == ([refusing], None)
        assert published.held[refusing].evidence["sink"] == refusing
    other = DAILY if refusing == HOURLY else HOURLY
    assert dict(zip((HOURLY, DAILY), tables.rows(), strict=True)) == {refusing: [], other: [1, 2, 3]}
    accept()
    assert not tables.publish(tables.checkpoint()).held
    assert tables.rows() == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert tables.pipeline.commits(refusing) == [4], "in one transaction, whatever it lacks"


@pytest.mark.parametrize("at_commit", [False, True])
def test_all_tables_wait_for_a_table_that_refuses_and_has_no_hold(tables: Tables, *, at_commit: bool) -> None:
    tables.hold = None
    tables.refuse(HOURLY, UnsupportedTableError("It refuses."), at_commit=at_commit)
    with pytest.raises(UnsupportedTableError):
        tables.publish(tables.checkpoint())
    assert tables.rows() == ([], [])


@pytest.mark.parametrize("at_commit", [False, True])
@pytest.mark.parametrize(("age", "is_beyond"), [(HOUR - timedelta(minutes=1), False), (HOUR + timedelta(minutes=1), True)])
def test_all_tables_wait_after_the_time_of_the_hold(tables: Tables, age: timedelta, *, is_beyond: bool, at_commit: bool) -> None:
    tables.refuse(HOURLY, UnsupportedTableError("It refuses."), at_commit=at_commit)
    tables.checkpoint(age)
    newest = tables.checkpoint()
    if not is_beyond:
        assert tables.publish(newest).held
        return
    with pytest.raises(UnsupportedTableError):
        tables.publish(newest)
    assert tables.rows() == ([], [])


def test_all_tables_wait_beyond_the_size_of_the_hold(tables: Tables) -> None:
    size_bytes = tables.checkpoint().sinks[HOURLY].actions.size_bytes
    tables.hold = HoldLimits(time_ms=3_600_000, size_bytes=2 * size_bytes)
    tables.refuse(HOURLY, UnsupportedTableError("It refuses."), at_commit=True)
    assert tables.publish(tables.checkpoint()).held
    with pytest.raises(UnsupportedTableError):
        tables.publish(tables.checkpoint())
    assert tables.rows() == ([], [1, 2])


def test_a_hold_does_not_apply_to_an_error_that_cannot_heal(tables: Tables) -> None:
    tables.refuse(HOURLY, NotFoundError("Staged files are gone."), at_commit=False)
    with pytest.raises(NotFoundError):
        tables.publish(tables.checkpoint())


def test_a_requested_publication_fails_with_the_refusal_of_a_table(tables: Tables) -> None:
    """A hold only applies to the pipeline's own publications."""
    tables.refuse(HOURLY, UnsupportedTableError("It refuses."), at_commit=False)
    with pytest.raises(UnsupportedTableError):
        publish(tables.pipeline.files, tables.checkpoint().checkpoint)
    assert tables.rows() == ([], [])


def test_the_time_of_a_hold_begins_with_the_first_checkpoint_that_the_table_lacks(tables: Tables) -> None:
    store, now = CheckpointStore(tables.pipeline.files), datetime.now(UTC)
    first = tables.checkpoint(3 * HOUR)
    publish(tables.pipeline.files, first.checkpoint)
    second, third = tables.checkpoint(HOUR / 2), tables.checkpoint()
    assert hold_ends(store, third, HOURLY, now) == second.completed_at + HOUR
    assert hold_ends(store, third, HOURLY, now + HOUR) is None


def test_checkpoints_that_are_not_due_in_the_table_do_not_count_for_its_hold(tables: Tables) -> None:
    """Rows of a round become public at its end. A refusal before then does not count."""
    store, now = CheckpointStore(tables.pipeline.files), datetime.now(UTC)
    tables.checkpoint(5 * HOUR, publish=Publish.FINAL)
    final = tables.checkpoint(publish=Publish.FINAL, checkpoint_kind=CheckpointKind.FINAL)
    assert hold_ends(store, final, HOURLY, now) == final.completed_at + HOUR


def test_a_cut_over_all_tables_names_the_held_table_as_behind(tables: Tables) -> None:
    tables.publish(tables.checkpoint())
    accept = tables.refuse(HOURLY, UnsupportedTableError("It refuses."), at_commit=True)
    tables.publish(tables.checkpoint(held=(HOURLY,)))
    cut = consistent_versions(tables.pipeline.files)
    assert (cut.checkpoint, cut.behind, {sink: version for sink, (_, version) in cut.items()}) == (
        2,
        (HOURLY,),
        {HOURLY: 1, DAILY: 2},
    )
    accept()
    tables.publish(tables.checkpoint(held=(HOURLY,)))
    cut = consistent_versions(tables.pipeline.files)
    assert (cut.checkpoint, cut.behind, {sink: version for sink, (_, version) in cut.items()}) == (3, (), {HOURLY: 2, DAILY: 3})


def test_a_cut_has_no_version_of_a_held_table_without_public_rows(tables: Tables) -> None:
    tables.refuse(HOURLY, UnsupportedTableError("It refuses."), at_commit=True)
    tables.publish(tables.checkpoint(held=(HOURLY,)))
    cut = consistent_versions(tables.pipeline.files)
    assert (list(cut), cut.behind, cut.checkpoint) == ([DAILY], (HOURLY,), CheckpointId(1))


def test_a_table_with_a_hold_that_is_only_slow_is_waited_for(tables: Tables) -> None:
    tables.publish(tables.checkpoint())
    publish(tables.pipeline.files, tables.checkpoint().checkpoint, sinks=[DAILY])
    cut = consistent_versions(tables.pipeline.files)
    assert (cut.checkpoint, cut.behind) == (1, ())
