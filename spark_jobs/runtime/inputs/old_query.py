"""Reads the last offsets and the read files of a plain Spark query from its checkpoint directory. Writes nothing."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.errors import InvalidParameterError, NotFoundError
from spark_jobs.protocol.ids import BatchId, InputName
from spark_jobs.runtime.spark.spark_log import OFFSETS_VERSION
from spark_jobs.storage.files import Files, side_by_side
from spark_jobs.storage.open import open_place

_DELTA_OFFSET_VERSION = 1
"""Higher versions mark a schema change in the middle of a table version."""
_FILES_VERSION = "v1"
"""The version of the log in which Spark lists the files that a query has read."""
_RESTORE = "Restore the directory from a copy, or begin this source from its beginning, without --adopt-offsets."


def last_offsets(source: InputName, directory: str) -> AdoptedOffsets:
    """Returns the last offsets of the query with this checkpoint directory.

    Args:
        source: The source that is to continue after these offsets.
        directory: A path or a URL: see :func:`~spark_jobs.storage.open.open_place`.

    Raises:
        InvalidParameterError: It has no offsets, its last batch is not committed, it has state, or it did not read exactly one
            Delta table or one directory of files. Nothing was written.
        StorageError: The storage does not answer.
    """
    files = open_place(directory)
    offsets, commits, state = side_by_side(files, [partial(files.names, name) for name in ("offsets", "commits", "state")])
    planned, committed = _last(offsets), _last(commits)
    if planned is None:
        raise refused(
            source,
            f"{files.url} has no offsets of a Spark query",
            "Give its checkpointLocation. A query that has run no batch has read nothing: leave --adopt-offsets out.",
            path=files.url,
        )
    if planned != committed:
        raise refused(
            source,
            f"the last batch of the query in {files.url} is not committed",
            "Start the old query once more with .trigger(availableNow=True), let it end by itself, then repeat this.",
            path=files.url,
            planned=planned,
            committed=committed,
        )
    if state:
        raise refused(
            source,
            f"the query in {files.url} keeps state, which has rows that it has read but not yet written",
            "Only offsets can be adopted. Begin this source from its beginning, without --adopt-offsets.",
            path=files.url,
        )
    offset = _only_source(source, files, planned)
    adopted = AdoptedOffsets(checkpoint=files.url, query=_query_id(files), batch=planned, offset=offset)
    format_of(source, adopted)
    return adopted


def batches_since(adopted: AdoptedOffsets) -> int:
    """Returns the number of batches that the query has planned since. 0 if its checkpoint, or the bucket, is gone."""
    try:
        planned = _last(open_place(adopted.checkpoint).names("offsets"))
    except NotFoundError:
        return 0
    return 0 if planned is None else max(planned - adopted.batch, 0)


def format_of(source: InputName, adopted: AdoptedOffsets) -> Literal["delta", "files"]:
    """Returns the format of the source that has written an offset.

    Raises:
        InvalidParameterError: The source is neither a Delta table nor files.
    """
    try:
        found: Any = json.loads(adopted.offset)
    except ValueError:
        found = None
    if isinstance(found, dict) and "reservoirId" in found:
        if found.get("sourceVersion") == _DELTA_OFFSET_VERSION:
            return "delta"
        raise refused(
            source,
            f"the query in {adopted.checkpoint} stopped at a schema change of its Delta table",
            "Start the old query once more with .trigger(availableNow=True), let it end by itself, then repeat this.",
            path=adopted.checkpoint,
            found=adopted.offset,
        )
    if isinstance(found, dict) and found.keys() == {"logOffset"} and isinstance(found["logOffset"], int):
        return "files"
    raise refused(
        source,
        f"the query in {adopted.checkpoint} read neither a Delta table nor files",
        "Only offsets of inputs that a bounded source can read can be adopted.",
        path=adopted.checkpoint,
        found=adopted.offset,
    )


def files_read(
    source: InputName, adopted: AdoptedOffsets, open_directory: Callable[[str], Files] = open_place
) -> list[dict[str, Any]]:
    """Returns the files that a query over files had read, as entries of Spark's log: ``path``, ``timestamp``, ``batchId``.

    Spark writes that log before the offsets, so it may be ahead of them: files that no committed batch has read are left out.

    Raises:
        InvalidParameterError: The log is not complete, or one of its entries is damaged.
    """
    files, last = open_directory(adopted.checkpoint), int(json.loads(adopted.offset)["logOffset"])
    names = {name: name.removesuffix(".compact") for name in files.names("sources/0")}
    numbers = {name: int(number) for name, number in names.items() if number.isdigit()}
    compact = {number for name, number in numbers.items() if name != str(number)}
    begin = min((number for number in compact if number >= last), default=max(compact, default=-1))
    missing = set(range(begin + 1, last + 1)) - set(numbers.values())
    if missing:
        raise refused(
            source,
            f"{adopted.checkpoint}/sources/0 lacks entry {min(missing)}, so that it is not known which files were read",
            _RESTORE,
            path=adopted.checkpoint,
        )
    # the compact entry repeats all entries before it
    paths = [f"sources/0/{begin}.compact"] if begin >= 0 else []
    paths += [f"sources/0/{number}" for number in range(begin + 1, last + 1)]
    found: dict[str, dict[str, Any]] = {}
    for path, data in zip(paths, side_by_side(files, [partial(files.read, path) for path in paths]), strict=True):
        try:
            found |= {entry["path"]: entry for entry in _entries(data) if entry["batchId"] <= last}
        except (ValueError, TypeError, KeyError) as error:
            raise refused(
                source,
                f"{adopted.checkpoint}/{path} is damaged, so that it is not known which files were read",
                _RESTORE,
                path=f"{adopted.checkpoint}/{path}",
            ) from error
    return sorted(found.values(), key=lambda entry: int(entry["batchId"]))


def refused(source: InputName, problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    """Returns the error to raise if offsets cannot be adopted."""
    return InvalidParameterError(
        f"Source '{source}' cannot adopt offsets: {problem}.",
        remedy=remedy,
        source=source,
        **evidence,
    )


def _last(names: Iterable[str]) -> BatchId | None:
    """Returns the number of the newest entry of a log. None: it has no entry."""
    return max((BatchId(int(name)) for name in names if name.isdigit()), default=None)


def _entries(data: bytes) -> list[dict[str, Any]]:
    """Returns the files in an entry of Spark's log of files.

    Raises:
        ValueError: The entry is damaged.
    """
    version, *lines = data.decode().split("\n")
    if version != _FILES_VERSION:
        raise ValueError(f"the entry begins with {version!r}")
    return [json.loads(line) for line in lines if line]


def _only_source(source: InputName, files: Files, batch: BatchId) -> str:
    path = f"offsets/{batch}"
    version, *lines = files.read(path).decode(errors="replace").split("\n")
    if version != OFFSETS_VERSION or len(lines) < 2:
        raise refused(
            source,
            f"{files.url}/{path} is not an entry of version {OFFSETS_VERSION} of Spark's offset log",
            "Only those can be adopted (spark.sql.streaming.offsetLog.formatVersion=1).",
            path=f"{files.url}/{path}",
            found=version,
        )
    _, *offsets = lines
    if len(offsets) > 1:
        raise refused(
            source,
            f"the query in {files.url} had {len(offsets)} sources, but it is not known which of them this one is",
            "Only offsets of a query with one source can be adopted.",
            path=files.url,
            found=offsets,
        )
    return offsets[0]


def _query_id(files: Files) -> str:
    try:
        return str(json.loads(files.read("metadata"))["id"])
    except (NotFoundError, ValueError, TypeError, KeyError):
        return ""
