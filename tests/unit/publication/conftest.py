from pathlib import Path

import pytest

from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> StagedPipeline:
    """A pipeline with two sinks, in which ``daily`` reads ``hourly``. No rows are staged."""
    made = StagedPipeline(MemoryFiles(), tmp_path)
    made.make_table(HOURLY)
    made.make_table(DAILY, partition_by=())
    return made
