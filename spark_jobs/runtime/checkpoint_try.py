"""One try at a checkpoint: everything it names is made durable, then ONE manifest makes it exist (design, sections 5 to 8)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import (
    AttemptDocument,
    CheckpointKind,
    Manifest,
    OnRewind,
    PipelineDocument,
    Publish,
    Publisher,
    RoundDocument,
    SinkCut,
    SinkMode,
)
from spark_jobs.protocol.errors import ConflictError, FencedError, StreamPipelineError
from spark_jobs.protocol.history import CheckpointHistory, StepTime
from spark_jobs.protocol.ids import BatchId, CheckpointId, InputName, SinkName, StageName, app_id
from spark_jobs.protocol.masking import Mask, masked_error, unmasked
from spark_jobs.protocol.pins import Pin
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut, StateFile
from spark_jobs.runtime.channel_cut import cut_channel
from spark_jobs.runtime.consumption import Consumption
from spark_jobs.runtime.cut import Cut, expired
from spark_jobs.runtime.due import Due
from spark_jobs.runtime.packing import pack
from spark_jobs.runtime.pinning import PinnedState, persist, pin, place_of
from spark_jobs.runtime.session import REQUIRED_SETTINGS
from spark_jobs.runtime.spark_log import NO_BATCH
from spark_jobs.runtime.stage import StageRun
from spark_jobs.storage.files import Files, sync_below

_STAGES_AT_ONCE = 16


@dataclass
class CheckpointTry:
    """Takes a checkpoint of a round: its final one, or one while its stages run.

    Args:
        home: The home.
        work: The work directory.
        pipeline: Whose home it is.
        attempt: The live attempt.
        round: The round.
        due: What is to be taken.
        parent: The checkpoint it continues.
        inputs: The pins of the round.
        published: Per sink the newest checkpoint known to be public.
        mask: Takes secrets out of what is recorded of a failure: it may be that of a stage, whose code may quote them.
    """

    home: Files
    work: Files
    pipeline: PipelineDocument
    attempt: AttemptDocument
    round: RoundDocument
    due: Due
    parent: Manifest | None
    inputs: dict[InputName, tuple[Pin, ...]]
    published: dict[SinkName, CheckpointId | None]
    mask: Mask = unmasked
    steps: list[StepTime] = field(default_factory=list)
    seen: dict[str, Any] = field(default_factory=dict)
    """What the history tells of the cut."""

    def take(self, stages: Sequence[StageRun]) -> Manifest:
        """Completes the checkpoint; durable on return. What has failed is in the history.

        Args:
            stages: All of the pipeline.

        Raises:
            FencedError: Somebody else has completed this or a later number: this attempt is not the live one.
            DeadlineExceededError: No cut was found in time.
            StorageError: The storage fails.
        """
        store, began_at = CheckpointStore(self.home), datetime.now(UTC)
        number = store.next_id(self.parent.checkpoint) if self.parent else store.first_id(self.attempt.incarnation)
        try:
            return self._take(store, number, began_at, stages)
        except StreamPipelineError as error:
            self._record(store, number, began_at, (), error)
            raise

    def _take(
        self,
        store: CheckpointStore,
        number: CheckpointId,
        began_at: datetime,
        stages: Sequence[StageRun],
    ) -> Manifest:
        finished = tuple(stage.stage.name for stage in stages if stage.output.ended.is_set())
        with self._timed("cut"):
            cut = self.due.find_cut()
            pinned = self._pin(number, stages, cut)
        self._see(stages, cut, finished)
        with self._timed("persist"):
            files = self._persist(stages, pinned)
            channels = self._channels(store, number, stages, cut) if pinned else {}
            cuts = {}
            for stage in stages:
                name, has_ended = stage.stage.name, stage.stage.name in finished
                kept, channel = files.get(name, ()), channels.get(name)
                found = stage.cut(self._after(name), cut.batches[name], kept, channel, drained=self.due.drained or has_ended)
                cuts[name] = found.model_copy(update={"begins": self.round.begins.get(name, {})})
        with self._timed("actions"):
            sinks = {stage.stage.sink.name: self._sink_cut(store, number, stage, cuts) for stage in stages if stage.stage.sink}
        manifest = Manifest(
            checkpoint=number,
            parent=self.parent.checkpoint if self.parent else None,
            checkpoint_kind=self.due.kind,
            on_end=self.round.on_end,
            pipeline=self.pipeline.uuid,
            pipeline_name=self.pipeline.name,
            incarnation=self.attempt.incarnation,
            round=self.round.round,
            run=self.attempt.run,
            attempt=self.attempt.attempt,
            work_directory=self.attempt.work_directory.id,
            request=self.due.request or (self.attempt.request if self.due.kind is CheckpointKind.FINAL else None),
            aligned=cut.aligned,
            began_at=began_at,
            completed_at=datetime.now(UTC),
            graph=self.round.graph,
            parameters=self.round.parameters,
            settings=dict(REQUIRED_SETTINGS),
            inputs=self.inputs,
            stages=cuts,
            sinks=sinks,
            drained=self.due.drained,
        )
        if time.monotonic() >= self.due.deadline_s:
            raise expired("what it holds was not made durable in time")
        with self._timed("complete"):
            self._complete(store, manifest)
        self._record(store, number, began_at, tuple(sinks.values()), None)
        return manifest

    def _complete(self, store: CheckpointStore, manifest: Manifest) -> None:
        """Creates the manifest; a higher number seen afterwards voids it (model rule 'relist')."""
        try:
            store.complete(manifest)
        except ConflictError as error:
            raise self._fenced(manifest.checkpoint) from error
        if max(store.taken()) > manifest.checkpoint:
            raise self._fenced(manifest.checkpoint)

    def _fenced(self, number: CheckpointId) -> FencedError:
        return FencedError(
            f"Checkpoint {number} was completed by somebody else while attempt {self.attempt.attempt} was at it.",
            safe="That checkpoint stands; nothing was published twice.",
            remedy="Start again: the newest checkpoint is taken up.",
            checkpoint=number,
            attempt=self.attempt.attempt,
        )

    def _after(self, stage: StageName) -> BatchId:
        """The last batch that the parent holds already."""
        return self.parent.stages[stage].batch if self.parent and stage in self.parent.stages else NO_BATCH

    def _sink_cut(
        self, store: CheckpointStore, number: CheckpointId, stage: StageRun, cuts: dict[StageName, StageCut]
    ) -> SinkCut:
        sink, public, name = stage.stage.sink, stage.outlet.public, stage.stage.name
        if sink is None or public is None:
            raise ValueError(f"stage {name} has no sink")
        staged = stage.log.between(self._after(name), cuts[name].batch)
        whole = sink.mode is SinkMode.COMPLETE
        counting = [batch for batch in staged if batch.offsets_sha256][-1:] if whole else staged
        lines: Sequence[Mapping[str, Any]] = [{"add": add, "batch": batch.batch} for batch in counting for add in batch.adds]
        if sink.target_file_size_bytes:
            lines = pack(stage, lines, sink.target_file_size_bytes, cuts[name].batch)
        facts = stage.log.facts()
        return SinkCut(
            stage=name,
            mode=sink.mode,
            publisher=Publisher(facts["publisher"]),
            table=public.uri,
            table_id=facts["table_id"],
            schema_sha256=facts["schema_sha256"],
            protocol_sha256=facts["protocol_sha256"],
            partition_by=public.partition_by,
            app=app_id(self.pipeline.uuid, self.attempt.incarnation, sink.name),
            actions=store.write_actions(number, sink.name, lines),
            publish=self.round.publish or Publish(sink.publish),
            known_published=self.published.get(sink.name),
            replace=(whole and bool(counting)) or (self.parent is None and self.attempt.on_rewind is OnRewind.REPLACE),
            upsert=stage.outlet.upsert,
        )

    def _pin(self, number: CheckpointId, stages: Sequence[StageRun], cut: Cut) -> dict[StageName, PinnedState]:
        """Keeps the state as it is at the cut; not in a final checkpoint, which is continued in its work directory."""
        if self.due.kind is CheckpointKind.FINAL:
            return {}
        held = self.parent.stages if self.parent else {}
        found = {}
        for stage in stages:
            name = stage.stage.name
            place = place_of(self.home, name, number, self.attempt.attempt)
            found[name] = pin(self.home, stage.spark_log, cut.batches[name], place, held.get(name))
        return found

    def _channels(
        self, store: CheckpointStore, number: CheckpointId, stages: Sequence[StageRun], cut: Cut
    ) -> dict[StageName, ChannelCut]:
        """What a restore needs of the private logs: from where their slowest consumers are in the cut."""
        cuts = {id(stage.spark_log): cut.batches[stage.stage.name] for stage in stages}
        found = {}
        for stage in stages:
            consumers = [(consumer, cuts[id(consumer.spark_log)]) for consumer in stage.output.consumers]
            name = stage.stage.name
            found[name] = cut_channel(store, number, name, stage.log, cut.batches[name], consumers)
        return found

    def _persist(
        self, stages: Sequence[StageRun], pinned: Mapping[StageName, PinnedState]
    ) -> dict[StageName, tuple[StateFile, ...]]:
        """Makes durable what Spark has written beside the staged files: it leaves that to the operating system.

        At once for several stages, because a disk makes many files durable in little more than the time of one.
        """
        if pinned:
            return {name: persist(self.home, state) for name, state in pinned.items()}
        with ThreadPoolExecutor(_STAGES_AT_ONCE) as pool:
            for synced in [pool.submit(sync_below, self.work, stage.spark_log.directory) for stage in stages]:
                synced.result()
        return {}

    def _see(self, stages: Sequence[StageRun], cut: Cut, finished: tuple[StageName, ...]) -> None:
        behind = () if self.due.kind is CheckpointKind.FINAL else stages
        left = [
            Consumption(stage.spark_log, stage.bounds).in_flight(stage.stage.name, cut.batches)
            for stage in behind
            if not (cut.aligned and stage.stage.unbounded)  # an aligned cut waits for those
        ]
        self.seen = {
            "aligned": cut.aligned,
            "alignment_s": round(cut.alignment_s, 4),
            "in_flight_rows": sum(staged.rows for staged in left),
            "in_flight_bytes": sum(staged.size_bytes for staged in left),
            "finished": finished,
            "ended_inputs": {stage.stage.name: tuple(sorted(stage.ended)) for stage in stages if stage.ended},
        }

    def _record(
        self,
        store: CheckpointStore,
        number: CheckpointId,
        began_at: datetime,
        sinks: Sequence[SinkCut],
        failure: StreamPipelineError | None,
    ) -> None:
        store.record(
            CheckpointHistory(
                checkpoint=number,
                checkpoint_kind=self.due.kind,
                attempt=self.attempt.attempt,
                began_at=began_at,
                steps=tuple(self.steps),
                files=sum(cut.actions.files for cut in sinks),
                size_bytes=sum(cut.actions.size_bytes for cut in sinks),
                rows=sum(cut.actions.rows for cut in sinks),
                **self.seen,
                failure=report_error(masked_error(failure, self.mask)) if failure else None,
            )
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.steps.append(StepTime(step=name, duration_s=round(time.monotonic() - began_s, 4)))
