"""Where each stream of a stage ends, and how a batch that reads past the end is cut back to it.

Spark's ``AvailableNow`` pins an end of its own at each start. What arrived between the recorded pin and that start would join the round, so
each batch is compared with the pin before it is staged; a batch past it is planned again with the pin as its end (design, section 8).
"""

import json
from dataclasses import dataclass
from typing import Any

from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.pins import DeltaPin, FilePin, FilesPin
from spark_jobs.storage import checksums
from spark_jobs.storage.files import Files

NO_OFFSET = "-"
_COMPACT_INTERVAL = 10
"""``spark.sql.streaming.fileSource.log.compactInterval``; set in every session of ours."""


class Bound:
    """The end of one stream. One of this very class has none: each batch is as Spark plans it.

    ``previous`` and ``line`` are lines of Spark's offset log; ``previous`` is None in a query's first batch.
    """

    def exceeded(self, previous: str | None, line: str) -> bool:
        """Whether a batch that ends at ``line`` reads past the end."""
        return False

    def reached(self, line: str | None) -> bool:
        """Whether nothing is left after ``line``."""
        return False

    def cut_back(self, previous: str | None, line: str) -> str:
        """The line that a batch which exceeded the end gets instead. Durable side effects are idempotent."""
        return line

    def passed_over(self, line: str) -> str | None:
        """The line of a batch with what is left before the end although Spark finds nothing new after ``line``; None where nothing is.

        Durable side effects are idempotent.
        """
        return None

    def available(self, line: str) -> str | None:
        """The line that Spark may take for everything there is, in a query that has come to ``line``; None where it cannot be told one."""
        return None

    def rows_expected(self, line: str | None) -> int | None:
        """How many rows are left after ``line``; None where nothing tells. For progress bars, never for a decision."""
        return None


@dataclass(frozen=True)
class DeltaBound(Bound):
    """Every row up to a table version."""

    pin: DeltaPin
    rows: int | None = None
    """Rows that the round adds to those before it."""

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


class FilesBound(Bound):
    """Exactly the pinned files, through the file source's own log of which files belong to which batch."""

    def __init__(self, pin: FilesPin, log: "FileSourceLog", files_per_batch: int | None) -> None:
        self._pinned = {file.path: file for file in pin.files}
        self._log = log
        self._files_per_batch = files_per_batch

    def exceeded(self, previous: str | None, line: str) -> bool:
        return any(entry["path"] not in self._pinned for entry in self._log.between(_log_id(previous), _log_id(line)))

    def reached(self, line: str | None) -> bool:
        return self._pinned.keys() <= {entry["path"] for entry in self._log.between(-1, _log_id(line))}

    def cut_back(self, previous: str | None, line: str) -> str:
        start, end = _log_id(previous), _log_id(line)
        taken = {entry["path"] for entry in self._log.between(-1, start)}
        planned = [entry for entry in self._log.between(start, end) if entry["path"] in self._pinned]
        missing = self._without(taken | {entry["path"] for entry in planned})
        room = max(self._files_per_batch - len(planned), 0) if self._files_per_batch else len(missing)
        for log_id in range(start + 1, end):
            self._log.rewrite(log_id, [entry for entry in planned if entry["batchId"] == log_id])
        last = [entry for entry in planned if entry["batchId"] == end]
        self._log.rewrite(end, last + [_file_entry(file, end) for file in missing[:room]])
        return line

    def passed_over(self, line: str) -> str | None:
        """Spark's file source forgets files that are a week older than its newest one, and then takes none that is as old."""
        newest = max(self._log.latest(), _log_id(line))
        missing = self._without({entry["path"] for entry in self._log.between(-1, newest)})
        if not missing:
            return json.dumps({"logOffset": newest}) if newest > _log_id(line) else None
        self._log.rewrite(newest + 1, [_file_entry(file, newest + 1) for file in missing[: self._files_per_batch]])
        return json.dumps({"logOffset": newest + 1})

    def _without(self, paths: set[str]) -> list[FilePin]:
        """The pinned files that are not in ``paths``, the oldest first."""
        missing = [file for path, file in self._pinned.items() if path not in paths]
        return sorted(missing, key=lambda file: (file.timestamp_ms, file.path))


class FileSourceLog:
    """Spark's log of a file source: entry n lists the files that offset n added; each tenth entry repeats all before it."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def between(self, start: int, end: int) -> list[dict[str, Any]]:
        """The files added by the entries after ``start`` up to ``end``."""
        found: dict[int, list[dict[str, Any]]] = {}
        for log_id in range(end, start, -1):
            if log_id in found:
                continue
            for entry in self._read(log_id):
                found.setdefault(entry["batchId"], []).append(entry)
        return [entry for log_id in sorted(found) if start < log_id <= end for entry in found[log_id]]

    def latest(self) -> int:
        """The newest entry; -1 where there is none."""
        names = (name.removesuffix(".compact") for name in self._files.names(self._directory))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def rewrite(self, log_id: int, entries: list[dict[str, Any]]) -> None:
        """Sets what entry ``log_id`` adds; a compact entry repeats what was before it."""
        repeated = [entry for entry in self.between(-1, log_id) if entry["batchId"] < log_id] if _compact(log_id) else []
        lines = [json.dumps(entry) for entry in repeated + entries]
        checksums.rewrite(self._files, f"{self._directory}/{_file_name(log_id)}", "\n".join(["v1", *lines]).encode())

    def _read(self, log_id: int) -> list[dict[str, Any]]:
        """What entry ``log_id`` holds; where Spark has deleted it, what the next compact entry repeats of it and those before."""
        try:
            return self._entries(_file_name(log_id))
        except NotFoundError:
            compact = [
                int(name.removesuffix(".compact")) for name in self._files.names(self._directory) if name.endswith(".compact")
            ]
            later = min((number for number in compact if number > log_id), default=None)
            entries = [] if later is None else self._entries(_file_name(later))
            return [entry for entry in entries if entry["batchId"] <= log_id]

    def _entries(self, name: str) -> list[dict[str, Any]]:
        data = self._files.read(f"{self._directory}/{name}")
        return [json.loads(line) for line in data.decode().split("\n")[1:] if line]


def delta_offset(table: str, version: int) -> str:
    """The line of Spark's offset log that stands for everything before ``version`` of a Delta table."""
    return json.dumps(
        {"sourceVersion": 1, "reservoirId": table, "reservoirVersion": version, "index": -1, "isStartingVersion": False}
    )


def _log_id(line: str | None) -> int:
    return -1 if line is None or line == NO_OFFSET else int(json.loads(line)["logOffset"])


def _compact(log_id: int) -> bool:
    return (log_id + 1) % _COMPACT_INTERVAL == 0


def _file_name(log_id: int) -> str:
    return f"{log_id}.compact" if _compact(log_id) else str(log_id)


def _file_entry(file: FilePin, log_id: int) -> dict[str, Any]:
    return {"path": file.path, "timestamp": file.timestamp_ms, "batchId": log_id}
