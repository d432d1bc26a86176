"""What a try at a checkpoint leaves in the history."""

from collections.abc import Callable

import pytest

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import CheckpointKind, OnEnd, PipelineDocument, RoundDocument
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import IncarnationId, PipelineName, RequestId, RoundNumber, RunId
from spark_jobs.protocol.masking import masking
from spark_jobs.runtime.checkpoint_try import CheckpointTry
from spark_jobs.runtime.cut import Cut
from spark_jobs.runtime.due import Due
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import NOW, PIPELINE
from tests.unit.control.test_channel import attempt

SECRET = "hunter-twelve"
ROUND = RoundDocument(
    round=RoundNumber(1),
    run=RunId("a"),
    incarnation=IncarnationId("i"),
    on_end=OnEnd.DRAIN,
    publish=None,
    parameters={},
    graph={},
    begun_at=NOW,
)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def a_try(files: MemoryFiles, find_cut: Callable[[], Cut]) -> CheckpointTry:
    """A try of a pipeline without stages, which somebody has asked for."""
    return CheckpointTry(
        files,
        files.below("work"),
        PipelineDocument(name=PipelineName("p"), uuid=PIPELINE),
        attempt(1),
        ROUND,
        Due(CheckpointKind.PERIODIC, find_cut, RequestId("checkpoint-now")),
        None,
        {},
        {},
        masking([SECRET]),
    )


def test_a_failure_is_remembered_with_its_name_and_without_secrets(files: MemoryFiles) -> None:
    def find_cut() -> Cut:
        raise InterruptedRunError(f"Stage 'hourly' failed in batch 3: no login with {SECRET}", stage="hourly")

    with pytest.raises(InterruptedRunError):
        a_try(files, find_cut).take([])
    (tried,) = CheckpointStore(files).history()
    assert tried.failure is not None
    assert tried.failure.error == "InterruptedRunError"
    assert tried.failure.failed == "Stage 'hourly' failed in batch 3: no login with ***"
    assert (tried.aligned, [step.step for step in tried.steps]) == (None, [])
    assert not any(SECRET.encode() in data for data in files.contents.values())


def test_a_checkpoint_remembers_its_cut_and_carries_its_request(files: MemoryFiles) -> None:
    manifest = a_try(files, lambda: Cut({}, aligned=False, alignment_s=1.25)).take([])
    (tried,) = CheckpointStore(files).history()
    assert (tried.aligned, tried.alignment_s, tried.failure) == (False, 1.25, None)
    assert [step.step for step in tried.steps] == ["cut", "persist", "actions", "complete"]
    assert (manifest.request, manifest.aligned) == ("checkpoint-now", False)
