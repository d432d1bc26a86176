"""Repeated looks at a home are cheap while its documents do not change, and always see a change."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.facts import checkpoint_facts
from airflow_provider.waits.checkpoints import CheckpointSearch, Listing, ListingLook, WantedCheckpoint, find_checkpoint
from airflow_provider.waits.runs import HEARTBEAT_S, RunLook, RunLooks, look_at_run, same_run
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import holding
from spark_jobs.control.old_starts import STARTS_KEPT, forget_old_starts
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.documents import CheckpointKind, RunState, StageState, StageStatus, StartResponse, Status
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, RunId, StageName
from spark_jobs.storage.files import READ_MAX_BYTES, Files, local_path
from spark_jobs.storage.local import LocalFiles
from tests.airflow.fake_driver import ERRORS, respond
from tests.support.attempts import attempt
from tests.support.staged_pipeline import a_manifest

RUN = RunId("run-1")
FINAL = WantedCheckpoint(final=True)


class CountedFiles(LocalFiles):
    """Files that count their reads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: Counter[str] = Counter()

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        self.calls["read"] += 1
        return super().read(path, max_bytes)

    def names(self, directory: str) -> list[str]:
        self.calls["names"] += 1
        return super().names(directory)

    def cost(self, work: Any) -> dict[str, int]:
        self.calls.clear()
        work()
        return dict(self.calls)


@pytest.fixture
def files(tmp_path: Path) -> CountedFiles:
    return CountedFiles(tmp_path / "home")


def complete(files: Files, *numbers: int, **changes: Any) -> None:
    for number in numbers:
        CheckpointStore(files).complete(a_manifest(number, **changes))


def answer(files: Files, run: RunId, checkpoint: int, **changes: Any) -> None:
    """Answers ``run`` with another run's checkpoint, like a driver that finds its round finished."""
    channel = Channel(files)
    request = channel.request_start(run, parameters={})
    channel.respond_failure(request, ERRORS["failed"])
    path = f"responses/{request.request}.json"
    failed = channel.response(request.request)
    assert failed is not None
    files.delete(path)
    channel.respond(failed.model_copy(update={"error": None, "checkpoint": CheckpointId(checkpoint)} | changes))


def test_a_look_at_an_unchanged_home_lists_two_directories_and_reads_nothing(files: CountedFiles) -> None:
    complete(files, *range(1, 30))
    look = ListingLook(files, answers=True)
    look()
    assert files.cost(look) == {"names": 2}


def test_a_look_sees_a_checkpoint_once_its_manifest_is_there(files: CountedFiles) -> None:
    look = ListingLook(files, answers=True)
    assert look() == Listing((), ())
    files.create("checkpoints/1.hourly.0123456789abcdef.actions", b"")
    assert look().checkpoints == ()
    complete(files, 1)
    assert look().checkpoints == (1,)


def test_a_look_notices_new_answers_and_deleted_checkpoints(files: CountedFiles) -> None:
    complete(files, 1, 2)
    look = ListingLook(files, answers=True)
    look()
    files.delete("manifests/1.json")
    channel = Channel(files)
    respond(channel, channel.request_start(RUN, parameters={}), ERRORS["failed"])
    assert look() == Listing((CheckpointId(2),), (AttemptNumber(1),))


def test_a_search_reads_each_manifest_once(files: CountedFiles) -> None:
    complete(files, *range(1, 10), checkpoint_kind=CheckpointKind.PERIODIC)
    look, search = ListingLook(files, answers=True), CheckpointSearch(files, FINAL)
    assert search.find(look()) is None
    complete(files, 10, checkpoint_kind=CheckpointKind.PERIODIC)
    listing = look()
    assert files.cost(lambda: search.find(listing)) == {"read": 1}


def test_a_search_reads_nothing_that_is_not_newer(files: CountedFiles) -> None:
    complete(files, *range(1, 10))
    search, listing = (
        CheckpointSearch(files, WantedCheckpoint(final=True, newer_than=CheckpointId(9))),
        ListingLook(files, answers=True)(),
    )
    assert files.cost(lambda: search.find(listing)) == {}


def test_a_checkpoint_that_was_read_before_may_become_the_answer_of_a_run(files: CountedFiles) -> None:
    complete(files, 1, run=RunId("another"))
    look, search = ListingLook(files, answers=True), CheckpointSearch(files, WantedCheckpoint(final=True, run=RUN))
    assert search.find(look()) is None
    answer(files, RUN, checkpoint=1)
    found = search.find(look())
    assert found is not None
    assert found.checkpoint == 1


@pytest.mark.parametrize(
    ("ends_round", "final", "newer_than", "found"),
    [
        (True, True, 0, True),
        (True, False, 0, True),
        (False, False, 0, True),
        (False, True, 0, False),
        (True, True, 1, False),
    ],
)
def test_the_answer_of_a_run_is_found_although_its_checkpoint_was_discarded(
    files: CountedFiles, ends_round: bool, final: bool, newer_than: int, found: bool
) -> None:
    answer(files, RUN, checkpoint=1, ends_round=ends_round)
    complete(files, 2, run=RunId("another"))
    wanted = WantedCheckpoint(final=final, run=RUN, newer_than=CheckpointId(newer_than))
    seen = find_checkpoint(files, wanted)
    assert isinstance(seen, StartResponse) is found
    assert find_checkpoint(files, WantedCheckpoint(final=final, run=RunId("nobody"))) is None
    if seen is not None:
        facts = checkpoint_facts(files, seen)
        assert (facts["checkpoint"], facts["run"], facts["round"], facts["sinks"]) == (1, RUN, None, {})


def test_a_corrupt_checkpoint_is_ignored(files: CountedFiles) -> None:
    complete(files, 1, 2)
    files.replace("manifests/2.json", b"torn")
    found = find_checkpoint(files, FINAL)
    assert found is not None
    assert found.checkpoint == 1
    files.replace("manifests/1.json", b"torn")
    assert find_checkpoint(files, FINAL) is None


def test_a_checkpoint_that_is_deleted_between_the_look_and_the_search_is_ignored(files: CountedFiles) -> None:
    complete(files, 1)
    listing = ListingLook(files, answers=True)()
    files.delete("manifests/1.json")
    assert CheckpointSearch(files, FINAL).find(listing) is None


def test_a_driver_counts_as_running_only_for_the_request_in_its_heartbeat(files: CountedFiles) -> None:
    first, second = (Channel(files).request_start(RunId(run), parameters={}).request for run in ("a", "b"))
    with holding(local_path(files, DRIVER_LOCK), first):
        ours, others = look_at_run(files, first), look_at_run(files, second)
    assert (ours.at_work, ours.taken_by) == (True, None)
    assert (others.at_work, others.taken_by) == (False, first)


def test_a_driver_on_another_host_counts_as_running_for_no_earlier_attempt(files: CountedFiles) -> None:
    first, second = (Channel(files).request_start(RunId(run), parameters={}) for run in ("a", "b"))
    Attempts(files).create(attempt(second.attempt, run=second.run))
    write_status(
        files, Status(attempt=second.attempt, run=second.run, state=RunState.RUNNING, updated_at=datetime.now(UTC), stages={})
    )
    assert not look_at_run(files, first.request).at_work
    assert look_at_run(files, second.request).at_work
    respond(Channel(files), first, ERRORS["failed"])  # without any answer in the home, RunLooks does not look for one
    cost = files.cost(lambda: look_at_run(files, second.request))
    assert cost == {"names": 2, "read": 2}, "in a store each is paid for: attempts, the newest one, the heartbeat, answers"


class StoredFiles(CountedFiles):
    """Counted files in a store."""

    def local(self, path: str = "") -> None:  # type: ignore[override]  # a store has no path on this host
        return None


class Clock:
    """A monotonic clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_in_a_store_each_look_reads_the_answer_and_only_some_read_the_heartbeat(tmp_path: Path) -> None:
    files = StoredFiles(tmp_path / "home")
    request = Channel(files).request_start(RUN, parameters={})
    clock = Clock()
    look = RunLooks(files, request.request, follows=False, clock_s=clock)

    def beats(attempt: AttemptNumber, heard_at: datetime) -> None:
        write_status(files, Status(attempt=attempt, run=RUN, state=RunState.RUNNING, updated_at=heard_at, stages={}))

    assert (look().at_work, look().status) == (False, None), "one that has not begun is looked for at each look"
    Attempts(files).create(attempt(request.attempt, run=RUN))
    beats(request.attempt, datetime.now(UTC))
    assert look().at_work
    beats(request.attempt, datetime.now(UTC) - timedelta(hours=1))
    assert files.cost(look) == {"names": 1}, "the answers"
    assert look().at_work
    clock.now_s += HEARTBEAT_S
    assert files.cost(look) == {"names": 1, "read": 1}, "the answers, and the heartbeat"
    assert not look().at_work
    respond(Channel(files), request, ERRORS["failed"])
    assert look().answer is not None


def test_in_a_store_a_wait_for_running_reads_every_heartbeat(tmp_path: Path) -> None:
    files = StoredFiles(tmp_path / "home")
    request = Channel(files).request_start(RUN, parameters={})
    Attempts(files).create(attempt(request.attempt, run=RUN))
    look = RunLooks(files, request.request, follows=True)
    for state in (RunState.STARTING, RunState.RUNNING):
        write_status(files, Status(attempt=request.attempt, run=RUN, state=state, updated_at=datetime.now(UTC), stages={}))
        found = look()
        assert found.status is not None
        assert found.status.state is state


def test_a_changed_state_makes_looks_more_frequent_and_mere_progress_does_not(files: CountedFiles) -> None:
    request = Channel(files).request_start(RUN, parameters={})
    Attempts(files).create(attempt(request.attempt, run=RUN))

    def seen(state: RunState, batch: int) -> RunLook:
        stages = {StageName("hourly"): StageStatus(state=StageState.RUNNING, batch=BatchId(batch), rows_in=batch)}
        now = datetime.now(UTC)
        write_status(files, Status(attempt=request.attempt, run=RUN, state=state, updated_at=now, stages=stages))
        return look_at_run(files, request.request)

    runs = seen(RunState.RUNNING, 1)
    assert same_run(runs, seen(RunState.RUNNING, 2))
    assert not same_run(runs, seen(RunState.COMPLETING, 2))
    respond(Channel(files), request, ERRORS["failed"])
    assert not same_run(runs, seen(RunState.RUNNING, 1))


def test_a_wait_fails_if_its_start_request_was_deleted(files: CountedFiles) -> None:
    """The run was answered again in the meantime, and only the newer answer is kept."""
    channel = Channel(files)
    request = channel.request_start(RUN, parameters={})
    channel.attempts.create(attempt(1, RUN))
    channel.respond_failure(channel.request_start(RUN, parameters={}), ERRORS["failed"])
    begins(files, STARTS_KEPT + 2)
    assert look_at_run(files, request.request).answer is None, "it is open, and may be begun"
    forget_old_starts(files, channel.attempts.read(AttemptNumber(STARTS_KEPT + 2)))
    with pytest.raises(InterruptedRunError, match="was deleted") as caught:
        look_at_run(files, request.request)
    assert "newer answer" in caught.value.exists


def begins(files: Files, number: int) -> None:
    """Begins an attempt that claims its number and writes a heartbeat."""
    Channel(files).attempts.create(attempt(number, RunId("newest")))
    running = {"attempt": AttemptNumber(number), "run": RunId("newest"), "state": RunState.RUNNING, "stages": {}}
    write_status(files, Status(updated_at=datetime.now(UTC), **running))
