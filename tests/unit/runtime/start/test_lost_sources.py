"""The position of a stage, read from a checkpoint without a work directory."""

import pytest

from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.runtime.inputs.file_source import FileSourceLog
from spark_jobs.runtime.spark.spark_log import NO_BATCH, OffsetEntry
from spark_jobs.runtime.start.lost_sources import log_of_cut
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import a_stage_cut

COPY = StageName("copy")
ENTRY = OffsetEntry("v1", {"batchWatermarkMs": 0}, ('{"logOffset": 0}',))
FILES = {
    "offsets/3": ENTRY.to_bytes(),
    "commits/3": b"v2\n{}",
    "sources/0/0": b'v1\n{"path": "file:///in/a.json", "timestamp": 5, "batchId": 0}',
}


def test_a_checkpoint_gives_the_position_of_its_stage() -> None:
    home = MemoryFiles()
    files = tuple(StateFile(path=path, stored=f"state/copy/1/{n}", size_bytes=1, sha256="0" * 64) for n, path in enumerate(FILES))
    for file in files:
        home.create(file.stored, FILES[file.path])
    log = log_of_cut(home, COPY, a_stage_cut(3, files=files))
    assert (log.last_commit(), log.offsets(BatchId(3)).sources) == (3, ENTRY.sources)
    assert FileSourceLog(log.files, f"{log.directory}/sources/0").identities(0) == {"file:///in/a.json": 5}
    with pytest.raises(NotFoundError):
        log.offsets(BatchId(2))


def test_a_stage_without_a_checkpoint_has_no_position() -> None:
    assert log_of_cut(MemoryFiles(), COPY, None).last_commit() == NO_BATCH
