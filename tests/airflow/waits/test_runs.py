"""The meaning of a look at a home. The tests use no files and no clock."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider.waits.first_looks import FirstLook, Next, first_step, in_use
from airflow_provider.waits.goals import Goal, WaitFor
from airflow_provider.waits.runs import RunLook, RunWait, StartLimit
from spark_jobs.protocol.documents import (
    AttemptDocument,
    ErrorReport,
    OnRewind,
    StartResponse,
    WorkDirectory,
)
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    HomeInUseError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import (
    AttemptNumber,
    CheckpointId,
    IncarnationId,
    RequestId,
    RoundNumber,
    RunId,
    WorkDirectoryId,
)
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.open import open_place
from tests.support.heartbeats import status
from tests.support.staged_pipeline import CHECKPOINTING

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OURS, OTHER = RunId("ours"), RunId("other")
FULL = ErrorReport(error="StorageFullError", retry="with_backoff", failed="The disk is full.", remedy="Free space.")


def answer(error: ErrorReport | None = None, checkpoint: int | None = 4) -> StartResponse:
    return StartResponse(
        request=RequestId("start-1"),
        attempt=AttemptNumber(1),
        run=OURS,
        checkpoint=None if checkpoint is None else CheckpointId(checkpoint),
        sinks={},
        error=error,
        answered_at=NOW,
    )


def asked(run: RunId) -> StartRequest:
    return StartRequest(
        request=RequestId("start-2"),
        attempt=AttemptNumber(2),
        run=run,
        requested_at=NOW,
        parameters={},
        on_end=None,
        publish=None,
        fresh=False,
        on_rewind=OnRewind.REFUSE,
    )


def attempt(run: RunId) -> AttemptDocument:
    return AttemptDocument(
        attempt=AttemptNumber(1),
        request=RequestId("start-1"),
        run=run,
        round=RoundNumber(1),
        incarnation=IncarnationId("first"),
        restored_from=None,
        work_directory=WorkDirectory(id=WorkDirectoryId("work"), path="/var/work", host="worker-1"),
        host="worker-1",
        process=4711,
        started_at=NOW,
        versions={},
        checkpointing=CHECKPOINTING,
    )


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (FirstLook(answer=None, live=None, live_answered=False, at_work=False), Next.START),
        (FirstLook(answer=None, live=attempt(OURS), live_answered=False, at_work=False), Next.START),
        (FirstLook(answer=answer(FULL), live=attempt(OURS), live_answered=True, at_work=False), Next.START),
        (FirstLook(answer=None, live=None, live_answered=False, at_work=True), Next.START),
        (FirstLook(answer=answer(), live=attempt(OURS), live_answered=True, at_work=False), Next.RETURN),
        (FirstLook(answer=answer(), live=attempt(OTHER), live_answered=False, at_work=True), Next.RETURN),
        (FirstLook(answer=None, live=attempt(OURS), live_answered=False, at_work=True), Next.ADOPT),
        (FirstLook(answer=answer(FULL), live=attempt(OURS), live_answered=False, at_work=True), Next.ADOPT),
        (FirstLook(answer=answer(FULL), live=attempt(OURS), live_answered=True, at_work=True), Next.AWAIT_END),
        (FirstLook(answer=None, live=attempt(OTHER), live_answered=True, at_work=True), Next.AWAIT_END),
        (FirstLook(answer=None, live=attempt(OTHER), live_answered=False, at_work=True), Next.FAIL),
        (FirstLook(answer=None, live=None, live_answered=False, at_work=False, starting=asked(OURS)), Next.AWAIT),
        (FirstLook(answer=None, live=None, live_answered=False, at_work=True, starting=asked(OURS)), Next.AWAIT),
        (FirstLook(answer=answer(FULL), live=attempt(OURS), live_answered=True, at_work=False, starting=asked(OURS)), Next.AWAIT),
        (FirstLook(answer=answer(FULL), live=attempt(OURS), live_answered=True, at_work=True, starting=asked(OURS)), Next.AWAIT),
        (FirstLook(answer=None, live=attempt(OURS), live_answered=False, at_work=True, starting=asked(OURS)), Next.ADOPT),
        (FirstLook(answer=None, live=None, live_answered=False, at_work=False, starting=asked(OTHER)), Next.FAIL),
        (FirstLook(answer=answer(), live=None, live_answered=False, at_work=False, starting=asked(OTHER)), Next.RETURN),
    ],
)
def test_the_first_step_follows_from_what_the_home_shows(look: FirstLook, expected: Next) -> None:
    assert first_step(look, OURS) is expected


def wait(start: StartLimit | None = None) -> RunWait:
    goal = Goal(WaitFor.FINAL_CHECKPOINT)
    return RunWait(open_place("/homes/flights"), RequestId("start-1"), goal, start, began_s=100.0)


def look(
    *, exit_code: int | None = None, ours_runs: bool = False, at_work: bool = False, seen: StartResponse | None = None
) -> RunLook:
    return RunLook(exit_code=exit_code, ours_runs=ours_runs, at_work=at_work, status=status(), answer=seen)


NOTHING = RunLook(exit_code=None, ours_runs=False, at_work=False, status=None, answer=None)
IN_A_QUEUE = StartLimit(until_s=700.0, start_timeout_s=600.0)


def test_an_answer_ends_the_wait_whatever_the_driver_does() -> None:
    for each in (look(seen=answer()), look(seen=answer(), exit_code=3), look(seen=answer(), at_work=True)):
        assert wait().result(each, 500.0, -399.0, 1.0) is each.answer


def test_an_answer_with_an_error_raises_that_error() -> None:
    with pytest.raises(StorageFullError, match="Free space"):
        wait().judge(look(seen=answer(FULL)), 101.0)


def test_an_answer_without_a_final_checkpoint_is_no_success() -> None:
    with pytest.raises(InterruptedRunError, match="without a final checkpoint"):
        wait().judge(look(seen=answer(checkpoint=None)), 101.0)


@pytest.mark.parametrize(
    ("exit_code", "kind"), [(2, RejectedError), (3, InterruptedRunError), (4, OutcomeUnknownError), (-9, InterruptedRunError)]
)
def test_a_driver_of_this_task_that_ended_without_an_answer_is_an_error_at_once(
    exit_code: int, kind: type[StreamPipelineError]
) -> None:
    with pytest.raises(kind, match=f"exit code {exit_code}"):
        wait().judge(look(exit_code=exit_code), 100.1)


def test_a_driver_whose_process_runs_may_take_any_time_to_appear_in_the_home() -> None:
    assert wait().judge(look(ours_runs=True), 10_000.0) is None


def test_the_wait_follows_the_first_driver_after_the_second_ended_well() -> None:
    waiting = wait()
    assert waiting.judge(look(exit_code=0, at_work=True), 101.0) is None
    assert waiting.judge(look(exit_code=0, at_work=True), 900.0) is None
    assert waiting.judge(look(exit_code=0, seen=answer()), 901.0) is not None


def test_the_wait_follows_the_first_driver_after_the_second_found_its_lock() -> None:
    waiting = wait()
    assert waiting.judge(look(exit_code=3, at_work=True), 101.0) is None
    with pytest.raises(InterruptedRunError, match="exit code 3"):
        waiting.judge(look(exit_code=3), 102.0)


def test_a_driver_that_found_the_home_locked_is_an_error_at_once() -> None:
    with pytest.raises(HomeInUseError, match="works on start-7"):
        wait().judge(replace(look(exit_code=3), taken_by=RequestId("start-7")), 101.0)


def test_a_driver_of_another_request_does_not_count_as_the_driver_of_this_request() -> None:
    waiting, others = wait(), replace(NOTHING, taken_by=RequestId("start-7"))
    assert waiting.judge(others, 101.0) is None
    with pytest.raises(InterruptedRunError, match="has not been seen for 15 s"):
        waiting.judge(others, 115.0)


def test_a_driver_that_was_killed_is_an_error_although_its_java_still_holds_the_home() -> None:
    with pytest.raises(InterruptedRunError, match="exit code -9"):
        wait().judge(look(exit_code=-9, at_work=True), 101.0)


def test_a_silent_home_is_an_error_after_a_grace_period() -> None:
    waiting = wait()
    assert waiting.judge(look(at_work=True), 200.0) is None
    assert waiting.judge(look(), 214.9) is None
    with pytest.raises(InterruptedRunError, match="not been seen for 15 s"):
        waiting.judge(look(), 215.0)


def test_a_driver_that_is_seen_again_restarts_the_grace_period() -> None:
    waiting = wait()
    assert waiting.judge(look(), 110.0) is None
    assert waiting.judge(look(at_work=True), 112.0) is None
    assert waiting.judge(look(), 126.0) is None


def test_a_driver_that_waits_in_a_queue_is_not_missed_before_its_start_timeout() -> None:
    waiting = wait(start=IN_A_QUEUE)
    assert waiting.judge(NOTHING, 699.9) is None
    with pytest.raises(InterruptedRunError, match="has not begun within 600 s") as caught:
        waiting.judge(NOTHING, 700.0)
    assert "ends by itself" in caught.value.exists


@pytest.mark.parametrize("sign", [look(at_work=True), look(ours_runs=True), look()], ids=["at work", "ours", "a heartbeat"])
def test_a_queued_driver_that_has_begun_and_disappears_is_an_error_after_the_grace_period(sign: RunLook) -> None:
    waiting = wait(start=IN_A_QUEUE)
    assert waiting.judge(sign, 101.0) is None
    assert waiting.judge(NOTHING, 110.0) is None
    with pytest.raises(InterruptedRunError, match="has not been seen for"):
        waiting.judge(NOTHING, 120.0)


def test_one_look_without_a_driver_does_not_count_as_silence_however_rare_looks_are() -> None:
    """In an object store, looks are half a minute apart, and a heartbeat may be late because its write was retried."""
    waiting = wait()
    for at_s, seen in ((100.0, look()), (130.0, NOTHING), (160.0, look(at_work=True)), (190.0, NOTHING)):
        assert waiting.judge(seen, at_s) is None
    with pytest.raises(InterruptedRunError, match="has not been seen for 60 s"):
        waiting.judge(NOTHING, 220.0)


def test_a_driver_whose_clock_is_wrong_counts_as_running_while_its_heartbeat_changes() -> None:
    waiting = wait()
    beats = [
        replace(NOTHING, status=status().model_copy(update={"updated_at": NOW + timedelta(seconds=10 * each)}))
        for each in range(6)
    ]
    assert [waiting.judge(beat, 100.0 + 10 * each) for each, beat in enumerate(beats)] == [None] * 6
    assert waiting.judge(beats[-1], 160.0) is None
    with pytest.raises(InterruptedRunError, match="has not been seen for 15 s"):
        waiting.judge(beats[-1], 165.0)


def test_an_earlier_driver_that_is_still_ending_does_not_count_as_the_driver_of_this_request() -> None:
    waiting = wait(start=IN_A_QUEUE)
    assert waiting.judge(replace(NOTHING, at_work=True), 101.0) is None
    assert waiting.judge(NOTHING, 699.0) is None


def test_the_grace_period_begins_after_the_start_timeout() -> None:
    waiting = wait(start=StartLimit(until_s=0.0, start_timeout_s=600.0))
    assert waiting.judge(NOTHING, 114.9) is None
    with pytest.raises(InterruptedRunError, match="has not begun within 600 s"):
        waiting.judge(NOTHING, 115.0)


def test_time_without_looks_at_the_home_does_not_count_as_silence() -> None:
    waiting = wait()
    waiting.home_is_back(400.0)
    assert waiting.judge(NOTHING, 414.9) is None
    with pytest.raises(InterruptedRunError, match="not been seen for 15 s"):
        waiting.judge(NOTHING, 415.0)


def test_a_conflict_names_the_run_that_holds_the_home() -> None:
    live = FirstLook(answer=None, live=attempt(OTHER), live_answered=False, at_work=True)
    assert "attempt 1 is at work, for the run other" in str(in_use("file:///h", live))
    queued = FirstLook(answer=None, live=attempt(OURS), live_answered=True, at_work=False, starting=asked(OTHER))
    assert "attempt 2 is asked for, for the run other" in str(in_use("file:///h", queued))


def test_a_deadline_says_what_is_still_running() -> None:
    waiting = wait()
    assert waiting.result(look(at_work=True), 159.0, 1.0, 60.0) is None
    with pytest.raises(DeadlineExceededError, match="stage hourly: running, batch 3") as caught:
        waiting.result(look(at_work=True), 160.0, 0.0, 60.0)
    assert "not stopped" in caught.value.safe
