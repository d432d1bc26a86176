"""Delta tables as sources. They are pinned at a version."""

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from spark_jobs.background import run_all, run_in_background, try_ahead
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import InputLag
from spark_jobs.protocol.errors import BEGIN_ANEW, RejectedError, SourceChangedError, StreamPipelineError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import DeltaCommit, KnownDelta, KnownSource
from spark_jobs.protocol.losses import Loss, LostFile, LostVersions, SkippedVersion, TableFile, Unit, beyond, units_of
from spark_jobs.protocol.masking import Mask
from spark_jobs.protocol.pins import DeltaPin, Pin
from spark_jobs.protocol.table_shape import COLUMN_MAPPING, TableShape
from spark_jobs.publication.delta_jvm import DeltaJvm, java_message
from spark_jobs.publication.delta_rs import delta_table
from spark_jobs.publication.fitting import shape, unreadable
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.inputs.lost_errors import ON_GONE, lost_before_read
from spark_jobs.runtime.inputs.old_query import refused
from spark_jobs.runtime.inputs.source_kind import OwnLog, ReadSoFar, SourceKind, another_kind, another_source, refused_input
from spark_jobs.runtime.spark.plan import DeltaFile, Leaf, change_options, delta_files, first_delta_version
from spark_jobs.runtime.spark.session import (
    cancel_for_good,
    file_statuses,
    job_group,
    pins_threads,
    session_with,
    spark_failures,
)
from spark_jobs.runtime.spark.spark_errors import OWN_SCHEMA_LOG
from spark_jobs.storage.table_uris import table_uri

_STARTING = {"startingversion", "startingtimestamp"}
_LOG = logging.getLogger(__name__)
_SCHEMA_LOG = "schemaTrackingLocation"
_SKIP = "skipChangeCommits"
_OF_A_FEED = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
_MAY_BEGIN_LATER = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"
"""Delta's setting that lets streams begin at a version that is not written yet."""
EXCLUDE = "excludeRegex"
"""Delta's option to leave out files. No offset changes with it."""


class DeltaSource(SourceKind):
    """Streams over Delta tables."""

    has_place = True

    def reads(self, leaf: Leaf) -> bool:
        return leaf.node == "StreamingRelation" and leaf.format.lower() == "delta"

    def identify(self, name: InputName, frame: DataFrame, leaf: Leaf, before: KnownSource | None, mask: Mask) -> KnownDelta:
        """See :meth:`SourceKind.identify`.

        A restored older copy of a table has the same id, and soon the same versions. The newest commit that was seen before
        tells the two apart. If the log no longer has that commit's file, nothing can be compared.
        """
        path, delta = leaf.options["path"], DeltaJvm(frame.sparkSession)
        version, metadata, _ = delta.snapshot(path)
        known = KnownDelta(path=path, table=metadata["id"], shape=_shape(metadata))
        lineage = partial(_lineage, known, version, before, partial(_hash_now, delta, path, before))
        seen, found = run_all([partial(_commit, delta, path, version), lineage])
        known = known.model_copy(update={"seen": seen, "lineage": found})
        if isinstance(before, KnownDelta) and before.table == known.table and before.seen and before.seen.version > version:
            return known.model_copy(update={"seen": before.seen})  # an older copy that has not caught up
        return known

    def difference(self, before: KnownSource, now: KnownSource) -> str | None:
        if not isinstance(before, KnownDelta) or not isinstance(now, KnownDelta):
            return another_kind(before, now)
        if before.table != now.table:
            return f"reads another Delta table: {now.path} has the id {now.table}, and {before.path} had {before.table}"
        if before.lineage != now.lineage:
            which = f"version {before.seen.version}" if before.seen else "a version that was read"
            return f"reads another Delta table: an older copy of {now.path} was put back, whose {which} is another one than was there"
        reasons = unreadable(before.shape, now.shape) if before.shape and now.shape else []
        return (
            f"reads a table whose earlier rows cannot be read any more: {now.path} {'; it '.join(reasons)}" if reasons else None
        )

    def resolve(self, name: InputName, frame: DataFrame, leaf: Leaf, known: KnownSource) -> KnownSource:
        if not _STARTING & {option.lower() for option in leaf.options}:
            return known
        try:
            return known.model_copy(update={"begins": first_delta_version(leaf)})
        except spark_failures() as error:
            raise refused_input(
                name, f"cannot begin where it says: {java_message(error)}", "Correct its startingVersion or startingTimestamp."
            ) from error

    def renewed(self, before: KnownSource, now: KnownSource) -> KnownSource:
        return now.model_copy(update={"begins": before.begins}) if isinstance(before, KnownDelta) else now

    def seen(self, read: ReadSoFar, known: KnownSource) -> KnownSource:
        if not isinstance(known, KnownDelta) or (version := _last_version(read.line)) is None:
            return known
        if known.seen is not None and version <= known.seen.version:
            return known
        commit = _commit(DeltaJvm(read.session), read.leaf.options["path"], version)
        return known if commit is None else known.model_copy(update={"seen": commit})

    def begin_at(self, frame: DataFrame, leaf: Leaf, known: KnownSource) -> None:
        if isinstance(known, KnownDelta) and known.begins is not None:
            may_begin_later(frame.sparkSession)
            change_options(leaf, {"startingVersion": str(known.begins)}, without=("startingTimestamp",))

    def after(self, known: KnownSource, pin: Pin) -> KnownSource:
        assert isinstance(pin, DeltaPin)
        return known.model_copy(update={"begins": pin.version + 1})

    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> DeltaPin:
        path = leaf.options["path"]
        pin = delta_pin(frame.sparkSession, path)
        return pin.model_copy(update={"rows": _rows(path, pin.version)})

    def check(self, name: InputName, leaf: Leaf, *, bounded: bool, moving: bool) -> None:
        options = {key.lower(): value for key, value in leaf.options.items()}
        if options.get("failondataloss", "true").lower() == "false":
            raise refused_input(
                name,
                "sets failOnDataLoss=false: versions that are missing in the table's log would be left out silently",
                f"Remove the option. A run with missing versions fails, and --accept-data-loss goes on without them. {ON_GONE}",
            )
        if "excluderegex" in options:
            raise refused_input(
                name,
                "sets excludeRegex: rows of data files whose names it matches would be missing silently",
                "Remove the option. To leave rows out, filter them in the function of the source.",
            )
        for option in ("ignoreChanges", "ignoreFileDeletion"):
            if options.get(option.lower(), "false").lower() == "true":
                raise refused_input(
                    name,
                    f"sets {option}: rows that an UPDATE, MERGE or DELETE has only copied into new files would appear again",
                    "Remove the option, and read the table as a change data feed (readChangeFeed=true).",
                )
        if options.get(_SKIP.lower(), "false").lower() == "true":
            raise refused_input(
                name,
                f"sets {_SKIP}=true: new rows of a version that also changes others would be left out silently",
                "Remove the option. A version that changes rows after the end of the round does no harm. A run that would have to read "
                f"such a version says so, and --accept-data-loss goes on without it. {ON_GONE}",
            )
        if {_SCHEMA_LOG.lower(), "schemalocation"} & options.keys():
            raise refused_input(
                name,
                f"sets {_SCHEMA_LOG}: the place must be below the checkpoint of a stage, and the runtime gives each stream its own",
                OWN_SCHEMA_LOG,
            )

    def prepare(
        self, name: InputName, session: SparkSession, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]
    ) -> Mapping[str, str]:
        """See :meth:`SourceKind.prepare`. Writes a schema log of Delta's with one entry, the table as it is now.

        All versions up to now are read with its columns: docs/adr/0022-rows-are-read-with-the-newest-columns.md.

        When a query starts, Delta looks at all versions of the table, also at those after a pin, and fails at one that changes rows. The
        option skipChangeCommits lets Delta pass over these versions. :meth:`lost` and :meth:`check_batch` refuse each of them that the
        stream would have to read.
        """
        if not _is_feed(leaf):
            change_options(leaf, {_SKIP: "true"})
        version, metadata, protocol = DeltaJvm(session).snapshot(leaf.options["path"])
        columns = StructType.fromJson(json.loads(metadata["schemaString"])).fields
        if _simple(columns) != _simple(each for each in leaf.schema.fields if each.name not in _OF_A_FEED or not _is_feed(leaf)):
            raise SourceChangedError(
                f"Source '{name}' changed its columns while it was read.",
                safe="No row was staged.",
                remedy="Run it again.",
                source=name,
            )
        by_name = {each.name: each for each in columns}
        entry = {
            "tableId": metadata["id"],
            "deltaCommitVersion": version,
            "dataSchemaJson": metadata["schemaString"],
            "partitionSchemaJson": StructType([by_name[each] for each in metadata["partitionColumns"]]).json(),
            "sourceMetadataPath": "",
            "tableConfigurations": metadata["configuration"],
            "protocolJson": json.dumps({"protocol": protocol}),
        }
        log.files.delete(log.directory)
        log.files.create(f"{log.directory}/_schema_log_{metadata['id']}/0", f"v1\n{json.dumps(entry)}".encode())
        passed_over = [unit.path for unit in units_of(losses) if isinstance(unit, TableFile)]
        without = {EXCLUDE: excluding(passed_over)} if passed_over else {}
        return {_SCHEMA_LOG: f"{log.files.url}/{log.directory}"} | without

    def check_batch(self, read: ReadSoFar, line: str, losses: Sequence[Loss], query: StreamingQuery | None, number: int) -> None:
        """See :meth:`SourceKind.check_batch`. Spark itself goes on in any table at the path.

        Up to a pin, :meth:`lost` has checked the passed versions when the stage was built.
        """
        path = read.leaf.options["path"]
        # The looks run at the same time, because each waits for the store. The third may run a job. Only here it ends with the query.
        hash_now = run_in_background(partial(_hash_now, DeltaJvm(read.session), path, read.known))
        skipped = run_in_background(partial(_skipped_in_batch, read, line))
        newest = delta_pin(read.session, path)
        now = KnownDelta(path=path, table=newest.table)
        now = now.model_copy(update={"lineage": _lineage(now, newest.version, read.known, hash_now.result)})
        if why := self.difference(read.known, now):
            raise another_source({read.name: why})
        if isinstance(read.pin, DeltaPin) and newest.version < read.pin.version:
            raise _gone_back(read.name, newest, read.pin.version)
        _check_not_behind(read.name, newest, line)
        loss = LostVersions(input=read.name, stage=read.stage, path=path, skipped=skipped.result())
        if loss.skipped and (left := beyond(loss, losses)):
            raise lost_before_read(left)

    def check_position(self, name: InputName, session: SparkSession, leaf: Leaf, line: str) -> None:
        if _last_version(line) is not None:
            _check_not_behind(name, delta_pin(session, leaf.options["path"]), line)

    def check_read(self, read: ReadSoFar, query: StreamingQuery, number: int) -> InputLag | None:
        """Returns the number of versions that the query has not read. Spark checks what was read by itself."""
        last = _last_version(read.line)
        if last is None:
            return None
        try:
            newest = delta_pin(read.session, read.leaf.options["path"]).version
        except spark_failures() as error:  # the query also reads the log, and fails with the cause
            _LOG.debug("the newest version of source %s cannot be read: %s", read.name, error)
            return None
        return InputLag(versions=max(newest - last, 0))

    def lost(self, read: ReadSoFar, *, thorough: bool) -> LostVersions | None:
        path, begin = read.leaf.options["path"], _position(read)
        if begin is None or (isinstance(read.pin, DeltaPin) and begin.version > read.pin.version):
            return None
        delta = DeltaJvm(read.session)
        first, earliest = begin.version, delta.earliest_version(path)
        gone = earliest > first and not (begin.initial and delta.has_version(path, first) and earliest == first + 1)
        if gone:
            begin = _Position(earliest)
        end = read.pin.version if isinstance(read.pin, DeltaPin) else None
        skipped = _skipped(read, begin, end)
        files: list[LostFile] = []
        if thorough and (end is None or begin.version <= end):
            until = None if end is None else (end + 1, -1)
            left = delta_files(read.session, read.leaf, begin.version, begin.index, begin.initial, until)
            statuses = file_statuses(read.session, [file.url for file in left])
            files = _with_rows(path, [file for file in left if statuses[file.url] is None])
        if not gone and not files and not skipped:
            return None
        versions = (first, earliest - 1) if gone else (None, None)
        return LostVersions(
            input=read.name,
            stage=read.stage,
            path=path,
            first=versions[0],
            last=versions[1],
            skipped=skipped,
            files=tuple(files),
        )

    def has_units(self, leaf: Leaf) -> bool:
        return not _is_feed(leaf)

    def units(self, read: ReadSoFar, line: str) -> list[tuple[Unit, int | None]]:
        begin, end = _position(read), _position(replace(read, line=line))
        if end is None or line == NO_OFFSET:
            return []
        if begin is None:  # a stream without an end begins with the table as it is when it reads for the first time
            begin = _Position(end.version if end.initial else end.version - 1, initial=True)
        found = delta_files(read.session, read.leaf, begin.version, begin.index, begin.initial, (end.version, end.index))
        return [
            (TableFile(version=each.version, path=each.path, size_bytes=each.size_bytes), _rows_in([each.counted]))
            for each in found
        ]

    def has_read(self, read: ReadSoFar, unit: Unit) -> bool:
        position = None if read.line == NO_OFFSET else _position(read)
        return position is not None and isinstance(unit, TableFile) and unit.version <= position.version

    def rows_of(self, session: SparkSession, leaf: Leaf, unit: Unit) -> DataFrame:
        assert isinstance(unit, TableFile)
        table = session.read.format("delta").option("versionAsOf", unit.version).load(leaf.options["path"])
        place = table.metadataColumn("_metadata")
        return table.where(place.getField("file_path").endswith(f"/{unquote(unit.path)}"))

    def past(self, read: ReadSoFar, loss: Loss) -> KnownSource | None:
        if not isinstance(loss, LostVersions) or loss.last is None:
            return None
        return read.known.model_copy(update={"begins": loss.last + 1})

    def first_line(self, known: KnownSource) -> str:
        assert isinstance(known, KnownDelta)
        assert known.begins is not None
        return delta_offset(known.table, known.begins)

    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> "DeltaBound":
        assert isinstance(pin, DeltaPin)
        gone = [loss.last for loss in losses if isinstance(loss, LostVersions) and loss.last is not None]
        pin = pin.model_copy(update={"version": max([pin.version, *gone])})  # reading goes on after the missing versions
        before = earlier.rows or 0 if isinstance(earlier, DeltaPin) else 0
        whole = not _STARTING & {option.lower() for option in leaf.options} and not losses
        return DeltaBound(pin, None if pin.rows is None else pin.rows - before, whole=whole)

    def check_adopted(self, name: InputName, adopted: AdoptedOffsets, leaf: Leaf, session: SparkSession) -> None:
        path = leaf.options.get("path", "")
        table, expected = delta_pin(session, path).table, json.loads(adopted.offset)["reservoirId"]
        if table != expected:
            raise refused(
                name,
                f"the table at {path} is not the one that the query in {adopted.checkpoint} read",
                "Give the checkpoint directory of the query that read this table; a recreated table has no offsets to adopt.",
                path=path,
                expected=expected,
                found=table,
            )

    def begin_adopted(self, name: InputName, adopted: AdoptedOffsets, log: OwnLog) -> str:
        return adopted.offset


@dataclass(frozen=True)
class DeltaBound(Bound):
    """Every row up to a table version.

    Spark reads version after version, and fails if one is missing. The option that ignores missing versions is refused.
    """

    pin: DeltaPin
    rows: int | None = None
    """Rows that the round adds to those before it."""
    whole: bool = False
    """True if all rows are read, not only those from a version or a time."""

    def exceeded(self, previous: str | None, line: str) -> bool:
        if line == NO_OFFSET:
            return False
        offset = json.loads(line)
        version, index = offset["reservoirVersion"], offset["index"]
        if offset["isStartingVersion"]:
            return bool(version > self.pin.version)
        return bool(version > self.pin.version + 1 or (version == self.pin.version + 1 and index >= 0))

    def reached(self, line: str | None) -> bool:
        if line is None or line == NO_OFFSET:
            return False
        offset = json.loads(line)
        return not offset["isStartingVersion"] and bool(offset["reservoirVersion"] > self.pin.version)

    def cut_back(self, previous: str | None, line: str) -> str:
        return delta_offset(self.pin.table, self.pin.version + 1)

    def rows_expected(self, line: str | None) -> int | None:
        return self.rows

    def unread(self, line: str | None) -> str | None:
        if (line is None or line == NO_OFFSET) and self.pin.rows and self.whole:
            return f"all {self.pin.rows} rows up to version {self.pin.version} of {self.pin.path}"
        return None


def _check_not_behind(name: InputName, newest: DeltaPin, line: str) -> None:
    """Refuses a table that is at an older version than a line of Spark's offset log has read."""
    read = _last_version(line)
    if read is not None and newest.table == json.loads(line)["reservoirId"] and newest.version < read:
        raise _gone_back(name, newest, read)


def _gone_back(name: InputName, newest: DeltaPin, version: int) -> RejectedError:
    return RejectedError(
        f"Source '{name}' reads a table that has gone back: {newest.path} is at version {newest.version}, and version {version} "
        "was there before.",
        exists="Rows of the later versions that were read stay.",
        safe="Nothing was staged.",
        remedy=f"Restore the table's log up to version {version}, or {BEGIN_ANEW}.",
        source=name,
        expected=version,
        found=newest.version,
    )


def _last_version(line: str) -> int | None:
    """Returns the last version of which a query has read rows. None if it has read no Delta table."""
    if line == NO_OFFSET or "reservoirVersion" not in (offset := json.loads(line)):
        return None
    return int(offset["reservoirVersion"]) - (0 if offset["isStartingVersion"] or offset["index"] >= 0 else 1)


def _commit(delta: DeltaJvm, path: str, version: int) -> DeltaCommit | None:
    """Returns the commit of a version. None if the table's log has no file of it."""
    found = delta.commit_sha256(path, version) if version >= 0 else None
    return None if found is None else DeltaCommit(version=version, sha256=found)


def _hash_now(delta: DeltaJvm, path: str, before: KnownSource | None) -> str | None:
    """Returns the present hash of the commit that was seen before. None if there is none, or if the log has no file of it."""
    seen = before.seen if isinstance(before, KnownDelta) else None
    return None if seen is None else delta.commit_sha256(path, seen.version)


def _lineage(now: KnownDelta, newest: int, before: KnownSource | None, hash_now: Callable[[], str | None]) -> str:
    """Returns the lineage of a table: the earlier one, or a new one if a restored older copy has caught up.

    Args:
        now: The table.
        newest: Its newest version. If the commit that was seen before is newer, the caller compares positions instead.
        before: Earlier identity of the source.
        hash_now: Returns :func:`_hash_now`.
    """
    if not isinstance(before, KnownDelta) or before.table != now.table:
        return ""
    if before.seen is None or before.seen.version > newest:
        return before.lineage
    found = hash_now()
    return before.lineage if found in (None, before.seen.sha256) else str(found)


@dataclass(frozen=True)
class _Position:
    """The position at which reading goes on."""

    version: int
    index: int = -1
    initial: bool = False
    """True if the rest of the table as it was at the version is read, not what the version has added."""


def _position(read: ReadSoFar) -> _Position | None:
    """Returns the position at which a stage goes on. None if the stream has no end and has not begun: it begins with the present rows."""
    if read.line != NO_OFFSET:
        offset = json.loads(read.line)
        return _Position(offset["reservoirVersion"], offset["index"], offset["isStartingVersion"])
    if isinstance(read.known, KnownDelta) and read.known.begins is not None:
        return _Position(read.known.begins)
    return _Position(read.pin.version, initial=True) if isinstance(read.pin, DeltaPin) else None


def _skipped(read: ReadSoFar, begin: _Position, last: int | None) -> tuple[SkippedVersion, ...]:
    """Returns the versions from a position to ``last``, or to the newest one, that change rows and that the stream skips."""
    first = begin.version + 1 if begin.initial else begin.version
    if _is_feed(read.leaf) or (last is not None and first > last):
        return ()
    keeps_deleted = _options(read.leaf).get("ignoredeletes") == "true"
    return skipped_versions(DeltaJvm(read.session).commits(read.leaf.options["path"], first, last), keeps_deleted=keeps_deleted)


def _skipped_in_batch(read: ReadSoFar, line: str) -> tuple[SkippedVersion, ...]:
    """Returns the versions that a batch of a source without a pin has skipped."""
    begin, end = _position(read), _position(replace(read, line=line))
    if read.pin is not None or begin is None or end is None or end.initial:
        return ()
    if not begin.initial and begin.index >= 0:  # the batch that began the version has checked its commit
        begin = _Position(begin.version + 1)
    return _skipped(read, begin, end.version if end.index >= 0 else end.version - 1)


def skipped_versions(
    commits: Iterable[tuple[int, Sequence[Mapping[str, Any]]]], *, keeps_deleted: bool
) -> tuple[SkippedVersion, ...]:
    """Returns the commits that change or delete rows.

    Args:
        commits: By version the actions of each commit.
        keeps_deleted: Whether commits that only delete are left out: no row is lost with them.
    """
    found = []
    for version, actions in commits:
        removed, added = _changing("remove", actions), _changing("add", actions)
        if removed and (added or not keeps_deleted):
            found.append(
                SkippedVersion(
                    version=version,
                    added_files=len(added),
                    added_rows=_rows_in(added),
                    removed_files=len(removed),
                    removed_rows=_rows_in(removed),
                )
            )
    return tuple(found)


def _changing(kind: str, actions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the actions of a kind that change data: OPTIMIZE only moves rows."""
    return [action[kind] for action in actions if kind in action and action[kind].get("dataChange", True)]


def _rows_in(files: Iterable[Mapping[str, Any]]) -> int | None:
    rows = 0
    for file in files:
        counted = json.loads(file.get("stats") or "{}").get("numRecords")
        if counted is None:
            return None
        rows += counted - (file.get("deletionVector") or {}).get("cardinality", 0)
    return rows


@contextmanager
def counted_ahead(spark: SparkSession, paths: Collection[str]) -> Iterator[None]:
    """Counts the files of tables in the background until the context closes. Delta reads their whole logs for it, and keeps the numbers.

    A query with a schema log needs them when it starts. Closing cancels unfinished counts, without waiting. Then the query counts itself,
    and can be interrupted.

    The session of the counts has no adaptive execution, so a count is one job. The stages of an adaptive query are jobs of their own. Spark
    starts them even if their group was cancelled, and until they end, they hold a lock that the query waits for.

    Args:
        spark: Session of the driver.
        paths: Spark's names of the tables.
    """
    if not paths or not pins_threads(spark.sparkContext):  # otherwise no count could be cancelled
        yield
        return
    context, group, closed = spark.sparkContext, f"counting-{uuid4()}", Event()
    delta = DeltaJvm(session_with(spark, {"spark.sql.adaptive.enabled": "false"}))

    def count(path: str) -> None:
        with job_group(context, group, f"counts the files of {path}"):
            if not closed.is_set():
                delta.count_files(path)

    run_in_background(
        partial(run_all, [partial(try_ahead, partial(count, path), f"count the files of {path}") for path in paths])
    )
    try:
        yield
    finally:
        closed.set()
        with suppress(Exception):  # the JVM has ended, and its jobs with it
            cancel_for_good(context, group)


def delta_offset(table: str, version: int) -> str:
    """Returns the line of Spark's offset log that stands for everything before ``version`` of a Delta table."""
    return json.dumps(
        {"sourceVersion": 1, "reservoirId": table, "reservoirVersion": version, "index": -1, "isStartingVersion": False}
    )


def may_begin_later(session: SparkSession) -> None:
    """Lets streams of a session begin at a version of a table that is not written yet."""
    session.conf.set(_MAY_BEGIN_LATER, "true")


def delta_pin(session: SparkSession, path: str) -> DeltaPin:
    """Returns the newest version of a table, without the number of its rows."""
    version, metadata, _ = DeltaJvm(session).snapshot(path)
    return DeltaPin(path=path, table=metadata["id"], version=version)


def static_pin(session: SparkSession, path: str) -> DeltaPin:
    """Returns the newest version of a table that a static input reads, with the hash of its commit."""
    pin, delta = delta_pin(session, path), DeltaJvm(session)
    version = max(pin.version, 0)
    return pin.model_copy(update={"version": version, "commit": delta.commit_sha256(path, version)})


def check_static(name: InputName, session: SparkSession, path: str, pin: DeltaPin, *, is_replayed: bool) -> None:
    """Refuses a table of a static input that was replaced since it was pinned. Its versions have other rows.

    Args:
        name: The static input.
        session: The session.
        path: Its table.
        pin: The pinned version.
        is_replayed: True if no other version may be read, also not from the newest checkpoint on.

    Raises:
        RejectedError: The table has another id, is at an older version, or has another commit at the pinned version.
    """
    now, found = delta_pin(session, path), None
    if now.table != pin.table:
        why = f"has the id {now.table}, and had {pin.table}"
    elif now.version < pin.version:
        why = f"is at version {now.version} now"
    elif pin.commit and (found := DeltaJvm(session).commit_sha256(path, pin.version)) not in (None, pin.commit):
        why = f"has another version {pin.version} than was there"
    else:
        return
    as_new = (
        ""
        if is_replayed
        else f"Or take the new one from the newest checkpoint on: --new-source {name} (new_sources=['{name}']). "
    )
    raise RejectedError(
        f"Static input '{name}' must still be read at version {pin.version} of {path}, but another table, or an older copy, was put there: "
        f"it {why}.",
        exists="Rows that were joined with that version are staged or planned.",
        safe="Nothing was staged.",
        remedy=f"Put the table back. {as_new}Or {BEGIN_ANEW}.",
        input=name,
        path=path,
        expected=pin.commit or pin.table,
        found=found or now.table,
    )


def _shape(metadata: Mapping[str, Any]) -> TableShape:
    """Returns the shape of a table with its columns alone."""
    mapping = {COLUMN_MAPPING: metadata["configuration"].get(COLUMN_MAPPING, "none")}
    return shape(metadata["schemaString"], metadata["partitionColumns"], mapping, ())


def excluding(paths: Iterable[str]) -> str:
    """Returns the value of :data:`EXCLUDE` for paths in a table's log, or names at their ends."""
    return f"(?:^|/)(?:{'|'.join(map(re.escape, paths))})$"


def _simple(columns: Iterable[StructField]) -> str:
    return StructType(list(columns)).simpleString()


def _is_feed(leaf: Leaf) -> bool:
    options = _options(leaf)
    return "true" in (options.get("readchangefeed"), options.get("readchangedata"))


def _options(leaf: Leaf) -> dict[str, str]:
    return {key.lower(): value.lower() for key, value in leaf.options.items()}


def _with_rows(path: str, files: Sequence[DeltaFile]) -> list[LostFile]:
    """Returns data files with their numbers of rows, from the statistics in the table's log."""
    rows: dict[str, int | None] = {}
    for version in {file.version for file in files}:
        with suppress(DeltaError, KeyError, OSError, StreamPipelineError):
            table = delta_table(table_uri(path), version).get_add_actions()
            names = [name.rpartition("/")[2] for name in table.column("path").to_pylist()]
            rows |= dict(zip(names, table.column("num_records").to_pylist(), strict=True))
    return [LostFile(path=file.url, size_bytes=file.size_bytes, rows=rows.get(file.url.rpartition("/")[2])) for file in files]


def _rows(path: str, version: int) -> int | None:
    """Returns the number of rows of a table, from the statistics in its log; None if they lack it."""
    try:
        counts = delta_table(table_uri(path), version).get_add_actions().column("num_records").to_pylist()
    except (DeltaError, KeyError, OSError, StreamPipelineError):
        return None
    return None if None in counts else sum(counts)
