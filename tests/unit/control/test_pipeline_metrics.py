"""The table of metrics: what each one says, and when it says nothing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.control import pipeline_metrics
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.pipeline_metrics import METRICS, MetricsReader, PipelineFacts
from spark_jobs.home.manifests import newest_manifest
from spark_jobs.protocol.documents import (
    BlockedPublication,
    ErrorReport,
    StageState,
    StageStatus,
    ToleratedRows,
)
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import BatchId, CheckpointId, SinkName, StageName
from spark_jobs.protocol.stage_cut import StateFile
from tests.support.measured_homes import a_status, home_with_a_checkpoint, passes_over, tolerant_status
from tests.support.staged_pipeline import HOURLY, NOW, a_stage_cut

Found = dict[tuple[str, ...], float]


def values(facts: PipelineFacts) -> Found:
    """Returns the value of each metric by its name and its tags."""
    return {(each.name, *value.tags.values()): value.value for each in METRICS for value in each.values(facts)}


def test_the_metrics_have_the_values_of_the_heartbeat_and_the_newest_checkpoint(tmp_path: Path) -> None:
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
    found = values(PipelineFacts(status, head, NOW.timestamp() + 90, open_losses=2))
    assert found == {
        ("last_checkpoint_age",): 90_000,
        ("last_checkpoint_duration",): (head.completed_at - head.began_at).total_seconds() * 1000,
        ("last_checkpoint_size",): 200,
        ("last_checkpoint_full_size",): 240,
        ("last_checkpoint_records",): 2,
        ("number_of_completed_checkpoints",): 5,
        ("number_of_failed_checkpoints",): 6,
        ("blocked_publication_time",): 90_000,
        ("num_open_losses",): 2,
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
        ("pending_versions", "hourly", "table"): 2,
        ("pending_files", "hourly", "folder"): 5,
        ("busy_time_ms_per_second", "hourly"): 250,
    }


def test_there_are_no_checkpoint_metrics_without_a_checkpoint() -> None:
    found = values(PipelineFacts(a_status(), None, NOW.timestamp()))
    assert found["blocked_publication_time",] == 0.0
    assert not [name for name, *_ in found if name.startswith("last_checkpoint")]


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


def test_the_last_known_facts_stay_if_the_home_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def budgets(facts: PipelineFacts) -> dict[str, float]:
    return {tags[0]: value for (name, *tags), value in values(facts).items() if name == "budget_left"}


def test_passed_over_rows_use_up_the_budget_of_a_tolerant_stage_until_time_has_passed(tmp_path: Path) -> None:
    home = home_with_a_checkpoint(tmp_path)
    ledger, now = LossLedger(home.files), datetime.now(UTC)
    reader = MetricsReader(home.files)

    def found(later: timedelta = timedelta(0)) -> dict[str, float]:
        return budgets(reader.facts(tolerant_status(), (now + later).timestamp()))

    assert found() == {"hourly": 10, "daily": 10}
    passes_over(ledger, 4)
    passes_over(ledger, 3, "daily")
    assert found() == {"hourly": 6, "daily": 7}
    passes_over(ledger, 6)
    assert found(timedelta(minutes=29)) == {"hourly": 0, "daily": 7}
    assert found(timedelta(minutes=59)) == {"hourly": 0, "daily": 10}
    assert found(timedelta(minutes=61)) == {"hourly": 10, "daily": 10}


def test_losses_are_counted_as_open_until_they_are_accepted(tmp_path: Path) -> None:
    home = home_with_a_checkpoint(tmp_path)
    ledger, reader = LossLedger(home.files), MetricsReader(home.files)
    passes_over(ledger, 4)
    passes_over(ledger, 3)
    assert reader.facts(a_status(), NOW.timestamp()).open_losses == 2
    ledger.accept(ledger.names().open[:1], "by hand")
    assert reader.facts(a_status(), NOW.timestamp()).open_losses == 1


@pytest.mark.parametrize("interval_ms", [10**30, -(10**30)])
def test_a_heartbeat_with_an_impossible_interval_fails_no_metric(tmp_path: Path, interval_ms: int) -> None:
    home = home_with_a_checkpoint(tmp_path)
    tolerated = ToleratedRows(rows=10, interval_ms=interval_ms)
    stages = {StageName("hourly"): StageStatus(state=StageState.RUNNING, tolerates=tolerated)}
    facts = MetricsReader(home.files).facts(a_status(stages=stages), NOW.timestamp())
    assert budgets(facts) == {"hourly": 10}


def test_the_loss_ledger_is_listed_each_time_and_each_loss_of_a_tolerant_stage_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, looks = home_with_a_checkpoint(tmp_path), list[str]()
    passes_over(LossLedger(home.files), 4)
    for name in ("names", "read"):
        real = getattr(LossLedger, name)

        def counted(self: LossLedger, *arguments: Any, name: str = name, real: Any = real) -> Any:
            looks.append(name)
            return real(self, *arguments)

        monkeypatch.setattr(LossLedger, name, counted)
    reader, now_s = MetricsReader(home.files), datetime.now(UTC).timestamp()
    reader.facts(a_status(), now_s)
    assert looks == ["names"]
    for _ in range(3):
        reader.facts(tolerant_status(), now_s)
    assert sorted(looks) == ["names", "names", "names", "names", "read"]


def test_an_unreadable_loss_ledger_leaves_the_budget_unknown_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise StorageError("The disk is away.")

    home, now_s = home_with_a_checkpoint(tmp_path), datetime.now(UTC).timestamp()
    passes_over(LossLedger(home.files), 4)
    reader = MetricsReader(home.files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossLedger, "names", fail)
        assert budgets(reader.facts(tolerant_status(), now_s)) == {}
    known = budgets(reader.facts(tolerant_status(), now_s))
    monkeypatch.setattr(LossLedger, "names", fail)
    assert budgets(reader.facts(tolerant_status(), now_s)) == known == {"hourly": 6, "daily": 10}
