"""The table of metrics: what each one says, and when it says nothing."""

from pathlib import Path
from typing import Any

import pytest

from spark_jobs.control import pipeline_metrics
from spark_jobs.control.pipeline_metrics import METRICS, MetricsReader, PipelineFacts
from spark_jobs.home.manifests import newest_manifest
from spark_jobs.protocol.documents import BlockedPublication, ErrorReport, InputLag, RunState, StageState, StageStatus, Status
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, RunId, SinkName, StageName
from spark_jobs.protocol.stage_cut import StateFile
from tests.support.command_line import UsedHome
from tests.support.staged_pipeline import HOURLY, NOW, a_stage_cut

Found = dict[tuple[str, ...], float]


def a_status(**changes: Any) -> Status:
    stages = {
        StageName("hourly"): StageStatus(
            state=StageState.RUNNING,
            rows_in=12,
            rows_per_s=1.5,
            late_rows=4,
            restarts=2,
            watermark_ms=int(NOW.timestamp() * 1000),
            lag={"events": InputLag(rows=7, size_bytes=None)},
        ),
        StageName("daily"): StageStatus(state=StageState.FAILED, reason="division by zero"),
    }
    fields: dict[str, Any] = {"stages": stages, "checkpoint": CheckpointId(1)} | changes
    return Status(attempt=AttemptNumber(3), run=RunId("monday"), state=RunState.RUNNING, updated_at=NOW, **fields)


def values(facts: PipelineFacts) -> Found:
    """Returns the value of each metric by its name and its tags."""
    return {(each.name, *value.tags.values()): value.value for each in METRICS for value in each.values(facts)}


def home_with_a_checkpoint(directory: Path) -> UsedHome:
    home = UsedHome(directory)
    home.begin()
    home.staged.checkpoint({HOURLY: [(1, "a"), (2, "b")]})
    return home


def test_the_metrics_say_what_the_heartbeat_and_the_newest_checkpoint_say(tmp_path: Path) -> None:
    reader = MetricsReader(home_with_a_checkpoint(tmp_path).files)
    report = ErrorReport(error="RejectedError", retry="never", failed="A constraint.")
    blocked = BlockedPublication(checkpoint=CheckpointId(1), since=NOW, tries=1, waiting=(SinkName("hourly"),), error=report)
    status = a_status(blocked=blocked, completed_checkpoints=5, failed_checkpoints=6)
    head = reader.facts(status, 0.0).head
    assert head is not None
    kept = [
        StateFile(path="b", stored=f"state/hourly/{number}-3-1/b", size_bytes=size_bytes, sha256="")
        for number, size_bytes in ((1, 200), (11, 40))
    ]
    cut = a_stage_cut(BatchId(0), files=tuple(kept))
    head = head.model_copy(update={"completed_at": NOW, "stages": {StageName("hourly"): cut}})
    found = values(PipelineFacts(status, head, NOW.timestamp() + 90))
    assert found == {
        ("last_checkpoint_age",): 90_000,
        ("last_checkpoint_duration",): (head.completed_at - head.began_at).total_seconds() * 1000,
        ("last_checkpoint_size",): 200,
        ("last_checkpoint_full_size",): 240,
        ("last_checkpoint_records",): 2,
        ("number_of_completed_checkpoints",): 5,
        ("number_of_failed_checkpoints",): 6,
        ("blocked_publication_time",): 90_000,
        ("num_losses",): 0,
        ("num_failed_stages",): 1,
        ("attempt",): 3,
        ("num_records_in", "hourly"): 12,
        ("num_records_in", "daily"): 0,
        ("num_records_in_per_second", "hourly"): 1.5,
        ("num_records_in_per_second", "daily"): 0,
        ("num_late_records_dropped", "hourly"): 4,
        ("num_late_records_dropped", "daily"): 0,
        ("num_restarts", "hourly"): 2,
        ("num_restarts", "daily"): 0,
        ("watermark_lag", "hourly"): 90_000,
        ("pending_records", "hourly", "events"): 7,
    }


def test_without_a_checkpoint_nothing_is_said_about_one() -> None:
    found = values(PipelineFacts(a_status(), None, NOW.timestamp()))
    assert found["blocked_publication_time",] == 0.0
    assert not [name for name, *_ in found if name.startswith("last_checkpoint") or name == "num_losses"]


def test_each_metric_has_one_row_with_a_description() -> None:
    assert len({each.name for each in METRICS}) == len(METRICS)
    assert all(each.description and each.name == each.name.lower() for each in METRICS)
    found = {each.name: each.flinks_name for each in METRICS}
    assert found["number_of_failed_checkpoints"] == "numberOfFailedCheckpoints"
    assert found["last_checkpoint_age"] is None


def test_the_newest_manifest_is_read_once_for_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, reads = home_with_a_checkpoint(tmp_path), list[object]()

    def counted(files: Any) -> Any:
        reads.append(files)
        return newest_manifest(files)

    monkeypatch.setattr(pipeline_metrics, "newest_manifest", counted)
    reader = MetricsReader(home.files)
    found = [reader.facts(a_status(checkpoint=each), 0.0).head for each in (None, None, CheckpointId(1), CheckpointId(1))]
    assert [each.checkpoint for each in found if each] == [1, 1, 1, 1]
    assert len(reads) == 2
    home.staged.checkpoint({HOURLY: [(3, "c")]})
    newest = reader.facts(a_status(checkpoint=CheckpointId(2)), 0.0).head
    assert (newest and newest.checkpoint, len(reads)) == (2, 3)


def test_a_home_that_cannot_be_read_leaves_the_last_known_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise StorageError("The disk is away.")

    home = home_with_a_checkpoint(tmp_path)
    reader = MetricsReader(home.files)
    known = reader.facts(a_status(), 0.0).head
    monkeypatch.setattr(pipeline_metrics, "newest_manifest", fail)
    assert reader.facts(a_status(checkpoint=CheckpointId(2)), 0.0).head == known
    monkeypatch.undo()
    home.staged.checkpoint({HOURLY: [(3, "c")]})
    newest = reader.facts(a_status(checkpoint=CheckpointId(2)), 0.0).head
    assert newest is not None
    assert newest.checkpoint == 2
    assert reader.tags() == {"pipeline": newest.pipeline_name, "home": home.files.url}
