"""Folders of files as sources. They are pinned as a list of files; Spark keeps its own log of them."""

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import InputLag
from spark_jobs.protocol.errors import BEGIN_ANEW, NotFoundError, RejectedError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownFiles, KnownSource
from spark_jobs.protocol.losses import Loss, LostFile, LostFiles, SourceFile, Unit
from spark_jobs.protocol.masking import Mask
from spark_jobs.protocol.pins import FilePin, FilesPin, Pin
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound, ExpectedFile
from spark_jobs.runtime.inputs.csv_headers import misplaced
from spark_jobs.runtime.inputs.inferred_types import outgrows
from spark_jobs.runtime.inputs.lost_errors import ON_GONE
from spark_jobs.runtime.inputs.old_query import files_read, refused
from spark_jobs.runtime.inputs.source_kind import OwnLog, ReadSoFar, SourceKind, another_kind, refused_input
from spark_jobs.runtime.spark.plan import Leaf, files_found
from spark_jobs.runtime.spark.session import file_statuses, qualified_path, spark_failures
from spark_jobs.storage import checksums
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
FILE_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})
_FIXED_COLUMNS = frozenset({"binaryfile", "text"})
_PARSED = frozenset({"csv", "json", "xml"})
_SILENT = {
    "ignoreMissingFiles": ("have gone", f"Remove the option. {ON_GONE}"),
    "ignoreCorruptFiles": ("cannot be read", "Remove the option."),
}
"""Options with which Spark leaves out files silently, with those files and the remedy."""
_ANY_NAME = "ignoreExtension"
"""Avro's option to read files with any name."""
_COMPACT_INTERVAL = 10
"""``spark.sql.streaming.fileSource.log.compactInterval``; set in every session of the runtime."""
_PASSED = 2**62
"""The batch number of files that no batch reads. They are in Spark's log, so they count as read."""
_FOR_EVER = f"{2**63 - 1}ms"
"""The greatest age that Spark accepts. With it, every file stays in Spark's list of read files, as in its log."""
_PATTERN = re.compile(r"(^|/)[^/]*[*?\[{\\].*", re.DOTALL)
_OTHER_NAMES = re.compile(r"(.*?[\[{\\][^/]*)(.*)", re.DOTALL)
"""Matches a path up to the first name that is a pattern for other names, but not for itself; and the rest of the path."""
_SIGNS = re.compile(r"[\\*?\[\]{}]")


def _as_in_rows(url: str) -> str:
    """Returns the URL of a file as in the column ``_metadata.file_path``."""
    return re.sub("^file:/+", "file:/", url)


def _as_pattern(url: str) -> str:
    """Returns the path of one file as Spark's readers take it: not as a URL, and as a pattern for names."""
    return _escaped(unquote(_as_in_rows(url)))


def _escaped(path: str) -> str:
    """Returns a pattern that matches only the path."""
    return _SIGNS.sub(r"\\\g<0>", path)


def is_pattern(path: str) -> bool:
    """Returns True if Spark reads a path as a pattern for names."""
    return _PATTERN.search(path) is not None


def above_patterns(path: str) -> str:
    """Returns the deepest directory that has everything that a path or a pattern names."""
    return _PATTERN.sub("", path) or "."


class FileSource(SourceKind):
    """Streams over folders of files, in any of Spark's formats."""

    has_place = True

    def reads(self, leaf: Leaf) -> bool:
        return leaf.node == "StreamingRelation" and leaf.format.lower() in FILE_FORMATS

    def check(self, name: InputName, leaf: Leaf, *, bounded: bool, moving: bool) -> None:
        options = {key.lower(): value for key, value in leaf.options.items()}
        if options.get("cleansource", "off").lower() != "off":
            tidying = 'declare after_publication="archive" or "delete" on the source'
            by_hand = "tidy the folder yourself once the checkpoint that has read the files is public"
            raise refused_input(
                name,
                f"sets cleanSource={options['cleansource']}: Spark would move or delete files that other stages or a later try still need",
                f"Remove the option, and {tidying if bounded else by_hand}.",
            )
        for option, (what, instead) in _SILENT.items():
            if options.get(option.lower(), "false").lower() == "true":
                raise refused_input(name, f"sets {option}: rows of files that {what} would be missing silently", instead)
        if leaf.format.lower() in _PARSED and options.get("mode", "").upper() == "DROPMALFORMED":
            raise refused_input(
                name,
                "sets mode=DROPMALFORMED: rows that cannot be parsed would be left out silently",
                "Remove the option. To keep the text of such a row, add the column _corrupt_record to the schema: a stage can write it "
                "into a separate table. To let the run fail, set mode=FAILFAST.",
            )
        if leaf.format.lower() == "avro" and options.get(_ANY_NAME.lower(), "true").lower() == "false":
            raise refused_input(
                name,
                f"sets {_ANY_NAME}=false: rows of files whose names do not end in .avro would be missing silently",
                "Remove the option. To read only some files, set pathGlobFilter=*.avro.",
            )
        if "maxfileage" in options:
            raise refused_input(
                name,
                f"sets maxFileAge={options['maxfileage']}: files that are older than the newest one by more would be left out silently",
                "Remove the option: every file is read once, regardless of its age. To leave old files out, compare "
                "_metadata.file_modification_time in the function of the source.",
            )
        if options.get("filenameonly", "false").lower() == "true":
            raise refused_input(
                name, "sets fileNameOnly: of files with one name in several folders only one would be read", "Remove the option."
            )
        limits = {"maxfilespertrigger": "maxFilesPerTrigger", "maxbytespertrigger": "maxBytesPerTrigger"}
        limit = next((spelled for option, spelled in limits.items() if option in options), None)
        if moving and limit and options.get("latestfirst", "false").lower() == "true":
            raise refused_input(
                name,
                f"sets latestFirst and {limit}, and its watermark moves between its batches: rows of older files would be late",
                f"Remove latestFirst or {limit}, or give the source no event_time."
                + (" Or declare hold_watermark=True." if bounded else ""),
            )

    def identify(self, name: InputName, frame: DataFrame, leaf: Leaf, before: KnownSource | None, mask: Mask) -> KnownFiles:
        path = leaf.options["path"]
        if folder := _OTHER_NAMES.fullmatch(path):
            url = qualified_path(frame.sparkSession, folder[1])
            if file_statuses(frame.sparkSession, [url])[url]:
                raise refused_input(
                    name,
                    f"reads {path}: {folder[1]} exists, but Spark takes the name as a pattern for other names and would not read it",
                    f"Escape the name: {_escaped(folder[1])}{folder[2]}. Or rename it.",
                )
        return KnownFiles(path=qualified_path(frame.sparkSession, path).rstrip("/"))

    def difference(self, before: KnownSource, now: KnownSource) -> str | None:
        if not isinstance(before, KnownFiles) or not isinstance(now, KnownFiles):
            return another_kind(before, now)
        return None if before.path == now.path else f"reads another folder: {now.path}, but before it read {before.path}"

    def after(self, known: KnownSource, pin: Pin) -> KnownSource:
        assert isinstance(pin, FilesPin)
        return known.model_copy(update={"passed": pin.files})

    def begin_log(self, known: KnownSource, log: OwnLog) -> None:
        if isinstance(known, KnownFiles) and known.passed:
            FileSourceLog(log.files, log.directory).pass_over(known.passed)

    def prepare(
        self, name: InputName, session: SparkSession, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]
    ) -> Mapping[str, str]:
        """See :meth:`SourceKind.prepare`.

        Without these options Spark forgets files that are a week older than its newest one, and takes no others that old. If Hadoop's
        configuration says so, it also ignores Avro files whose names do not end in ``.avro``.
        """
        return {"maxFileAge": _FOR_EVER} | ({_ANY_NAME: "true"} if leaf.format.lower() == "avro" else {})

    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> FilesPin:
        """Returns the files that Spark's file source would find now. Spark lists them with the source's own options."""
        session = frame.sparkSession
        options = {key: value for key, value in leaf.options.items() if key.lower() != "path"}
        try:
            paths = session.read.format("binaryFile").options(**options).load(leaf.options["path"]).inputFiles()
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            paths = []
        found = file_statuses(session, sorted(paths))
        files = [FilePin(path=path, timestamp_ms=status[0], size_bytes=status[1]) for path, status in found.items() if status]
        return FilesPin(path=leaf.options["path"], files=tuple(files))

    def lost(self, read: ReadSoFar, *, thorough: bool) -> LostFiles | None:
        """Checks all files or none: a folder may have a million."""
        if not thorough:
            return None
        log = FileSourceLog(read.log.files, read.log.directory)
        if isinstance(read.pin, FilesPin):
            taken = {_planned_file(entry).identity for entry in log.between(-1, _log_id(read.line))}
            left = {file.path: file for file in map(_pinned_file, read.pin.files) if file.identity not in taken}
        else:
            left = {entry["path"]: _planned_file(entry) for entry in log.between(_log_id(read.line), log.latest())}
        statuses = file_statuses(read.session, left)
        gone = [
            LostFile(path=path, size_bytes=left[path].size_bytes, timestamp_ms=left[path].timestamp_ms)
            for path, status in statuses.items()
            if left[path].difference(status)
        ]
        return LostFiles(input=read.name, stage=read.stage, files=tuple(gone)) if gone else None

    def has_units(self, leaf: Leaf) -> bool:
        return True

    def units(self, read: ReadSoFar, line: str) -> list[tuple[Unit, int | None]]:
        entries = FileSourceLog(read.log.files, read.log.directory).between(_log_id(read.line), _log_id(line))
        statuses = file_statuses(read.session, [entry["path"] for entry in entries])
        sizes = {path: status[1] if status else None for path, status in statuses.items()}
        return [
            (SourceFile(path=path, timestamp_ms=int(entry["timestamp"]), size_bytes=sizes[path]), None)
            for entry in entries
            for path in [entry["path"]]
        ]

    def has_read(self, read: ReadSoFar, unit: Unit) -> bool:
        if not isinstance(unit, SourceFile):
            return False
        log = FileSourceLog(read.log.files, read.log.directory)
        return ExpectedFile(unit.path, unit.timestamp_ms).identity in log.identities(_log_id(read.line)).items()

    def rows_of(self, session: SparkSession, leaf: Leaf, unit: Unit) -> DataFrame:
        assert isinstance(unit, SourceFile)
        options = {key: value for key, value in leaf.options.items() if key.lower() not in ("path", "basepath")}
        base = {"basePath": unquote(files_root(session, leaf.options["path"]))}  # the columns of its partition are in its path
        return session.read.format(leaf.format).options(**options, **base).schema(leaf.schema).load(_as_pattern(unit.path))

    def without(self, frame: DataFrame, units: Sequence[Unit]) -> DataFrame:
        paths = [_as_in_rows(unit.path) for unit in units if isinstance(unit, SourceFile)]
        return frame.where(~frame.metadataColumn("_metadata").getField("file_path").isin(paths)) if paths else frame

    def check_unchanged(self, name: InputName, earlier: Pin, now: Pin, losses: Sequence[Loss]) -> None:
        if not isinstance(earlier, FilesPin) or not isinstance(now, FilesPin):
            return
        lost, read = _lost_paths(losses), {file.path: file for file in earlier.files}
        changed = [file.path for file in now.files if file.path not in lost and read.get(file.path, file) != file]
        if changed:
            raise _changed_since_read(name, changed, "Rows that the previous round has read from them are public or staged.")

    def check_new(self, name: InputName, session: SparkSession, leaf: Leaf, earlier: Pin | None, now: Pin) -> None:
        if not isinstance(now, FilesPin):
            return
        known = set(earlier.files) if isinstance(earlier, FilesPin) else set[FilePin]()
        if why := misplaced(session, leaf, (file.path for file in now.files if file not in known)):
            raise _misplaced(
                name, why, "Take it out of the folder, and write its columns in the order of the schema into another one."
            )

    def check_files(self, read: ReadSoFar, paths: Collection[str]) -> None:
        if why := misplaced(read.session, read.leaf, paths):
            raise _misplaced(
                read.name,
                why,
                "Write its columns in the order of the schema into a file of another name, take this one out of the folder, and go on "
                f"without it: --accept-data-loss {read.name} (accept_data_loss=['{read.name}']).",
            )

    def check_read(self, read: ReadSoFar, query: StreamingQuery, number: int) -> InputLag | None:
        """See :meth:`SourceKind.check_read`. Spark reads a file once, even if it is overwritten later."""
        seen = FileSourceLog(read.log.files, read.log.directory).identities(_log_id(read.line))
        try:
            found = files_found(read.session, query, number)
        except spark_failures() as error:  # the query also lists files, and fails with the cause
            _LOG.debug("the files of source %s cannot be listed: %s", read.name, error)
            return None
        now = dict(ExpectedFile(path, timestamp_ms).identity for path, timestamp_ms in found.items())
        changed = sorted(path for path, time in now.items() if seen.get(path, time) != time)
        if changed:
            raise _changed_since_read(read.name, changed, "Rows that were read from them before are public or staged.")
        return InputLag(files=len(now.keys() - seen.keys()))

    def endless(self, session: SparkSession, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> Bound:
        inferred = leaf.format.lower() not in _FIXED_COLUMNS and leaf.relation.userSpecifiedSchema().isEmpty()
        own = FileSourceLog(log.files, log.directory)
        gone = [file for loss in losses if isinstance(loss, LostFiles) for file in loss.files]
        lost = {ExpectedFile(file.path, file.timestamp_ms).identity for file in gone if file.timestamp_ms is not None}
        return EndlessFiles(own, lost, (session, leaf) if inferred else None)

    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> "FilesBound":
        assert isinstance(pin, FilesPin)
        own = FileSourceLog(log.files, log.directory)
        passed, lost = own.passed(), _lost_paths(losses)
        files = tuple(file for file in pin.files if _pinned_file(file).identity not in passed and file.path not in lost)
        left = pin.model_copy(update={"files": files})
        return FilesBound(left, own, _files_per_batch(leaf))

    def check_adopted(self, name: InputName, adopted: AdoptedOffsets, leaf: Leaf, session: SparkSession) -> None:
        path = leaf.options.get("path", "")
        root = files_root(session, path)
        read = [file["path"] for file in files_read(name, adopted)]
        foreign = [each for each in read if each != root and not each.startswith(f"{root}/")]
        if foreign:
            raise refused(
                name,
                f"it reads {path}, and the query in {adopted.checkpoint} has read {foreign[0]}, which is not there",
                "Give the checkpoint directory of the query that read these files, and the path as it was given there.",
                path=path,
                found=foreign[0],
            )

    def begin_adopted(self, name: InputName, adopted: AdoptedOffsets, log: OwnLog) -> str:
        """See :meth:`SourceKind.begin_adopted`. Writes the files that were read as the first entry of Spark's log, too."""
        FileSourceLog(log.files, log.directory).rewrite(0, [entry | {"batchId": 0} for entry in files_read(name, adopted)])
        return json.dumps({"logOffset": 0})


def files_root(session: SparkSession, path: str) -> str:
    """Returns the URL of the folder of a path, without its pattern."""
    return qualified_path(session, above_patterns(path)).rstrip("/")


class EndlessFiles(Bound):
    """The end of a source that reads all files that arrive. Spark records their modification times. Their sizes are not pinned."""

    names_files = True

    def __init__(
        self, log: "FileSourceLog", lost: Set[tuple[str, int]], inferred: tuple[SparkSession, Leaf] | None = None
    ) -> None:
        self._log, self._lost = log, lost
        """The identities of lost files. A file that arrives later under the same name is a new file."""
        self._inferred = inferred
        """The session and the leaf that infer a schema. None if it is declared."""

    def has_outgrown(self, previous: str | None, line: str) -> bool:
        paths = list(self.files_between(previous, line))
        if self._inferred is None or not paths:
            return False
        session, leaf = self._inferred
        options = {key: value for key, value in leaf.options.items() if key.lower() != "path"}
        reader = session.read.format(leaf.format).options(**options)
        if not outgrows(leaf.schema, reader.load(paths).schema):
            return False
        # a column that is null in the whole batch may get another type when the other files are read, too
        return reader.load(leaf.options["path"]).schema.simpleString() != leaf.schema.simpleString()

    def exceeded(self, previous: str | None, line: str) -> bool:
        """Returns True if a batch reads lost files."""
        if not self._lost:
            return False
        return any(self._is_lost(entry) for entry in self._log.between(_log_id(previous), _log_id(line)))

    def cut_back(self, previous: str | None, line: str) -> str:
        start, end = _log_id(previous), _log_id(line)
        planned = [entry for entry in self._log.between(start, end) if not self._is_lost(entry)]
        for log_id in range(start + 1, end + 1):
            self._log.rewrite(log_id, [entry for entry in planned if entry["batchId"] == log_id])
        return line

    def files_between(self, previous: str | None, line: str) -> Mapping[str, ExpectedFile]:
        return {entry["path"]: _planned_file(entry) for entry in self._log.between(_log_id(previous), _log_id(line))}

    def _is_lost(self, entry: Mapping[str, Any]) -> bool:
        return _planned_file(entry).identity in self._lost


class FilesBound(Bound):
    """The end of a source that reads exactly the pinned files. The file source's own log assigns them to batches.

    A file is known by its path and its modification time: a later file under the same name is a new file. Spark takes it for the old one
    and skips it.
    """

    names_files = True

    def __init__(self, pin: FilesPin, log: "FileSourceLog", files_per_batch: int | None) -> None:
        self._pinned = {file.path: file for file in pin.files}
        self._log = log
        self._files_per_batch = files_per_batch

    def exceeded(self, previous: str | None, line: str) -> bool:
        return not all(self._is_pinned(entry) for entry in self._log.between(_log_id(previous), _log_id(line)))

    def reached(self, line: str | None) -> bool:
        return not self._left_after(_log_id(line))

    def cut_back(self, previous: str | None, line: str) -> str:
        start, end = _log_id(previous), _log_id(line)
        planned = [
            _file_entry(self._pinned[entry["path"]], entry["batchId"])
            for entry in self._log.between(start, end)
            if entry["path"] in self._pinned
        ]
        named = {entry["path"] for entry in planned}
        missing = [file for file in self._left_after(start) if file.path not in named]
        room = max(self._files_per_batch - len(planned), 0) if self._files_per_batch else len(missing)
        for log_id in range(start + 1, end):
            self._log.rewrite(log_id, [entry for entry in planned if entry["batchId"] == log_id])
        last = [entry for entry in planned if entry["batchId"] == end]
        self._log.rewrite(end, last + [_file_entry(file, end) for file in missing[:room]])
        return line

    def passed_over(self, line: str) -> str | None:
        """See :meth:`Bound.passed_over`. Spark skips a new file under the name of one that it has read."""
        newest = max(self._log.latest(), _log_id(line))
        missing = self._left_after(newest)
        if not missing:
            return json.dumps({"logOffset": newest}) if newest > _log_id(line) else None
        self._log.rewrite(newest + 1, [_file_entry(file, newest + 1) for file in missing[: self._files_per_batch]])
        return json.dumps({"logOffset": newest + 1})

    def files_between(self, previous: str | None, line: str) -> Mapping[str, ExpectedFile]:
        entries = self._log.between(_log_id(previous), _log_id(line))
        return {
            path: _pinned_file(self._pinned[path]) if path in self._pinned else _planned_file(entry)
            for entry in entries
            for path in [entry["path"]]
        }

    def unread(self, line: str | None) -> str | None:
        missing = self._left_after(_log_id(line))
        if not missing:
            return None
        return f"{len(missing)} of its {len(self._pinned)} files, such as {missing[0].path}"

    def _left_after(self, log_id: int) -> list[FilePin]:
        """Returns the pinned files that no entry up to ``log_id`` adds, the oldest first."""
        taken = {entry["path"] for entry in self._log.between(-1, log_id) if self._is_pinned(entry)}
        missing = [file for path, file in self._pinned.items() if path not in taken]
        return sorted(missing, key=lambda file: (file.timestamp_ms, file.path))

    def _is_pinned(self, entry: Mapping[str, Any]) -> bool:
        file = self._pinned.get(entry["path"])
        return file is not None and _pinned_file(file).identity == _planned_file(entry).identity


class FileSourceLog:
    """Spark's log of a file source: entry n lists the files that offset n added; each tenth entry repeats all before it."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def between(self, start: int, end: int) -> list[dict[str, Any]]:
        """Returns the files added by the entries after ``start`` up to ``end``."""
        found: dict[int, list[dict[str, Any]]] = {}
        for log_id in range(end, start, -1):
            if log_id in found:
                continue
            for entry in self._read(log_id):
                found.setdefault(entry["batchId"], []).append(entry)
        return [entry for log_id in sorted(found) if start < log_id <= end for entry in found[log_id]]

    def latest(self) -> int:
        """Returns the number of the newest entry; -1 if there is none."""
        names = (name.removesuffix(".compact") for name in self._files.names(self._directory))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def pass_over(self, files: Iterable[FilePin]) -> None:
        """Records files as read, in no batch, so that Spark passes them over. Idempotent."""
        if self.latest() < 0:
            self.rewrite(0, [_file_entry(file, _PASSED) for file in files])

    def passed(self) -> set[tuple[str, int]]:
        """Returns the identities of the skipped files. A later file under the same name must be read."""
        return {_planned_file(entry).identity for entry in self._read(0) if entry["batchId"] == _PASSED}

    def identities(self, end: int) -> dict[str, int]:
        """Returns the identities of the files that were skipped, or added by the entries up to ``end``: by path the comparable time."""
        return dict(self.passed()) | dict(_planned_file(entry).identity for entry in self.between(-1, end))

    def rewrite(self, log_id: int, entries: list[dict[str, Any]]) -> None:
        """Writes entry ``log_id``. A compact entry repeats all entries before it."""
        repeated = []
        if _compact(log_id):
            passed = [entry for entry in self._read(0) if entry["batchId"] == _PASSED]
            repeated = passed + [entry for entry in self.between(-1, log_id) if entry["batchId"] < log_id]
        lines = [json.dumps(entry) for entry in repeated + entries]
        checksums.rewrite(self._files, f"{self._directory}/{_file_name(log_id)}", "\n".join(["v1", *lines]).encode())

    def _read(self, log_id: int) -> list[dict[str, Any]]:
        """Returns the files of entry ``log_id``. If Spark has deleted it, returns its files and all before from the next compact entry."""
        try:
            return self._entries(_file_name(log_id))
        except NotFoundError:
            compact = [
                int(name.removesuffix(".compact")) for name in self._files.names(self._directory) if name.endswith(".compact")
            ]
            later = min((number for number in compact if number > log_id), default=None)
            entries = [] if later is None else self._entries(_file_name(later))
            return [entry for entry in entries if entry["batchId"] <= log_id or entry["batchId"] == _PASSED]

    def _entries(self, name: str) -> list[dict[str, Any]]:
        data = self._files.read(f"{self._directory}/{name}")
        return [json.loads(line) for line in data.decode().split("\n")[1:] if line]


def _files_per_batch(leaf: Leaf) -> int | None:
    text = {key.lower(): value for key, value in leaf.options.items()}.get("maxfilespertrigger", "")
    return int(text) if text.isdigit() else None


def _log_id(line: str | None) -> int:
    return -1 if line is None or line == NO_OFFSET else int(json.loads(line)["logOffset"])


def _compact(log_id: int) -> bool:
    return (log_id + 1) % _COMPACT_INTERVAL == 0


def _file_name(log_id: int) -> str:
    return f"{log_id}.compact" if _compact(log_id) else str(log_id)


def _pinned_file(file: FilePin) -> ExpectedFile:
    return ExpectedFile(file.path, file.timestamp_ms, file.size_bytes)


def _planned_file(entry: Mapping[str, Any]) -> ExpectedFile:
    return ExpectedFile(entry["path"], int(entry["timestamp"]))


def _misplaced(name: InputName, why: str, rewrite: str) -> RejectedError:
    return RejectedError(
        f"Source '{name}' has a CSV file whose columns are in another order than its schema: {why}.",
        exists="Spark matches CSV columns by position. A file may lack columns at its end, or have more there.",
        safe="No row of it was staged.",
        remedy=f"{rewrite} Or correct the schema. If the header does not matter, set enforceSchema=true on the reader.",
        source=name,
    )


def _changed_since_read(name: InputName, changed: Sequence[str], exists: str) -> RejectedError:
    return RejectedError(
        f"Source '{name}' has {len(changed)} files that were changed since they were read, such as {changed[0]}.",
        exists=exists,
        safe="No row that was written into them since was read.",
        remedy="Write the new rows into files with new names, and remove or restore the changed files (cp -p, touch -d). "
        f"Or {BEGIN_ANEW}.",
        source=name,
        files=len(changed),
    )


def _lost_paths(losses: Sequence[Loss]) -> frozenset[str]:
    return frozenset(file.path for loss in losses if isinstance(loss, LostFiles) for file in loss.files)


def _file_entry(file: FilePin, log_id: int) -> dict[str, Any]:
    return {"path": file.path, "timestamp": file.timestamp_ms, "batchId": log_id}
