"""What an attempt does with a round: it builds the stages, brings each to its end, completes checkpoints and publishes them."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import Mistakes
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import (
    AttemptDocument,
    Manifest,
    OnEnd,
    PinnedInput,
    PipelineDocument,
    RoundDocument,
    SinkResult,
    StageState,
)
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import InputName, SinkName, StageName
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.protocol.pins import Pin
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.checkpoints.blocked_publication import Blocking, staged_results
from spark_jobs.runtime.checkpoints.checkpoint_try import CheckpointTry
from spark_jobs.runtime.checkpoints.cut import Due
from spark_jobs.runtime.checkpoints.subsume import Subsumption
from spark_jobs.runtime.checkpoints.tidying import Tidying
from spark_jobs.runtime.spark.session import spark_failures
from spark_jobs.runtime.spark.spark_errors import is_about_a_file
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.stages.begin_anew import begin_anew
from spark_jobs.runtime.stages.build import build_stage
from spark_jobs.runtime.stages.lost_input import check_lost, leave_out_lost
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
    """A round that an attempt has begun or goes on with."""

    graph: Graph
    home: Files
    pipeline: PipelineDocument
    attempt: AttemptDocument
    round: RoundDocument
    site: RoundSite
    publishers: Publishers
    mask: Mask = unmasked
    """Takes secrets out of what is written about failures."""
    accept_data_loss: Collection[InputName] = ()
    """Sources that are read without what is gone of them."""
    tidying: Tidying | None = None
    """Takes away files that were read."""
    outputs: dict[StageName, StageOutput] = field(default_factory=dict)

    def build(self) -> list[StageRun]:
        """The stages, ready to run, in topological order."""
        keep_pinned_versions(self.graph, self.home, self.attempt, self.parent)
        stages = []
        for stage in self.graph.stages.values():
            cut = self.parent.stages.get(stage.name) if self.parent else None
            run = build_stage(stage, self.site, self.outputs, recorded=cut.batch if cut else NO_BATCH)
            self.outputs[stage.name] = run.output
            stages.append(run)
        for run in stages:
            adopt_offsets(run, self.round)
        stages = [replay(run, self.build_again) for run in stages]
        renewed = self._renewed()
        if renewed:
            stages = [begin_anew(run, renewed, self.round.round, self.build_again) for run in stages]
        return leave_out_lost(stages, self.site, self.attempt, self.accept_data_loss, self.build_again)

    def look_again(self, newest: Manifest | None) -> None:
        """Looks at the sources once more, after one of them has got other columns; the stages are to be built again.

        Args:
            newest: The newest checkpoint.

        Raises:
            InvalidPipelineError: A stage cannot run with the new columns.
            RejectedError: Rows that were not read yet cannot be read any more, or a source is another one.
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
        """The sources that are read from their beginning after the checkpoint that this attempt goes on from."""
        parent = self.parent if self.round.sources else None
        if parent is None or (parent.round == self.round.round and parent.origin is None):
            return frozenset()
        return others_than(parent.sources, self.round.sources) | frozenset(self.round.new_sources)

    def build_again(self, earlier: StageRun, ended: Set[str] = NONE_ENDED) -> StageRun:
        """Builds a stage anew, without those of its inputs that have ended; others that have are found."""
        return build_stage(earlier.stage, self.site, self.outputs, earlier, ended)

    def check_lost(self, stage: StageRun, error: Exception) -> None:
        """Refuses to start a stage again if a source has lost what the stage has not read.

        Args:
            stage: The stage.
            error: What it has failed with. Each file is looked at only if it says that one could not be read.

        Raises:
            RejectedError: A source has. A new start can accept the loss.
        """
        check_lost(stage, self.site.losses, thorough=is_about_a_file(error))

    def to_its_end(self, stage: StageRun) -> None:
        """Stages every row of a stage whose inputs end, then drains or suspends it, as the round says. Idempotent.

        A stage that the checkpoint of this attempt calls finished is not started again.

        Raises:
            FencedError: Another attempt is live.
            InterruptedRunError: The stage's query failed; a later start goes on after its last batch.
        """
        name, heartbeat = stage.stage.name, self.site.heartbeat
        Attempts(self.home).check_live(self.attempt.attempt)
        if not self._has_finished(stage):
            heartbeat.stage(name, StageState.RUNNING)
            stage.run_to_end()
            heartbeat.stage(name, StageState.DRAINING)
            if self.round.on_end is OnEnd.DRAIN:
                stage.drain()
            else:
                stage.release()
        heartbeat.stage(name, StageState.ENDED)
        stage.output.ended.set()

    def complete(self, due: Due, stages: Sequence[StageRun], parent: Manifest | None) -> Manifest:
        """Completes a checkpoint; durable on return.

        Args:
            due: What is to be taken.
            stages: All of the pipeline.
            parent: The checkpoint it continues.

        Raises:
            FencedError: Another attempt is live.
            StreamPipelineError: The checkpoint was not completed, or nobody knows; see :meth:`landed`.
        """

        def look() -> dict[InputName, tuple[Pin, ...]]:
            Attempts(self.home).check_live(self.attempt.attempt)
            inputs = {pinned.input: pinned.pins for pinned in self._pinned() if pinned}
            refuse_moved(self.round.adopted)
            return inputs

        effort = CheckpointTry(
            self.home,
            self.pipeline,
            self.attempt,
            self.round,
            due,
            parent,
            look,
            self.mask,
            self.site.sources,
            tuple(self.site.losses),
        )
        return self._told(effort.take(stages))

    def landed(self, parent: Manifest | None) -> Manifest | None:
        """The checkpoint that this attempt has completed after ``parent``, although it was told otherwise; durable on return.

        Raises:
            StorageError: Whether there is one is not known yet.
        """
        store = CheckpointStore(self.home)
        head = store.head()
        if head is None or head.attempt != self.attempt.attempt or (parent is not None and head.checkpoint <= parent.checkpoint):
            return None
        store.make_durable([head.checkpoint])
        return self._told(head)

    def publish(self, stages: Sequence[StageRun], manifest: Manifest) -> Mapping[SinkName, SinkResult]:
        """Publishes a checkpoint by policy, and deletes what it has made needless. May be repeated.

        Raises:
            StreamPipelineError: Not every sink is public that should be, and is not held; the checkpoint stands.
        """
        results = self.blocking.publish(manifest, self.publishers)
        if any(stage.restarts for stage in self.site.heartbeat.status.stages.values()):
            self.subsumption.expect_unnamed()
        self.subsumption.after(manifest, stages, results)
        self.tidy()
        return results

    def keep(self, stages: Sequence[StageRun], manifest: Manifest) -> Mapping[SinkName, SinkResult]:
        """Deletes what a checkpoint has made needless that cannot be published now: no row that waits. Returns what it has left."""
        results = staged_results(manifest)
        self.subsumption.after(manifest, stages, results)
        return results

    def tidy(self) -> None:
        """Takes away the files of sources that are done with. What cannot be done is logged, and left to the next checkpoint or attempt."""
        failures: tuple[type[Exception], ...] = (OSError, StreamPipelineError, *spark_failures())
        try:
            if self.tidying is not None:
                self.tidying.run()
        except failures as error:
            _LOG.warning("not all files that were read are archived or deleted: %s", error)

    @cached_property
    def blocking(self) -> Blocking:
        """Remembers what blocks the publications of this attempt."""
        return Blocking(self.home, self.mask, self.site.heartbeat.blocked)

    @cached_property
    def subsumption(self) -> Subsumption:
        """Deletes what the checkpoints of this attempt have made needless."""
        return Subsumption(self.home, self.site.work, self.graph.checkpointing.retained)

    @cached_property
    def parent(self) -> Manifest | None:
        """The checkpoint that this attempt goes on from. It is read once: those that the attempt takes discard it."""
        restored = self.attempt.restored_from
        return None if restored is None else CheckpointStore(self.home).manifest(restored)

    def _has_finished(self, stage: StageRun) -> bool:
        """Whether that checkpoint has the stage's last batch of this round; a stage's own logs do not tell whether a timer is left."""
        parent, log = self.parent, stage.spark_log
        if parent is None or (parent.incarnation, parent.round) != (self.attempt.incarnation, self.round.round):
            return False
        cut = parent.stages.get(stage.stage.name)
        return cut is not None and cut.finished and cut.batch == log.last_commit() and not log.pending()

    def _told(self, manifest: Manifest) -> Manifest:
        self.site.heartbeat.completed(manifest.checkpoint)
        _LOG.info("checkpoint %d is complete", manifest.checkpoint)
        return manifest

    def _pinned(self) -> Iterator[PinnedInput | None]:
        for source in self.graph.sources:
            yield self.site.rounds.pinned(self.round.round, source)
        for static in self.graph.statics:
            yield self.site.statics.pinned(static)
