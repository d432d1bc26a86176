"""Deletes data that is not needed after a complete checkpoint: orphans, versions of private logs and data of abandoned incarnations."""

import logging
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from datetime import UTC, datetime

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.retention import discard, discardable, in_flight_from, kept, unpublished_from
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.documents import CheckpointKind, Manifest, StartResponse
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import BatchId, CheckpointId, SinkName, StageName, start_request_id
from spark_jobs.protocol.reports import report_error
from spark_jobs.publication.publisher import never_public, published
from spark_jobs.runtime.checkpoints.sweep import NamedByCheckpoints, sweep, sweep_abandoned
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.log_folding import trim
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_SWEPT = "swept.json"


class Subsumption:
    """Deletes data that is not needed after a checkpoint of the attempt. A failed deletion is logged, and its files stay.

    The larger a public table is, the more it costs to list its directory. An attempt does so only if the previous attempt has not
    ended cleanly, or if one of its own stages has failed: at its first checkpoint, and at its last one for later batches. Files that it
    cannot judge then, and files that a failed task has left of a batch that succeeded, stay until ``VACUUM``, like those of any failed
    write to Delta.

    Args:
        home: The home.
        work: The attempt's work directory. A mark in it says that an attempt has ended and left no unnamed file in the public tables.
        retained: Number of complete checkpoints that are kept.
        needed: Returns the names of staged files that are needed although nothing names them.
    """

    def __init__(self, home: Files, work: Files, retained: int, needed: Callable[[], Collection[str]] = frozenset) -> None:
        self._home, self._work, self._retained, self._needed = home, work, retained, needed
        self._is_first = True
        """True until files of earlier attempts in the home were deleted."""
        self._unnamed = True
        """True if the public tables may have staged files that no log or checkpoint names."""

    def begin(self) -> None:
        """Removes the mark of the previous attempt, durably, because stages are about to run."""
        self._unnamed = _SWEPT not in self._work.names("")
        self._work.delete(_SWEPT)

    def expect_unnamed(self) -> None:
        """Records that stages were interrupted, and may have left staged files that no log or checkpoint names."""
        self._unnamed = True

    def after(
        self,
        manifest: Manifest,
        stages: Sequence[StageRun],
        published: Mapping[SinkName, CheckpointId | None],
        copied: Container[CheckpointId] = (),
        shown: CheckpointId | None = None,
    ) -> None:
        """Deletes data that is not named any more, after a checkpoint that this attempt has created.

        Args:
            manifest: The newest checkpoint.
            stages: All stages of the pipeline.
            published: The newest public checkpoint, by sink.
            copied: Checkpoints of which savepoints are being made.
            shown: The checkpoint that readers of several tables see.
        """
        try:
            needless = _Needless(self._home, stages, manifest, published, self._retained, copied, shown, self._needed())
            needless.delete_staged(walk=self._unnamed and (self._is_first or manifest.ends_attempt))
            needless.discard()
            if self._is_first:
                live = Attempts(self._home).read(manifest.attempt)
                sweep_abandoned(self._home, live, {each.incarnation for each in needless.kept})
                self._is_first = False
            if manifest.ends_attempt:
                self._work.create(_SWEPT, b"{}\n")
        except (OSError, StreamPipelineError) as error:
            _LOG.warning("unnamed files may be left, until a later checkpoint or attempt: %s", error)


class _Needless:
    """Deletes data that no kept checkpoint needs. The arguments are those of :class:`Subsumption`."""

    def __init__(
        self,
        home: Files,
        stages: Sequence[StageRun],
        manifest: Manifest,
        published: Mapping[SinkName, CheckpointId | None],
        retained: int,
        copied: Container[CheckpointId],
        shown: CheckpointId | None,
        needed: Collection[str],
    ) -> None:
        self._needed = needed
        self._home, self._store, self._stages, self._newest = home, CheckpointStore(home), stages, manifest
        self._published = dict(published)
        """The newest checkpoint, by sink, that is public and was so when each checkpoint with a pending savepoint was taken."""
        self._manifests = self._store.manifests()
        """All valid manifests, ascending."""
        asked = {each.request for each in CheckpointRequests(home).open()}
        in_use = [each for each in self._manifests if each.request in asked or each.checkpoint in copied]
        for each in (each for each in in_use if each.incarnation == manifest.incarnation):
            for sink, cut in each.sinks.items():
                self._published[sink] = CheckpointId(min(self._published.get(sink) or 0, cut.known_published or 0)) or None
        numbers = {each.checkpoint for each in in_use} | ({shown} if shown is not None else set())
        self.kept = kept(self._manifests, retained=retained, published=self._published, needed=numbers)

    def delete_staged(self, *, walk: bool) -> None:
        """Deletes staged files that are not named, and batches that private logs do not need.

        With ``walk`` the public tables are swept, before the logs forget the batches of the parent. The runtime's own directories are
        swept each time, after that: a file is deleted as soon as neither a log nor a checkpoint needs it.
        """
        named = {
            stage.stage.name: NamedByCheckpoints(self._store, self._newest, stage.stage, stage.log.oldest())
            for stage in self._stages
        }
        deleted = self._sweep(named, own=False) if walk else 0
        parent = None if self._newest.parent is None else self._store.manifest(self._newest.parent)
        for stage in self._stages:
            name = stage.stage.name
            trim(stage.log, stage.output.consumers, self._last_needless(name, parent), stage.directory, named[name], self._needed)
        deleted += self._sweep(named, own=True)
        if deleted or walk:
            _LOG.info("%d unnamed staged files deleted", deleted)

    def discard(self) -> None:
        """Deletes older checkpoints, and the state files that only they name. Its cost is bounded by the remains of earlier runs."""
        remembered = {stage.stage.name: stage.log.oldest() for stage in self._stages}
        # abandoned when this attempt began: it has closed them in every table, or would not run
        closed = {each.incarnation for each in self._manifests if each.attempt < self._newest.attempt} - {
            self._newest.incarnation
        }
        found = discardable(self._manifests, self.kept, remembered=remembered, published=self._published, closed=closed)
        for each in self._manifests:
            if each.checkpoint in found and each.checkpoint_kind is CheckpointKind.FINAL:
                keep_answers(self._home, each, closed=each.incarnation in closed)
        discard(self._home, found)

    def _sweep(self, named: Mapping[StageName, Container[str]], *, own: bool) -> int:
        """Sweeps the directories that are the runtime's own, or the public tables; returns the number of deleted files."""
        deleted = 0
        for stage in self._stages:
            if stage.outlet.is_own == own:
                name = stage.stage.name
                # files of earlier batches are not needed: they are not in flight, and every sink has them
                needed = [in_flight_from(self.kept, name), unpublished_from(self._manifests, self._published, name)]
                needed_from = min((batch for batch in needed if batch is not None), default=None)
                deleted += len(sweep(stage, self._newest.stages[name].batch, named[name], needed_from, self._needed))
        return deleted

    def _last_needless(self, stage: StageName, parent: Manifest | None) -> BatchId:
        """Returns the last batch of a stage before which no checkpoint will be cut, and which no restore will read again."""
        before = parent.stages.get(stage) if parent else None
        if before is None:
            return NO_BATCH
        in_flight = in_flight_from(self.kept, stage)
        return before.batch if in_flight is None else min(before.batch, BatchId(in_flight - 1))


def keep_answers(home: Files, final: Manifest, *, closed: bool = False) -> None:
    """Keeps an answer for each run that had an attempt at a round and got no answer with its final checkpoint. Idempotent.

    Its driver may have died before it answered, or another run may have ended the round. Such a run, if it is repeated, is done.
    It has failed where its incarnation is closed and rows of it can never become public: then the answer has the error as well.

    Args:
        home: The home.
        final: The final checkpoint of the round.
        closed: True if its incarnation is closed.
    """
    channel = Channel(home)
    asked = {final.run: start_request_id(final.attempt)}
    for number in reversed(channel.attempts.names().begun):  # an attempt that has only claimed a number may name any round
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
