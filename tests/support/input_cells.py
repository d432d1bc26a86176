"""Events of a source while a round over it is interrupted, and the outcome of the round: one test per cell."""

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """A kind of source."""

    DELTA = "Delta"
    PARQUET = "Parquet files"
    CSV = "CSV files"
    JSON = "JSON files"
    ORC = "ORC files"
    AVRO = "Avro files"
    TEXT = "text files"
    XML = "XML files"
    BINARY = "binary files"
    KAFKA = "Kafka"


class Event(StrEnum):
    """The event of the source."""

    MADE_ANEW = "recreated"
    MOVED = "moved"
    SHRUNK = "shrunk"
    EXPIRED = "expired"
    VACUUMED = "vacuumed"
    RESTORED = "restored to an older version"
    TRUNCATED = "truncated"
    OVERWRITTEN = "overwritten"
    SCHEMA_CHANGED = "schema changed"
    PERMISSION_LOST = "permission lost"
    ROWS_UPDATED = "rows updated"
    ROWS_REPLACED = "rows replaced"
    LATE = "late"
    MOVED_COLUMNS = "columns in another order"
    EMPTY = "empty"
    MISSING = "missing"


class Outcome(StrEnum):
    """The outcome of the round."""

    RIGHT = "right rows"
    """The round ends with all pinned rows."""
    REFUSED = "refused"
    """The next start is refused before any row is staged. It goes on as :attr:`Cell.remedy` says."""
    FAILS = "fails, then continues"
    """The next start fails before any row is public. It goes on as :attr:`Cell.remedy` says."""


class Remedy(StrEnum):
    """The action with which a round goes on."""

    NONE = ""
    BACK = "restore the old input"
    WRITTEN = "rewrite the file"
    ACCEPT = "`--accept-data-loss`"
    NEW = "`--new-source`"


@dataclass(frozen=True)
class Cell:
    """A source and its event."""

    source: Source
    event: Event
    outcome: Outcome
    remedy: Remedy = Remedy.NONE

    def __str__(self) -> str:
        return f"{self.source}, {self.event}"


_COLUMNS = (Source.PARQUET, Source.CSV, Source.JSON, Source.ORC, Source.AVRO, Source.XML)
FILES = (*_COLUMNS, Source.TEXT, Source.BINARY)
NEXT_ROUND = (Event.SCHEMA_CHANGED, Event.ROWS_UPDATED, Event.ROWS_REPLACED, Event.LATE, Event.MOVED_COLUMNS)
"""Events after the end of the round. They concern new rows, and so affect the next round."""
_ALIKE: tuple[Cell, ...] = (
    Cell(Source.DELTA, Event.MADE_ANEW, Outcome.REFUSED, Remedy.NEW),
    Cell(Source.DELTA, Event.MOVED, Outcome.RIGHT),
    Cell(Source.DELTA, Event.EXPIRED, Outcome.REFUSED, Remedy.ACCEPT),
    Cell(Source.DELTA, Event.VACUUMED, Outcome.FAILS, Remedy.ACCEPT),
    Cell(Source.DELTA, Event.PERMISSION_LOST, Outcome.REFUSED, Remedy.BACK),
    Cell(Source.DELTA, Event.ROWS_UPDATED, Outcome.REFUSED, Remedy.ACCEPT),
    Cell(Source.DELTA, Event.ROWS_REPLACED, Outcome.REFUSED, Remedy.NEW),
    Cell(Source.DELTA, Event.SCHEMA_CHANGED, Outcome.RIGHT),
    Cell(Source.DELTA, Event.MISSING, Outcome.REFUSED, Remedy.BACK),
    *(Cell(source, Event.MOVED, Outcome.REFUSED, Remedy.NEW) for source in FILES),
    *(Cell(source, Event.EXPIRED, Outcome.FAILS, Remedy.ACCEPT) for source in FILES),
    *(Cell(source, Event.TRUNCATED, Outcome.FAILS, Remedy.BACK) for source in FILES),
    *(Cell(source, Event.OVERWRITTEN, Outcome.FAILS, Remedy.BACK) for source in FILES),
    *(Cell(source, Event.PERMISSION_LOST, Outcome.FAILS, Remedy.BACK) for source in FILES),
    *(Cell(source, Event.SCHEMA_CHANGED, Outcome.RIGHT) for source in _COLUMNS),
    *(Cell(source, Event.LATE, Outcome.RIGHT) for source in FILES),
    *(Cell(source, Event.MISSING, Outcome.REFUSED, Remedy.BACK) for source in FILES),
    Cell(Source.KAFKA, Event.MADE_ANEW, Outcome.REFUSED, Remedy.NEW),
    Cell(Source.KAFKA, Event.MOVED, Outcome.REFUSED, Remedy.NEW),
    Cell(Source.KAFKA, Event.EXPIRED, Outcome.REFUSED, Remedy.ACCEPT),
    Cell(Source.KAFKA, Event.TRUNCATED, Outcome.REFUSED, Remedy.ACCEPT),
    Cell(Source.KAFKA, Event.PERMISSION_LOST, Outcome.FAILS, Remedy.BACK),
    Cell(Source.KAFKA, Event.MISSING, Outcome.FAILS, Remedy.NEW),
    Cell(Source.DELTA, Event.EMPTY, Outcome.RIGHT),
    *(Cell(source, Event.EMPTY, Outcome.RIGHT) for source in FILES),
    Cell(Source.KAFKA, Event.EMPTY, Outcome.RIGHT),
)
"""Cells of bounded and unbounded sources."""
CELLS: tuple[Cell, ...] = (
    *_ALIKE,
    Cell(Source.DELTA, Event.SHRUNK, Outcome.RIGHT),
    Cell(Source.DELTA, Event.RESTORED, Outcome.RIGHT),
    Cell(Source.DELTA, Event.TRUNCATED, Outcome.RIGHT),
    Cell(Source.DELTA, Event.OVERWRITTEN, Outcome.RIGHT),
    *(Cell(source, Event.MADE_ANEW, Outcome.FAILS, Remedy.ACCEPT) for source in FILES),
    *(Cell(source, Event.SHRUNK, Outcome.FAILS, Remedy.ACCEPT) for source in FILES),
    Cell(Source.CSV, Event.MOVED_COLUMNS, Outcome.REFUSED, Remedy.WRITTEN),
)
"""Every cell. A missing cell cannot happen to its source."""

LIVE_CELLS: tuple[Cell, ...] = (
    *_ALIKE,
    Cell(Source.DELTA, Event.SHRUNK, Outcome.REFUSED, Remedy.ACCEPT),
    Cell(Source.DELTA, Event.RESTORED, Outcome.REFUSED, Remedy.ACCEPT),
    Cell(Source.DELTA, Event.TRUNCATED, Outcome.REFUSED, Remedy.ACCEPT),
    Cell(Source.DELTA, Event.OVERWRITTEN, Outcome.REFUSED, Remedy.NEW),
    *(Cell(source, Event.MADE_ANEW, Outcome.FAILS, Remedy.BACK) for source in FILES),
    Cell(Source.CSV, Event.MOVED_COLUMNS, Outcome.FAILS, Remedy.ACCEPT),
)
"""Cells of a source without an end whose pipeline is stopped."""
