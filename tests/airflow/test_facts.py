"""XCom values of checkpoints."""

from pathlib import Path

import pytest

from airflow_provider.facts import checkpoint_facts, publication_facts, run_facts
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.documents import AttemptDocument, Manifest, StartResponse
from spark_jobs.protocol.ids import IncarnationId, InputName, LossId, RoundNumber, StageName
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.publication.publisher import plan_publication
from tests.support.documents import SAMPLES
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import HOURLY, StagedPipeline, a_manifest, a_stage_cut

(ATTEMPT,) = (sample for sample in SAMPLES if isinstance(sample, AttemptDocument))


@pytest.fixture
def pipeline(tmp_path: Path) -> StagedPipeline:
    made = StagedPipeline(MemoryFiles(), tmp_path)
    made.make_table(HOURLY)
    return made


def exact(pipeline: StagedPipeline, manifest: Manifest) -> list[bool]:
    """Returns the value in the results of a wait for the checkpoint and of its publication."""
    plan = plan_publication(pipeline.files, manifest.checkpoint)
    plan.carry_out()
    results = checkpoint_facts(pipeline.files, manifest), publication_facts("home", plan)
    return [each["exact"] for each in results]


def test_a_checkpoint_without_rows_of_a_loss_is_exact_only_after_a_person_has_accepted_the_loss(pipeline: StagedPipeline) -> None:
    assert exact(pipeline, pipeline.checkpoint({HOURLY: [(1, "a")]})) == [True, True]
    attempt = ATTEMPT.model_copy(update={"incarnation": IncarnationId("first")})
    gone = LostFiles(input=InputName("events"), stage=StageName("hourly"), files=(LostFile(path="a"),))
    ledger = LossLedger(pipeline.files)
    lacking = pipeline.checkpoint({HOURLY: [(2, "a")]}, losses=ledger.record(RoundNumber(2), attempt, [gone]))
    assert exact(pipeline, lacking) == [False, False]
    ledger.accept([LossId("2-1")], "deleted by the vendor")
    assert exact(pipeline, lacking) == [True, True]


def test_rows_that_an_expectation_has_diverted_are_counted_by_stage_and_expectation() -> None:
    """Late rows are diverted by an expectation, too."""
    cuts = {StageName("in_time"): a_stage_cut(1, violations={"in_time": 2}), StageName("daily"): a_stage_cut(1)}
    manifest = a_manifest(1).model_copy(update={"stages": cuts})
    (answer,) = (sample for sample in SAMPLES if isinstance(sample, StartResponse))
    for found in (run_facts("home", answer, manifest), checkpoint_facts(MemoryFiles(), manifest)):
        assert found["violations"] == {"in_time": {"in_time": 2}}
