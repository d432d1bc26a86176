"""Deletes what is not needed after a completed checkpoint: orphans, versions of private logs, the rest of abandoned incarnations."""

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_jobs.checkpoint.retention import discard, discardable, in_flight_from, kept, unpublished_from
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.documents import CheckpointKind, Manifest, SinkResult, StartResponse
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import BatchId, CheckpointId, IncarnationId, SinkName, StageName, start_request_id
from spark_jobs.protocol.reports import report_error
from spark_jobs.publication.publisher import never_public, published
from spark_jobs.runtime.checkpoints.sweep import named_by_checkpoints, sweep, sweep_abandoned
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.log_folding import trim
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Needs:
    """The checkpoints that are needed from now on, and the batches that they need."""

    manifests: Sequence[Manifest]
    """All valid manifests, ascending."""
    kept: Sequence[Manifest]
    published: Mapping[SinkName, CheckpointId | None]
    """By sink the newest checkpoint that is public."""

    def in_flight(self, stage: StageName) -> BatchId | None:
        """Returns the first batch of a stage whose files a channel of a kept checkpoint names."""
        return in_flight_from(self.kept, stage)

    def from_batch(self, stage: StageName) -> BatchId | None:
        """Returns the first batch of a stage whose files may be needed, in flight or because not every sink has them; None if none are."""
        found = (self.in_flight(stage), unpublished_from(self.manifests, self.published, stage))
        return min((batch for batch in found if batch is not None), default=None)


def subsume(
    home: Files,
    stages: Sequence[StageRun],
    manifest: Manifest,
    results: Mapping[SinkName, SinkResult],
    *,
    retained: int,
    swept: bool,
) -> bool:
    """Deletes what nothing names any more after ``manifest``, which this attempt has created. What cannot be deleted is logged, and left.

    Args:
        home: The home.
        stages: All of the pipeline.
        manifest: The newest checkpoint.
        results: What its publication came to.
        retained: How many complete checkpoints are kept.
        swept: Whether this attempt has swept the public tables before: it looks through them once, for what an attempt that ended has left.

    Returns:
        Whether it has swept them.
    """
    try:
        store = CheckpointStore(home)
        needs = _needs(home, store, manifest, results, retained)
        _delete_staged(store, stages, manifest, needs, swept=swept)
        _discard(home, stages, manifest, needs)
        if not swept:
            sweep_abandoned(home, Attempts(home).read(manifest.attempt), {each.incarnation for each in needs.kept})
    except (OSError, StreamPipelineError) as error:
        _LOG.warning("not all that nothing names was deleted: %s", error)
        return swept
    return True


def _needs(
    home: Files, store: CheckpointStore, manifest: Manifest, results: Mapping[SinkName, SinkResult], retained: int
) -> _Needs:
    published = {
        sink: cut.known_published if results[sink].version is None else manifest.checkpoint
        for sink, cut in manifest.sinks.items()
    }
    manifests = store.manifests()
    asked = {each.request for each in CheckpointRequests(home).open()}
    needed = {each.checkpoint for each in manifests if each.request in asked}
    return _Needs(manifests, kept(manifests, retained=retained, published=published, needed=needed), published)


def _delete_staged(store: CheckpointStore, stages: Sequence[StageRun], manifest: Manifest, needs: _Needs, *, swept: bool) -> None:
    """Deletes staged files that nothing names, and what private logs need not remember.

    The public tables are swept once, for they are large, and ``VACUUM`` knows what in them is needless: before the logs forget the batches
    of the parent. What is the runtime's own is swept each time, after that: it goes as soon as neither a log nor a checkpoint needs it.
    """
    named = {stage.stage.name: named_by_checkpoints(store, manifest, stage.stage, stage.log.oldest()) for stage in stages}
    own = [stage for stage in stages if stage.outlet.is_own]
    deleted = 0 if swept else _sweep([stage for stage in stages if not stage.outlet.is_own], manifest, named, needs)
    _trim(store, stages, manifest, named, needs)
    deleted += _sweep(own, manifest, named, needs)
    if deleted or not swept:
        _LOG.info("%d staged files that nothing names deleted", deleted)


def _sweep(stages: Sequence[StageRun], manifest: Manifest, named: Mapping[StageName, Set[str]], needs: _Needs) -> int:
    """Deletes what nothing names, and returns how many files went."""
    names = ((stage, stage.stage.name) for stage in stages)
    return sum(len(sweep(stage, manifest.stages[name].batch, named[name], needs.from_batch(name))) for stage, name in names)


def _trim(
    store: CheckpointStore, stages: Sequence[StageRun], manifest: Manifest, named: Mapping[StageName, Set[str]], needs: _Needs
) -> None:
    parent = None if manifest.parent is None else store.manifest(manifest.parent)
    for stage in stages:
        name = stage.stage.name
        trim(stage.log, stage.output.consumers, _needless(name, parent, needs), stage.directory, named[name])


def _discard(home: Files, stages: Sequence[StageRun], manifest: Manifest, needs: _Needs) -> None:
    """Deletes older checkpoints, and the state files that only they name; bounded by what is left of the runs before."""
    remembered = {stage.stage.name: stage.log.oldest() for stage in stages}
    closed = _closed(needs.manifests, manifest)
    found = discardable(needs.manifests, needs.kept, remembered=remembered, published=needs.published, closed=closed)
    for each in needs.manifests:
        if each.checkpoint in found and each.checkpoint_kind is CheckpointKind.FINAL:
            keep_answers(home, each, closed=each.incarnation in closed)
    discard(home, found)


def keep_answers(home: Files, final: Manifest, *, closed: bool = False) -> None:
    """Keeps an answer for each run that has had an attempt at a round and was not given its final checkpoint. Idempotent.

    Its driver may have died before it answered, or another run may have ended the round. Such a run, if it is repeated, is done.
    It has failed where its incarnation is closed and rows of it can never become public: then the answer has the error as well.

    Args:
        home: The home.
        final: The final checkpoint of the round.
        closed: Whether its incarnation is.
    """
    channel = Channel(home)
    asked = {final.run: start_request_id(final.attempt)}
    for number in reversed(channel.attempts.names().begun):  # not one that has only claimed a number: it may name any round
        if number <= final.attempt:
            attempt = channel.attempts.read(number)
            if attempt.round != final.round:
                break
            asked.setdefault(attempt.run, attempt.request)
    for run, request in asked.items():
        answer = channel.answer(run)
        if answer is None or answer.checkpoint is None:
            results = published(home, final.checkpoint)
            lost = never_public(final, results) if closed else None
            channel.keep_answer(
                StartResponse(
                    request=request,
                    attempt=final.attempt,
                    run=run,
                    checkpoint=final.checkpoint,
                    ends_round=final.ends_round,
                    sinks={} if lost else results,
                    error=report_error(lost) if lost else None,
                    answered_at=datetime.now(UTC),
                )
            )


def _closed(manifests: Sequence[Manifest], manifest: Manifest) -> set[IncarnationId]:
    """Returns the incarnations that this attempt has found abandoned when it began: it has closed them in every table, or would not run."""
    return {each.incarnation for each in manifests if each.attempt < manifest.attempt} - {manifest.incarnation}


def _needless(stage: StageName, parent: Manifest | None, needs: _Needs) -> BatchId:
    """Returns the last batch of a stage that no checkpoint will be cut before, and that no restore reads again."""
    before = parent.stages.get(stage) if parent else None
    if before is None:
        return NO_BATCH
    in_flight = needs.in_flight(stage)
    return before.batch if in_flight is None else min(before.batch, BatchId(in_flight - 1))
