"""Requests for runs, and their answers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import ErrorReport, OnEnd, StartResponse
from spark_jobs.protocol.errors import FencedError, InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import (
    AttemptNumber,
    CheckpointId,
    PipelineName,
    RunId,
)
from spark_jobs.protocol.masking import masking, unmasked
from spark_jobs.protocol.start_requests import StartOptions, StartRequest
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import NOW, A, B, attempt


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    return Channel(LocalFiles(tmp_path))


def response(request: StartRequest, checkpoint: int | None = 1, error: ErrorReport | None = None) -> StartResponse:
    return StartResponse(
        request=request.request,
        attempt=request.attempt,
        run=request.run,
        checkpoint=CheckpointId(checkpoint) if checkpoint else None,
        sinks={},
        error=error,
        answered_at=NOW,
    )


def test_a_home_belongs_to_the_pipeline_that_claimed_it_first(channel: Channel) -> None:
    first = channel.claim(PipelineName("flights"))
    assert channel.claim(PipelineName("flights")) == first
    with pytest.raises(RejectedError, match="'flights', not of 'orders'"):
        channel.claim(PipelineName("orders"))


def test_a_repeated_start_with_the_same_options_gets_the_unclaimed_request(channel: Channel) -> None:
    first = channel.request_start(A, parameters={"x": 1})
    assert channel.request_start(A, parameters={"x": 1}) == first


@pytest.mark.parametrize(
    "changed",
    [
        {"fresh": True},
        {"on_end": OnEnd.SUSPEND},
        {"checkpoint": CheckpointOverrides(retained=2)},
        {"full_refresh": ("hourly",)},
    ],
)
def test_a_repeated_start_with_other_options_makes_another_request(channel: Channel, changed: dict[str, Any]) -> None:
    channel.request_start(A, parameters={"x": 1})
    asked = channel.request_start(A, parameters={"x": 1}, options=StartOptions(**changed))
    assert asked.attempt == 2
    assert {name: getattr(asked, name) for name in changed} == changed


def test_a_repeated_start_with_other_parameters_makes_another_request(channel: Channel) -> None:
    channel.request_start(A, parameters={"x": 1})
    asked = channel.request_start(A, parameters={"x": 2})
    assert (asked.attempt, asked.parameters) == (2, {"x": 2})


def test_a_refusal_before_an_attempt_is_the_answer_to_its_request(channel: Channel) -> None:
    request = channel.request_start(A, parameters={})
    with pytest.raises(RejectedError), channel.refusals_answered(request.request, masking(["a cycle"])):
        raise InvalidPipelineError("The pipeline has a cycle.", remedy="Break it.", pipeline="flights")
    answer = channel.answer(A)
    assert answer is not None
    assert answer.error == ErrorReport(
        error="InvalidPipelineError",
        retry="never",
        failed="The pipeline has ***.",
        safe="Nothing was changed.",
        remedy="Break it.",
        evidence={"pipeline": "flights"},
    )
    assert channel.request_start(A, parameters={}).attempt == 2


def test_the_error_of_a_second_driver_is_no_answer(channel: Channel) -> None:
    request = channel.request_start(A, parameters={})
    with pytest.raises(FencedError), channel.refusals_answered(request.request, unmasked):
        raise FencedError("Another driver is at work.")
    assert channel.answer(A) is None


def test_a_request_whose_attempt_was_claimed_is_not_used_again(channel: Channel) -> None:
    channel.request_start(A, parameters={})
    channel.attempts.create(attempt(1))
    assert channel.request_start(A, parameters={}).attempt == 2


def test_an_answered_request_is_not_used_again(channel: Channel) -> None:
    channel.respond(response(channel.request_start(A, parameters={})))
    assert channel.request_start(A, parameters={}).attempt == 2


def test_two_runs_have_two_requests(channel: Channel) -> None:
    assert [channel.request_start(run, parameters={}).attempt for run in (A, B)] == [1, 2]


def test_simultaneous_requests_get_different_numbers(channel: Channel) -> None:
    runs = [RunId(f"r{n}") for n in range(8)]
    ask: Callable[[RunId], StartRequest] = lambda run: channel.request_start(run, parameters={})  # noqa: E731
    with ThreadPoolExecutor(8) as pool:
        requests = list(pool.map(ask, runs))
    assert sorted(request.attempt for request in requests) == list(range(1, 9))
    assert {request.run for request in requests} == set(runs)


def test_the_first_response_is_the_answer_for_ever(channel: Channel) -> None:
    request = channel.request_start(A, parameters={})
    first = channel.respond(response(request, 1))
    assert channel.respond(response(request, 2)) == first
    assert channel.answer(A) == first


def test_the_answer_of_a_run_is_its_newest_one(channel: Channel) -> None:
    failed = ErrorReport(error="InterruptedRunError", retry="with_backoff", failed="It failed.")
    channel.respond(response(channel.request_start(A, parameters={}), None, failed))
    channel.respond(response(channel.request_start(B, parameters={}), 7))
    done = channel.respond(response(channel.request_start(A, parameters={}), 8))
    assert channel.answer(A) == done


def test_the_newest_request_of_a_run_is_found(channel: Channel) -> None:
    assert channel.newest_request(A) is None
    for fresh in (False, True):
        channel.request_start(A, parameters={}, options=StartOptions(fresh=fresh))
    channel.request_start(B, parameters={})
    found = channel.newest_request(A)
    assert found is not None
    assert (found.attempt, found.run) == (2, A)


def test_a_run_without_a_response_has_no_answer(channel: Channel) -> None:
    channel.request_start(A, parameters={})
    assert channel.answer(A) is None


def test_one_process_is_an_attempt_and_the_second_is_fenced(channel: Channel) -> None:
    channel.attempts.create(attempt(1, process=10))
    with pytest.raises(FencedError, match="process 10"):
        channel.attempts.create(attempt(1, process=11))


def test_an_attempt_below_the_highest_is_fenced(tmp_path: Path) -> None:
    attempts = Attempts(LocalFiles(tmp_path))
    attempts.create(attempt(1))
    attempts.check_live(AttemptNumber(1))
    attempts.create(attempt(2))
    with pytest.raises(FencedError, match="attempt 2 is live"):
        attempts.check_live(AttemptNumber(1))


def test_the_newest_attempt_of_a_run_is_found(channel: Channel) -> None:
    for run in (A, *[B] * 8, A):
        number = channel.request_start(run, parameters={}).attempt
        channel.attempts.begin(attempt(number, run), channel.attempts.names().begun)
    found, latest = channel.newest_attempt(A), channel.attempts.latest()
    assert [document.attempt for document in (found, latest) if document] == [10, 10]
    assert channel.newest_attempt(RunId("nobody")) is None


def test_the_newest_request_is_unclaimed_until_a_driver_begins_or_answers_it(channel: Channel) -> None:
    assert channel.unclaimed() is None
    first = channel.request_start(A, parameters={})
    assert channel.unclaimed() == first
    channel.attempts.create(attempt(1))
    assert channel.unclaimed() is None
    second = channel.request_start(B, parameters={})
    assert channel.unclaimed() == second
    channel.respond_failure(second, RejectedError("No.", remedy="None."))
    assert channel.unclaimed() is None
