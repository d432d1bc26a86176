"""Spark's offset and batch commit logs. The tests write them by hand, in Spark's format."""

import json
from pathlib import Path

import pytest

from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, UnsupportedFormatError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.spark.spark_log import NO_BATCH, OffsetEntry, SparkLog
from spark_jobs.storage.files import READ_MAX_BYTES
from spark_jobs.storage.local import LocalFiles
from tests.support.memory_files import MemoryFiles

HEADER = {
    "batchWatermarkMs": 1_000,
    "batchTimestampMs": 5,
    "conf": {"spark.sql.shuffle.partitions": "2"},
    "unknown": {"kept": True},
}


def offsets(root: Path, batch: int, *sources: str, version: str = "v1") -> None:
    directory = root / "checkpoint" / "offsets"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / str(batch)).write_text("\n".join([version, json.dumps(HEADER), *sources]))


def commits(root: Path, batch: int, watermark_ms: int = 0) -> None:
    directory = root / "checkpoint" / "commits"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / str(batch)).write_text("v1\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms}))
    (directory / f".{batch}.crc").write_text("not a batch")


@pytest.fixture
def log(tmp_path: Path) -> SparkLog:
    return SparkLog(LocalFiles(tmp_path), "checkpoint")


def test_a_query_that_never_ran_has_no_batch(log: SparkLog) -> None:
    assert (log.last_offsets(), log.last_commit(), log.pending(), log.query_id()) == (NO_BATCH, NO_BATCH, False, None)


def test_a_query_has_state_once_spark_has_written_state(tmp_path: Path, log: SparkLog) -> None:
    assert not log.has_state()
    (tmp_path / "checkpoint/state/0/0").mkdir(parents=True)
    assert log.has_state()


def test_a_planned_batch_is_pending_until_it_is_committed(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    assert log.pending()
    commits(tmp_path, 0)
    assert not log.pending()


def test_batches_are_ordered_by_number_and_not_by_name(tmp_path: Path, log: SparkLog) -> None:
    for batch in (9, 10, 11):
        offsets(tmp_path, batch, "{}")
    assert log.last_offsets() == 11


def test_a_planned_drain_keeps_sources_and_unknown_keys(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, '{"logOffset": 3}', "-")
    commits(tmp_path, 0)
    log.plan(BatchId(1), log.offsets(BatchId(0)).with_watermark(9_000))
    planned = log.offsets(BatchId(1))
    assert planned == OffsetEntry("v1", HEADER | {"batchWatermarkMs": 9_000}, ('{"logOffset": 3}', "-"))


def test_no_batch_is_planned_behind_an_uncommitted_one(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    with pytest.raises(CorruptDocumentError, match="would have been skipped"):
        log.plan(BatchId(1), log.offsets(BatchId(0)))
    assert log.last_offsets() == 0


def test_a_query_with_an_uncommitted_batch_cannot_be_cut(tmp_path: Path, log: SparkLog) -> None:
    assert log.last_batch() == NO_BATCH
    offsets(tmp_path, 0, "{}")
    with pytest.raises(CorruptDocumentError, match="cannot be cut"):
        log.last_batch()
    commits(tmp_path, 0)
    assert log.last_batch() == 0


def test_no_batch_is_planned_with_a_gap(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    commits(tmp_path, 0)
    with pytest.raises(CorruptDocumentError):
        log.plan(BatchId(2), log.offsets(BatchId(0)))


def test_a_committed_batch_is_never_planned_again(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    commits(tmp_path, 0)
    with pytest.raises(CorruptDocumentError, match="committed"):
        log.replan(BatchId(0), log.offsets(BatchId(0)).with_sources(("other",)))
    assert log.offsets(BatchId(0)).sources == ("{}",)


def test_the_oldest_plan_is_the_first_that_spark_has_kept(tmp_path: Path, log: SparkLog) -> None:
    assert log.first_offsets() == 0
    for batch in (9, 10, 11):
        offsets(tmp_path, batch, "{}")
    assert log.first_offsets() == 9


def test_another_version_of_the_offset_log_is_refused(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "0:{}", version="v2")
    with pytest.raises(UnsupportedFormatError, match="v2"):
        log.offsets(BatchId(0))


def test_a_torn_entry_is_corrupt(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    path = tmp_path / "checkpoint" / "offsets" / "0"
    path.write_text(path.read_text()[:20])
    with pytest.raises(CorruptDocumentError, match="offsets/0"):
        log.offsets(BatchId(0))


def test_a_cut_has_the_watermark_of_its_batch_and_that_of_the_next_batch(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    commits(tmp_path, 0, watermark_ms=5_000_000_000)
    found = log.facts(BatchId(0))
    assert (found["applied_watermark_ms"], found["watermark_ms"]) == (HEADER["batchWatermarkMs"], 5_000_000_000)


def test_the_watermark_after_a_batch_never_goes_back(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    commits(tmp_path, 0, watermark_ms=400)
    assert log.next_watermark_ms(BatchId(0)) == HEADER["batchWatermarkMs"]


def test_a_query_with_a_new_id_keeps_its_batches_and_its_other_metadata(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "-")
    commits(tmp_path, 0, 5_000)
    (tmp_path / "checkpoint/metadata").write_text('{"id": "old", "unknown": 1}')
    log.rename("new")
    log.leave_watermark(BatchId(0), 3_000)
    assert (log.query_id(), log.next_watermark_ms(BatchId(0)), log.last_commit()) == ("new", 3_000, 0)
    assert json.loads((tmp_path / "checkpoint/metadata").read_text()) == {"id": "new", "unknown": 1}
    assert (tmp_path / "checkpoint/commits/0").read_text().startswith("v1\n")


def test_batches_that_an_old_query_has_read_are_committed_without_a_run(tmp_path: Path, log: SparkLog) -> None:
    for _ in range(2):  # the second time, as after a crash
        log.begin("q")
    log.plan(BatchId(0), OffsetEntry("v1", HEADER, ("{}",)))
    for _ in range(2):
        log.commit(BatchId(0))
    assert (log.query_id(), log.last_commit(), log.pending()) == ("q", 0, False)
    log.plan(BatchId(1), log.offsets(BatchId(0)))
    assert log.pending()


class CountedStore(MemoryFiles):
    """A store that counts the looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        self.looks += 1
        return super().read(path, max_bytes)

    def names(self, directory: str) -> list[str]:
        self.looks += 1
        return super().names(directory)

    def spark_plans(self, batch: int) -> None:
        self.replace(f"checkpoint/offsets/{batch}", "\n".join(["v1", json.dumps(HEADER), f'{{"batch":{batch}}}']).encode())

    def spark_commits(self, batch: int) -> None:
        self.replace(f"checkpoint/commits/{batch}", b'v2\n{"nextBatchWatermarkMs": 0}')


class TestALogInAStore:
    """A log in a store, where each look costs a request."""

    @pytest.fixture
    def store(self) -> CountedStore:
        return CountedStore()

    @pytest.fixture
    def log(self, store: CountedStore) -> SparkLog:
        log = SparkLog(store, "checkpoint")
        self.run(store, log, 0)
        return log

    def run(self, store: CountedStore, log: SparkLog, batch: int) -> None:
        store.spark_plans(batch)
        log.begun(BatchId(batch))
        store.spark_commits(batch)

    def test_without_a_new_batch_is_read_only_once(self, store: CountedStore, log: SparkLog) -> None:
        found = [(log.last_commit(), log.offsets(BatchId(0)).sources, log.offsets_text(BatchId(0))[:2]) for _ in range(5)]
        assert found == [(0, ('{"batch":0}',), "v1")] * 5
        assert store.looks == 2

    def test_is_read_again_until_a_begun_batch_is_committed(self, store: CountedStore, log: SparkLog) -> None:
        assert log.last_commit() == 0
        store.spark_plans(1)
        log.begun(BatchId(1))
        assert [log.last_commit(), log.last_commit()] == [0, 0]
        store.spark_commits(1)
        assert [log.last_commit(), log.last_commit()] == [1, 1]
        assert store.looks == 4

    def test_gives_the_new_entry_of_a_batch_that_is_planned_again(self, store: CountedStore, log: SparkLog) -> None:
        store.spark_plans(1)
        log.begun(BatchId(1))
        assert log.offsets(BatchId(1)).watermark_ms == 1_000
        log.replan(BatchId(1), log.offsets(BatchId(1)).with_watermark(7))
        assert log.offsets(BatchId(1)).watermark_ms == 7

    def test_forgets_a_plan_that_is_given_up(self, store: CountedStore, log: SparkLog) -> None:
        store.spark_plans(1)
        log.begun(BatchId(1))
        assert log.offsets(BatchId(1)).watermark_ms == 1_000
        log.unplan(BatchId(1))
        with pytest.raises(NotFoundError):
            log.offsets(BatchId(1))

    def test_is_read_for_the_batch_of_the_next_query_after_a_plan_of_the_product(
        self, store: CountedStore, log: SparkLog
    ) -> None:
        assert log.last_commit() == 0
        log.plan(BatchId(1), log.offsets(BatchId(0)))
        store.spark_commits(1)
        assert log.last_commit() == 1

    def test_is_always_read_without_a_running_query(self, store: CountedStore) -> None:
        reader = SparkLog(store, "checkpoint")
        for batch in range(3):
            store.spark_plans(batch)
            store.spark_commits(batch)
            assert (reader.last_commit(), reader.offsets(BatchId(batch)).sources) == (batch, (f'{{"batch":{batch}}}',))


def test_a_log_on_a_disk_is_always_read(tmp_path: Path, log: SparkLog) -> None:
    offsets(tmp_path, 0, "{}")
    log.begun(BatchId(0))
    commits(tmp_path, 0)
    assert (log.last_commit(), log.offsets(BatchId(0)).sources) == (0, ("{}",))
    offsets(tmp_path, 0, "replaced")
    commits(tmp_path, 1)
    assert (log.last_commit(), log.offsets(BatchId(0)).sources) == (1, ("replaced",))
