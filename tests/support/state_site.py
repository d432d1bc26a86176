"""A home with the work directory of one stage in it, whose state is pinned and restored without Spark."""

from pathlib import Path
from typing import Any

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import StageCut, StateFile
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.staged.channel_cut import cut_channel
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.state.pinning import PinnedState, StateCopies, new_state_directory, persist, pin
from spark_jobs.storage.files import Files
from tests.support.documents import a_sample_manifest
from tests.support.private_logs import begun, staged
from tests.support.staged_pipeline import a_stage_cut
from tests.support.state_stores import SparkCheckpoint
from tests.support.systems import quick

HOURLY = StageName("hourly")


class Site:
    """A home with the work directory of one stage in it.

    Args:
        root: Parent of the directories.
        home: The home, if it is in a store. None: ``root / "home"``.
    """

    def __init__(self, root: Path, home: Files | None = None) -> None:
        self.root = root
        self.home: Files = home or quick(root / "home")
        self.work = quick(root / "home/work/w")
        self.checkpoint = SparkCheckpoint(root / "home/work/w/stages/hourly/checkpoint")
        self.channel = begun(self.work, "stages/hourly/log")
        self.graph: dict[str, Any] = {"statics": {}, "stages": {"hourly": {"inputs": {"events": "events"}}}}

    @property
    def log(self) -> SparkLog:
        return SparkLog(self.work, "stages/hourly/checkpoint")

    def batches(self, count: int) -> None:
        for _ in range(count):
            batch = self.checkpoint.batch()
            offsets = self.log.offsets_text(BatchId(batch))
            self.channel.append(staged(batch, f"{batch}.parquet", offsets=offsets))

    def pin(self, batch: int, parent: StageCut | None = None, checkpoint: int = 1, *, second_copy: bool = False) -> PinnedState:
        place = new_state_directory(self.home, HOURLY, CheckpointId(checkpoint), AttemptNumber(1))
        return pin(StateCopies(self.home, self.log, second_copy), BatchId(batch), place, parent)

    def take(self, batch: int, parent: StageCut | None = None, checkpoint: int = 1) -> StageCut:
        return cut(batch, persist(self.pin(batch, parent, checkpoint)))

    def complete(self, batch: int, parent: StageCut | None = None, checkpoint: int = 1) -> Manifest:
        """Returns a manifest with the stage cut at a batch."""
        files = self.take(batch, parent, checkpoint).files
        return manifest_of(self.home, checkpoint, batch, files, self.channel, parent, self.graph)


def manifest_of(
    home: Files,
    checkpoint: int,
    batch: int,
    files: tuple[StateFile, ...],
    channel: PrivateLog | None = None,
    parent: StageCut | None = None,
    graph: dict[str, Any] | None = None,
) -> Manifest:
    """Returns a completed checkpoint of one stage. By default its channel has no rows."""
    number, store = CheckpointId(checkpoint), CheckpointStore(home)
    log = channel or begun(home, "work/nothing/log")
    channel_cut = cut_channel(store, number, HOURLY, log, BatchId(batch), [], parent.batch if parent else None)
    stage = a_stage_cut(batch, files=files, channel=channel_cut)
    manifest = a_sample_manifest(checkpoint, {HOURLY: stage}).model_copy(
        update={
            "graph": graph or {},
            "parent": CheckpointId(checkpoint - 1) if parent else None,
            "attempt": AttemptNumber(1),
            "checkpoint_kind": CheckpointKind.PERIODIC,
        }
    )
    store.complete(manifest)
    return manifest


def cut(batch: int, files: tuple[StateFile, ...]) -> StageCut:
    return a_stage_cut(batch, files=files)
