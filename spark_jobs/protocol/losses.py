"""Parts of the loss ledger and of manifests: the rows of an input that a stage leaves out.

See :mod:`spark_jobs.protocol.documents`.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.ids import BatchId, InputName, LossId, StageName


class LostFile(Part):
    """A file that is missing or was replaced."""

    path: str
    """The URL of the file."""
    size_bytes: int | None = None
    """The pinned size; None if it was not pinned."""
    timestamp_ms: int | None = None
    """The pinned modification time in milliseconds since 1970; None for a table's data file.

    A later file with this name counts as another file.
    """
    rows: int | None = None
    """The number of rows; None if no log has it."""


class LostFiles(Part):
    """Files of a source of files."""

    format: Literal["files"] = "files"
    id: LossId | None = None
    """The id in the loss ledger. None: not recorded yet."""
    input: InputName
    stage: StageName
    """The stage that had not read them. Each stage that reads the source has its own entry."""
    files: tuple[LostFile, ...]


class SkippedVersion(Part):
    """A version of a Delta table that is left out because it changes or deletes rows. A stream reads only rows that are added."""

    version: int
    added_files: int
    added_rows: int | None = None
    """Rows in those files: new ones, and old ones that were written again. None if the log does not have the number."""
    removed_files: int
    removed_rows: int | None = None
    """Removed rows; None if the log does not have the number."""


class LostVersions(Part):
    """Versions of a Delta table with missing log entries, versions that change rows, and missing data files."""

    format: Literal["delta"] = "delta"
    id: LossId | None = None
    input: InputName
    stage: StageName
    path: str
    first: int | None = None
    """The first version without a log entry; None if no entry is missing."""
    last: int | None = None
    """The last version without a log entry. Reading goes on with the next version."""
    skipped: tuple[SkippedVersion, ...] = ()
    """Versions that change rows."""
    files: tuple[LostFile, ...] = ()
    """Data files of other versions."""


class OffsetRange(Part):
    """Offsets of a partition."""

    first: int
    end: int | None = None
    """The offset after the last one. None: the partition is missing, or is not read any more."""


class LostOffsets(Part):
    """Offsets of Kafka topics. Not every offset had a record."""

    format: Literal["kafka"] = "kafka"
    id: LossId | None = None
    input: InputName
    stage: StageName
    topics: dict[str, dict[int, OffsetRange]]
    """The ranges by topic and partition."""


class StagedFile(Part):
    """A file that another stage has staged."""

    format: Literal["channel"] = "channel"
    batch: BatchId
    """The batch of the other stage."""
    file: str
    """The name of the file."""
    size_bytes: int
    path: str = ""
    """The path in the directory that the other stage's files are in, percent-encoded."""
    partition_values: dict[str, str | None] = Field(default_factory=dict)
    """The values of the columns that are not in the file, as in Delta's ``add`` action."""


class SourceFile(Part):
    """A file of a source of files."""

    format: Literal["files"] = "files"
    path: str
    """The URL of the file."""
    timestamp_ms: int
    """The modification time in milliseconds since 1970."""
    size_bytes: int | None = None
    """The size; None if it is unknown."""


class TableFile(Part):
    """A data file of a Delta table."""

    format: Literal["delta"] = "delta"
    version: int
    """The version with which the stream reads it."""
    path: str
    """The path, as in the table's log."""
    size_bytes: int


class Records(Part):
    """Consecutive offsets of a Kafka partition."""

    format: Literal["kafka"] = "kafka"
    topic: str
    partition: int
    first: int
    end: int
    """The offset after the last one."""


Unit = StagedFile | SourceFile | TableFile | Records
"""Rows of an input that have a name, and that a batch can be run without."""


def pieces(unit: Unit) -> int:
    """Returns the number of parts of a unit that can be passed over alone."""
    return unit.end - unit.first if isinstance(unit, Records) else 1


def some_pieces(unit: Unit, begin: int, end: int) -> Unit:
    """Returns the parts of a unit from ``begin`` up to ``end``."""
    if isinstance(unit, Records):
        return unit.model_copy(update={"first": unit.first + begin, "end": unit.first + end})
    return unit


class PassedOver(Part):
    """Rows with which a stage's batch fails at each try."""

    format: Literal["passed_over"] = "passed_over"
    id: LossId | None = None
    input: InputName
    """The source, or the stage that has staged them."""
    stage: StageName
    unit: Unit
    rows: int
    error: str
    """The error of the stage's batch."""
    tries: int
    """The number of times that the batch has failed."""


Loss = LostFiles | LostVersions | LostOffsets | PassedOver


def units_of(losses: Sequence[Loss]) -> list[Unit]:
    """Returns the units that are passed over."""
    return [loss.unit for loss in losses if isinstance(loss, PassedOver)]


def rows_at_most(loss: Loss) -> int | None:
    """Returns the maximum number of rows that are left out, or None if it is unknown.

    Not every offset had a record, and a Delta version that changes rows also writes old rows again.
    """
    if isinstance(loss, PassedOver):
        return loss.rows
    if isinstance(loss, LostOffsets):
        ranges = [gone for numbers in loss.topics.values() for gone in numbers.values()]
        return _sum([None if gone.end is None else gone.end - gone.first for gone in ranges])
    of_files = _sum([file.rows for file in loss.files])
    if isinstance(loss, LostFiles):
        return of_files
    return _sum([of_files, *(each.added_rows for each in loss.skipped), *([] if loss.first is None else [None])])


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def goes_on_without(loss: Loss) -> str:
    """Returns which stage leaves what out, as a sentence without its full stop."""
    what = said(loss) if isinstance(loss, PassedOver) else f"the lost rows of source {loss.input}: {said(loss)}"
    return f"stage {loss.stage} goes on without {what}"


def said(loss: Loss) -> str:
    """Returns a description of the lost rows in words."""
    if isinstance(loss, PassedOver):
        return f"the {loss.rows} {'row' if loss.rows == 1 else 'rows'} of {place_in_words(loss)}, with which its batch fails: {loss.error}"
    if isinstance(loss, LostFiles):
        return said_files(loss.files)
    if isinstance(loss, LostOffsets):
        return _said_offsets(loss)
    parts = [] if loss.first is None else [f"versions {loss.first} to {loss.last} of {loss.path}"]
    parts += [_said_skipped(loss)] if loss.skipped else []
    return " and ".join(parts + ([said_files(loss.files)] if loss.files else []))


def place_in_words(loss: PassedOver) -> str:
    """Returns the place of the rows in words."""
    unit = loss.unit
    if isinstance(unit, StagedFile):
        return f"batch {unit.batch} of stage {loss.input} in {unit.file}"
    if isinstance(unit, TableFile):
        return f"version {unit.version} of source {loss.input} in {unit.path}"
    if isinstance(unit, SourceFile):
        return f"source {loss.input} in {unit.path}"
    last = unit.end - 1
    offsets = f"offset {last}" if last == unit.first else f"offsets {unit.first} to {last}"
    return f"source {loss.input} at {offsets} of partition {unit.partition} of topic {unit.topic}"


def _said_offsets(loss: LostOffsets) -> str:
    ranges = [(topic, number, gone) for topic, found in sorted(loss.topics.items()) for number, gone in sorted(found.items())]
    expired = [(topic, number, gone.first, gone.end) for topic, number, gone in ranges if gone.end is not None]
    left = [(topic, number, gone.first) for topic, number, gone in ranges if gone.end is None]
    parts = []
    if expired:
        topic, number, first, end = expired[0]
        count = sum(end - first for _, _, first, end in expired)
        parts.append(f"{count} offsets, such as {first} to {end - 1} of partition {number} of topic {topic}")
    if left:
        topic, number, first = left[0]
        partitions = f"{len(left)} {'partition' if len(left) == 1 else 'partitions'}"
        parts.append(
            f"{partitions} that the source does not read any more, such as {number} of topic {topic} from offset {first} on"
        )
    return " and ".join(parts)


def _said_skipped(loss: LostVersions) -> str:
    first, *others = loss.skipped
    more = f" and {len(others)} more" if others else ""
    removed, added = _amount(first.removed_files, first.removed_rows), _amount(first.added_files, first.added_rows)
    return f"version {first.version}{more} of {loss.path}, which removes {removed} and adds {added}"


def _amount(files: int, rows: int | None) -> str:
    with_rows = "" if rows is None else f" with {rows} {'row' if rows == 1 else 'rows'}"
    return f"{files} {'file' if files == 1 else 'files'}{with_rows}"


def said_files(files: Sequence[LostFile]) -> str:
    """Returns the number of files and their contents in words."""
    sizes, rows = [file.size_bytes for file in files], [file.rows for file in files]
    amounts = [f"{sum(each for each in sizes if each is not None)} bytes"] if None not in sizes else []
    amounts += [f"{sum(each for each in rows if each is not None)} rows"] if None not in rows else []
    of = f" with {' and '.join(amounts)}" if amounts else ""
    return f"{len(files)} {'file' if len(files) == 1 else 'files'}{of}, such as {files[0].path}"


def beyond(loss: Loss, recorded: Sequence[Loss]) -> list[Loss]:
    """Returns the part of a loss that is not recorded yet, as one loss or several.

    A stage that goes back to an older checkpoint may find a recorded loss again, together with newer losses.
    """
    own = [each for each in recorded if (each.input, each.stage, each.format) == (loss.input, loss.stage, loss.format)]
    if isinstance(loss, PassedOver):
        return [] if any(isinstance(each, PassedOver) and each.unit == loss.unit for each in own) else [loss]
    if isinstance(loss, LostOffsets):
        return _offsets_beyond(loss, [each for each in own if isinstance(each, LostOffsets)])
    named = [each for each in own if isinstance(each, LostFiles | LostVersions)]
    known = {(file.path, file.timestamp_ms) for each in named for file in each.files}
    files = tuple(file for file in loss.files if (file.path, file.timestamp_ms) not in known)
    if isinstance(loss, LostFiles):
        return [loss.model_copy(update={"files": files})] if files else []
    before = [each for each in own if isinstance(each, LostVersions)]
    passed = {skipped.version for each in before for skipped in each.skipped}
    gone = [(each.first, each.last + 1) for each in before if each.first is not None and each.last is not None]
    gone += [(version, version + 1) for version in passed]
    skipped = tuple(each for each in loss.skipped if not any(first <= each.version < end for first, end in gone))
    ranges = [] if loss.first is None or loss.last is None else _without(loss.first, loss.last + 1, gone)
    left = [{"first": first, "last": None if end is None else end - 1, "files": (), "skipped": ()} for first, end in ranges]
    if (files or skipped) and not left:
        left = [{"first": None, "last": None}]
    return [
        loss.model_copy(update=each | ({"files": files, "skipped": skipped} if n == 0 else {})) for n, each in enumerate(left)
    ]


def _offsets_beyond(loss: LostOffsets, recorded: Sequence[LostOffsets]) -> list[Loss]:
    left: list[dict[str, dict[int, OffsetRange]]] = []
    for topic, numbers in loss.topics.items():
        for number, gone in numbers.items():
            before = [found for each in recorded if (found := each.topics.get(topic, {}).get(number)) is not None]
            for n, (first, end) in enumerate(_without(gone.first, gone.end, [(each.first, each.end) for each in before])):
                if n == len(left):
                    left.append({})
                left[n].setdefault(topic, {})[number] = OffsetRange(first=first, end=end)
    return [loss.model_copy(update={"topics": topics}) for topics in left]


def _without(first: int, end: int | None, others: Sequence[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Returns the rest of a range without others, ascending. None as an end means that the range has no end."""
    left: list[tuple[int, int | None]] = []
    for other_first, other_end in sorted(others, key=lambda each: each[0]):
        if end is not None and other_first >= end:
            break
        if other_first > first:
            left.append((first, other_first))
        if other_end is None:
            return left
        first = max(first, other_end)
    if end is None or first < end:
        left.append((first, end))
    return left
