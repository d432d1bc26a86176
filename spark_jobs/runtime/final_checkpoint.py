"""The final checkpoint of a round: everything it names is made durable, then ONE manifest makes it exist (design, sections 5 to 8)."""

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
    CheckpointHistory,
    CheckpointKind,
    DeltaPin,
    FilesPin,
    Manifest,
    OnEnd,
    OnRewind,
    PipelineDocument,
    Publish,
    Publisher,
    RoundDocument,
    SinkCut,
    SinkMode,
    StageCut,
    StepTime,
)
from spark_jobs.protocol.errors import ConflictError, FencedError
from spark_jobs.protocol.ids import BatchId, CheckpointId, InputName, SinkName, StageName, app_id
from spark_jobs.runtime.packing import pack
from spark_jobs.runtime.session import REQUIRED_SETTINGS
from spark_jobs.runtime.spark_log import NO_BATCH
from spark_jobs.runtime.stage import StageRun
from spark_jobs.storage.files import Files, sync_below

_STAGES_AT_ONCE = 16


@dataclass
class FinalCheckpoint:
    """Takes the final checkpoint of a round whose stages are all at their ends.

    Args:
        home: The home.
        work: The work directory.
        pipeline: Whose home it is.
        attempt: The live attempt.
        round: The round that ends.
        parent: The checkpoint it continues.
        inputs: The pins of the round.
        published: Per sink the newest checkpoint known to be public.
    """

    home: Files
    work: Files
    pipeline: PipelineDocument
    attempt: AttemptDocument
    round: RoundDocument
    parent: Manifest | None
    inputs: dict[InputName, tuple[DeltaPin | FilesPin, ...]]
    published: dict[SinkName, CheckpointId | None]
    steps: list[StepTime] = field(default_factory=list)

    def take(self, stages: Sequence[StageRun]) -> Manifest:
        """Completes the checkpoint; durable on return.

        Raises:
            FencedError: Somebody else has completed this or a later number: this attempt is not the live one.
        """
        store, began_at = CheckpointStore(self.home), datetime.now(UTC)
        number = store.next_id(self.parent.checkpoint if self.parent else None)
        drained = self.round.on_end is OnEnd.DRAIN
        with self._timed("cut"):
            cuts = {stage.stage.name: stage.cut(self._after(stage.stage.name), drained=drained) for stage in stages}
        with self._timed("persist"):
            self._persist(stages)
        with self._timed("actions"):
            sinks = {stage.stage.sink.name: self._sink_cut(store, number, stage, cuts) for stage in stages if stage.stage.sink}
        manifest = Manifest(
            checkpoint=number,
            parent=self.parent.checkpoint if self.parent else None,
            checkpoint_kind=CheckpointKind.FINAL,
            on_end=self.round.on_end,
            pipeline=self.pipeline.uuid,
            pipeline_name=self.pipeline.name,
            incarnation=self.attempt.incarnation,
            round=self.round.round,
            run=self.attempt.run,
            attempt=self.attempt.attempt,
            work_directory=self.attempt.work_directory.id,
            request=self.attempt.request,
            began_at=began_at,
            completed_at=datetime.now(UTC),
            graph=self.round.graph,
            parameters=self.round.parameters,
            settings=dict(REQUIRED_SETTINGS),
            inputs=self.inputs,
            stages=cuts,
            sinks=sinks,
            drained=drained,
        )
        with self._timed("complete"):
            self._complete(store, manifest)
        self._record(store, manifest, began_at)
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
        return self.parent.stages[stage].batch if self.parent else NO_BATCH

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

    def _persist(self, stages: Sequence[StageRun]) -> None:
        """Makes durable what Spark has written beside the staged files: it leaves that to the operating system.

        At once for several stages, because a disk makes many files durable in little more than the time of one.
        """
        with ThreadPoolExecutor(_STAGES_AT_ONCE) as pool:
            for synced in [pool.submit(sync_below, self.work, stage.spark_log.directory) for stage in stages]:
                synced.result()

    def _record(self, store: CheckpointStore, manifest: Manifest, began_at: datetime) -> None:
        store.record(
            CheckpointHistory(
                checkpoint=manifest.checkpoint,
                checkpoint_kind=manifest.checkpoint_kind,
                attempt=manifest.attempt,
                began_at=began_at,
                steps=tuple(self.steps),
                files=sum(cut.actions.files for cut in manifest.sinks.values()),
                size_bytes=sum(cut.actions.size_bytes for cut in manifest.sinks.values()),
                rows=sum(cut.actions.rows for cut in manifest.sinks.values()),
            )
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.steps.append(StepTime(step=name, duration_s=round(time.monotonic() - began_s, 4)))
