"""The rows that a table lacks."""

import pytest

from spark_jobs.protocol.documents import CarriedActions
from spark_jobs.protocol.ids import BatchId, CheckpointId
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import WaitingRows, waiting_rows
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline, a_manifest


@pytest.mark.parametrize("replaces", [False, True])
def test_rows_that_a_savepoint_has_brought_are_pending_before_the_first_publication(
    pipeline: StagedPipeline, replaces: bool
) -> None:
    table, parts, lines = open_table(pipeline.tables[HOURLY]), [], []
    for number in (1, 2):
        staged = pipeline.stage(HOURLY, [(number, "a"), (number, "b")], number)
        lines += staged
        checkpoint = CheckpointId(number)
        parts.append(
            CarriedActions(
                first=checkpoint,
                last=checkpoint,
                batch=BatchId(number),
                actions=pipeline.store.write_actions(checkpoint, HOURLY, staged),
                replace=replaces and number == 1,
                staged_for=(table.facts.shape,),
            )
        )
    manifest = a_manifest(brought={HOURLY: tuple(parts)})
    found = waiting_rows(pipeline.store, manifest, HOURLY, table)
    assert found == WaitingRows(tuple(lines), replace=replaces, shapes=(table.facts.shape,))
    assert waiting_rows(pipeline.store, manifest, DAILY, open_table(pipeline.tables[DAILY])) == WaitingRows()
