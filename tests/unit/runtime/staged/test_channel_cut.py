"""A channel's part of a checkpoint, and the log that is rebuilt from it."""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.errors import CorruptDocumentError
from spark_jobs.protocol.ids import BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import ChannelCut
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_cut import cut_channel, rebuild_log
from spark_jobs.runtime.staged.log_folding import Consumer, ConsumerCut
from spark_jobs.runtime.staged.private_log import PrivateLog
from tests.support.private_logs import METADATA, PROTOCOL, STAGED_FOR, TABLE, begun, staged, versions
from tests.support.systems import quick

HOURLY = StageName("hourly")


class Channel:
    """A log in which each batch stages one file of two rows, and consumers at any position."""

    def __init__(self, root: Path, batches: int) -> None:
        self.root = root
        self.store = CheckpointStore(quick(root / "home"))
        self.log = begun(quick(root / "work"), "stages/hourly/log")
        for batch in range(batches):
            self.log.append(staged(batch, f"{batch}.parquet", newest=batch))

    def consumer(self, name: str, *versions: int | None) -> ConsumerCut:
        """A consumer whose batch b has read everything before ``versions[b]``. It is cut at its last batch."""
        files = quick(self.root / "work")
        for batch, version in enumerate(versions):
            line = "-" if version is None else json.dumps({"reservoirVersion": version, "index": -1})
            header = json.dumps({"batchWatermarkMs": 0})
            files.create(f"{name}/offsets/{batch}", "\n".join(["v1", header, "-", line]).encode())
        return Consumer(SparkLog(files, name), 1).cut(BatchId(len(versions) - 1))

    def cut(self, batch: int, *consumers: ConsumerCut) -> ChannelCut:
        return cut_channel(self.store, CheckpointId(1), HOURLY, self.log, BatchId(batch), consumers)

    def rebuilt(self, cut: ChannelCut) -> PrivateLog:
        return rebuild_log(quick(self.root / "new"), HOURLY, cut, self.store.read_channel(cut))

    def versions(self) -> list[str]:
        return versions(self.root / "new", "stages/hourly/log")


def batches(log: PrivateLog) -> list[int]:
    return [each.batch for each in log.between(BatchId(log.oldest() - 1), BatchId(log.latest() - 1))]


def test_a_channel_without_consumers_keeps_only_its_last_batch(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 50)
    cut = channel.cut(41)
    assert (cut.first, cut.last, cut.in_flight_rows, cut.in_flight_size_bytes) == (40, 41, 0, 0)
    log = channel.rebuilt(cut)
    assert (log.latest(), log.folded(), log.oldest()) == (42, 40, 40)
    assert log.read(BatchId(41)) == channel.log.read(BatchId(41))
    assert channel.versions() == ["0000.json", "0041.checkpoint.parquet", "0042.json"]


def test_the_rebuilt_log_is_the_same_table_for_a_delta_reader(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 9)
    channel.rebuilt(channel.cut(7, channel.consumer("query", 3, 5)))
    table = DeltaTable(str(tmp_path / "new/stages/hourly/log"))
    assert (table.version(), str(table.metadata().id)) == (8, channel.log.table_id)
    assert sorted(name.rpartition("/")[2] for name in table.file_uris()) == [f"{batch}.parquet" for batch in range(2, 8)]


def test_the_rebuilt_log_has_the_versions_that_the_slowest_consumer_may_read_again(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 20)
    cut = channel.cut(15, channel.consumer("fast", 10, 16), channel.consumer("slow", 4, 6, 9))
    assert (cut.first, cut.last) == (4, 15)
    assert (cut.in_flight_rows, cut.in_flight_size_bytes) == (2 * 8, 9 * 8), "batches 8 to 15 are the versions from 9 on"
    log = channel.rebuilt(cut)
    assert batches(log) == list(range(4, 16))
    assert [name for name in channel.versions() if name.endswith("json")][1] == "0006.json"
    assert [each.newest_event_ms for each in log.between(BatchId(3), BatchId(15))] == [{"events": b} for b in range(4, 16)]


def test_two_checkpoints_in_a_row_name_the_same_files_in_flight_and_write_none_of_them(tmp_path: Path) -> None:
    """U8: the consumer makes no progress between the two checkpoints."""
    channel = Channel(tmp_path, 20)
    slow = channel.consumer("slow", 4, 6, 9)
    first = channel.cut(15, slow)
    second = cut_channel(channel.store, CheckpointId(2), HOURLY, channel.log, BatchId(19), [slow])
    named = [[add["path"] for line in channel.store.read_channel(cut) for add in line["adds"]] for cut in (first, second)]
    assert named == [[f"{batch}.parquet" for batch in range(4, last + 1)] for last in (15, 19)]
    assert second.staged_in == first.staged_in
    assert (first.in_flight_rows, second.in_flight_rows) == (2 * 8, 2 * 12)
    assert {path.suffix for path in (tmp_path / "home").rglob("*") if path.is_file()} == {".channel"}


def test_a_restore_copies_no_row_in_flight_and_a_checkpoint_is_possible_before_one_is_read(tmp_path: Path) -> None:
    """U11 to U13, U15: the files that the batches name do not exist, so the restore cannot have read them."""
    channel = Channel(tmp_path, 100)
    slow = channel.consumer("slow", 4, 6, 9)
    cut = channel.cut(99, slow)
    assert cut.in_flight_rows == 2 * 92
    log = channel.rebuilt(cut)
    again = cut_channel(channel.store, CheckpointId(2), HOURLY, log, BatchId(99), [slow])
    one, other = (channel.store.read_channel(each) for each in (cut, again))
    assert one == other
    kept = [path.relative_to(tmp_path / "home").as_posix() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert sorted(kept) == sorted([cut.path, again.path]), "a file for each checkpoint, however many batches are in flight"
    built = {path.relative_to(tmp_path / "new").parts[:3] for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert built == {("stages", "hourly", "log")}
    assert not Path(unquote(urlsplit(cut.staged_in).path)).exists()


@pytest.mark.parametrize("offsets", [(), (7,), (None, None), (None, 7)])
def test_the_rebuilt_log_has_everything_for_a_consumer_that_has_hardly_begun(
    tmp_path: Path, offsets: tuple[int | None, ...]
) -> None:
    channel = Channel(tmp_path, 9)
    cut = channel.cut(8, channel.consumer("query", *offsets))
    assert (cut.first, cut.last) == (0, 8)
    log = channel.rebuilt(cut)
    assert (batches(log), log.folded()) == (list(range(9)), NO_BATCH)
    assert channel.versions() == [f"{version:04d}.json" for version in range(10)]


def test_a_consumed_channel_keeps_the_batches_that_its_consumer_plans_again(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 1_000)
    cut = channel.cut(999, channel.consumer("query", 999, 1001))
    assert (cut.first, cut.last, cut.in_flight_rows) == (997, 999, 0)


def test_batches_after_the_cut_are_not_in_the_rebuilt_log(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 9)
    log = channel.rebuilt(channel.cut(4, channel.consumer("query", 2, 4)))
    assert log.latest() == 5
    log.append(staged(5, "again.parquet"))
    assert [add["path"] for add in log.between(BatchId(4), BatchId(5)).__next__().adds] == ["again.parquet"]


def test_a_cut_batch_that_never_reached_the_sink_has_no_line(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 3)
    cut = channel.cut(3, channel.consumer("query", 2, 4))
    assert (cut.first, cut.last) == (0, 2)
    assert channel.rebuilt(cut).latest() == 3


def test_a_stage_without_a_batch_has_an_empty_log(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 0)
    cut = channel.cut(NO_BATCH, channel.consumer("query"))
    assert (cut.first, cut.last) == (0, NO_BATCH)
    log = channel.rebuilt(cut)
    assert (log.latest(), log.table_id) == (0, channel.log.table_id)


def test_folded_batches_are_in_the_cut_like_all_others(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 30)
    channel.log.fold(BatchId(20))
    cut = channel.cut(29, channel.consumer("query", 5, 8))
    assert batches(channel.rebuilt(cut)) == list(range(3, 30))


def test_a_batch_that_the_log_has_forgotten_cannot_be_cut(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 30)
    for last in (10, 20):
        channel.log.fold(BatchId(last))
    channel.log.forget(BatchId(15), lambda staged: None)
    with pytest.raises(CorruptDocumentError, match="does not have the batches before"):
        channel.cut(29, channel.consumer("query", 5, 8))


def test_a_rebuilt_log_can_be_folded_trimmed_and_cut_again(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 30)
    consumer = channel.consumer("query", 10, 12)
    log = channel.rebuilt(channel.cut(29, consumer))
    for last in (15, 20):
        log.fold(BatchId(last))
    log.forget(BatchId(15), lambda staged: None)
    assert (log.oldest(), log.folded(), batches(log)) == (16, 20, list(range(16, 30)))
    again = cut_channel(channel.store, CheckpointId(2), HOURLY, log, BatchId(29), [channel.consumer("later", 25, 28)])
    third = rebuild_log(quick(tmp_path / "third"), HOURLY, again, channel.store.read_channel(again))
    assert (third.table_id, batches(third)) == (channel.log.table_id, list(range(23, 30)))


def test_a_rebuilt_log_continues_with_its_table(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 3)
    log = channel.rebuilt(channel.cut(2))
    assert not log.begin(METADATA | {"id": "the-table"}, PROTOCOL, STAGED_FOR)
    assert PrivateLog(quick(tmp_path / "new"), "stages/hourly/log", TABLE).table_id == channel.log.table_id


def test_an_altered_file_of_a_channel_is_corrupt_by_name(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 3)
    cut = channel.cut(2)
    quick(tmp_path / "home").replace(cut.path, b"{}\n")
    with pytest.raises(CorruptDocumentError, match=cut.path):
        channel.store.read_channel(cut)


def test_a_channel_file_has_every_batch_since_the_parent_and_the_rebuilt_log_only_needed_ones(tmp_path: Path) -> None:
    channel = Channel(tmp_path, 50)
    cut = cut_channel(channel.store, CheckpointId(1), HOURLY, channel.log, BatchId(41), [], BatchId(30))
    lines = channel.store.read_channel(cut)
    assert [line["batch"] for line in lines] == list(range(31, 42))
    assert lines[0]["offsets"] == "s", "the batch can be planned again"
    assert (cut.first, cut.in_flight_rows) == (40, 0)
    assert batches(channel.rebuilt(cut)) == [40, 41]
    again = rebuild_log(quick(tmp_path / "again"), HOURLY, cut, lines, BatchId(31))
    assert batches(again) == list(range(31, 42))
