"""The mark of a work directory that is begun before its attempt."""

import pytest

from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.runtime.state.early_directory import MARK, is_for_later, mark_early
from tests.support.memory_files import MemoryFiles

LIVE = AttemptNumber(5)


@pytest.mark.parametrize(("attempt", "later"), [(4, False), (5, True), (6, True)])
def test_a_marked_directory_is_for_later_unless_its_attempt_is_over(attempt: int, later: bool) -> None:
    work = MemoryFiles()
    mark_early(work, AttemptNumber(attempt))
    assert is_for_later(work, LIVE) is later


@pytest.mark.parametrize("mark", [None, b"", b"{}", b"[6]", b"null", b'{"attempt": "six"}'])
def test_a_directory_without_an_intact_mark_is_for_no_later_attempt(mark: bytes | None) -> None:
    work = MemoryFiles()
    if mark is not None:
        work.create(MARK, mark)
    assert not is_for_later(work, LIVE)
