"""Which attempt is continued, which must stop, and what is kept of them."""

from pathlib import Path

import pytest

from spark_jobs.control.attempts import LOGS_KEPT, Attempts, forget_old_logs, newest_of
from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.errors import ConflictError, FencedError
from spark_jobs.protocol.ids import AttemptNumber, IncarnationId
from spark_jobs.storage.local import LocalFiles
from tests.support.memory_files import MemoryFiles
from tests.unit.control.test_channel import attempt


def test_only_the_newest_attempts_keep_their_logs(tmp_path: Path) -> None:
    files, live = LocalFiles(tmp_path), LOGS_KEPT + 3
    for number in range(1, live + 1):
        Attempts(files).create(attempt(number))
        for name in (f"{number}.log", f"{number}.log.1", f"driver-{number}.out", f"driver-{number}.out.1"):
            files.create(f"attempts/{name}", b"said")
    files.create("attempts/1/owner-1.json", b"{}")
    forget_old_logs(files, AttemptNumber(live))
    kept = [name for name in files.names("attempts") if name.endswith((".log", ".out", ".1"))]
    assert {int("".join(filter(str.isdigit, name.removesuffix(".1")))) for name in kept} == set(range(4, live + 1))
    assert len(kept) == 4 * LOGS_KEPT
    assert Attempts(files).numbers() == list(range(1, live + 1))
    assert files.names("attempts/1") == ["owner-1.json"]


def named(number: int, incarnation: str) -> AttemptDocument:
    return attempt(number).model_copy(update={"incarnation": IncarnationId(incarnation)})


def begun(*numbers: int) -> Attempts:
    attempts = Attempts(MemoryFiles())
    for number in numbers:
        attempts.create(attempt(number))
    return attempts


def test_an_attempt_stops_where_a_lower_one_has_begun_unseen() -> None:
    attempts = begun(1, 2, 3)
    attempts.check_all_seen(AttemptNumber(3), {AttemptNumber(1), AttemptNumber(2)})
    with pytest.raises(ConflictError, match="attempt 2 began while this one was starting"):
        attempts.check_all_seen(AttemptNumber(3), {AttemptNumber(1)})


def test_a_higher_attempt_is_no_reason_that_something_was_unseen_but_fences() -> None:
    attempts = begun(1, 2)
    attempts.check_all_seen(AttemptNumber(1), set())
    with pytest.raises(FencedError):
        attempts.check_live(AttemptNumber(1))


def test_the_last_attempt_of_the_incarnation_that_was_begun_last_is_continued() -> None:
    line = [named(1, "one"), named(2, "one"), named(4, "two"), named(5, "two")]
    assert newest_of(line[:2]).attempt == 2
    assert newest_of(line).attempt == 5


def test_an_attempt_that_knew_nothing_of_the_newest_incarnation_is_not_continued() -> None:
    assert newest_of([named(1, "one"), named(2, "two"), named(3, "one")]).attempt == 2
