"""The action that follows the end of a driver, decided from the home's documents alone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.control.cancelling import cancel_newest
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.supervision import End, Restart, after_end, decided, goes_on, next_start
from spark_jobs.protocol.documents import ErrorReport, StartResponse
from spark_jobs.protocol.errors import (
    CorruptDocumentError,
    DeadlineExceededError,
    FencedError,
    IncompleteError,
    InterruptedRunError,
    RejectedError,
    RestartsExhaustedError,
    RunCancelledError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import OwnerNumber, RunId
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.restart_settings import ExponentialDelay, FixedDelay, NoRestart, RestartSettings
from spark_jobs.protocol.restarts import RestartHistory
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from tests.airflow.fake_driver import claim

RUN = RunId("airflow/live/now/run")
NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
LOST = InterruptedRunError("The driver has not been seen for 15 s.")
FAILED = InterruptedRunError("A stage failed.")
TWICE = FixedDelay(attempts=2, delay_ms=5_000)
GROWING = ExponentialDelay(
    initial_backoff_ms=10_000,
    max_backoff_ms=60_000,
    backoff_multiplier=2.0,
    reset_backoff_threshold_ms=3_600_000,
    jitter_factor=0.5,
    attempts_before_reset_backoff=None,
)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return LocalFiles(tmp_path / "home")


def an_attempt(files: Files, strategy: RestartSettings | None = TWICE, restarts: RestartHistory | None = None) -> StartRequest:
    """Creates an attempt that has begun and is owned by a task."""
    channel = Channel(files)
    request = channel.request_start(RUN, parameters={}, restarts=restarts)
    claim(channel, request, strategy)
    AttemptLease(files, request.attempt).take("our task")
    return request


def fails(files: Files, request: StartRequest, error: StreamPipelineError = FAILED) -> None:
    Channel(files).respond_failure(request, error)


def a_failure(request: StartRequest, error: StreamPipelineError, at: datetime = NOON) -> StartResponse:
    return StartResponse(
        request=request.request,
        attempt=request.attempt,
        run=request.run,
        checkpoint=None,
        sinks={},
        error=report_error(error),
        answered_at=at,
    )


def lives(files: Files, strategy: RestartSettings) -> list[Restart | End | None]:
    """Loses one attempt after another until no restart follows. Returns each decision."""
    found: list[Restart | End | None] = []
    restarts = None
    while len(found) < 10 and (not found or isinstance(found[-1], Restart)):
        request = an_attempt(files, strategy, restarts)
        following = after_end(files, request.attempt, OwnerNumber(1), LOST)
        restarts = following.history if isinstance(following, Restart) else None
        found.append(following)
    return found


def test_a_lost_driver_is_followed_by_the_next_attempt_after_the_strategys_delay(files: Files) -> None:
    request = an_attempt(files)
    following = after_end(files, request.attempt, OwnerNumber(1), LOST)
    answer = Channel(files).response(request.request)
    assert isinstance(following, Restart)
    assert answer is not None
    assert answer.error == report_error(LOST)
    assert following.due_at == pytest.approx(answer.answered_at.timestamp() + 5.0, abs=0.001)
    assert following.history.restarts == 1


def test_every_process_makes_the_same_decision_at_any_time(files: Files) -> None:
    request = an_attempt(files, GROWING)
    first = after_end(files, request.attempt, OwnerNumber(1), LOST)
    assert isinstance(first, Restart)
    assert [after_end(files, request.attempt, None, FAILED), next_start(files, RUN)] == [first, first]


def test_the_jitter_of_two_runs_differs(files: Files) -> None:
    request = an_attempt(files, GROWING)
    others = [request, request.model_copy(update={"run": RunId("another")})]
    found = [decided(each, a_failure(each, FAILED), GROWING) for each in others]
    assert len({each.due_at for each in found if isinstance(each, Restart)}) == 2


def test_a_driver_that_was_taken_for_lost_is_cancelled_in_case_it_still_runs(files: Files) -> None:
    request = an_attempt(files)
    after_end(files, request.attempt, OwnerNumber(1), LOST)
    cancelled = AttemptLease(files, request.attempt).cancelled()
    assert cancelled is not None
    assert "seemed to be lost" in cancelled.reason


def test_restarts_are_counted_over_attempts_until_the_strategy_is_exhausted(files: Files) -> None:
    *restarts, last = lives(files, TWICE)
    assert len(restarts) == 2
    assert isinstance(last, End)
    assert isinstance(last.error, RestartsExhaustedError)
    assert "allows 2 restarts. The last failure was InterruptedRunError: The driver has not been seen" in last.error.failed
    assert last.error.evidence == {"last": "InterruptedRunError"}
    assert "clearing the task" in last.error.remedy


def test_a_backoff_grows_over_attempts(files: Files) -> None:
    steady = GROWING.model_copy(update={"jitter_factor": 0.0})
    request, delays_s, history = an_attempt(files), list[float](), None
    for number in range(4):
        at = NOON + timedelta(minutes=5 * number)
        following = decided(request.model_copy(update={"restarts": history}), a_failure(request, FAILED, at), steady)
        assert isinstance(following, Restart)
        delays_s.append(following.due_at - at.timestamp())
        history = following.history
    assert delays_s == [10.0, 20.0, 40.0, 60.0]


def test_a_requested_start_counts_restarts_from_zero(files: Files) -> None:
    for _ in range(3):
        request = an_attempt(files, FixedDelay(attempts=1, delay_ms=0))
        following = after_end(files, request.attempt, OwnerNumber(1), LOST)
        assert isinstance(following, Restart)
        assert following.history.restarts == 1


@pytest.mark.parametrize(
    "error",
    [
        RejectedError("The pipeline is wrong."),
        CorruptDocumentError("A manifest is torn."),
        RunCancelledError("Attempt 1 was cancelled."),
        FencedError("A higher attempt is live."),
        RestartsExhaustedError("A stage has failed too often."),
    ],
)
def test_an_error_that_no_restart_can_heal_ends_the_run(files: Files, error: StreamPipelineError) -> None:
    request = an_attempt(files)
    fails(files, request, error)
    following = after_end(files, request.attempt, OwnerNumber(1), error)
    assert isinstance(following, End)
    assert type(following.error) is type(error)
    assert next_start(files, RUN) is None


def test_a_driver_that_has_left_only_the_exit_code_of_a_refusal_is_not_started_again(files: Files) -> None:
    request = an_attempt(files)
    following = after_end(files, request.attempt, OwnerNumber(1), RejectedError("It ended with exit code 2."))
    assert isinstance(following, End)
    assert Channel(files).response(request.request) is None


def test_a_strategy_of_none_ends_with_the_first_failure(files: Files) -> None:
    request = an_attempt(files, NoRestart())
    fails(files, request)
    following = after_end(files, request.attempt, OwnerNumber(1), FAILED)
    assert isinstance(following, End)
    assert following.error.failed == "The restart strategy is none. The last failure was InterruptedRunError: A stage failed."


@pytest.mark.parametrize("error", [DeadlineExceededError("No answer after 60 s."), StorageFullError("The home cannot be read.")])
def test_a_wait_that_ends_while_the_driver_may_still_run_is_no_failure_of_the_driver(
    files: Files, error: StreamPipelineError
) -> None:
    request = an_attempt(files)
    assert after_end(files, request.attempt, OwnerNumber(1), error) is None
    assert Channel(files).response(request.request) is None


def test_a_full_disk_of_the_driver_is_a_failure_of_the_driver(files: Files) -> None:
    request = an_attempt(files)
    fails(files, request, StorageFullError("The disk is full."))
    assert isinstance(after_end(files, request.attempt, OwnerNumber(1), StorageFullError("The disk is full.")), Restart)


def test_an_unfinished_stop_is_followed_by_an_attempt_that_completes_it(files: Files) -> None:
    request = an_attempt(files)
    half_done = IncompleteError("The stop did not finish.", exists="Checkpoint 4.")
    fails(files, request, half_done)
    assert isinstance(after_end(files, request.attempt, OwnerNumber(1), half_done), Restart)


def test_a_bounded_pipeline_is_left_to_the_retries_of_airflow(files: Files) -> None:
    request = an_attempt(files, None)
    assert after_end(files, request.attempt, OwnerNumber(1), LOST) is None
    assert next_start(files, RUN) is None
    assert Channel(files).response(request.request) is None


def test_a_driver_that_never_began_its_first_attempt_is_left_to_the_retries_of_airflow(files: Files) -> None:
    request = Channel(files).request_start(RUN, parameters={})
    assert after_end(files, request.attempt, OwnerNumber(1), LOST) is None


def test_a_driver_that_did_not_begin_a_restart_counts_as_a_failure_for_the_previous_strategy(files: Files) -> None:
    first = an_attempt(files)
    following = after_end(files, first.attempt, OwnerNumber(1), LOST)
    assert isinstance(following, Restart)
    second = Channel(files).request_start(RUN, parameters={}, restarts=following.history)
    again = after_end(files, second.attempt, None, LOST)
    assert isinstance(again, Restart)
    assert again.history.restarts == 2


def test_the_strategy_of_another_run_does_not_apply(files: Files) -> None:
    an_attempt(files)
    other = Channel(files).request_start(RunId("another"), parameters={})
    assert after_end(files, other.attempt, None, LOST) is None


def test_a_process_without_the_lease_does_not_answer_for_the_driver(files: Files) -> None:
    request = an_attempt(files)
    AttemptLease(files, request.attempt).take("the next try")
    assert after_end(files, request.attempt, OwnerNumber(1), LOST) is None
    assert Channel(files).response(request.request) is None


def test_a_driver_that_was_killed_after_a_cancel_was_not_lost(files: Files) -> None:
    request = an_attempt(files)
    AttemptLease(files, request.attempt).cancel(OwnerNumber(1), "its task was marked")
    assert after_end(files, request.attempt, OwnerNumber(1), LOST) is None
    AttemptLease(files, request.attempt).take("the next try")
    assert next_start(files, RUN) is None
    assert Channel(files).response(request.request) is None


def test_the_next_try_notices_a_driver_that_was_lost_in_the_meantime(files: Files) -> None:
    request = an_attempt(files)
    following = next_start(files, RUN)
    assert isinstance(following, Restart)
    assert following.after == request.attempt
    answer = Channel(files).response(request.request)
    assert answer is not None
    assert answer.error is not None
    assert "while no task waited for it" in answer.error.failed


def test_a_restart_that_was_requested_and_not_begun_is_requested_with_the_same_options(files: Files) -> None:
    first = an_attempt(files)
    following = after_end(files, first.attempt, OwnerNumber(1), LOST)
    assert isinstance(following, Restart)
    channel = Channel(files)
    asked = channel.request_start(RUN, parameters={}, restarts=following.history)
    again = next_start(files, RUN)
    assert again is not None
    assert again.due_at == 0.0
    assert channel.request_start(RUN, parameters={}, restarts=again.history) == asked


def test_a_home_without_attempts_has_no_restart_due(files: Files) -> None:
    assert next_start(files, RUN) is None
    Channel(files).request_start(RUN, parameters={})
    assert next_start(files, RUN) is None


def test_a_pipeline_counts_as_continuing_between_the_loss_of_its_driver_and_the_next_attempt(files: Files) -> None:
    request = an_attempt(files)
    before = files.names("responses")
    assert goes_on(files)
    assert files.names("responses") == before  # a caller that only looks answers no request
    following = after_end(files, request.attempt, OwnerNumber(1), LOST)
    assert goes_on(files)
    assert isinstance(following, Restart)
    restart = Channel(files).request_start(RUN, parameters={}, restarts=following.history)
    assert goes_on(files)
    claim(Channel(files), restart, TWICE)
    assert goes_on(files)


def test_a_pipeline_that_needs_a_new_start_request_does_not_count_as_continuing(files: Files) -> None:
    assert not goes_on(files)
    Channel(files).request_start(RUN, parameters={})
    assert not goes_on(files)  # a new start request has priority
    lives(files, TWICE)
    assert not goes_on(files)


def test_a_pipeline_whose_restart_was_cancelled_does_not_count_as_continuing(files: Files) -> None:
    request = an_attempt(files)
    after_end(files, request.attempt, OwnerNumber(1), LOST)
    assert cancel_newest(files, "a person", "it costs too much") is not None
    assert not goes_on(files)
    assert cancel_newest(files, "another person", "it costs too much") is None


@pytest.mark.parametrize("begun", [True, False])
def test_a_pipeline_that_a_user_has_cancelled_does_not_count_as_continuing(files: Files, *, begun: bool) -> None:
    request = an_attempt(files)
    if not begun:
        following = after_end(files, request.attempt, OwnerNumber(1), LOST)
        assert isinstance(following, Restart)
        request = Channel(files).request_start(RUN, parameters={}, restarts=following.history)
    owners = AttemptLease(files, request.attempt)
    owners.cancel(owners.take("a person").owner, "it costs too much")
    assert not goes_on(files)
    fails(files, request, RunCancelledError("It was cancelled."))
    assert not goes_on(files)


@pytest.mark.parametrize(("retry", "follows"), [("with_backoff", Restart), ("never", End)])
def test_the_retry_field_of_an_error_of_a_newer_version_decides(files: Files, retry: str, follows: type) -> None:
    request = an_attempt(files)
    report = ErrorReport(error="MeteoriteError", retry=retry, failed="It fell.")
    Channel(files).respond(a_failure(request, FAILED).model_copy(update={"error": report}))
    assert isinstance(after_end(files, request.attempt, OwnerNumber(1), FAILED), follows)
