"""The summary of a pipeline's state."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.control.losses import LossLedger
from spark_jobs.control.pipeline_look import overview
from spark_jobs.control.status import write_status
from spark_jobs.protocol.documents import BlockedPublication, ErrorReport, RunState, StageState, StageStatus, Status
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RoundNumber, RunId, SinkName, StageName
from spark_jobs.storage.local import LocalFiles
from tests.support.command_line import UsedHome, lose_files
from tests.support.staged_pipeline import HOURLY, NOW

REFUSED = ErrorReport(
    error="RejectedError", retry="never", failed="A constraint.", remedy="Drop it.", evidence={"sink": "hourly"}
)


@pytest.fixture
def used(tmp_path: Path) -> UsedHome:
    home = UsedHome(tmp_path)
    home.begin()
    return home


def test_a_stage_that_has_failed_and_a_blocked_publication_are_named_with_their_reasons(used: UsedHome) -> None:
    stages = {
        StageName("hourly"): StageStatus(state=StageState.RUNNING),
        StageName("daily"): StageStatus(state=StageState.FAILED, reason="division by zero"),
    }
    blocked = BlockedPublication(checkpoint=CheckpointId(3), since=NOW, tries=2, waiting=(SinkName("hourly"),), error=REFUSED)
    status = Status(
        attempt=AttemptNumber(1), run=RunId("monday"), state=RunState.RUNNING, updated_at=NOW, stages=stages, blocked=blocked
    )
    write_status(used.files, status)
    with used.driver():
        found = overview(used.files)
    assert (found.name, found.look.state, found.look.at_work) == ("flights", RunState.RUNNING, True)
    assert found.failed_stages == {"daily": "failed: division by zero"}
    assert found.reasons == ["Stage daily is failed: division by zero", blocked.summary]


def test_the_heartbeat_of_an_older_attempt_does_not_count_for_the_newest_one(used: UsedHome) -> None:
    used.beat(RunState.RUNNING)
    used.begin(2, run="tuesday")
    found = overview(used.files)
    assert (found.look.state, found.look.status) == (RunState.FAILED, None)
    assert "was lost" in found.reasons[0]


def test_the_age_is_the_age_of_the_newest_valid_checkpoint(used: UsedHome) -> None:
    assert overview(used.files).checkpoint_age_s(datetime.now(UTC)) is None
    first = used.staged.checkpoint({HOURLY: [(1, "a")]})
    used.staged.checkpoint({HOURLY: [(2, "b")]})
    used.files.replace("manifests/2.json", b"{")
    found = overview(used.files)
    assert found.head == first
    assert found.checkpoint_age_s(first.completed_at + timedelta(seconds=90)) == 90.0
    assert found.checkpoint_age_s(first.completed_at - timedelta(seconds=90)) == 0.0  # a clock that is late


def test_losses_that_were_recorded_after_the_newest_checkpoint_are_open_until_they_are_closed(used: UsedHome) -> None:
    used.complete()
    assert overview(used.files).open_losses == frozenset()
    first, second = lose_files(used, "a", "b")
    assert overview(used.files).open_losses == {first, second}
    LossLedger(used.files).accept([first], "The files were empty.")
    assert overview(used.files).open_losses == {second}
    LossLedger(used.files).undo([second], RoundNumber(2))
    assert overview(used.files).open_losses == frozenset()


def test_a_directory_that_is_no_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RejectedError):
        overview(LocalFiles(tmp_path))
