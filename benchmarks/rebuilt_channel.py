"""A channel that a start rebuilds from a checkpoint, with many batches in flight."""

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Better, Figure, Kind, Tell, in_turn
from benchmarks.live import remove
from benchmarks.site import Site
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.ids import BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import ChannelCut
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.channel_cut import cut_channel, rebuild_log
from spark_jobs.runtime.staged.log_folding import Consumer
from spark_jobs.storage.local import LocalFiles
from tests.support.private_logs import begun, staged
from tests.support.systems import quick

KIND = Kind("a rebuilt channel", "seconds until the channel is durable", Better.LESS, "many batches in flight", "one batch")
_STAGE = StageName("hourly")
_MOST_S = 1.0


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """No batch has been read by the stage after it. Each has one file, which the restore does not read."""
    batches = 200 if quick else 2_000
    directory = site.new()
    channels = {way: _Channel(directory / way, size) for way, size in (("ours", batches), ("plain", 1))}
    ways = {way: channel.rebuild_s for way, channel in channels.items()}
    found = in_turn(f"{KIND.name}: {batches:,} batches", ways, 1 if quick else 3, tell)
    yield Figure(KIND, f"{batches:,} batches", found["ours"], found["plain"], most=_MOST_S)
    remove(directory)


class _Channel:
    """A channel in a checkpoint."""

    def __init__(self, directory: Path, batches: int) -> None:
        self._directory, self._rebuilt = directory, 0
        self._store = CheckpointStore(quick(directory / "home"))
        work = quick(directory / "work")
        log = begun(work, "stages/hourly/log")
        for batch in range(batches):
            log.append(staged(batch, f"{batch}.parquet", newest=batch))
        consumer = Consumer(SparkLog(work, "reader"), 1).cut(BatchId(-1))
        self._cut: ChannelCut = cut_channel(self._store, CheckpointId(1), _STAGE, log, BatchId(batches - 1), [consumer])

    def rebuild_s(self) -> float:
        self._rebuilt += 1
        work = LocalFiles(self._directory / f"rebuilt-{self._rebuilt}")
        began_s = time.monotonic()
        rebuild_log(work, _STAGE, self._cut, self._store.read_channel(self._cut))
        return time.monotonic() - began_s
