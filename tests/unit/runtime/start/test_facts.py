"""What a start knows of a home's past."""

import pytest

from spark_jobs.home.layout import work_path
from spark_jobs.protocol.documents import CheckpointKind
from spark_jobs.protocol.ids import RunId, StageName
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.start.facts import read_facts
from tests.support.aged_home import GRAPH, ask, begin, end, run_round
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import METADATA, PROTOCOL, STAGED_FOR, staged


@pytest.mark.parametrize(
    ("for_backfill", "batches", "failed"), [(True, 0, True), (True, 1, False), (False, 0, False), (False, 1, False)]
)
def test_a_round_for_a_backfill_that_has_staged_nothing_is_a_failed_backfill(
    for_backfill: bool, batches: int, failed: bool
) -> None:
    files = MemoryFiles()
    final = run_round(files, "monday")
    attempt = begin(files, ask(files, RunId("mended")), for_backfill=for_backfill)
    work = files.below(work_path(attempt.work_directory.id))
    log = PrivateLog(work, log_directory(StageName(next(iter(GRAPH.stages)))), "file:///hourly")
    log.begin(METADATA, PROTOCOL, STAGED_FOR)
    for batch in range(batches):
        log.append(staged(batch, "a.parquet"))
    facts = read_facts(files)
    assert facts.final is None
    assert facts.failed_backfill is failed
    assert facts.last_final == (final if failed else None)


def test_a_backfill_with_a_checkpoint_of_its_own_has_not_failed() -> None:
    files = MemoryFiles()
    run_round(files, "monday")
    end(files, begin(files, ask(files, RunId("mended")), for_backfill=True), CheckpointKind.PERIODIC)
    assert not read_facts(files).failed_backfill
