"""What a start, a wait or a request costs does not grow with the age of a home, and an old home is bounded."""

from collections.abc import Callable
from functools import cache

import pytest

from airflow_provider.waits.looking import WantedCheckpoint, find_checkpoint, first_look, look_for_answer
from airflow_provider.waits.pipeline_states import LookForState
from airflow_provider.waits.requests import LookForAnswer
from spark_jobs.cli.status import _answer as status_answer
from spark_jobs.control.cancelling import cancel_newest
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import ANSWERS_KEPT, CheckpointRequests, request_id
from spark_jobs.control.old_starts import STARTS_KEPT, forget_old_starts
from spark_jobs.control.supervision import goes_on, next_start
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, PipelineName, RunId, start_request_id
from tests.support.aged_home import CountedFiles, answer, ask, begin, end, run_round, take

YOUNG, GROWN, OLD = 10, ANSWERS_KEPT[Wanted.STOP] + STARTS_KEPT, 1_000
"""Rounds. A home has grown when each round forgets as much as it adds."""
NEW = RunId("new")
pytestmark = pytest.mark.slow


@cache
def home(rounds: int) -> CountedFiles:
    """A home after so many rounds, each with a stop and a checkpoint that were asked for."""
    files = CountedFiles()
    Channel(files).claim(PipelineName("small"))
    for number in range(1, rounds + 1):
        run_round(files, f"run-{number}", requests=True)
    return files


def a_run_that_is_repeated(files: CountedFiles) -> None:
    assert Channel(files).answer(RunId("run-1")) is not None


def a_start(files: CountedFiles) -> None:
    begin(files, ask(files, NEW))


def the_end_of_a_round(files: CountedFiles) -> None:
    request = ask(files, NEW)
    attempt = begin(files, request)
    files.counts.clear()
    manifest = end(files, attempt)
    answer(files, request, manifest.checkpoint)


def a_request(files: CountedFiles) -> None:
    requests = CheckpointRequests(files)
    attempt = Channel(files).attempts.latest()
    assert attempt is not None
    requests.answer_of(request_id("run-1", Wanted.STOP))
    take(files, "new", Wanted.STOP, attempt, CheckpointId(1))
    assert requests.open() == ()


def newest(files: CountedFiles) -> AttemptNumber:
    found = Channel(files).newest()
    assert found is not None
    return found


OPERATIONS: dict[str, Callable[[CountedFiles], object]] = {
    "a start": a_start,
    "the end of a round": the_end_of_a_round,
    "a run that is repeated long after": a_run_that_is_repeated,
    "a request of a running pipeline": a_request,
    "a task's first look": lambda files: first_look(files, NEW, 60.0),
    "a wait for a run": lambda files: look_for_answer(files, start_request_id(newest(files))),
    "a wait for the checkpoint of a run": lambda files: find_checkpoint(files, WantedCheckpoint(True, RunId("run-1"))),
    "a wait for any checkpoint": lambda files: find_checkpoint(files, WantedCheckpoint(True)),
    "a wait for a state": lambda files: LookForState(files)(),
    "a wait for a request": lambda files: LookForAnswer(files, request_id("new"))(),
    "spark-jobs status": lambda files: status_answer(files, Channel(files).claim(PipelineName("small"))),
    "a cancel": lambda files: cancel_newest(files, "somebody", "because"),
    "a supervisor's look": lambda files: (goes_on(files), next_start(files, NEW)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_costs_no_more_in_a_home_of_a_thousand_rounds_than_in_one_of_ten(name: str) -> None:
    young, old = (home(rounds).cost(OPERATIONS[name]) for rounds in (YOUNG, OLD))
    assert young, "nothing was counted"
    del young["delete"], old["delete"]  # see below
    assert {kind: count for kind, count in old.items() if count > young[kind]} == {}, f"young: {young}, old: {old}"


def forgetting(files: CountedFiles) -> None:
    attempt = begin(files, ask(files, NEW))
    files.counts.clear()
    forget_old_starts(files, attempt)


@pytest.mark.parametrize("work", [forgetting, a_request])
def test_what_is_forgotten_for_each_new_start_or_answer_does_not_grow(work: Callable[[CountedFiles], None]) -> None:
    assert home(OLD).cost(work) == home(GROWN).cost(work)


def test_no_directory_of_an_old_home_has_more_names_than_a_listing_of_a_store_returns() -> None:
    files = home(OLD)
    directories = {path.rpartition("/")[0] for path in files.contents}
    assert {directory: len(files.names(directory)) for directory in directories if len(files.names(directory)) > 1_000} == {}
