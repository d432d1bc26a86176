"""One try at a checkpoint: all its files are made durable, then ONE manifest completes it."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from spark_jobs.api.sink import Sink
from spark_jobs.background import run_watched, run_with_deadline
from spark_jobs.checkpoint.carried import carried, named_before
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint_files import OwnTable
from spark_jobs.protocol.documents import (
    AttemptDocument,
    CarriedActions,
    CheckpointKind,
    Manifest,
    OnEnd,
    PipelineDocument,
    Publish,
    RoundDocument,
    SinkCut,
    SinkMode,
    is_published_by_round,
)
from spark_jobs.protocol.errors import NotFoundError, OutcomeUnknownError, StreamPipelineError
from spark_jobs.protocol.ids import BatchId, CheckpointId, InputName, LossId, SinkName, StageName, app_id
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.pins import Pin
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut
from spark_jobs.protocol.table_shape import distinct
from spark_jobs.publication.evidence import published_checkpoints
from spark_jobs.runtime.checkpoints.cut import CheckpointOrder, Cut, expired
from spark_jobs.runtime.checkpoints.packing import pack
from spark_jobs.runtime.checkpoints.try_history import TryHistory
from spark_jobs.runtime.inputs.source_kind import SourceStream
from spark_jobs.runtime.spark.session import REQUIRED_SETTINGS
from spark_jobs.runtime.spark.spark_facts import SPARK_MINOR
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.channel_bound import Consumption
from spark_jobs.runtime.staged.channel_cut import cut_channel
from spark_jobs.runtime.staged.log_folding import ConsumerCut
from spark_jobs.runtime.staged.private_log import StagedAmount
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.state.pinning import PinnedState, StateCopies, new_state_directory, persist, pin
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import table_files

T = TypeVar("T")


@dataclass(frozen=True)
class _Logged:
    """The facts about a stage at its cut, from Spark's logs."""

    facts: dict[str, Any]
    """Fields of the stage's cut."""
    consumers: Sequence[ConsumerCut]
    """The cuts of its channel's consumers."""
    streams: Sequence[SourceStream]
    """The streams of its sources, at the positions of the cut."""
    in_flight: StagedAmount
    """The rows in the cuts of upstream stages that the stage has not read."""


@dataclass
class CheckpointTry:
    """Takes one checkpoint of a round."""

    home: Files
    pipeline: PipelineDocument
    attempt: AttemptDocument
    round: RoundDocument
    order: CheckpointOrder
    parent: Manifest | None
    """The checkpoint that the new one continues."""
    check_pins: Callable[[], dict[InputName, tuple[Pin, ...]]]
    """Checks that the checkpoint may be taken, and returns the pins of the round. Its errors are recorded in the history."""
    mask: Mask = unmasked
    """Removes secrets from a recorded failure: the message of a failed stage may contain some."""
    sources: Mapping[InputName, tuple[KnownSource, ...]] = field(default_factory=dict)
    """The identity of each source."""
    losses: Sequence[Loss] = ()
    """The losses of the round. The list grows while stages run; the manifest has the losses before each stage's cut."""
    held: tuple[SinkName, ...] = ()
    """The sinks that wait while the others are published."""
    backfilled: Collection[LossId] = ()
    """The losses whose rows the stages have staged after the loss. Every cut contains these rows."""

    def take(self, stages: Sequence[StageRun]) -> Manifest:
        """Completes the checkpoint. Durable on return. The history has a record of it.

        Args:
            stages: All stages of the pipeline.

        Raises:
            FencedError: Another attempt has completed this or a later number. This attempt is not the live one.
            DeadlineExceededError: No cut was found, or its files were not made durable, before the deadline.
            OutcomeUnknownError: The manifest may have been created, or may yet be: the home does not answer.
            StorageError: The storage fails. The manifest may have been created.
        """
        store, began_at = CheckpointStore(self.home), datetime.now(UTC)
        number = store.next_id(self.parent.checkpoint) if self.parent else store.first_id(self.attempt.incarnation)
        history = TryHistory(store, number, self.order.kind, self.attempt.attempt, began_at, self.mask)
        try:
            manifest = self._take(store, number, history, stages)
        except StreamPipelineError as error:
            history.record((), error)
            raise
        history.record(tuple(manifest.sinks.values()), None)
        return manifest

    def _take(self, store: CheckpointStore, number: CheckpointId, history: TryHistory, stages: Sequence[StageRun]) -> Manifest:
        inputs = self._in_time(self.check_pins)
        published = self._in_time(lambda: published_checkpoints(self.parent) if self.parent else {})
        # Read before the cut is found, so that the cut contains the last batch of these stages.
        finished = tuple(stage.stage.name for stage in stages if stage.output.ended.is_set())
        with history.timed("cut"):
            cut, found = self._cut(stages, finished)
            behind = stages_behind(stages, cut.failing | {name for name, logged in found.items() if logged.in_flight.rows})
            history.see_cut(stages, cut, finished, behind, [logged.in_flight for logged in found.values()])
            pinned = self._in_time(lambda: self._pin(number, stages, cut))
        with history.timed("persist"):
            files = self._in_time(lambda: {name: persist(state) for name, state in pinned.items()})
            history.see_state(pinned, files)
            channels = self._in_time(lambda: self._channels(store, number, stages, found))
            sources = self._in_time(lambda: self._seen([stream for each in found.values() for stream in each.streams]))
            cuts = {}
            for stage in stages:
                name = stage.stage.name
                own: dict[str, Any] = {"undrained": stage.undrained, "begins": self.round.begins.get(name, {})}
                facts = found[name].facts | self._staged(stage, cut) | own
                cuts[name] = StageCut(**facts, files=files[name], channel=channels[name])
            history.see_violations(cuts)
        with history.timed("actions"):
            sinks = {
                stage.stage.sink.name: self._sink_cut(store, number, stage, cuts[stage.stage.name].batch, published)
                for stage in stages
                if stage.stage.sink
            }
        manifest = Manifest(
            checkpoint=number,
            parent=self.parent.checkpoint if self.parent else None,
            checkpoint_kind=self.order.kind,
            on_end=self.round.on_end,
            pipeline=self.pipeline.uuid,
            pipeline_name=self.pipeline.name,
            incarnation=self.attempt.incarnation,
            round=self.round.round,
            run=self.attempt.run,
            attempt=self.attempt.attempt,
            work_directory=self.attempt.work_directory.id,
            request=self.order.request or (self.attempt.request if self.order.kind is CheckpointKind.FINAL else None),
            aligned=cut.aligned,
            behind=behind,
            held=self.held,
            began_at=history.began_at,
            completed_at=datetime.now(UTC),
            graph=self.round.graph,
            parameters=self.round.parameters,
            settings=dict(REQUIRED_SETTINGS),
            spark=SPARK_MINOR,
            inputs=inputs,
            sources=sources,
            losses=tuple(loss for loss in self.losses if loss.id not in self.backfilled),
            backfilled=tuple(sorted(self.backfilled)),
            stages=cuts,
            sinks=sinks,
            drained=self.order.drained,
        )
        self._check_in_time()
        with history.timed("complete"):
            self._complete(store, manifest)
        return manifest

    def _complete(self, store: CheckpointStore, manifest: Manifest) -> None:
        """Creates the manifest.

        A manifest may appear after the try was abandoned. If the next try then has the same number, it fails. Otherwise the next try is
        fenced, and the next attempt continues that checkpoint.
        """
        number = manifest.checkpoint
        unanswered = OutcomeUnknownError(
            f"Checkpoint expired while its manifest was created: {self.home.url} does not answer. Checkpoint {number} may be complete.",
            exists="All stages run on. The files of the checkpoint are durable.",
            safe="No other checkpoint can have its number. If it is complete, it counts once.",
            remedy="Check that the storage of the home answers. The next checkpoint finds out.",
            checkpoint=number,
        )
        run_with_deadline(partial(store.complete_newest, manifest), self.order.deadline_s, lambda: unanswered)

    def _parent_batch(self, stage: StageName) -> BatchId:
        """Returns the last batch of a stage in the parent."""
        return self.parent.stages[stage].batch if self.parent and stage in self.parent.stages else NO_BATCH

    def _sink_cut(
        self,
        store: CheckpointStore,
        number: CheckpointId,
        stage: StageRun,
        last: BatchId,
        published: Mapping[SinkName, CheckpointId | None],
    ) -> SinkCut:
        sink, public, name = stage.stage.sink, stage.outlet.public, stage.stage.name
        if sink is None or public is None:
            raise ValueError(f"stage {name} has no sink")
        staged = stage.log.between(self._parent_batch(name), last)
        whole = sink.mode is SinkMode.COMPLETE
        counting = [batch for batch in staged if batch.offsets][-1:] if whole else staged
        lines: Sequence[Mapping[str, Any]] = [{"add": add, "batch": batch.batch} for batch in counting for add in batch.adds]
        if sink.target_file_size_bytes:
            lines = pack(stage, lines, sink.target_file_size_bytes, last, self._check_and_pause)
        staged_for, publish = stage.log.staged_for(), self.round.publish or Publish(sink.publish)
        if staged_for is None:
            raise ValueError(f"the log of stage {name} was begun without its table")
        actions = self._in_time(lambda: store.write_actions(number, sink.name, lines))
        rewinds = self.attempt.rewinds(self.parent, sink.name, name)
        replace = (whole and bool(counting)) or rewinds
        known = published.get(sink.name)
        before: Sequence[CarriedActions] = ()
        reached = None
        if publish is Publish.FINAL and replace:
            reached = known or CheckpointId(0)
        elif not replace and is_published_by_round(publish, self.round.graph):
            before = self._in_time(lambda: carried(store, number, self.parent, sink.name, known))
        others = self._in_time(lambda: named_before(store, number, self.parent, sink.name, stage.log.oldest(), before, reached))
        replaces_own = known is None and (rewinds or self._parent_replaces_own(sink))
        shapes = [shape for each in before for shape in each.staged_for] + [*staged_for.shapes(self._parent_batch(name), last)]
        return SinkCut(
            stage=name,
            mode=sink.mode,
            publisher=public.publisher,
            table=public.uri,
            table_id=staged_for.table_id,
            staged_for=distinct(shapes),
            partition_by=public.partition_by,
            app=app_id(self.pipeline.uuid, self.attempt.incarnation, sink.name),
            actions=actions,
            publish=publish,
            known_published=known,
            replace=replace,
            replaces_own=replaces_own,
            merge=self._in_time(lambda: _merge(stage.outlet.merge)),
            hold=sink.hold,
            carried=tuple(each.model_copy(update={"staged_for": ()}) for each in before),
            named_before=tuple(others),
        )

    def _parent_replaces_own(self, sink: Sink) -> bool:
        """Returns True if the parent's publication, or that of a savepoint's staged rows, must not replace rows of others in a sink."""
        if self.parent is None:
            return False
        if sink.name in self.parent.sinks:
            return self.parent.sinks[sink.name].replaces_own
        return sink.mode is not SinkMode.COMPLETE and any(each.replace for each in self.parent.brought.get(sink.name, ()))

    def _cut(self, stages: Sequence[StageRun], finished: Collection[StageName]) -> tuple[Cut, dict[StageName, _Logged]]:
        """Finds a cut. Returns it with the facts about each stage from Spark's logs.

        While the try waits for one stage, a stage that is already cut goes on, and Spark may purge the batch of its cut from its logs. Then
        all stages are cut again. If the same batch is missing a second time, Spark has not purged it, which is an error.
        """
        purged = None
        while True:
            cut = self.order.find_cut()
            try:
                return cut, self._in_time(partial(self._read_logs, stages, cut, finished))
            except NotFoundError:
                if cut.batches == purged:
                    raise
                self._check_in_time()
                purged = cut.batches

    def _read_logs(self, stages: Sequence[StageRun], cut: Cut, finished: Collection[StageName]) -> dict[StageName, _Logged]:
        """Reads everything that a checkpoint needs from Spark's logs, at the cut. Spark may purge it while files are made durable."""
        cuts = {id(stage.spark_log): cut.batches[stage.stage.name] for stage in stages}
        found = {}
        for stage in stages:
            name = stage.stage.name
            ended = name in finished
            drained = self.order.drained or (ended and self.round.on_end is OnEnd.DRAIN)
            begins = self.round.begins_now.get(name, {})
            left = stage.not_begun(cut.batches[name]) if begins else frozenset()
            own = {
                "begins_now": {source: known for source, known in begins.items() if source in left},
                "ended": tuple(sorted(stage.left_behind(cut.batches[name]))),
            }
            found[name] = _Logged(
                stage.logged(cut.batches[name]) | {"finished": self.order.drained or ended, "drained": drained} | own,
                [consumer.cut(cuts[id(consumer.spark_log)]) for consumer in stage.output.consumers],
                stage.read_up_to(cut.batches[name]),
                Consumption(stage.spark_log, stage.bounds).in_flight(name, cut.batches),
            )
        return found

    def _seen(self, streams: Iterable[SourceStream]) -> dict[InputName, tuple[KnownSource, ...]]:
        """Returns the identity of each source, with evidence of the rows read. The next start checks that they are unchanged."""
        sources = {name: list(known) for name, known in self.sources.items()}
        for stream in streams:
            name, position = stream.read.name, stream.read.position
            sources[name][position] = stream.kind.seen(stream.read, sources[name][position])
        return {name: tuple(known) for name, known in sources.items()}

    def _staged(self, stage: StageRun, cut: Cut) -> dict[str, Any]:
        """Returns the numbers of rows that the stage has read and staged since the parent, as fields of its cut.

        Violations are counted from the beginning of the round, so that the last checkpoint of a run has all of them.
        """
        name = stage.stage.name
        rows = late_rows = 0
        input_rows, violations = Counter[str](), Counter[str](self._violated_before(name))
        for staged in stage.log.between(self._parent_batch(name), cut.batches[name]):
            rows, late_rows = rows + staged.rows, late_rows + staged.late_rows
            input_rows.update(staged.input_rows)
            violations.update(staged.violations)
        return {"rows": rows, "late_rows": late_rows, "input_rows": dict(input_rows), "violations": dict(violations)}

    def _violated_before(self, stage: StageName) -> Mapping[str, int]:
        is_same_round = self.parent is not None and self.parent.round == self.round.round
        return self.parent.stages[stage].violations if self.parent and is_same_round and stage in self.parent.stages else {}

    def _pin(self, number: CheckpointId, stages: Sequence[StageRun], cut: Cut) -> dict[StageName, PinnedState]:
        """Pins the state of the cut."""
        held = self.parent.stages if self.parent else {}
        logs = {stage.stage.name: stage.spark_log for stage in stages}
        places = {name: new_state_directory(self.home, name, number, self.attempt.attempt) for name in logs}
        is_first = self.parent is not None and self.parent.attempt != self.attempt.attempt
        found = {}
        for name, log in logs.items():
            copies = StateCopies(self.home, log, self.attempt.second_copy)
            found[name] = pin(copies, cut.batches[name], places[name], held.get(name), checks_parent=is_first)
        return found

    def _channels(
        self, store: CheckpointStore, number: CheckpointId, stages: Sequence[StageRun], found: Mapping[StageName, _Logged]
    ) -> dict[StageName, ChannelCut]:
        """Writes the parts of the private logs that a restore needs, from the positions of their slowest consumers in the cut."""
        channels = {}
        for stage in stages:
            name, logged = stage.stage.name, found[stage.stage.name]
            parent = self._parent_batch(name) if self.parent else None
            channels[name] = cut_channel(store, number, name, stage.log, logged.facts["batch"], logged.consumers, parent)
        return channels

    def _in_time(self, work: Callable[[], T]) -> T:
        """Runs work that reads, pins files or makes them durable, until the deadline of the try.

        Work that is abandoned, because the storage hangs, may finish during a later try. It does no harm: it reads, creates names in
        the directory of this try or names with content hashes in the directory of its number, and makes those durable. No manifest
        names them, an existing name is not changed, and leftovers are deleted when the number is settled.
        """
        return run_watched(work, self._check_and_pause)

    def _check_and_pause(self) -> None:
        self._check_in_time()
        self.order.pause()

    def _check_in_time(self) -> None:
        if time.monotonic() >= self.order.deadline_s:
            raise expired("its files were not made durable in time")


def _merge(rule: MergeCut | None) -> MergeCut | None:
    """Returns a merge rule with the present version of its deleted keys."""
    if rule is None or rule.tombstones is None:
        return rule
    log = OwnTable(table_files(rule.tombstones), "").log()
    return rule.model_copy(update={"tombstones_version": max(log.commits, default=0)})


def stages_behind(stages: Sequence[StageRun], first: Collection[StageName]) -> tuple[StageName, ...]:
    """Returns the stages named in ``first`` and all stages downstream of them, in topological order."""
    behind: list[StageName] = []
    for stage in stages:
        if stage.stage.name in first or any(output.producer in behind for output in stage.upstream):
            behind.append(stage.stage.name)
    return tuple(behind)
