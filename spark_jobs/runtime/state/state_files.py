"""Finds exactly those files of a stage's Spark checkpoint that a query needs to go on after a batch.

Hidden files are Hadoop's checksums, and ``<file>.crc`` next to a state file is a checksum of Spark. Both also read a file without one, and
a checkpoint has its own hashes. A batch writes the state of its operators before its entry in the commit log, and files only change by a
rename. So all files that batch N needs are complete when N is committed, until Spark purges it, a hundred batches later.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, UnsupportedFormatError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.state.state_lineage import VERSION_FILE, StoreVersion, store_files
from spark_jobs.storage.files import files_below, is_mounted

_OF_BATCH = re.compile(r"(\d+)(?:_.*)?")
_NOT_STORES = {"_metadata", "SSTs", "logs"}
_SHORT_LIVED = re.compile(rf"(offsets|commits)/\d+|sources/\d+/[1-9]\d*(\.compact)?|state/.+/{VERSION_FILE.pattern}")
"""Does not match entry 0 of a source's log: some sources have no other one."""
_NEVER_REUSED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def never_reused(path: str) -> bool:
    """Returns True if a file's name contains an id, so that no other file will ever have it."""
    return path.startswith("state/") and _NEVER_REUSED.search(path.rpartition("/")[2]) is not None


def grows_with_state(path: str) -> bool:
    """Returns True for a file of a state store. All other files are records of Spark: few, and small for any amount of state."""
    return never_reused(path) and "/_stateSchema/" not in path


def is_short_lived(path: str) -> bool:
    """Returns True for a file that is not needed any more after the next snapshots of the state, or the next entries of a source's log."""
    return _SHORT_LIVED.fullmatch(path) is not None


def needed_files(log: SparkLog, batch: BatchId) -> list[str]:
    """Returns the files that a restart after ``batch`` needs, relative to Spark's checkpoint directory, sorted.

    Args:
        log: Logs of the stage's query, which may be running.
        batch: A committed batch, or -1.

    Raises:
        NotFoundError: A file is missing because Spark has purged it.
        CorruptDocumentError: A file does not have the format that Spark writes.
        UnsupportedFormatError: The state was not written with the settings of our sessions.
    """
    listed = _listed(log)
    found = [] if log.query_id() is None else ["metadata"]
    if batch == NO_BATCH:
        return sorted([*found, *listed.below("sources")])
    for number in (batch - 1, batch):
        found += [] if number < 0 else [f"offsets/{number}", f"commits/{number}"]
    return sorted([*found, *_source_files(log, batch, listed), *_state_files(log, batch, listed)])


class _Names(Protocol):
    """The names in the directories of a query's Spark checkpoint. Hidden files are left out."""

    def names(self, directory: str) -> list[str]:
        """Returns the names in a directory."""
        ...

    def below(self, directory: str) -> list[str]:
        """Returns all files below a directory that are not checksums."""
        ...


@dataclass(frozen=True)
class _OnDisk:
    """Names on a disk, each directory listed when it is asked for."""

    log: SparkLog

    def names(self, directory: str) -> list[str]:
        return [name for name in self.log.files.names(f"{self.log.directory}/{directory}") if not name.startswith(".")]

    def below(self, directory: str) -> list[str]:
        found = files_below(self.log.files, f"{self.log.directory}/{directory}")
        return [path for path in (path.removeprefix(f"{self.log.directory}/") for path in found) if _is_shown(path)]


@dataclass(frozen=True)
class _InStore:
    """Names in a store, listed once: a request lists a thousand files of all directories."""

    paths: Sequence[str]
    """All files, sorted, relative to the checkpoint."""

    def names(self, directory: str) -> list[str]:
        names = (path.removeprefix(f"{directory}/").partition("/")[0] for path in self._in(directory))
        return sorted({name for name in names if not name.startswith(".")})

    def below(self, directory: str) -> list[str]:
        return [path for path in self._in(directory) if _is_shown(path)]

    def _in(self, directory: str) -> Sequence[str]:
        first, last = bisect_left(self.paths, f"{directory}/"), bisect_left(self.paths, f"{directory}0")  # "0" follows "/"
        return self.paths[first:last]


def _listed(log: SparkLog, directory: str = "") -> _Names:
    """Returns the names in a query's Spark checkpoint; in a store, those below ``directory``."""
    if is_mounted(log.files):
        return _OnDisk(log)
    found = log.files.paths(f"{log.directory}/{directory}".rstrip("/"))
    return _InStore(sorted(path.removeprefix(f"{log.directory}/") for path in found))


def _is_shown(path: str) -> bool:
    name = path.rpartition("/")[2]
    return not name.startswith(".") and not name.endswith(".crc")


def source_files(log: SparkLog, batch: BatchId) -> list[str]:
    """Returns the files of its sources' own logs that a planned batch needs, or a restart after it.

    Raises:
        NotFoundError: A file is missing.
    """
    return _source_files(log, batch, _listed(log, "sources"))


def _source_files(log: SparkLog, batch: BatchId, listed: _Names) -> list[str]:
    end = log.offsets(batch).sources
    start = log.offsets(BatchId(batch - 1)).sources if batch > 0 else (NO_OFFSET,) * len(end)
    found: list[str] = []
    for name in listed.names("sources"):
        directory = f"sources/{name}"
        lines = (start[int(name)], end[int(name)]) if name.isdigit() and int(name) < min(len(start), len(end)) else (None, None)
        reached = _log_id(lines[1])
        if reached is None:
            found += listed.below(directory)
        else:
            found += [f"{directory}/{each}" for each in _file_log(log, listed, directory, _log_id(lines[0]), reached)]
    return found


def _log_id(line: str | None) -> int | None:
    """Returns the end of a source's own log of files, or None if the source has none."""
    try:
        offset = json.loads(line or NO_OFFSET)
    except ValueError:
        return None
    found = offset.get("logOffset") if isinstance(offset, dict) else None
    return found if isinstance(found, int) else None


def _file_log(log: SparkLog, listed: _Names, directory: str, start: int | None, end: int) -> list[str]:
    """Returns the entries of a file source's log that it reads after ``end``: the last batch's and all since the last compact one.

    A compact entry repeats all earlier ones, which Spark deletes.
    """
    names = {
        int(name.removesuffix(".compact")): name for name in listed.names(directory) if name.removesuffix(".compact").isdigit()
    }
    compact = max((number for number, name in names.items() if name.endswith(".compact") and number <= end), default=0)
    for number in range(compact, end + 1):
        if number not in names:
            raise _purged(log, f"{directory}/{number}")
    last = range((-1 if start is None else start) + 1, end + 1)
    return [name for number, name in names.items() if number in last or compact <= number <= end]


def _state_files(log: SparkLog, batch: BatchId, listed: _Names) -> list[str]:
    found: list[str] = []
    for operator, partitions in _store_ids(log, batch).items():
        root = f"state/{operator}"
        numbered = f"{root}/_metadata/v2/"
        facts = listed.below(f"{root}/_metadata")
        found += [path for path in facts if not path.startswith(numbered) or _batch_of(path) <= batch]
        found += [path for path in listed.below(f"{root}/_stateSchema") if _batch_of(path) <= batch]
        for partition, ids in enumerate(partitions):
            found += _partition_files(log, listed, f"{root}/{partition}", batch, set(ids))
    return found


def _batch_of(path: str) -> int:
    number = _OF_BATCH.fullmatch(path.rpartition("/")[2])
    return int(number[1]) if number else NO_BATCH


def _store_ids(log: SparkLog, batch: BatchId) -> dict[str, list[list[str]]]:
    """Returns the ids of the store versions in the commit log, by operator and partition."""
    path = f"{log.directory}/commits/{batch}"
    data = log.files.read(path)
    try:
        version, _, body = data.decode().partition("\n")
        entry: dict[str, Any] = json.loads(body)
        ids = entry.get("stateUniqueIds")
        if ids is None and log.has_state():
            raise UnsupportedFormatError(
                f"{path} is an entry of version {version!r} without the ids of the state's versions.",
                remedy="Run with spark.sql.streaming.stateStore.checkpointFormatVersion=2, from a fresh start.",
                path=path,
                found=version,
            )
        return {str(operator): [list(map(str, stores)) for stores in partitions] for operator, partitions in (ids or {}).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptDocumentError(
            f"{path} is not a complete entry of Spark's commit log: {error}.",
            safe="The entry was not used.",
            remedy="Start again: a work directory is built from the newest checkpoint.",
            path=path,
        ) from error


def _partition_files(log: SparkLog, listed: _Names, directory: str, batch: BatchId, ids: set[str]) -> list[str]:
    """Returns the files of all stores of a partition. Most operators have one store, in the partition's own directory."""
    found, left = [], set(ids)
    for store in (directory, *_inner_stores(listed, directory)):
        names = set(listed.names(store))
        newest = _newest(names, batch, left)
        if newest is None:
            continue
        left.remove(newest.id)
        place = log.files.below(f"{log.directory}/{store}")
        found += [f"{store}/{name}" for name in store_files(place, names, newest)]
        found += listed.below(f"{store}/_metadata")
    if left:
        raise _purged(log, f"{directory}/{batch + 1}_{min(left)}")
    return found


def _inner_stores(listed: _Names, directory: str) -> list[str]:
    names = (name for name in listed.names(directory) if name not in _NOT_STORES)
    return [f"{directory}/{name}" for name in names if not VERSION_FILE.fullmatch(name.removesuffix(".crc"))]


def _newest(names: set[str], batch: BatchId, ids: set[str]) -> StoreVersion | None:
    candidates = (StoreVersion(batch + 1, each) for each in ids)
    return next((each for each in candidates if {each.snapshot, each.changelog} & names), None)


def _purged(log: SparkLog, path: str) -> NotFoundError:
    return NotFoundError(
        f"{log.files.url}/{log.directory}/{path} is missing, but a restart after a committed batch needs it.",
        remedy="Repeat: Spark may have deleted the file because the batch is old.",
        path=f"{log.directory}/{path}",
    )
