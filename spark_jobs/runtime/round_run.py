"""Runs a round in an attempt: builds the stages, runs each to its end, completes checkpoints and publishes them."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial

from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.stage import Stage
from spark_jobs.api.tolerance import Tolerance
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.losses import LossLedger, rows_passed_over
from spark_jobs.control.rounds import NOTHING_LEFT_OUT, LeftOut
from spark_jobs.home.layout import position_of_loss
from spark_jobs.protocol.documents import (
    AttemptDocument,
    Manifest,
    OnEnd,
    PinnedInput,
    PipelineDocument,
    Publish,
    RoundDocument,
    SinkResult,
    StageState,
    ToleratedRows,
)
from spark_jobs.protocol.errors import ConflictError, NotFoundError, StreamPipelineError
from spark_jobs.protocol.ids import BatchId, CheckpointId, InputName, LossId, SinkName, StageName
from spark_jobs.protocol.losses import Loss, PassedOver, StagedFile, beyond, goes_on_without
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.protocol.pins import Pin
from spark_jobs.publication.evidence import is_shown
from spark_jobs.publication.publisher import plan_publication, publish_due
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.checkpoints.blocked_publication import Blocking
from spark_jobs.runtime.checkpoints.checkpoint_try import CheckpointTry, stages_behind
from spark_jobs.runtime.checkpoints.cut import CheckpointOrder
from spark_jobs.runtime.checkpoints.subsume import Subsumption
from spark_jobs.runtime.checkpoints.tidying import Tidying
from spark_jobs.runtime.spark.session import publications_of, spark_failures
from spark_jobs.runtime.spark.spark_errors import is_about_a_file
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.stages.backfill import backfill, check_backfill
from spark_jobs.runtime.stages.begin_anew import begin_anew, end_planned
from spark_jobs.runtime.stages.build import build_stage
from spark_jobs.runtime.stages.lost_input import check_lost, check_skipped, leave_out_lost
from spark_jobs.runtime.stages.passing_over import PassingOver, beyond_tolerance, has_read, is_unread
from spark_jobs.runtime.stages.planned import plan_stages
from spark_jobs.runtime.stages.replay import replay
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.stage_inputs import NONE_ENDED
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.runtime.start.adoption import adopt_offsets, refuse_moved
from spark_jobs.runtime.start.source_identity import ended_sources, find_sources, others_than, settle
from spark_jobs.runtime.start.static_versions import keep_pinned_versions
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


@dataclass
class RoundRun:
    """A round that an attempt begins or continues.

    A stage passes over rows that it cannot process, within its tolerance. The loss ledger records them, and a later run may backfill them.
    It is the :class:`~spark_jobs.runtime.checkpoints.publishing.Publisher` of the attempt's checkpoints.
    """

    graph: Graph
    home: Files
    pipeline: PipelineDocument
    attempt: AttemptDocument
    round: RoundDocument
    site: RoundSite
    publishers: Publishers
    mask: Mask = unmasked
    """Removes secrets from texts about failures."""
    accept_data_loss: Collection[InputName] = ()
    """Sources that are read without their lost rows."""
    tidying: Tidying | None = None
    """Archives or deletes files that were read."""
    backfills: Collection[LossId] = ()
    """Losses whose rows the stages process when they are built."""
    left_out: LeftOut = NOTHING_LEFT_OUT
    """The facts of the ledger when the attempt began."""
    before_queries: Callable[[], object] = lambda: None
    """Called by :meth:`build` before the first query."""
    backfilled: set[LossId] = field(default_factory=set)
    """Losses of the round whose rows the stages have staged since. Every checkpoint of the attempt has them."""
    outputs: dict[StageName, StageOutput] = field(default_factory=dict)
    """The outputs of the stages that :meth:`build` has built, by stage."""

    def build(self) -> list[StageRun]:
        """Returns the stages, ready to run, in topological order.

        This also runs the batches of a stage that must be computed again, begins again or backfills. Their rows are staged on return.

        Raises:
            RejectedError: A loss cannot be backfilled, or a source has lost rows that the start does not accept.
            InterruptedRunError: The query of a stage failed, or a batch has another number of rows than before.
            CorruptDocumentError: A private log does not have the plan of a batch.
            SourceChangedError: A source has got other columns; see :meth:`look_again`.
        """
        replayed = keep_pinned_versions(self.graph, self.home, self.attempt, self.parent)
        self.site = replace(self.site, replayed_statics=replayed)
        stages = []
        for stage in self.graph.stages.values():
            cut = self.parent.stages.get(stage.name) if self.parent else None
            run = build_stage(stage, self.site, self.outputs, recorded=cut.batch if cut else NO_BATCH)
            self.outputs[stage.name] = run.output
            stages.append(run)
        stages = self._built_again(stages, self._leave_out_again(stages))
        self._find_backfilled(stages)
        stages = self._built_again(stages, self._read_again(stages))
        for run in stages:
            adopt_offsets(run, self.round)
        self.before_queries()
        stages = [replay(run, self.build_again) for run in stages]
        renewed = self._renewed()
        if renewed:
            stages = [begin_anew(run, renewed, self.round.round, self.build_again) for run in stages]
        skipped = self.graph.skips_what_is_gone
        stages = leave_out_lost(stages, self.site, self.attempt, self.accept_data_loss, skipped, self.build_again)
        return self._backfill(stages)

    def _backfill(self, stages: Sequence[StageRun]) -> list[StageRun]:
        """Processes rows that the stages have left out. Returns the stages to go on with.

        A loss that its stage has not reached is undone instead: the stage reads its rows like all others.

        Raises:
            RejectedError: A loss cannot be backfilled. Nothing of it was staged.
            InterruptedRunError: A stage still fails with the rows.
        """
        asked = [loss for loss in self._passed_over() if loss.id in self.backfills and loss.id not in self.backfilled]
        runs = {run.stage.name: run for run in stages}
        for loss in asked:
            check_backfill(loss, [runs[name] for name in stages_behind(stages, {loss.stage})])
        for name in dict.fromkeys(loss.stage for loss in asked):
            run, own = runs[name], [loss for loss in asked if loss.stage == name]
            end_planned(run)
            unread = [loss for loss in own if is_unread(loss, run, self.outputs.get(StageName(loss.input)))]
            self._undo(unread)
            if unread:
                run = runs[name] = self.build_again(run)
            read = [loss for loss in own if loss not in unread]
            if read:
                backfill(run, read, runs, self.site)
                self.backfilled.update(loss.id for loss in read if loss.id is not None)
        return [runs[run.stage.name] for run in stages]

    def _passed_over(self) -> list[PassedOver]:
        return [loss for loss in self.site.losses if isinstance(loss, PassedOver)]

    def _find_backfilled(self, stages: Sequence[StageRun]) -> None:
        """Finds the losses whose rows are staged: in the checkpoint that the attempt goes on from, or in later batches.

        If the ledger says that a loss is backfilled, but none of its rows is staged, the loss is opened again: the attempt goes on from a
        point before the backfill.
        """
        passed_over = self._passed_over()
        if not passed_over:
            return
        self.backfilled.update(self.parent.backfilled if self.parent else ())
        readers = {loss.stage for loss in passed_over}
        for run in stages:
            if run.stage.name in readers:
                cut = self.parent.stages.get(run.stage.name) if self.parent else None
                later = run.log.between(cut.batch if cut else NO_BATCH, BatchId(run.log.latest() - 1))
                self.backfilled.update(loss for staged in later for loss in staged.backfilled)
        self.backfilled &= {loss.id for loss in passed_over if loss.id is not None}
        again = {loss.id for loss in passed_over if loss.id is not None} & self.left_out.backfilled - self.backfilled
        for loss in sorted(again):
            _LOG.warning("loss %s is open again: the pipeline goes on from a checkpoint without its rows", loss)
        LossLedger(self.home).reopen(sorted(again))

    def look_again(self, newest: Manifest | None) -> None:
        """Reads the sources again after one of them has got other columns. The stages must be built again.

        Args:
            newest: The newest checkpoint.

        Raises:
            InvalidPipelineError: A stage cannot run with the new columns.
            RejectedError: Unread rows cannot be read any more, or a source is a different one.
        """
        self.parent = newest
        self.subsumption.expect_unnamed()
        mistakes = Mistakes()
        plan_stages(self.graph, self.site.spark, self.site.params, mistakes)
        mistakes.check()
        ended = ended_sources(self.graph, newest, self.round.round)
        site, before = self.site, self.site.sources
        found = find_sources(
            self.graph, site.spark, site.params, self.mask, before=before, ended=ended, adopted=self.round.adopted
        )
        self.site = replace(site, sources=settle(found, before, ()).sources)

    def _renewed(self) -> frozenset[InputName]:
        """Returns the sources that are read from their beginning after the checkpoint that this attempt goes on from."""
        parent = self.parent if self.round.sources else None
        if parent is None or (parent.round == self.round.round and parent.origin is None):
            return frozenset()
        return others_than(parent.sources, self.round.sources) | frozenset(self.round.new_sources)

    def build_again(self, earlier: StageRun, ended: Set[str] = NONE_ENDED) -> StageRun:
        """Builds a stage again, without its inputs in ``ended``. Other ended inputs are found."""
        return build_stage(earlier.stage, self.site, self.outputs, earlier, ended)

    def passing_over(self, stage: Stage, stopping: threading.Event) -> PassingOver | None:
        """Returns the object that lets a stage pass over input; None if the stage tolerates no failure."""
        tolerance = stage.tolerance
        if tolerance is None:
            return None
        self.site.heartbeat.tolerates(stage.name, ToleratedRows(rows=tolerance.rows, interval_ms=tolerance.interval_ms))

        def build(earlier: StageRun, losses: Sequence[Loss]) -> StageRun:
            site = replace(self.site, losses=[*self.site.losses, *losses])
            return build_stage(earlier.stage, site, self.outputs, earlier, earlier.ended)

        return PassingOver(tolerance, build, partial(self._pass_over, tolerance), stopping)

    def _pass_over(self, tolerance: Tolerance, loss: PassedOver) -> None:
        """Records the input that a stage passes over. Durable on return.

        Raises:
            FencedError: Another attempt is live.
            RestartsExhaustedError: The stage does not tolerate that much.
        """
        Attempts(self.home).check_live(self.attempt.attempt)
        ledger = LossLedger(self.home)
        self._undo(self._recorded_late(ledger, loss))
        since = datetime.now(UTC) - timedelta(milliseconds=tolerance.interval_ms)
        spent = rows_passed_over(ledger.passed_over(since), loss.stage, since)
        loss = loss.model_copy(update={"error": self.mask(loss.error)})
        if spent + loss.rows > tolerance.rows:
            raise beyond_tolerance(tolerance, spent, loss)
        self.site.losses.extend(ledger.record(self.round.round, self.attempt, [loss]))
        _LOG.warning("%s", goes_on_without(loss), extra={"stage": loss.stage})

    def _recorded_late(self, ledger: LossLedger, loss: PassedOver) -> list[Loss]:
        """Returns the open losses of the same input that this attempt does not leave out. Fenced attempts have recorded them."""
        known = {each.id for each in self.site.losses}
        late = [each for each in ledger.of_round(self.round.round) if each.id not in known]
        return [each for each in late if beyond(loss, [each]) != [loss]]

    def _leave_out_again(self, stages: Sequence[StageRun]) -> set[StageName]:
        """Opens undone losses again that the checkpoint has left out. Durable on return. Returns their stages, which must be built again.

        An attempt has undone them that went on from an older checkpoint. It is not live any more, and nothing of its work is left.
        """
        runs, again = {run.stage.name: run for run in stages}, list[PassedOver]()
        undone = self.left_out.undone.difference(self.round.undoes, [loss.id for loss in self.site.losses])
        for loss in self.parent.losses if self.parent else ():
            run, cut = runs.get(loss.stage), self.parent.stages.get(loss.stage) if self.parent else None
            if isinstance(loss, PassedOver) and loss.id in undone and run is not None and cut is not None:
                is_read = has_read(loss, run, self.outputs.get(StageName(loss.input)), cut.batch)
                again += [loss] if is_read else []
        LossLedger(self.home).reopen([loss.id for loss in again if loss.id is not None])
        self.site.losses.extend(again)
        return {loss.stage for loss in again}

    def _read_again(self, stages: Sequence[StageRun]) -> set[StageName]:
        """Undoes the losses whose rows the stages read again. Durable on return. Returns their stages, which must be built again.

        A loss stays if the checkpoint has it, or if it was recorded in this work directory. A loss of a staged batch that the channel does
        not have any more is always undone. An attempt that is no longer live may have recorded a loss of a batch that was computed again,
        or that was read whole: see ADR 35. A loss of another work directory is undone even if its stage has not read that far. If the
        stage left the rows out, the next attempt could not tell that from a stage that has read them.
        """
        named = {loss.id for loss in self.parent.losses} if self.parent else set()
        names = {run.stage.name for run in stages}
        again = []
        for loss in self.site.losses:
            output = self.outputs.get(StageName(loss.input))
            if not isinstance(loss, PassedOver) or loss.stage not in names or loss.id in self.backfilled:
                continue
            is_own = loss.id in named or self._is_of_an_earlier_round(loss) or self._is_of_this_work_directory(loss)
            is_gone = isinstance(loss.unit, StagedFile) and (output is None or loss.unit.batch >= output.log.latest())
            if is_gone or not is_own:
                again.append(loss)
        self._undo(again)
        return {loss.stage for loss in again}

    def _built_again(self, stages: Sequence[StageRun], changed: Collection[StageName]) -> list[StageRun]:
        """Returns the stages, those of ``changed`` with the losses that count now."""
        return [self.build_again(run) if run.stage.name in changed else run for run in stages]

    def _undo(self, losses: Sequence[Loss]) -> None:
        """Records that the stages read the rows of losses again. Durable on return."""
        if losses:
            LossLedger(self.home).undo([loss.id for loss in losses if loss.id is not None], self.round.round)
            self.site.losses[:] = [loss for loss in self.site.losses if loss not in losses]

    def _is_of_an_earlier_round(self, loss: PassedOver) -> bool:
        """Returns True if a loss was recorded in a round that had ended before the checkpoint that the attempt goes on from."""
        return self.parent is not None and loss.id is not None and position_of_loss(loss.id)[0] < self.parent.round

    def _is_of_this_work_directory(self, loss: PassedOver) -> bool:
        return loss.id is not None and LossLedger(self.home).read(loss.id).work_directory == self.attempt.work_directory.id

    def check_lost(self, stage: StageRun, error: Exception) -> None:
        """Refuses to start a stage again if a source has lost rows that the stage has not read.

        Args:
            stage: The stage.
            error: Error of the stage. Each file is checked only if the error is about an unreadable file.

        Raises:
            RejectedError: A source has lost rows. A new start can accept the loss.
        """
        check_lost(stage, self.site.losses, thorough=is_about_a_file(error))

    def check_skipped(self, stage: StageRun) -> None:
        """Requests new stages if a source with ``on_gone="skip"`` has lost rows that a stage has not read.

        Raises:
            SourceGoesOnError: A source has lost rows.
        """
        check_skipped(stage, self.site.losses, self.graph.skips_what_is_gone)

    def to_its_end(self, stage: StageRun) -> None:
        """Stages every row of a stage whose inputs end, and then drains or suspends it by the round's setting. Idempotent.

        A stage that is finished in this attempt's checkpoint is not started again.

        Raises:
            FencedError: Another attempt is live.
            InterruptedRunError: The stage's query failed; a later start goes on after its last batch.
        """
        name, heartbeat = stage.stage.name, self.site.heartbeat
        Attempts(self.home).check_live(self.attempt.attempt)
        if not self._has_finished(stage):
            drains = self.round.on_end is OnEnd.DRAIN
            heartbeat.stage(name, StageState.RUNNING)
            if stage.stage.reads_tables:
                self._compute_table(stage)
            else:
                if drains:
                    stage.leave_release_to_drain()
                stage.run_to_end()
            heartbeat.stage(name, StageState.DRAINING)
            if drains:
                stage.drain()
            else:
                stage.release()
        heartbeat.stage(name, StageState.ENDED)
        stage.output.ended.set()

    def flush(self, stage: StageRun) -> None:
        """Ends a stage at its present position, after those that it reads; see :meth:`StageRun.flush`. Idempotent."""
        if stage.stage.reads_tables:
            self._compute_table(stage)
        else:
            stage.flush()

    def _compute_table(self, stage: StageRun) -> None:
        """Computes the table of a stage from the present tables of the stages that it reads, which have ended."""
        self.build_again(stage).compute_table()

    def complete(self, order: CheckpointOrder, stages: Sequence[StageRun], parent: Manifest | None) -> Manifest:
        """Completes a checkpoint. Durable on return.

        Args:
            order: The checkpoint to take.
            stages: All stages of the pipeline.
            parent: Checkpoint that it continues.

        Raises:
            FencedError: Another attempt is live.
            StreamPipelineError: The checkpoint was not completed, or the outcome is unknown; see :meth:`landed`.
        """

        def check_pins() -> dict[InputName, tuple[Pin, ...]]:
            Attempts(self.home).check_live(self.attempt.attempt)
            inputs = {pinned.input: pinned.pins for pinned in self._pinned() if pinned}
            refuse_moved(self.round.adopted)
            return inputs

        effort = CheckpointTry(
            self.home,
            self.pipeline,
            self.attempt,
            self.round,
            order,
            parent,
            check_pins,
            self.mask,
            self.site.sources,
            self.site.losses,
            self.blocking.held,
            self.backfilled,
        )
        try:
            return self._record_completed(effort.take(stages))
        except StreamPipelineError:
            self.site.heartbeat.checkpoint_failed()
            raise

    def landed(self, parent: Manifest | None) -> Manifest | None:
        """Returns the checkpoint that this attempt has completed after ``parent`` in spite of an error, or None. Durable on return.

        Raises:
            StorageError: The outcome is still unknown.
        """
        store = CheckpointStore(self.home)
        head = store.head()
        if head is None or head.attempt != self.attempt.attempt or (parent is not None and head.checkpoint <= parent.checkpoint):
            return None
        store.make_durable([head.checkpoint])
        return self._record_completed(head)

    def publish(
        self, stages: Sequence[StageRun], manifest: Manifest, shown: CheckpointId | None = None, *, may_block: bool = False
    ) -> Mapping[SinkName, SinkResult]:
        """Publishes the last checkpoint by policy, and deletes unneeded files. Can be repeated.

        Args:
            stages: All stages of the pipeline.
            manifest: The checkpoint.
            shown: Checkpoint that readers of several tables have seen so far.
            may_block: True if a table may refuse it. Then nothing is public, and :attr:`blocking` has the reason.

        Raises:
            StreamPipelineError: A due sink that is not held is not published. The checkpoint is valid.
        """
        results = self.blocking.results(manifest, self.publishers, may_block=may_block)
        if self.blocking.is_blocked:
            # If a later attempt is live, the error may only come from its deletions.
            Attempts(self.home).check_live(self.attempt.attempt)
        published = {sink: manifest.checkpoint for sink, result in results.items() if result.version is not None}
        self.subsume(stages, manifest, published, shown=None if len(published) == len(manifest.sinks) else shown)
        return results

    def subsume(
        self,
        stages: Sequence[StageRun],
        manifest: Manifest,
        published: Mapping[SinkName, CheckpointId],
        *,
        copied: Collection[CheckpointId] = (),
        shown: CheckpointId | None = None,
    ) -> None:
        """Deletes files that the newest checkpoint makes unneeded, and tidies files that were read. Keeps those that a publication needs.

        Args:
            stages: All stages of the pipeline.
            manifest: The checkpoint.
            published: Newest public checkpoint by sink, as far as this attempt knows. For a sink that is not published with every
                checkpoint the manifest has it, too.
            copied: Checkpoints that are being copied into savepoints.
            shown: Checkpoint that readers of several tables see.
        """
        if any(stage.restarts for stage in self.site.heartbeat.status.stages.values()):
            self.subsumption.expect_unnamed()
        # A manifest may have a publication of this attempt that is not noted yet: then ``shown`` is older than what the tables show.
        known = {
            sink: published.get(sink, None if cut.publish is Publish.EVERY_CHECKPOINT else cut.known_published)
            for sink, cut in manifest.sinks.items()
        }
        self.subsumption.after(manifest, stages, known, copied, shown)
        self.tidy()

    def check(self, manifest: Manifest) -> None:
        """Raises an error if a table refuses a checkpoint, as far as this can be checked before writing."""
        with publications_of(self.site.spark):
            planned = plan_publication(self.home, manifest.checkpoint, by_policy=True, at_once=True)
            planned.require(self.publishers)
            planned.check(self.publishers)

    def publish_sink(self, manifest: Manifest, sink: SinkName) -> None:
        """Publishes a checkpoint, and all earlier ones, in one sink."""
        with publications_of(self.site.spark):
            publish_due(self.home, manifest.checkpoint, self.publishers, sinks=[sink])

    def publish_all(self, manifest: Manifest) -> None:
        """Publishes a checkpoint, and all earlier ones, in every due sink that is not held, or records a blocked publication."""
        with publications_of(self.site.spark):
            self.blocking.publish_or_block(manifest, self.publishers)

    def shown(self) -> CheckpointId | None:
        """Returns the newest checkpoint for which every table has its own version, or None, also if a table cannot be read."""
        try:
            manifests = CheckpointStore(self.home).manifests()[::-1]
            return next((manifest.checkpoint for manifest in manifests if is_shown(manifest)), None)
        except StreamPipelineError as error:
            _LOG.warning("the checkpoint that all tables show cannot be read: %s", error)
            return None

    def tidy(self) -> None:
        """Archives or deletes finished files of sources. Failures are logged, and left to the next checkpoint or attempt."""
        failures: tuple[type[Exception], ...] = (OSError, StreamPipelineError, *spark_failures())
        try:
            if self.tidying is not None:
                self.tidying.run()
        except failures as error:
            _LOG.warning("not all files that were read are archived or deleted: %s", error)

    @cached_property
    def blocking(self) -> Blocking:
        """Returns the record of blocked publications of this attempt."""
        return Blocking(self.home, self.mask, self.site.heartbeat.blocked)

    @cached_property
    def subsumption(self) -> Subsumption:
        """Returns the object that deletes files that this attempt's checkpoints make unneeded."""
        return Subsumption(self.home, self.site.work, self.graph.checkpointing.retained, self._needed_files)

    def _needed_files(self) -> frozenset[str]:
        """Returns the names of staged files that losses have left out, and that a later start may backfill."""
        own = {
            loss.unit.file for loss in self._passed_over() if isinstance(loss.unit, StagedFile) and loss.id not in self.backfilled
        }
        return frozenset(own | self.left_out.needed_files)

    @cached_property
    def parent(self) -> Manifest | None:
        """Returns the checkpoint that this attempt goes on from. It is read once, because the attempt's own checkpoints discard it.

        Raises:
            ConflictError: It was discarded, because another driver has completed later ones since the start was decided.
        """
        restored = self.attempt.restored_from
        try:
            return None if restored is None else CheckpointStore(self.home).manifest(restored)
        except NotFoundError as error:
            raise ConflictError(
                f"Attempt {self.attempt.attempt} cannot go on from checkpoint {restored}: another driver has completed later checkpoints "
                "since.",
                safe="The later checkpoints stay. This attempt has staged nothing.",
                remedy="Start again: the next attempt goes on from the newest checkpoint.",
                attempt=self.attempt.attempt,
                checkpoint=restored,
            ) from error

    def _has_finished(self, stage: StageRun) -> bool:
        """Returns True if the attempt's checkpoint has the stage's last batch of this round. The stage's logs show no pending timers."""
        parent, log = self.parent, stage.spark_log
        if stage.stage.reads_tables:  # rows may have been staged since in the tables that it reads
            return False
        if parent is None or (parent.incarnation, parent.round) != (self.attempt.incarnation, self.round.round):
            return False
        cut = parent.stages.get(stage.stage.name)
        return cut is not None and cut.finished and cut.batch == log.last_commit() and not log.pending()

    def _record_completed(self, manifest: Manifest) -> Manifest:
        """Records a complete checkpoint in the loss ledger, the heartbeat and the log. Returns the checkpoint."""
        LossLedger(self.home).backfill(manifest)
        self.site.heartbeat.completed(manifest.checkpoint)
        _LOG.info("checkpoint %d is complete", manifest.checkpoint)
        return manifest

    def _pinned(self) -> Iterator[PinnedInput | None]:
        for source in self.graph.sources:
            yield self.site.rounds.pinned(self.round.round, source)
        for static in self.graph.statics:
            yield self.site.statics.pinned(static)
