"""The attempt that a start continues, the attempt that must stop, and the documents that are kept of attempts."""

from itertools import chain
from pathlib import Path

import pytest

from spark_jobs.control.attempts import LOGS_KEPT, Attempts, forget_old_logs
from spark_jobs.home.layout import publication_lock_path, publication_output_path, request_path
from spark_jobs.protocol.errors import ConflictError, FencedError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, IncarnationId, publication_request_id
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.memory_files import MemoryFiles


def test_only_the_newest_attempts_keep_their_logs(tmp_path: Path) -> None:
    files, live = LocalFiles(tmp_path), LOGS_KEPT + 3
    for number in range(1, live + 1):
        Attempts(files).create(attempt(number))
        for name in (f"{number}.log", f"{number}.log.1", f"driver-{number}.out", f"driver-{number}.out.1"):
            files.create(f"logs/{name}", b"said")
    files.create("attempts/1.owner-1.json", b"{}")
    forget_old_logs(files, AttemptNumber(live))
    kept = files.names("logs")
    assert {int("".join(filter(str.isdigit, name.removesuffix(".1")))) for name in kept} == set(range(4, live + 1))
    assert len(kept) == 4 * LOGS_KEPT
    assert Attempts(files).numbers() == list(range(1, live + 1))
    assert "1.owner-1.json" in files.names("attempts")


def test_only_the_newest_publications_keep_their_output_locks_and_open_requests() -> None:
    files, others = MemoryFiles(), ("work/publish-hourly.lock", "work/driver.lock", "work/spark.log", "requests/stop-1.json")
    checkpoints = range(3, 3 * (LOGS_KEPT + 3), 3)
    of = {number: files_of(CheckpointId(number)) for number in checkpoints}
    for path in (*others, *chain.from_iterable(of.values())):
        files.create(path, b"said")
    for _ in range(2):
        forget_old_logs(files, AttemptNumber(1))
    kept = [of[number] for number in checkpoints[-LOGS_KEPT:]]
    assert {*files.paths("work"), *files.paths("requests")} == {*others, *chain.from_iterable(kept)}


def files_of(checkpoint: CheckpointId) -> set[str]:
    """The files of a publication, whose second request everybody has abandoned."""
    request = publication_request_id(checkpoint, 2)
    return {publication_output_path(checkpoint), publication_lock_path(request), request_path(request)}


def claimed(*numbers: int) -> Attempts:
    attempts = Attempts(MemoryFiles())
    for number in numbers:
        attempts.create(attempt(number))
    return attempts


def begun(*numbers: int) -> Attempts:
    attempts = Attempts(MemoryFiles())
    for number in numbers:
        attempts.begin(attempt(number), attempts.numbers())
    return attempts


def test_an_attempt_begins_after_those_that_it_knows_of() -> None:
    attempts = begun(1, 2)
    attempts.begin(attempt(3), {AttemptNumber(1), AttemptNumber(2)})
    assert [each.attempt for each in attempts.begun()] == [1, 2, 3]


def test_an_attempt_does_not_begin_if_a_lower_one_has_begun_unnoticed() -> None:
    attempts = begun(1, 2)
    with pytest.raises(ConflictError, match="attempt 2 began while this one was starting"):
        attempts.begin(attempt(3), {AttemptNumber(1)})
    assert [each.attempt for each in attempts.begun()] == [1, 2]


def test_an_attempt_that_has_claimed_a_number_and_not_begun_does_not_block_the_next() -> None:
    attempts = claimed(1)
    attempts.begin(attempt(2), set())
    assert [each.attempt for each in attempts.begun()] == [2]


def test_an_attempt_below_a_begun_one_is_fenced_and_its_document_does_not_count() -> None:
    attempts = begun(2)
    late = attempt(1).model_copy(update={"incarnation": IncarnationId("another")})
    with pytest.raises(FencedError):
        attempts.begin(late, set())
    assert [each.attempt for each in attempts.begun()] == [2]
    assert attempts.numbers() == [1, 2]


class Overtaken(MemoryFiles):
    """Files in which a higher attempt, unaware of the others, begins immediately before or after attempt 1 writes that it has begun."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.outcome: Exception | None = None

    def create(self, path: str, data: bytes) -> None:
        at = path == "attempts/1.begun.json"
        if at and self.before:
            self.overtake()
        super().create(path, data)
        if at and not self.before:
            self.overtake()

    def overtake(self) -> None:
        try:
            Attempts(self).begin(attempt(2), set())
        except ConflictError as error:
            self.outcome = error


@pytest.mark.parametrize("before", [True, False])
def test_at_most_one_of_two_attempts_that_do_not_know_each_other_continues(before: bool) -> None:
    files = Overtaken(before=before)
    with pytest.raises(FencedError):
        Attempts(files).begin(attempt(1), set())
    assert isinstance(files.outcome, ConflictError) is not before
    assert Attempts(files).begun()[-1].attempt == (2 if before else 1), (
        "the one that goes on; else the one that was not told of the other"
    )
