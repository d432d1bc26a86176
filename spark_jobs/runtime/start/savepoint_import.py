"""Begins a new incarnation with a savepoint, in its own home or another one, with the same tables or others.

Invariants:

1. The savepoint is only read. It is verified before anything is written, and each file again while it is copied.
2. Its checkpoint becomes one of the home: the first of the incarnation, with the next free number and nothing to publish. Then the start
   restores from it, as after every loss of a work directory.
3. No start goes on into a table that the savepoint's own incarnation has published into if rows would be there twice or not at all. That
   incarnation is closed first, on condition that it has published nothing since this was decided.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import unquote
from uuid import NAMESPACE_URL, uuid5

from spark_jobs.background import run_all
from spark_jobs.checkpoint.bundles import StateReader, in_reading_order
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.named_files import NamedFile
from spark_jobs.checkpoint.savepoint import copy_files, read_savepoint, verify
from spark_jobs.checkpoint.savepoint_files import in_flight, pending_actions, pending_rows, staged_path
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import STAGED, TOMBSTONES, tombstones_path
from spark_jobs.protocol.documents import (
    AttemptDocument,
    CarriedActions,
    CheckpointKind,
    Manifest,
    Origin,
    PinnedInput,
    PipelineDocument,
    RoundDocument,
)
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import CheckpointId, InputName, SinkName, StageName, file_prefix
from spark_jobs.protocol.losses import PassedOver
from spark_jobs.protocol.pins import Pin
from spark_jobs.protocol.savepoint import Savepoint
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut, StateFile
from spark_jobs.protocol.steps import Step, step
from spark_jobs.protocol.table_shape import COLUMN_MAPPING
from spark_jobs.runtime.spark.session import REQUIRED_SETTINGS
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.start.source_identity import others_than
from spark_jobs.runtime.state.pinning import new_state_directory
from spark_jobs.storage.files import Digest, Files, by_directory
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import table_files

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedSavepoint:
    """A complete savepoint, or a checkpoint of the home of which a savepoint will be taken."""

    files: Files
    savepoint: Savepoint | None
    """None: it is not taken yet, and only the manifest is available."""
    manifest: Manifest

    def copy(self, target: Files, paths: Mapping[str, str]) -> None:
        """Copies files durably, by their paths in the savepoint and in the target. Existing correct files are left alone."""
        named = {file.path: NamedFile(self.files, file.path, file.size_bytes, file.sha256) for file in self.whole.files}
        copy_files(target, {there: named[here] for here, there in paths.items()})

    @property
    def whole(self) -> Savepoint:
        """Returns the savepoint, which must be taken."""
        assert self.savepoint is not None
        return self.savepoint

    @property
    def origin(self) -> Origin:
        """Returns the ``origin`` for the manifest of the imported savepoint."""
        found = self.whole
        return Origin(
            savepoint=self.files.url, pipeline=found.pipeline, incarnation=found.incarnation, checkpoint=found.checkpoint
        )


@dataclass(frozen=True)
class Beginning:
    """The beginning of an incarnation whose first checkpoint is an imported savepoint.

    Args:
        attempt: The live attempt, whose incarnation has no checkpoint yet.
        staged_in: URI of the directory for a stage's staged rows, by stage. Other stages of the savepoint are left behind.
        kept: Stages whose rows go into the same table as those of the savepoint.
        remembering: Sinks whose deleted keys come from the savepoint.
        unpublished: Sinks whose rows are carried over, with the newest checkpoint that the savepoint's own incarnation has published.
            An unfinished round has staged these rows, and no checkpoint of that incarnation publishes them.
    """

    home: Files
    pipeline: PipelineDocument
    attempt: AttemptDocument
    round: RoundDocument
    staged_in: Mapping[StageName, str]
    kept: frozenset[StageName]
    remembering: frozenset[SinkName] = frozenset()
    unpublished: Mapping[SinkName, CheckpointId] = field(default_factory=dict)


def open_savepoint(url: str) -> OpenedSavepoint:
    """Opens and verifies a savepoint. Writes nothing.

    Raises:
        RejectedError: The directory is not a savepoint, or its state has another format than this version writes.
        CorruptDocumentError: A file is missing or was altered. The error names its path.
    """
    files = open_place(url)
    _LOG.info("savepoint %s is verified", files.url)
    verify(files)
    savepoint, manifest = read_savepoint(files)
    changed = sorted(key for key, value in manifest.settings.items() if REQUIRED_SETTINGS.get(key, value) != value)
    if changed:
        raise RejectedError(
            f"The savepoint {files.url} was taken with another {changed[0]}: {manifest.settings[changed[0]]}.",
            exists=f"This version needs {REQUIRED_SETTINGS[changed[0]]}.",
            remedy="Continue it with the version that has taken it.",
            settings=changed,
        )
    return OpenedSavepoint(files, savepoint, manifest)


def bring_in(opened: OpenedSavepoint, begins: Beginning) -> Manifest:
    """Makes a savepoint the first checkpoint of an incarnation. Durable on return.

    A repetition after a crash copies again into a new directory. The next checkpoint sweeps the leftovers.

    Raises:
        RejectedError: Rows are in flight that the other tables could not read. Nothing was written.
        CorruptDocumentError: A file is not the one that the savepoint names.
        FencedError: Another process has completed a checkpoint in the meantime: this attempt is not the live one.
        StorageError: The home is full or does not answer. Can be repeated.
    """
    source, store = opened.manifest, CheckpointStore(begins.home)
    number = store.first_id(begins.attempt.incarnation)
    left = {name: cut for name, cut in source.stages.items() if name in begins.staged_in}
    places = {name: new_state_directory(begins.home, name, number, begins.attempt.attempt) for name in left}
    stages = {name: _Stage(opened, begins, name, cut, number, places[name]) for name, cut in left.items()}
    for stage in stages.values():
        stage.check()
    pins = {} if source.ends_round else _pin(begins, source)
    losses = tuple(loss for loss in source.losses if loss.input in pins or isinstance(loss, PassedOver))
    ledger = LossLedger(begins.home)
    ledger.record(begins.round.round, begins.attempt, losses)
    losses = ledger.of_round(begins.round.round)
    with step(Step.SAVEPOINT_IMPORT):
        cuts = {name: stage.bring() for name, stage in stages.items()}
        brought = {sink: (stages[source.sinks[sink].stage].bring_unpublished(sink),) for sink in begins.unpublished}
        opened.copy(begins.home, _deleted_keys(opened, begins))
    manifest = Manifest(
        checkpoint=number,
        parent=None,
        checkpoint_kind=CheckpointKind.SAVEPOINT,
        on_end=begins.round.on_end,
        pipeline=begins.pipeline.uuid,
        pipeline_name=begins.pipeline.name,
        incarnation=begins.attempt.incarnation,
        round=begins.round.round,
        run=begins.attempt.run,
        attempt=begins.attempt.attempt,
        work_directory=begins.attempt.work_directory.id,
        request=begins.attempt.request,
        aligned=source.aligned,
        began_at=begins.attempt.started_at,
        completed_at=datetime.now(UTC),
        graph=begins.round.graph,
        parameters=begins.round.parameters,
        settings=source.settings,
        spark=source.spark,
        inputs=pins,
        sources=source.sources,
        losses=losses,
        stages=cuts,
        sinks={},
        drained=False,
        origin=opened.origin,
        brought=brought,
    )
    store.complete_newest(manifest)
    _LOG.info("savepoint %s is checkpoint %d of this home", opened.files.url, number)
    return manifest


def _pin(begins: Beginning, source: Manifest) -> dict[InputName, tuple[Pin, ...]]:
    """Pins the inputs with the savepoint's pins, and returns these. With an unbounded source, static inputs are pinned again later."""
    sources, statics = (begins.round.graph.get(kind, {}) for kind in ("sources", "statics"))
    all_end = all(declared.get("bounded", True) for declared in sources.values())
    others = others_than(source.sources, begins.round.sources) | frozenset(begins.round.new_sources)
    pins = {
        name: found
        for name, found in source.inputs.items()
        if (name in sources and name not in others) or (all_end and name in statics)
    }
    for name, found in pins.items():
        pinned = PinnedInput(input=name, pins=found)
        if name in sources:
            Rounds(begins.home).pin(begins.round.round, pinned)
        else:
            pins_of_attempt(begins.home, begins.attempt.attempt).pin(pinned)
    return pins


@dataclass(frozen=True)
class _Stage:
    """The import of one stage."""

    opened: OpenedSavepoint
    begins: Beginning
    name: StageName
    cut: StageCut
    number: CheckpointId
    place: str
    """The directory in the home for its state."""

    def check(self) -> None:
        """Refuses a stage that could not go on."""
        if self.opened.manifest.drained and self.cut.drain_batches and self.cut.watermark_before_drain_ms is None:
            raise RejectedError(
                f"Stage '{self.name}' was drained in {self.cut.drain_batches} batches, but its watermark before the drain is not known.",
                remedy="Use a savepoint that was taken without a drain.",
                stage=self.name,
            )
        mapped = self.cut.channel.metadata.get("configuration", {}).get(COLUMN_MAPPING, "none") != "none"
        unpublished = [sink for sink in self.begins.unpublished if self.opened.manifest.sinks[sink].stage == self.name]
        rows = self.cut.channel.in_flight_rows
        rows += sum(
            pending_rows(self.opened.files, self.opened.manifest, sink, self.begins.unpublished[sink]) for sink in unpublished
        )
        if rows and mapped and self.cut.channel.staged_for and self.name not in self.begins.kept:
            raise RejectedError(
                f"Stage '{self.name}' has {rows} rows staged in files with the column names of another table.",
                remedy="Use the savepoint's own tables, or take a savepoint when the bounded inputs have ended.",
                stage=self.name,
                rows=rows,
            )

    def bring(self) -> StageCut:
        """Copies the files of the stage. Durable on return."""
        home = self.begins.home
        self.opened.copy(home, {file.stored: f"{self.place}/{file.path}" for file in self.cut.files if file.offset is None})
        self._take_out([file for file in self.cut.files if file.offset is not None])
        log = SparkLog(home, self.place)
        self._rewrite(log)
        digests = {file.path: home.digest(f"{self.place}/{file.path}") for file in self.cut.files}
        channel = self._bring_channel()
        return self.cut.model_copy(
            update=log.facts(self.cut.batch)
            | {
                "rows": 0,
                "late_rows": 0,
                "input_rows": {},
                "files": tuple(self._state_file(file.path, digests[file.path]) for file in self.cut.files),
                "channel": channel,
            }
            | ({"finished": False, "violations": {}} if self.opened.manifest.ends_round else {})
            | ({"drained": False, "drain_batches": 0} if self.opened.manifest.drained else {})
        )

    def _take_out(self, files: Sequence[StateFile]) -> None:
        """Copies files out of bundles. Durable on return."""
        home, reader = self.begins.home, StateReader(self.opened.files)
        run_all([partial(reader.take_out, file, home, f"{self.place}/{file.path}") for file in in_reading_order(files)])
        run_all([partial(home.sync, *paths) for paths in by_directory(f"{self.place}/{file.path}" for file in files)])

    def _state_file(self, path: str, digest: Digest) -> StateFile:
        return StateFile(path=path, stored=f"{self.place}/{path}", size_bytes=digest.size_bytes, sha256=digest.sha256)

    def _rewrite(self, log: SparkLog) -> None:
        """Rewrites Spark's logs for a new query, with the watermark from before a drain."""
        if log.query_id() is not None:
            log.rename(str(uuid5(NAMESPACE_URL, f"{self.begins.attempt.incarnation}/{self.name}")))
        before_ms = self.cut.watermark_before_drain_ms
        if self.opened.manifest.drained and before_ms is not None:
            log.rewrite(self.cut.batch, log.offsets(self.cut.batch).with_watermark(before_ms))
            log.leave_watermark(self.cut.batch, before_ms)

    def _bring_channel(self) -> ChannelCut:
        """Imports the channel of a stage. Its files are copied.

        Lines of batches that every consumer has read name no files any more: those files may be public, and files that only a private log
        names are deleted with its batches.
        """
        lines = [
            line
            for line in CheckpointStore(self.opened.files).read_channel(self.cut.channel)
            if line["batch"] >= self.cut.channel.first
        ]
        flying = {add["path"] for add in in_flight(self.cut.channel, lines)}
        target, copies = table_files(self.begins.staged_in[self.name]), dict[str, str]()
        for line in lines:
            adds = [add for add in line["adds"] if add["path"] in flying]
            line["adds"] = [add | {"path": self._own_name(line["batch"], add["path"])} for add in adds]
            copies |= {staged_path(self.name, add): unquote(own["path"]) for add, own in zip(adds, line["adds"], strict=True)}
        log = f"{STAGED}/{self.name}/_delta_log/"
        own_table = [file.path for file in self.opened.whole.files if file.path.startswith(log)]
        self.opened.copy(target, copies | {path: path.removeprefix(f"{STAGED}/{self.name}/") for path in own_table})
        path, digest = CheckpointStore(self.begins.home).write_channel(self.number, self.name, lines)
        known = self.cut.channel.staged_for if self.name in self.begins.kept else None
        return self.cut.channel.model_copy(
            update={"staged_in": self.begins.staged_in[self.name], "path": path, "sha256": digest, "staged_for": known}
        )

    def bring_unpublished(self, sink: SinkName) -> CarriedActions:
        """Copies the rows that an unfinished round has staged for a sink.

        Durable on return. The incarnation's next checkpoint carries them.
        """
        store = CheckpointStore(self.opened.files)
        lines, copies, replace = list[dict[str, Any]](), dict[str, str](), False
        for each in pending_actions(store, self.opened.manifest, sink, self.begins.unpublished[sink]):
            replace = replace or each.replace
            for line in store.read_actions(each):
                own = line["add"] | {"path": self._own_name(line["batch"], line["add"]["path"])}
                copies[staged_path(self.name, line["add"])] = unquote(own["path"])
                lines.append(line | {"add": own})
        self.opened.copy(table_files(self.begins.staged_in[self.name]), copies)
        actions = CheckpointStore(self.begins.home).write_actions(self.number, sink, lines)
        return CarriedActions(
            first=self.number,
            last=self.number,
            batch=self.cut.batch,
            actions=actions,
            replace=replace,
            staged_for=self.opened.manifest.sinks[sink].staged_for,
        )

    def _own_name(self, batch: int, path: str) -> str:
        """Returns the path of a staged file with a name of this incarnation."""
        directory, _, name = path.rpartition("/")
        own = f"{file_prefix(self.begins.attempt.incarnation, self.name)}{batch}-{name}"
        return f"{directory}/{own}" if directory else own


def _deleted_keys(opened: OpenedSavepoint, begins: Beginning) -> dict[str, str]:
    """Returns the tables of deleted keys of sinks with keys, with their places in the incarnation."""
    found = {}
    for sink in begins.remembering:
        place = f"{TOMBSTONES}/{sink}/"
        for file in opened.whole.files:
            if file.path.startswith(place):
                found[file.path] = f"{tombstones_path(begins.attempt.incarnation)}/{sink}/{file.path.removeprefix(place)}"
    return found
