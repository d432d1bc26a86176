"""What a completed checkpoint makes needless: orphans, versions of private logs, what abandoned incarnations have left."""

import logging
from collections.abc import Mapping, Sequence, Set

from spark_jobs.checkpoint.retention import discard, discardable, in_flight_from
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.documents import CheckpointKind, Manifest, SinkResult
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import BatchId, SinkName, StageName
from spark_jobs.runtime.log_folding import trim
from spark_jobs.runtime.spark_log import NO_BATCH
from spark_jobs.runtime.stage import StageRun
from spark_jobs.runtime.sweep import named_by_checkpoints, sweep, sweep_abandoned
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


def subsume(
    home: Files,
    stages: Sequence[StageRun],
    manifest: Manifest,
    results: Mapping[SinkName, SinkResult],
    *,
    retained: int,
    swept: bool,
) -> None:
    """Deletes what nothing names any more after ``manifest``, which this attempt has created. What cannot be deleted is logged, and left.

    Args:
        home: The home.
        stages: All of the pipeline.
        manifest: The newest checkpoint.
        results: What its publication came to.
        retained: How many complete checkpoints are kept.
        swept: Whether this attempt has swept before: then there are no orphans, which only an attempt that ended has left.
    """
    try:
        store = CheckpointStore(home)
        named = {stage.stage.name: named_by_checkpoints(store, manifest, stage.stage, stage.log.oldest()) for stage in stages}
        if not swept:
            deleted = sweep(stages, {name: cut.batch for name, cut in manifest.stages.items()}, named)
            _LOG.info("%d orphans swept", len(deleted))
        _trim(store, stages, manifest, named)
        if manifest.checkpoint_kind is not CheckpointKind.FINAL:  # whose round has taken no others
            _discard(home, store, stages, manifest, results, retained)
        if not swept:
            sweep_abandoned(home, [Attempts(home).read(n) for n in Attempts(home).numbers()])
    except (OSError, StreamPipelineError) as error:
        _LOG.warning("not all that nothing names was deleted: %s", error)


def _trim(store: CheckpointStore, stages: Sequence[StageRun], manifest: Manifest, named: Mapping[StageName, Set[str]]) -> None:
    parent = None if manifest.parent is None else store.manifest(manifest.parent)
    for stage in stages:  # after the sweep, which knows the batches of the parent for the last time
        trim(
            stage.log,
            stage.output.consumers,
            _needless(stage.stage.name, manifest, parent),
            stage.directory,
            named[stage.stage.name],
        )


def _discard(
    home: Files,
    store: CheckpointStore,
    stages: Sequence[StageRun],
    manifest: Manifest,
    results: Mapping[SinkName, SinkResult],
    retained: int,
) -> None:
    """Deletes older checkpoints, and the state files that only they name; bounded by what is left of the runs before."""
    published = {
        sink: cut.known_published if results[sink].version is None else manifest.checkpoint
        for sink, cut in manifest.sinks.items()
    }
    remembered = {stage.stage.name: stage.log.oldest() for stage in stages}
    manifests = store.manifests()
    asked = {each.request for each in CheckpointRequests(home).open()}
    needed = {each.checkpoint for each in manifests if each.request in asked}
    discard(home, discardable(manifests, retained=retained, published=published, remembered=remembered, needed=needed))


def _needless(stage: StageName, manifest: Manifest, parent: Manifest | None) -> BatchId:
    """The last batch of a stage that no checkpoint will be cut before, and that no restore reads again."""
    before = parent.stages.get(stage) if parent else None
    if before is None:
        return NO_BATCH
    in_flight = in_flight_from((parent, manifest), stage) if parent else None
    return before.batch if in_flight is None else min(before.batch, BatchId(in_flight - 1))
