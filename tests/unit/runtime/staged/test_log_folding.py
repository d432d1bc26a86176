"""Folding and trimming, compared with a log that is never folded."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.log_folding import Consumer, fold_consumed, trim
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged


class DyingFiles(MemoryFiles):
    """Files that die after ``left`` further changes."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def create(self, path: str, data: bytes) -> None:
        self._change()
        super().create(path, data)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)

    def _change(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt


@dataclass
class Compared:
    """A log, and the plain list of its batches."""

    files: DyingFiles = field(default_factory=DyingFiles)
    appended: list[StagedBatch] = field(default_factory=list)
    consumed: int = 0
    """Versions below this one are consumed."""

    def __post_init__(self) -> None:
        self.log = begun(self.files)

    def do(self, act: Callable[[PrivateLog], object], dies_before: int | None) -> None:
        """Calls ``act`` on the log. If it dies before a change, the log begins again as in a new process."""
        self.files.left = dies_before
        try:
            act(self.log)
        except KeyboardInterrupt:
            self.files.left = None
            self.log = begun(self.files)
        self.files.left = None

    def append(self, names: int, dies_before: int | None) -> None:
        batch = staged(len(self.appended), *(f"{len(self.appended)}-{name}.parquet" for name in range(names)))
        self.do(lambda log: log.append(batch), dies_before)
        if self.log.latest() == len(self.appended) + 1:
            self.appended.append(batch)

    def assert_same(self) -> None:
        last = BatchId(self.log.latest() - 1)
        assert last == len(self.appended) - 1
        oldest = self.log.oldest()
        assert list(self.log.between(BatchId(oldest - 1), last)) == self.appended[oldest:]
        assert self.log.read(last) == (self.appended[-1] if self.appended else None)
        self.assert_no_gap()

    def assert_no_gap(self) -> None:
        """Checks that a Delta reader finds a checkpoint or the beginning and all later versions, and a consumer its unread versions."""
        names = self.files.names("log/_delta_log")
        found = {int(name[:20]) for name in names if name.endswith(".json")}
        checkpoints = {int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")}
        for checkpoint in checkpoints or {0}:
            assert set(range(checkpoint + 1, self.log.latest() + 1)) <= found
        assert set(range(max(self.consumed, 1), self.log.latest() + 1)) <= found
        assert 0 in found


ACTIONS = st.tuples(st.sampled_from(["append", "append", "append", "consume", "fold", "forget", "reopen"]), st.integers(0, 9))
DEATHS = st.one_of(st.none(), st.none(), st.integers(0, 6))


@given(st.lists(st.tuples(ACTIONS, DEATHS), max_size=40))
def test_a_log_with_any_history_reads_like_a_log_that_was_never_folded(history: list[tuple[tuple[str, int], int | None]]) -> None:
    compared = Compared()
    for (what, number), dies_before in history:
        if what == "append":
            compared.append(number % 3, dies_before)
        elif what == "consume":
            compared.consumed = min(compared.consumed + number, compared.log.latest() + 1)
        elif what == "fold":
            compared.do(lambda log: log.fold(BatchId(compared.consumed - 2)), dies_before)
        elif what == "forget":
            until = BatchId(number)
            compared.do(lambda log, until=until: log.forget(until, lambda batch: None), dies_before)  # type: ignore[misc]
        else:
            compared.log = begun(compared.files)
        compared.assert_same()


class Query:
    """Spark's log of a query that reads the log, possibly after other inputs."""

    def __init__(self, files: MemoryFiles, name: str, stream: int = 0) -> None:
        self._files, self._name, self._stream = files, name, stream
        self.consumer = Consumer(SparkLog(files, name), stream)

    def consume(self, *versions: int | None) -> "Query":
        """Commits one batch for each version. The batch has read up to that version."""
        for batch, version in enumerate(versions):
            line = "-" if version is None else json.dumps({"reservoirVersion": version, "index": -1})
            lines = ["v1", json.dumps({"batchWatermarkMs": 0}), *["-"] * self._stream, line]
            self._files.replace(f"{self._name}/offsets/{batch}", "\n".join(lines).encode())
            self._files.replace(f"{self._name}/commits/{batch}", b"v1\n{}")
        return self


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log(files: MemoryFiles) -> PrivateLog:
    log = begun(files)
    for batch in range(20):
        log.append(staged(batch, f"{batch}.parquet"))
    return log


@pytest.mark.parametrize(
    ("versions", "reads_from"),
    [((), 0), ((7,), 0), ((7, 9), 7), ((7, 9, 9), 9), ((None, 9), 0)],
)
def test_a_query_that_starts_reads_its_last_committed_batch_again(
    files: MemoryFiles, versions: tuple[int | None, ...], reads_from: int
) -> None:
    for stream in (0, 1):
        assert Query(files, f"query {stream}", stream).consume(*versions).consumer.reads_from() == reads_from


def test_a_log_is_folded_behind_its_slowest_consumer(files: MemoryFiles, log: PrivateLog) -> None:
    slow, fast = Query(files, "slow").consume(5, 8), Query(files, "fast").consume(15, 21)
    fold_consumed(log, [slow.consumer, fast.consumer], batches_min=1)
    assert log.folded() == 3, "version 5 is read again, and batch 3 is version 4"


def test_a_log_is_not_folded_before_a_consumer_has_begun(files: MemoryFiles, log: PrivateLog) -> None:
    fold_consumed(log, [Query(files, "fast").consume(15, 21).consumer, Query(files, "new").consumer], batches_min=1)
    assert log.folded() == -1


def test_a_log_without_consumers_is_folded_up_to_its_last_batch_but_one(log: PrivateLog) -> None:
    fold_consumed(log, [], batches_min=1)
    assert log.folded() == 18


def test_too_few_batches_are_not_folded(log: PrivateLog) -> None:
    fold_consumed(log, [], batches_min=20)
    assert log.folded() == -1
    fold_consumed(log, [], batches_min=19)
    assert log.folded() == 18


def test_a_consumed_batch_of_the_parent_checkpoint_is_forgotten_with_its_channel_files(
    files: MemoryFiles, log: PrivateLog
) -> None:
    channel, query = MemoryFiles(), Query(files, "query")
    for name in (f"{dot}{batch}.parquet{crc}" for batch in range(20) for dot, crc in (("", ""), (".", ".crc"))):
        channel.create(name, b"rows")
    query.consume(5, 7)
    trim(log, [query.consumer], BatchId(3), channel, set())
    assert (log.folded(), log.oldest()) == (3, 0), "nothing but the newest segment"
    query.consume(5, 7, 12, 12)
    trim(log, [query.consumer], BatchId(2), channel, set())
    assert (log.folded(), log.oldest()) == (10, 0), "a batch of the segment is later than the parent"
    trim(log, [query.consumer], BatchId(3), channel, set())
    assert (log.folded(), log.oldest()) == (10, 4)
    assert channel.names("") == sorted([f".{b}.parquet.crc" for b in range(4, 20)] + [f"{b}.parquet" for b in range(4, 20)])


def test_files_that_a_checkpoint_names_stay_and_files_that_were_packed_before_are_deleted(log: PrivateLog) -> None:
    table = MemoryFiles()
    for batch in range(20):
        table.create(f"{batch}.parquet", b"rows")
    fold_consumed(log, [], batches_min=1)
    for batch in (20, 21):
        log.append(staged(batch))
    named = {f"{batch}.parquet" for batch in range(10)}
    trim(log, [], BatchId(20), table, named)
    assert log.oldest() == 19
    assert set(table.names("")) == named | {"19.parquet"}


def test_a_file_that_a_loss_has_left_out_stays_when_its_batch_is_forgotten(log: PrivateLog) -> None:
    channel = MemoryFiles()
    for batch in range(20):
        channel.create(f"{batch}.parquet", b"rows")
    fold_consumed(log, [], batches_min=1)
    for batch in (20, 21):
        log.append(staged(batch))
    trim(log, [], BatchId(20), channel, set(), {"7.parquet"})
    assert channel.names("") == ["19.parquet", "7.parquet"]
