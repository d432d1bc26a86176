"""Whether a run is expected to be short, by the last one."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.home.layout import attempt_path
from spark_jobs.protocol.documents import CheckpointKind, RestoreFrom
from spark_jobs.protocol.ids import CheckpointId, InputName, LossId, RunId, StageName
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.start.short_runs import FEW_ROWS, SHORT, expects_short_run
from tests.support.aged_home import GRAPH, ask, begin
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import a_manifest, a_stage_cut


def after_a_run(took: timedelta = SHORT, rows: int = FEW_ROWS, kind: CheckpointKind = CheckpointKind.FINAL) -> MemoryFiles:
    """Returns a home whose last run took so long, and whose two stages have read so many rows in all."""
    files = MemoryFiles()
    attempt = begin(files, ask(files, RunId("monday")))
    cuts = {
        StageName("hourly"): a_stage_cut(3, input_rows={"events": rows - 1}),
        StageName("daily"): a_stage_cut(3, input_rows={"hourly": 1}),
    }
    manifest = a_manifest(
        CheckpointId(1),
        checkpoint_kind=kind,
        incarnation=attempt.incarnation,
        attempt=attempt.attempt,
        stages=cuts,
        completed_at=attempt.started_at + took,
    )
    CheckpointStore(files).complete(manifest)
    return files


def expected(files: MemoryFiles, **options: Any) -> bool:
    return expects_short_run(files, GRAPH, StartOptions(**options))


def test_a_short_run_is_expected_after_a_short_run_over_few_rows() -> None:
    assert expected(after_a_run())


@pytest.mark.parametrize(
    "last",
    [
        pytest.param({"took": SHORT + timedelta(seconds=1)}, id="a long run"),
        pytest.param({"rows": FEW_ROWS + 1}, id="a run over many rows"),
        pytest.param({"kind": CheckpointKind.STOP}, id="a stopped run"),
    ],
)
def test_no_short_run_is_expected_after_any_other_run(last: dict[str, Any]) -> None:
    assert not expected(after_a_run(**last))


@pytest.mark.parametrize(
    "options",
    [
        {"fresh": True},
        {"restore": RestoreFrom(savepoint="file:///savepoint")},
        {"new_sources": (InputName("events"),)},
        {"backfill": (LossId("1"),)},
        {"full_refresh": ("hourly",)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_run_that_reads_old_rows_is_not_expected_to_be_short(options: dict[str, Any]) -> None:
    assert not expected(after_a_run(), **options)


def test_a_first_run_is_not_expected_to_be_short() -> None:
    assert not expected(MemoryFiles())


def test_no_short_run_is_expected_of_an_unbounded_pipeline() -> None:
    (events,) = GRAPH.sources.values()
    endless = replace(GRAPH, sources={InputName("events"): replace(events, bounded=False)})
    assert not expects_short_run(after_a_run(), endless, StartOptions())


def test_no_short_run_is_expected_after_a_run_whose_attempt_is_forgotten() -> None:
    files = after_a_run()
    files.delete(attempt_path(CheckpointStore(files).manifest(CheckpointId(1)).attempt))
    assert not expected(files)
