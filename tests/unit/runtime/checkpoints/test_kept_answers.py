"""Answers to a repeated run whose final checkpoint was deleted."""

from contextlib import suppress

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import CheckpointId, PipelineName, RoundNumber, RunId
from spark_jobs.runtime.checkpoints.subsume import keep_answers
from spark_jobs.runtime.start.decision import Answer, decide
from spark_jobs.runtime.start.facts import read_facts
from tests.support.aged_home import GRAPH, answer, ask, begin, end, run_round
from tests.support.memory_files import Death, DyingFiles, MemoryFiles

MONDAY, TUESDAY = RunId("monday"), RunId("tuesday")


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    Channel(made).claim(PipelineName("small"))
    return made


def told(files: MemoryFiles, run: RunId) -> StartResponse:
    found = Channel(files).answer(run)
    assert found is not None
    return found


def later_rounds(files: MemoryFiles) -> None:
    for day in ("wednesday", "thursday", "friday"):
        run_round(files, day)


def test_final_checkpoints_are_deleted_and_their_answers_stay(files: MemoryFiles) -> None:
    monday = run_round(files, MONDAY)
    later_rounds(files)
    assert CheckpointStore(files).taken() == [3, 4], "the head and its parent"
    assert (told(files, MONDAY).checkpoint, told(files, MONDAY).error) == (monday.checkpoint, None)


def test_a_run_whose_driver_died_before_it_answered_gets_the_answer_of_its_final_checkpoint(files: MemoryFiles) -> None:
    attempt = begin(files, ask(files, MONDAY))
    monday = end(files, attempt)
    later_rounds(files)
    found = told(files, MONDAY)
    assert (found.checkpoint, found.ends_round, found.error) == (monday.checkpoint, True, None)


def test_a_failed_run_whose_round_another_run_has_ended_gets_the_answer_of_that_round(files: MemoryFiles) -> None:
    request = ask(files, MONDAY)
    begin(files, request)
    Channel(files).respond_failure(request, InterruptedRunError("Out of memory."))
    tuesday = run_round(files, TUESDAY)
    assert told(files, MONDAY).error is not None
    later_rounds(files)
    assert tuesday.checkpoint not in CheckpointStore(files).taken()
    assert (told(files, MONDAY).checkpoint, told(files, MONDAY).run) == (tuesday.checkpoint, MONDAY)
    assert told(files, TUESDAY).checkpoint == tuesday.checkpoint


def test_a_start_that_only_claimed_a_number_in_between_hides_no_run_of_the_round(files: MemoryFiles) -> None:
    attempt = begin(files, ask(files, MONDAY))
    claimed = ask(files, RunId("stalled"))
    update = {"attempt": claimed.attempt, "request": claimed.request, "run": claimed.run, "round": RoundNumber(9)}
    Channel(files).attempts.create(attempt.model_copy(update=update))
    tuesday = run_round(files, TUESDAY)
    later_rounds(files)
    assert told(files, MONDAY).checkpoint == tuesday.checkpoint


def test_a_failed_run_is_answered_with_the_final_checkpoint_while_that_is_kept(files: MemoryFiles) -> None:
    request = ask(files, MONDAY)
    begin(files, request)
    Channel(files).respond_failure(request, InterruptedRunError("Out of memory."))
    tuesday = run_round(files, TUESDAY)
    run_round(files, "wednesday")
    again = ask(files, MONDAY)
    decision = decide(again, read_facts(files), again.parameters, GRAPH.describe())
    assert decision == Answer(tuesday)


@pytest.mark.parametrize("changes", range(30))
def test_a_crash_during_the_deletion_of_a_final_checkpoint_leaves_each_run_an_answer(files: MemoryFiles, changes: int) -> None:
    begin(files, ask(files, MONDAY))
    tuesday = end(files, begin(files, ask(files, TUESDAY)))
    run_round(files, "wednesday")
    thursday = begin(files, ask(files, RunId("thursday")))
    with suppress(Death):
        end(DyingFiles(files.contents, changes), thursday)
    for run in (MONDAY, TUESDAY):
        given = Channel(files).answer(run)
        known = read_facts(files).final_of(run) if given is None else given
        assert known is not None
        assert known.checkpoint == tuesday.checkpoint


def test_answers_are_written_only_once(files: MemoryFiles) -> None:
    request = ask(files, MONDAY)
    attempt = begin(files, request)
    final = end(files, attempt)
    keep_answers(files, final)
    kept = dict(files.contents)
    keep_answers(files, final)
    assert files.contents == kept
    answer(files, request, CheckpointId(final.checkpoint))
    assert told(files, MONDAY).checkpoint == final.checkpoint
