"""The cost of a start, a wait, a request or a command does not grow with the age of a home. The size of an old home is limited."""

from collections.abc import Callable
from functools import cache

import pytest

from airflow_provider.waits.checkpoints import WantedCheckpoint, find_checkpoint
from airflow_provider.waits.first_looks import first_look
from airflow_provider.waits.pipeline_states import StateWait
from airflow_provider.waits.runs import look_at_run
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import export
from spark_jobs.cli.checkpoints import _entries as checkpoint_entries
from spark_jobs.cli.status import _answer as status_answer
from spark_jobs.control.cancelling import cancel_newest
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import ANSWERS_KEPT, CheckpointRequests, request_id
from spark_jobs.control.old_starts import STARTS_KEPT, forget_old_starts
from spark_jobs.control.supervision import goes_on, next_start
from spark_jobs.home.layout import SAVEPOINTS, request_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, PipelineName, RunId, start_request_id
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.verification import named_by_home
from spark_jobs.storage.files import create_document
from spark_jobs.waits.requests import RequestWait
from tests.support.aged_home import CountedFiles, answer, ask, begin, end, run_round, run_until_stopped, take
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import NOW

YOUNG, GROWN, OLD = 10, ANSWERS_KEPT[Wanted.STOP] + STARTS_KEPT, 1_000
"""Numbers of rounds. A home is fully grown when each round deletes as many documents as it adds."""
KINDS = ("daily", "live")
NEW = RunId("new")
pytestmark = pytest.mark.slow


@cache
def homes(kind: str) -> dict[int, CountedFiles]:
    """Returns copies of a home after these numbers of rounds.

    ``daily``: each round runs to the end of the inputs, with a requested stop and a requested checkpoint.
    ``live``: each round is unbounded and ends with a stop, with a lost driver and two kept savepoints.
    """
    files, found = CountedFiles(), {}
    Channel(files).claim(PipelineName("small"))
    for number in range(1, OLD + 1):
        if kind == "daily":
            run_round(files, f"run-{number}", requests=True)
        else:
            run_until_stopped(files, f"run-{number}")
        if number in (YOUNG, GROWN, OLD):
            found[number] = files.copy_all()
    return found


def home(kind: str, rounds: int) -> CountedFiles:
    return homes(kind)[rounds]


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


def a_wait_for_a_request(files: CountedFiles) -> None:
    create_document(files, request_path(request_id("new")), CheckpointRequest(request=request_id("new"), requested_at=NOW))
    RequestWait(files, request_id("new"), 300.0).look()


def newest_checkpoint(files: CountedFiles) -> CheckpointId:
    return CheckpointStore(files).taken()[-1]


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
    "a wait for a run": lambda files: look_at_run(files, start_request_id(newest(files))),
    "a wait for the checkpoint of a run": lambda files: find_checkpoint(files, WantedCheckpoint(True, RunId("run-1"))),
    "a wait for any checkpoint": lambda files: find_checkpoint(files, WantedCheckpoint(True)),
    "a wait for a state": lambda files: StateWait(files, ["running"]).look(),
    "a wait for a request": a_wait_for_a_request,
    "spark-jobs status": lambda files: status_answer(files, Channel(files).claim(PipelineName("small"))),
    "spark-jobs checkpoints": checkpoint_entries,
    "spark-jobs verify": lambda files: named_by_home(files).verify(),
    "spark-jobs publish": lambda files: publish(files, newest_checkpoint(files)),
    "a savepoint": lambda files: export(files, newest_checkpoint(files), MemoryFiles().below(f"{SAVEPOINTS}/new"), request=None),
    "a cancel": lambda files: cancel_newest(files, "somebody", "because"),
    "a supervisor's look": lambda files: (goes_on(files), next_start(files, NEW)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_costs_no_more_in_a_home_of_a_thousand_rounds_than_in_one_of_ten(name: str, kind: str) -> None:
    young, old = (home(kind, rounds).cost(OPERATIONS[name]) for rounds in (YOUNG, OLD))
    assert young, "nothing was counted"
    del young["delete"], old["delete"]  # another test counts deletes
    assert {kind: count for kind, count in old.items() if count > young[kind]} == {}, f"young: {young}, old: {old}"


def forgetting(files: CountedFiles) -> None:
    attempt = begin(files, ask(files, NEW))
    files.counts.clear()
    forget_old_starts(files, attempt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("work", [forgetting, a_request])
def test_the_cost_of_forgetting_old_documents_does_not_grow(work: Callable[[CountedFiles], None], kind: str) -> None:
    assert home(kind, OLD).cost(work) == home(kind, GROWN).cost(work)


@pytest.mark.parametrize("kind", KINDS)
def test_no_directory_of_an_old_home_has_more_names_than_one_listing_of_a_store_returns(kind: str) -> None:
    """Savepoints are an exception. They belong to the users who requested them, and no code lists them."""
    files = home(kind, OLD)
    directories = {path.rpartition("/")[0] for path in files.contents} - {SAVEPOINTS}
    assert {directory: len(files.names(directory)) for directory in directories if len(files.names(directory)) > 1_000} == {}
