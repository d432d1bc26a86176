"""A private log whose machine loses power, or whose storage fails, at any operation while the log is written, folded and trimmed."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.storage.local import LocalFiles
from tests.support.private_logs import begun, staged
from tests.support.systems import Crashed, CrashSystem, every_fault, quick

FOLDED_UP_TO = {4: 1, 6: 3, 8: 5}
"""For some numbers of batches: the batch up to which the log is folded then."""
FORGOTTEN_UP_TO = 3
BATCHES = 9

Act = Callable[[PrivateLog], object]


def acts() -> Iterator[Act]:
    """Yields the calls in the life of a log. Each call can be repeated."""
    for batch in range(BATCHES):
        yield lambda log, batch=batch: append_once(log, a_batch(batch))  # type: ignore[misc]
        if batch + 1 in FOLDED_UP_TO:
            last = BatchId(FOLDED_UP_TO[batch + 1])
            yield lambda log, last=last: log.fold(last)  # type: ignore[misc]
    yield lambda log: log.forget(BatchId(FORGOTTEN_UP_TO), lambda batch: None)


def a_batch(batch: int) -> StagedBatch:
    return staged(batch, f"{batch}.parquet")


def append_once(log: PrivateLog, batch: StagedBatch) -> None:
    if log.read(batch.batch) is None:
        log.append(batch)


def assert_whole(root: Path, appended: int, oldest_allowed: int) -> None:
    """Checks that every batch that was surely appended can be read by the product and, unless it is folded, by Delta."""
    log = begun(quick(root))
    oldest, last = log.oldest(), log.latest() - 1
    assert last + 1 >= appended
    assert oldest <= oldest_allowed
    assert list(log.between(BatchId(oldest - 1), BatchId(last))) == [a_batch(batch) for batch in range(oldest, last + 1)]
    table = DeltaTable(str(root / "log"))
    assert table.version() == log.latest()
    names = {path.rpartition("/")[2] for path in table.get_add_actions().column("path").to_pylist()}
    assert {f"{batch}.parquet" for batch in range(log.folded() + 1, last + 1)} <= names


def crash_before(root: Path, operation: int) -> bool:
    """Lives until a crash, goes on, and comes to the same end. Returns True if there was a crash."""
    system, appended, done = CrashSystem(root, crash_before=operation), 0, []
    try:
        log = begun(LocalFiles(root, system))
        for act in acts():
            act(log)
            done.append(act)
            appended = log.latest()
    except Crashed:
        pass
    else:
        system.crash()
        assert_whole(root, BATCHES, FORGOTTEN_UP_TO + 1)
        return False
    assert_whole(root, appended, FORGOTTEN_UP_TO + 1)
    log = begun(quick(root))
    for act in list(acts())[max(len(done) - 1, 0) :]:
        act(log)
    assert_whole(root, BATCHES, FORGOTTEN_UP_TO + 1)
    return True


def test_a_loss_of_power_at_any_operation_loses_no_batch_and_leaves_no_gap(tmp_path: Path) -> None:
    operation = 0
    while crash_before(tmp_path / str(operation), operation):
        operation += 1
    assert operation > 100, "the log was written, folded and trimmed"


@pytest.mark.parametrize("answer_lost", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_repeated_call_repairs_a_failure_of_any_operation(tmp_path: Path, answer_lost: bool) -> None:
    for number, system in enumerate(every_fault(errno.EIO, answer_lost=answer_lost)):
        root = tmp_path / str(number)
        log = begun(quick(root))
        log = PrivateLog(LocalFiles(root, system), "log", "file:///data/my%20table")
        for act in acts():
            try:
                act(log)
            except StreamPipelineError:
                act(log)
        assert_whole(root, BATCHES, FORGOTTEN_UP_TO + 1)
