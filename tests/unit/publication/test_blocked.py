"""The failed publications that are retried, the tables that wait, and how long VACUUM spares their staged rows."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.protocol.documents import CheckpointKind, Publish
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    UnsupportedTableError,
)
from spark_jobs.publication.blocked import StagedRows, first_waiting, staged_rows, waiting_sinks
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.table_log import TableLog
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline, path_of

EVERY: dict[str, Any] = {"publish": Publish.EVERY_CHECKPOINT, "checkpoint_kind": CheckpointKind.PERIODIC}
STAGED = datetime.fromtimestamp(1_700_000_000, UTC)
"""The time in the entries of the pipeline's files."""


def test_sinks_whose_tables_lack_a_due_checkpoint_are_waiting(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]}, **EVERY)
    assert waiting_sinks(manifest) == [HOURLY, DAILY]
    publish(pipeline.files, sinks=[HOURLY])
    assert waiting_sinks(manifest) == [DAILY]
    later = pipeline.checkpoint(
        {HOURLY: [(3, "a")], DAILY: [(4, "b")]}, publish=Publish.FINAL, checkpoint_kind=CheckpointKind.PERIODIC
    )
    assert waiting_sinks(later) == []


def test_the_first_waiting_checkpoint_is_the_oldest_that_a_waiting_table_lacks(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]}, **EVERY)
    publish(pipeline.files)
    pipeline.checkpoint({HOURLY: [(3, "a")], DAILY: [(4, "b")]}, **EVERY)
    publish(pipeline.files, sinks=[HOURLY])
    newest = pipeline.checkpoint({HOURLY: [(5, "a")], DAILY: [(6, "b")]}, **EVERY)
    assert first_waiting(pipeline.files, newest, [HOURLY]).checkpoint == 3
    assert first_waiting(pipeline.files, newest, [HOURLY, DAILY]).checkpoint == 2
    log = path_of(pipeline.tables[DAILY]) / "_delta_log"
    log.rename(log.with_name("away"))
    assert first_waiting(pipeline.files, newest, [HOURLY, DAILY]).checkpoint == 3


def test_a_checkpoint_that_is_not_due_in_a_sink_is_not_the_first_waiting_one(pipeline: StagedPipeline) -> None:
    in_the_round: dict[str, Any] = {"publish": Publish.FINAL, "checkpoint_kind": CheckpointKind.PERIODIC}
    pipeline.checkpoint({HOURLY: [(1, "a")]}, **in_the_round)
    final = pipeline.checkpoint({HOURLY: [(2, "a")]}, publish=Publish.FINAL, checkpoint_kind=CheckpointKind.FINAL)
    assert first_waiting(pipeline.files, final, [HOURLY]).checkpoint == 2


def test_a_sink_whose_table_cannot_be_read_is_waiting(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]}, **EVERY)
    log = path_of(pipeline.tables[HOURLY]) / "_delta_log"
    log.rename(log.with_name("away"))
    assert waiting_sinks(manifest) == [HOURLY]


@pytest.mark.parametrize(
    ("setting", "kept_for"),
    [
        (None, timedelta(days=7)),
        ("interval 30 days", timedelta(days=30)),
        ("INTERVAL 1 week 12 hours", timedelta(days=7, hours=12)),
        ("interval 1 fortnight", timedelta(days=7)),
    ],
)
def test_staged_rows_are_safe_for_the_file_retention_of_the_table_after_the_oldest_was_staged(
    pipeline: StagedPipeline, setting: str | None, kept_for: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: []}, **EVERY)
    table = open_table(pipeline.tables[HOURLY])
    if setting is not None:
        found = SimpleNamespace(configuration={"delta.deletedFileRetentionDuration": setting})
        monkeypatch.setattr(table, "_state", found)
        assert table.keeps_deleted_files == kept_for
        return
    rows = staged_rows(pipeline.files, manifest, HOURLY)
    assert rows is not None
    assert (rows.since, rows.kept_until) == (STAGED, STAGED + kept_for)
    assert staged_rows(pipeline.files, manifest, DAILY) is None, "nothing is staged"
    publish(pipeline.files)
    assert staged_rows(pipeline.files, manifest, HOURLY) is None, "nothing waits"


def test_a_warning_and_then_an_error_with_a_deadline_come_before_staged_rows_can_be_lost(tmp_path: Any) -> None:
    rows = StagedRows(HOURLY, "file:///t", STAGED, timedelta(days=10))
    early, late = STAGED + timedelta(days=4, hours=23), STAGED + timedelta(days=8, hours=23)
    assert not rows.is_old(early)
    assert rows.is_old(late)
    rows.check(manifest_number(), late)
    with pytest.raises(UnsupportedTableError, match=r"From 2023-11-24 22:13:20Z on a VACUUM of table file:///t may delete them"):
        rows.check(manifest_number(), STAGED + timedelta(days=9))


def manifest_number() -> Any:
    return 4


class Refusing:
    """A table that takes no commits."""

    def __init__(self, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = TableLog.create

        def create(log: TableLog, *arguments: Any) -> None:
            if log._table == table:
                raise AccessDeniedError("The table refuses.", table=table)
            real(log, *arguments)

        monkeypatch.setattr(TableLog, "create", create)


def test_no_table_gets_further_ahead_of_a_table_that_refuses_and_the_error_names_the_sink(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]}, **EVERY)
    with monkeypatch.context() as patch:
        Refusing(pipeline.tables[DAILY], patch)
        for _ in range(3):
            with pytest.raises(AccessDeniedError) as refused:
                publish(pipeline.files)
            assert refused.value.evidence["sink"] == DAILY
            pipeline.checkpoint({HOURLY: [(3, "a")], DAILY: [(4, "b")]}, **EVERY)
    assert (pipeline.commits(HOURLY), pipeline.commits(DAILY)) == ([1], [])
    publish(pipeline.files)
    assert (pipeline.commits(HOURLY), pipeline.commits(DAILY)) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert pipeline.rows(HOURLY) == [(1, "a")] + [(3, "a")] * 3
