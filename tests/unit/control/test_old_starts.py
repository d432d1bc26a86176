"""The documents of old starts that are deleted, and those that are kept."""

from contextlib import suppress

import pytest

from spark_jobs.control import old_starts
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.losses import LossLedger, LossState
from spark_jobs.control.old_starts import STARTS_KEPT, forget_old_starts
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import (
    ATTEMPTS,
    ENDED,
    LOSSES,
    REQUESTS,
    RESPONSES,
    ROUNDS,
    RUNS,
    request_path,
    round_path,
    run_entry_path,
)
from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import (
    AttemptNumber,
    CheckpointId,
    InputName,
    LossId,
    PipelineName,
    RoundNumber,
    RunId,
    StageName,
    start_request_id,
)
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.storage.files import create_document
from tests.support.aged_home import answer, ask, begin, end, run_round
from tests.support.memory_files import Death, DyingFiles, MemoryFiles

OLD = RunId("old")


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    Channel(made).claim(PipelineName("small"))
    return made


def live(files: MemoryFiles, number: int = STARTS_KEPT + 1, **changes: object) -> AttemptDocument:
    """Returns the document of the newest attempt, with this number."""
    newest = Channel(files).attempts.latest()
    assert newest is not None
    return newest.model_copy(
        update={"attempt": AttemptNumber(number), "request": start_request_id(AttemptNumber(number))} | changes
    )


def left_of(files: MemoryFiles, number: int) -> list[str]:
    """Returns the documents of a start, except the answer that is kept for its run."""
    found = [f"{place}/{name}" for place in (ATTEMPTS, RUNS) for name in files.names(place) if name.startswith(f"{number}.")]
    for place in (REQUESTS, RESPONSES):
        found += [f"{place}/{name}" for name in files.names(place) if f"-{number}." in name or f"cancel-{number}-" in name]
    return found


def test_only_the_answer_of_an_old_start_is_kept(files: MemoryFiles) -> None:
    run_round(files, OLD)
    owners = AttemptLease(files, AttemptNumber(1))
    owners.cancel(owners.take("somebody").owner, "because")
    run_round(files, "newer")
    given = Channel(files).answer(OLD)
    assert len(left_of(files, 1)) == 8
    forget_old_starts(files, live(files, begun_by=start_request_id(AttemptNumber(2))))
    assert left_of(files, 1) == []
    assert Channel(files).answer(OLD) == given
    assert len(left_of(files, 2)) == 6


def test_closed_losses_of_an_old_round_are_forgotten_and_open_losses_are_kept(files: MemoryFiles) -> None:
    run_round(files, OLD)
    ledger, attempt = LossLedger(files), live(files, 1)
    lost = [LostFiles(input=InputName(name), stage=StageName("copy"), files=(LostFile(path=name),)) for name in "abc"]
    ledger.record(RoundNumber(1), attempt, lost, accepted=[InputName("a"), InputName("b")])
    run_round(files, "newer")
    newest = Rounds(files).latest()
    assert newest is not None
    files.delete(round_path(newest.round))
    create_document(files, round_path(newest.round), newest.model_copy(update={"losses": (LossId("1-2"),)}))
    forget_old_starts(files, live(files))
    assert [(each.recorded.loss.id, each.state) for each in ledger.entries()] == [
        ("1-2", LossState.ACCEPTED),
        ("1-3", LossState.OPEN),
    ], "the newest round leaves out the second, too, and nobody has accepted the third"
    assert sorted(files.names(LOSSES)) == ["1-2.accepted.json", "1-2.json", "1-3.json"]


def test_a_start_that_is_not_old_is_kept_completely(files: MemoryFiles) -> None:
    run_round(files, OLD)
    before = dict(files.contents)
    forget_old_starts(files, live(files, STARTS_KEPT))
    assert files.contents == before


def test_a_caller_that_still_waits_for_an_old_start_gets_an_answer(files: MemoryFiles) -> None:
    request = ask(files, OLD)
    begin(files, request)
    run_round(files, "newer")
    forget_old_starts(files, live(files))
    found = Channel(files).response(request.request)
    assert found is not None
    assert found.error is not None
    assert found.error.error == InterruptedRunError.__name__


def test_an_old_request_that_is_kept_for_its_incarnation_stays_although_its_answer_is_moved(files: MemoryFiles) -> None:
    run_round(files, OLD)
    run_round(files, "newer")
    newest = live(files)
    assert newest.begun_by == start_request_id(AttemptNumber(1))
    forget_old_starts(files, newest.model_copy(update={"begun_by": newest.begun_by}))
    assert left_of(files, 1) == [request_path(start_request_id(AttemptNumber(1)))]
    forget_old_starts(files, newest)
    given = Channel(files).answer(OLD)
    assert given is not None
    assert given.error is None, "it is not taken for one that nobody has answered"
    forget_old_starts(files, newest.model_copy(update={"begun_by": start_request_id(AttemptNumber(2))}))
    assert left_of(files, 1) == []


@pytest.mark.parametrize("changes", range(12))
def test_a_crash_at_any_step_loses_no_answer_and_the_next_call_completes_the_work(files: MemoryFiles, changes: int) -> None:
    run_round(files, OLD)
    run_round(files, "newer")
    newest, given = live(files, begun_by=start_request_id(AttemptNumber(2))), Channel(files).answer(OLD)
    with suppress(Death):
        forget_old_starts(DyingFiles(files.contents, changes), newest)
    assert Channel(files).answer(OLD) == given
    forget_old_starts(files, newest)
    assert Channel(files).answer(OLD) == given
    assert left_of(files, 1) == []


def test_only_the_newest_answer_of_each_kept_run_is_kept(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_starts, "RUNS_KEPT", 2)
    channel = Channel(files)
    for run in ("a", "b", "a", "c", "d"):
        request = ask(files, RunId(run))
        begin(files, request)
        channel.respond_failure(request, InterruptedRunError(f"attempt {request.attempt} of {run}"))
    run_round(files, "newest")
    forget_old_starts(files, live(files, STARTS_KEPT + 4, begun_by=start_request_id(AttemptNumber(6))))
    kept = {run: channel.answer(RunId(run)) for run in ("a", "b", "c", "d")}
    assert {run: found and found.attempt for run, found in kept.items()} == {"a": 3, "b": None, "c": 4, "d": 5}
    assert len(files.names(ENDED)) == 2


def test_the_answer_of_the_higher_attempt_counts(files: MemoryFiles) -> None:
    run_round(files, OLD)
    run_round(files, "newer")
    forget_old_starts(files, live(files))
    request = ask(files, OLD)
    Channel(files).respond_failure(request, InterruptedRunError("later"))
    found = Channel(files).answer(OLD)
    assert found is not None
    assert found.attempt == request.attempt


def test_an_index_entry_whose_request_was_never_made_is_ignored_and_deleted(files: MemoryFiles) -> None:
    class Asker(DyingFiles):
        """A requester that dies between its two writes."""

    with suppress(Death):
        Channel(Asker(files.contents, 1)).request_start(OLD, parameters={})
    assert run_entry_path(AttemptNumber(1), OLD) in files.contents
    other = run_round(files, "other")
    channel = Channel(files)
    assert (channel.newest_request(OLD), channel.answer(OLD), channel.newest_attempt(OLD)) == (None, None, None)
    found = channel.answer(RunId("other"))
    assert found is not None
    assert found.checkpoint == other.checkpoint
    run_round(files, "newer")
    forget_old_starts(files, live(files, begun_by=start_request_id(AttemptNumber(2))))
    assert files.names(RUNS) == [name for name in files.names(RUNS) if name.startswith("2.")]
    assert channel.answer(OLD) is None


def test_each_of_two_simultaneous_runs_finds_its_own_request(files: MemoryFiles) -> None:
    class Racing(MemoryFiles):
        """Files in which another requester takes the number between the two writes of the first."""

        def __init__(self) -> None:
            super().__init__()
            self.contents, self.first = files.contents, True

        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            if path.startswith(f"{RUNS}/") and self.first:
                self.first = False
                ask(files, RunId("faster"))

    asked = ask(Racing(), OLD)
    channel = Channel(files)
    faster = channel.newest_request(RunId("faster"))
    assert (asked.attempt, faster and faster.attempt) == (2, 1)
    assert channel.newest_request(OLD) == asked


def test_old_rounds_are_deleted_with_the_attempts_that_name_them_and_the_newest_stays(files: MemoryFiles) -> None:
    for number in range(1, 4):
        run_round(files, f"run-{number}")
    forget_old_starts(files, live(files, STARTS_KEPT + 2))
    assert [name.partition(".")[0] for name in files.names(ROUNDS)] == ["3", "3"]
    Channel(files).attempts.create(live(files, 9, round=RoundNumber(9)))  # the attempt ends before its round begins
    forget_old_starts(files, live(files, STARTS_KEPT + 8))
    newest = Rounds(files).latest()
    assert newest is not None
    assert newest.round == 3


def test_corrupt_documents_of_old_starts_stay_and_the_others_are_deleted(files: MemoryFiles) -> None:
    run_round(files, OLD)
    files.contents["responses/start-1.json"] = b"{"
    run_round(files, "second")
    run_round(files, "third")
    forget_old_starts(files, live(files, STARTS_KEPT + 2, begun_by=start_request_id(AttemptNumber(3))))
    assert len(left_of(files, 1)) == 6
    assert left_of(files, 2) == []
    assert [name.partition(".")[0] for name in files.names(ROUNDS)] == ["3", "3"], "an attempt that is left keeps no round"


def test_a_run_that_is_repeated_after_a_hundred_others_gets_the_same_answer(files: MemoryFiles) -> None:
    first = run_round(files, OLD)
    for number in range(STARTS_KEPT + 5):
        run_round(files, f"run-{number}")
    found = Channel(files).answer(OLD)
    assert found is not None
    assert found.checkpoint == first.checkpoint
    assert Channel(files).newest_request(OLD) is None


def test_a_wait_for_an_old_start_finds_its_answer_by_the_request(files: MemoryFiles) -> None:
    request = ask(files, OLD)
    attempt = begin(files, request)
    answer(files, request, end(files, attempt).checkpoint)
    run_round(files, "newer")
    forget_old_starts(files, live(files, begun_by=start_request_id(AttemptNumber(2))))
    found = Channel(files).response(request.request)
    assert found is not None
    assert found.checkpoint == CheckpointId(1)
    assert Channel(files).response(start_request_id(AttemptNumber(7))) is None


@pytest.mark.parametrize("left", ["nothing", "a corrupt answer"])
def test_a_wait_finds_its_answer_also_without_later_answers_and_with_an_older_one(files: MemoryFiles, left: str) -> None:
    if left != "nothing":
        begin(files, ask(files, RunId("corrupt")))
        files.contents["responses/start-1.json"] = b"{"
    request = ask(files, OLD)
    answer(files, request, end(files, begin(files, request)).checkpoint)
    begin(files, ask(files, RunId("newer")))
    if left != "nothing":
        run_round(files, "newest")
    forget_old_starts(files, live(files, STARTS_KEPT + request.attempt))
    assert Channel(files).answered() == ([] if left == "nothing" else [1, 4])
    found = Channel(files).response(request.request)
    assert found is not None
    assert found.run == OLD
