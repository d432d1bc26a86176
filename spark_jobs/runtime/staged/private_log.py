"""A stage's private Delta log: its staged rows by batch, and the channel that its consumers stream from.

Invariants:

1. Version 0 contains protocol and metadata. Version b + 1 contains the staged files of batch b. A batch without rows has an empty version.
2. A version appears completely and never changes. It contains the batch's entry in Spark's offset log, and a hash of itself. Only version
   0 is replaced if the table was changed.
3. Paths are absolute: the Parquet files are in the sink's table (or in ``channels/``), not next to this log.
4. A folded batch is in a segment. The versions of folded batches are deleted later, but never version 0 and those of batches that are not
   folded. A Delta reader finds a checkpoint and all versions after it, even if it has listed the log just before it was folded.
5. There is one writer. It lists the log once and remembers the newest version.
6. A checksum file of Delta saves a reader from reading the versions before it. If the file is missing or not whole, the reader reads them.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.delta_log import LogListing
from spark_jobs.protocol.errors import BEGIN_ANEW, CorruptDocumentError, NotFoundError, UnsupportedTableError
from spark_jobs.protocol.ids import BatchId, LossId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.protocol.table_shape import StagedFor, StagedSince, TableShape
from spark_jobs.publication.empty_checkpoint import empty_checkpoint
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.log_segments import LogSegments, Segment, not_whole
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
STAGE_OPERATION = "STAGE"
SEGMENT_BATCHES_MAX = 1_000
"""Maximum number of batches in a segment. It limits memory, because a segment is read and written as a whole."""
_CHECKPOINT = ".checkpoint.parquet"
_VERSION = ".json"
_CHECKSUM = ".crc"
"""Delta's checksum file of a version. A reader without it reads all versions since the last checkpoint for schema and protocol."""
_SEAL = "sha256"
"""The key of a version's hash in its facts."""


@dataclass(frozen=True)
class StagedBatch:
    """The staged files and facts of one batch of a stage."""

    batch: BatchId
    offsets: str
    """The batch's entry in Spark's offset log, which plans the same batch again; empty if Spark has run none."""
    rows: int
    late_rows: int
    newest_event_ms: dict[str, int]
    """The newest event time up to this batch, by input with an event time."""
    adds: tuple[dict[str, Any], ...]
    """Delta's ``add`` actions with paths relative to the table."""
    input_rows: dict[str, int] = field(default_factory=dict)
    """Number of rows read, by input, if Spark has reported it."""
    state_rows: dict[str, int] = field(default_factory=dict)
    """Only for a drain: number of rows in the state that an event time would release, by operator."""
    violations: dict[str, int] = field(default_factory=dict)
    """Number of rows that violate an expectation, by expectation, if the stage drops or diverts such rows."""
    backfilled: tuple[LossId, ...] = ()
    """Losses whose rows the batch has staged."""


@dataclass(frozen=True)
class LogIdentity:
    """The content of version 0."""

    metadata: dict[str, Any]
    """Metadata with the log's own table id."""
    protocol: dict[str, Any]
    staged_for: StagedFor | None
    """The public table of the stage's sink. None without a sink, or if the log does not know it yet."""


class StagedAmount(NamedTuple):
    """An amount of staged rows."""

    rows: int = 0
    size_bytes: int = 0
    files: int = 0


def total(amounts: Iterable[StagedAmount]) -> StagedAmount:
    """Returns the sum of amounts."""
    rows, sizes, files = 0, 0, 0
    for amount in amounts:
        rows, sizes, files = rows + amount.rows, sizes + amount.size_bytes, files + amount.files
    return StagedAmount(rows, sizes, files)


class PrivateLog:
    """The private log in ``directory`` of a work directory, for files in the table at ``table_url``."""

    def __init__(self, files: Files, directory: str, table_url: str, segment_batches_max: int = SEGMENT_BATCHES_MAX) -> None:
        self._files = files
        self._segment_batches_max = segment_batches_max
        self._directory = directory
        self.table_url = table_url
        """The directory that the paths of staged files are relative to."""
        self._segments = LogSegments(files, f"{directory}/segments")
        self._latest: int | None = None
        self._folding = Lock()
        self._counting = Lock()
        self._amounts: dict[BatchId, StagedAmount] = {}
        self._identity: LogIdentity | None = None
        self._has_checksums = False

    @property
    def url(self) -> str:
        return f"{self._files.url}/{self._directory}"

    @property
    def table_id(self) -> str:
        """Returns the id of this log in its consumers' offsets. A log that is rebuilt elsewhere keeps it."""
        if self._identity is None and not self.exists():
            return str(uuid5(NAMESPACE_URL, self.url))
        return str(self.identity().metadata["id"])

    def identity(self) -> LogIdentity:
        """Returns the identity of the log, which must have been begun."""
        if self._identity is None:
            facts, actions = self._read(0)
            found = {name: value for action in actions for name, value in action.items()}
            staged_for = StagedFor.model_validate(facts) if facts else None
            self._identity = LogIdentity(found["metaData"], found["protocol"], staged_for)
        return self._identity

    def begin(
        self,
        metadata: dict[str, Any],
        protocol: dict[str, Any],
        table: StagedFor | None,
        *,
        recorded: BatchId = NO_BATCH,
        misfits: Callable[[TableShape], Sequence[str]] = lambda _: (),
    ) -> bool:
        """Writes version 0 with the metadata and the protocol of the table that rows are staged in.

        If the table was changed since, version 0 is replaced, if all rows outside of checkpoints still fit. A channel only gains columns.
        No query may be reading the log.

        Args:
            metadata: Metadata of the table that rows are staged in.
            protocol: Protocol of the same table.
            table: The present public table; None if there is none.
            recorded: Last batch in a checkpoint. The publication checks the rows up to it.
            misfits: Returns the reasons why rows that were staged for a shape do not fit the present public table.

        Returns:
            True if version 0 was replaced.

        Raises:
            UnsupportedTableError: The log was begun for another table, or rows in it do not fit the table any more.
        """
        if self.latest() < 0:
            with step(Step.LOG_CREATE):
                self._create(0, self._first_version(metadata, protocol, table))
            return False
        before = self.staged_for()
        if table is not None and before is not None:
            table = self._followed(before, table, recorded, misfits)
        if table == before and self.identity().metadata["schemaString"] == metadata["schemaString"]:
            return False
        with step(Step.LOG_WIDEN):  # version 0 is last: while it is old, this is repeated
            for version in (version for version, kind in self._names() if kind == _CHECKPOINT):
                path = self._path(version, _CHECKPOINT)
                self._files.replace(path, empty_checkpoint(protocol, metadata | {"id": self.table_id}))
                self._files.sync(path)
            self._files.replace(self._path(0), self._first_version(metadata, protocol, table))
            self._identity = None
        return True

    def _first_version(self, metadata: dict[str, Any], protocol: dict[str, Any], table: StagedFor | None) -> bytes:
        facts = table.model_dump(mode="json") if table else {}
        return _version(facts, [{"protocol": protocol}, {"metaData": metadata | {"id": self.table_id}}])

    def _followed(
        self, before: StagedFor, now: StagedFor, recorded: BatchId, misfits: Callable[[TableShape], Sequence[str]]
    ) -> StagedFor:
        """Returns the tables that the log's rows were staged for, with the present table as the last entry."""
        newest, last = now.since[-1].shape, BatchId(self.latest() - 1)
        shapes = before.shapes(recorded, last)
        problems = [f"it {reason}" for shape in shapes for reason in misfits(shape)]
        if before.table_id != now.table_id:
            problems = ["it has another id (it was created again)"]
        if problems:
            raise UnsupportedTableError(
                f"Table {self.table_url} was changed, and staged rows do not fit it any more: {'; '.join(problems)}.",
                exists=f"Batches {recorded + 1} to {last} are staged and belong to no checkpoint.",
                remedy=f"Change the table back and start again; or {BEGIN_ANEW}.",
                table=self.table_url,
                problems=problems,
            )
        if all(each.shape == newest for each in before.since):
            return before
        kept = tuple(each for each in before.since if each.shape in shapes)
        if kept and kept[-1].shape == newest:
            return StagedFor(table_id=now.table_id, since=kept)
        return StagedFor(table_id=now.table_id, since=(*kept, StagedSince(first=BatchId(last + 1), shape=newest)))

    def leave_constraints_to_publication(self) -> None:
        """Records that the next batches are not checked for the CHECK constraints of the public table. Their publication checks them.

        Readers of the log see no change: only its own facts in version 0 are replaced. The log must have a public table.
        """
        identity = self.identity()
        before = identity.staged_for
        if before is None:
            raise ValueError(f"{self.url} has no public table")
        first = BatchId(self.latest())
        shape = before.since[-1].shape.without_constraints()
        kept = (each for each in before.since if each.first < first)
        now = StagedFor(table_id=before.table_id, since=(*kept, StagedSince(first=first, shape=shape)))
        with step(Step.LOG_WIDEN):
            self._files.replace(self._path(0), self._first_version(identity.metadata, identity.protocol, now))
        self._identity = replace(identity, staged_for=now)  # in one step, because a checkpoint may read it at the same time

    def staged_for(self) -> StagedFor | None:
        """Returns the public table that the batches were staged for."""
        return self.identity().staged_for

    def rebuild(self, identity: LogIdentity, staged: Sequence[StagedBatch]) -> None:
        """Creates a copy of another log: with the same table id and versions for its readers. There must be no log here.

        Args:
            identity: Identity of that log.
            staged: Its last batches without a gap. If they do not begin with batch 0, the first one counts as folded.
        """
        facts = identity.staged_for.model_dump(mode="json") if identity.staged_for else {}
        self._create(0, _version(facts, [{"protocol": identity.protocol}, {"metaData": identity.metadata}]))
        if staged and (first := staged[0].batch) > 0:
            self._segments.write(Segment(first, first), [line_of(staged[0])])
            with step(Step.LOG_CHECKPOINT):
                self._files.create(self._path(first + 1, _CHECKPOINT), self._checkpoint())
            staged = staged[1:]
        self._latest = None  # listed when it is asked for
        self._files.create_all((self._path(batch.batch + 1), self._version_of(batch)) for batch in staged)

    def exists(self) -> bool:
        return bool(self._files.names(f"{self._directory}/_delta_log"))

    def latest(self) -> int:
        """Returns the newest version, or -1 if the log is not begun."""
        if self._latest is None:
            self._latest = max((version for version, kind in self._names() if kind == _VERSION), default=-1)
        return self._latest

    def write_checksums(self) -> None:
        """Gives each further version a checksum file, because Delta reads the log while it grows. A second call has no effect.

        Deletes earlier checksum files: version 0 may have been replaced since they were written, or they may be damaged.
        """
        if self._has_checksums:
            return
        for version, kind in self._names():
            if kind == _CHECKSUM:
                self._files.delete(self._path(version, kind))
        self._has_checksums = True

    def append(self, staged: StagedBatch) -> None:
        """Writes a batch's version, complete and durable. Skipped batch ids get empty versions before it.

        Raises:
            AlreadyExistsError: The batch has a version already.
        """
        for missing in range(self.latest() + 1, staged.batch + 1):
            empty = StagedBatch(staged.batch, "", 0, 0, staged.newest_event_ms, ())
            self._create(missing, _version(_facts(empty), []))
        with step(Step.STAGE_VERSION):
            if self._has_checksums:  # before the version, so that a reader who finds the version also finds the checksum file
                self._files.replace(self._path(staged.batch + 1, _CHECKSUM), self._checksum(staged))
            self._create(staged.batch + 1, self._version_of(staged))

    def read(self, batch: BatchId) -> StagedBatch | None:
        """Returns the staged files of a batch, or None if it has no version yet."""
        return None if not 0 <= batch < self.latest() else next(self.between(BatchId(batch - 1), batch))

    def between(self, after: BatchId, last: BatchId) -> Iterator[StagedBatch]:
        """Yields the staged batches after ``after`` up to ``last``.

        Raises:
            CorruptDocumentError: A batch is not in the log any more, but in a checkpoint that cannot be used any more.
        """
        if after + 1 < self.oldest() and after < last:
            raise CorruptDocumentError(
                f"{self.url} does not have the batches before {self.oldest()} any more, but batch {after + 1} is needed.",
                exists="They are in complete checkpoints whose manifests cannot be read any more.",
                safe="Nothing was changed.",
                remedy=f"Restore the manifests from a copy, or {BEGIN_ANEW}.",
                path=self.url,
                expected=after + 1,
                found=self.oldest(),
            )
        known = self._segments.all()  # listed once: otherwise a fold in between could hide a batch
        segments = (segment for segment in known if segment.last > after and segment.first <= last)
        folded = (staged for segment in segments for staged in self._batches_of(segment) if after < staged.batch <= last)
        versions = range(max(after, known[-1].last if known else NO_BATCH) + 1, min(last + 1, self.latest()))
        return chain(folded, (self._read_version(BatchId(batch)) for batch in versions))

    def amount_after(self, batch: BatchId, last: BatchId | None = None) -> StagedAmount:
        """Returns the staged rows, bytes and files of the batches after ``batch`` up to ``last``.

        It is called often while a stage runs, so the amounts are cached.
        """
        newest = BatchId(self.latest() - 1)
        last = newest if last is None else min(last, newest)
        with self._counting:
            unknown = next((number for number in range(batch + 1, last + 1) if number not in self._amounts), None)
            if unknown is not None:
                self._amounts |= {b.batch: _amount(b) for b in self.between(BatchId(unknown - 1), last)}
            counted = total(staged for number, staged in self._amounts.items() if batch < number <= last)
            for folded in [number for number in self._amounts if number <= self.folded()]:
                del self._amounts[folded]
        return counted

    def folded(self) -> BatchId:
        """Returns the last folded batch, or -1 if there is none."""
        return self._segments.folded()

    def oldest(self) -> BatchId:
        """Returns the first batch in the log."""
        return self._segments.oldest()

    def fold(self, last: BatchId) -> None:
        """Folds the batches up to ``last``, except the newest one, into segments. Delta readers then begin after them.

        Their versions stay until the next fold, because a reader may have listed the log just before. Idempotent: a crash loses nothing,
        and the next fold does the rest.

        Args:
            last: Last batch. No consumer reads its version, or an earlier one, again.
        """
        with self._folding:
            first, last = BatchId(self.folded() + 1), min(last, BatchId(self.latest() - 2))
            if last < first:
                return
            for begin in range(first, last + 1, self._segment_batches_max):
                segment = Segment(BatchId(begin), BatchId(min(begin + self._segment_batches_max - 1, last)))
                batches = [self._read_version(BatchId(batch)) for batch in range(segment.first, segment.last + 1)]
                self._segments.write(segment, [line_of(staged) for staged in batches])
            with step(Step.LOG_CHECKPOINT):
                self._files.create(self._path(last + 1, _CHECKPOINT), self._checkpoint())
            self._delete_versions()

    def forget(self, until: BatchId, discard: Callable[[StagedBatch], None]) -> None:
        """Deletes segments whose batches all end at ``until`` or before. Idempotent.

        Args:
            until: Last batch of a checkpoint that all later checkpoints continue.
            discard: Called with each batch before it is deleted, and again after a crash in between.
        """
        with self._folding:
            for segment in self._segments.forgettable(until):
                for staged in self._batches_of(segment):
                    discard(staged)
                self._segments.forget(segment)

    def heal(self) -> None:
        """Replaces the Delta checkpoint after the folded batches if it is damaged or missing. Durable, idempotent. No query may be running.

        Raises:
            CorruptDocumentError: Version 0, which has its content, is damaged.
        """
        right = self._checkpoint()
        path = self._path(self.folded() + 1, _CHECKPOINT)
        if self.folded() == NO_BATCH or self._has_content(path, right):
            return
        _LOG.warning("%s/%s is damaged or missing: it is written again", self._files.url, path)
        self._files.replace(path, right)
        self._files.sync(path)

    def _has_content(self, path: str, data: bytes) -> bool:
        try:
            return self._files.read(path) == data
        except NotFoundError:
            return False

    def _checkpoint(self) -> bytes:
        return empty_checkpoint(self.identity().protocol, self.identity().metadata)

    def _checksum(self, staged: StagedBatch) -> bytes:
        """Returns the checksum file for the version of the next batch. It counts the files of all batches that are not folded."""
        identity, amount = self.identity(), total([self.amount_after(self.folded()), _amount(staged)])
        counts = {"tableSizeBytes": amount.size_bytes, "numFiles": amount.files, "numMetadata": 1, "numProtocol": 1}
        return canonical(
            counts | {"metadata": identity.metadata, "protocol": identity.protocol, "setTransactions": [], "domainMetadata": []}
        )

    def _delete_versions(self) -> None:
        """Deletes versions that no reader needs any more."""
        names = self._names()
        kept = LogListing(f"{version:020d}{kind}" for version, kind in names).needed_from
        if kept is None:
            return
        with step(Step.LOG_TRIM):
            for version, kind in names:
                if 0 < version < kept or (version == kept and kind != _CHECKPOINT):
                    self._files.delete(self._path(version, kind))

    def _read_version(self, batch: BatchId) -> StagedBatch:
        facts, actions = self._read(batch + 1)
        prefix = f"{self.table_url}/"
        adds = tuple(a["add"] | {"path": a["add"]["path"].removeprefix(prefix)} for a in actions if "add" in a)
        return batch_of(facts | {"batch": batch, "adds": adds})

    def _read(self, version: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Returns the facts and the actions of a version.

        Raises:
            CorruptDocumentError: The version is not the one that was written.
        """
        path = self._path(version)
        data = self._files.read(path)
        try:
            info, *actions = (json.loads(line) for line in data.splitlines())
            facts: dict[str, Any] = json.loads(info["commitInfo"]["userMetadata"])
            del facts[_SEAL]
            if _version(facts, actions) == data:
                return facts, actions
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise not_whole(f"{self._files.url}/{path}", "version")

    def _batches_of(self, segment: Segment) -> Iterator[StagedBatch]:
        return map(batch_of, self._segments.read(segment))

    def _names(self) -> list[tuple[int, str]]:
        """Returns the versions in the log with the kinds of their files."""
        names = self._files.names(f"{self._directory}/_delta_log")
        kinds = (_VERSION, _CHECKPOINT, _CHECKSUM)
        return [(int(name[:20]), name[20:]) for name in names if name[:20].isdigit() and name[20:] in kinds]

    def _version_of(self, staged: StagedBatch) -> bytes:
        return _version(_facts(staged), [{"add": add | {"path": f"{self.table_url}/{add['path']}"}} for add in staged.adds])

    def _create(self, version: int, data: bytes) -> None:
        try:
            self._files.create(self._path(version), data)
        except BaseException:
            self._latest = None  # it may exist nevertheless
            raise
        self._latest = version

    def _path(self, version: int, kind: str = _VERSION) -> str:
        return f"{self._directory}/_delta_log/{version:020d}{kind}"


def _amount(staged: StagedBatch) -> StagedAmount:
    return StagedAmount(staged.rows, sum(int(add["size"]) for add in staged.adds), len(staged.adds))


def line_of(staged: StagedBatch) -> dict[str, Any]:
    """Returns a batch as one JSON object."""
    return _facts(staged) | {"batch": staged.batch, "adds": staged.adds}


def batch_of(line: Mapping[str, Any]) -> StagedBatch:
    """Returns the batch of a line from :func:`line_of`."""
    return StagedBatch(**{**line, "adds": tuple(line["adds"]), "backfilled": tuple(line.get("backfilled", ()))})


def _version(facts: dict[str, Any], actions: list[dict[str, Any]]) -> bytes:
    info = {
        "timestamp": 0,
        "operation": STAGE_OPERATION,
        "operationParameters": {},
        "userMetadata": canonical(facts | {_SEAL: sha256(canonical([facts, actions]))}).decode(),
    }
    return b"\n".join(canonical(action) for action in [{"commitInfo": info}, *actions]) + b"\n"


def _facts(staged: StagedBatch) -> dict[str, Any]:
    return {
        "offsets": staged.offsets,
        "rows": staged.rows,
        "late_rows": staged.late_rows,
        "newest_event_ms": staged.newest_event_ms,
        "input_rows": staged.input_rows,
        "state_rows": staged.state_rows,
        "violations": staged.violations,
    } | ({"backfilled": staged.backfilled} if staged.backfilled else {})
