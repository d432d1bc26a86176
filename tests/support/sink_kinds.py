"""Kinds of sinks, and the rows of a table after several publications, computed independently in Python.

An upsert with a rule deletes the rows whose ``day`` ends in ``!``, and orders rows by their days.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.protocol.merge_cut import MergeCut
from tests.support.opened_tables import opened
from tests.support.staged_pipeline import Row, StagedPipeline

Rows = list[Row]
Graves = dict[int, str | None]
"""The deleted keys, each with the day of its last delete."""


class Kind(Enum):
    """A mode. An upsert also has its order: by batch or by rule."""

    APPEND = "append"
    COMPLETE = "complete"
    UPSERT = "upsert by batch"
    SEQUENCED = "upsert by rule"

    @property
    def mode(self) -> SinkMode:
        """Returns the sink's mode."""
        return SinkMode.UPSERT if self in (Kind.UPSERT, Kind.SEQUENCED) else SinkMode(self.value)


def cut_of(pipeline: StagedPipeline, publisher: Publisher, kind: Kind) -> Mapping[str, Any]:
    """Returns the fields of a sink's cut for its kind and publisher. Creates the additional tables of an upsert."""
    cut: dict[str, Any] = {"publisher": publisher, "mode": kind.mode, "replace": kind is Kind.COMPLETE}
    if kind.mode is SinkMode.UPSERT:
        rule: dict[str, Any] = {"sequence_by": None, "apply_as_deletes": None, "tombstones": None}
        if kind is Kind.SEQUENCED:
            rule = {"sequence_by": "day", "apply_as_deletes": "day LIKE '%!'", "tombstones": pipeline.make_channel("tombstones")}
        above = 2**28 if publisher is Publisher.DELTA_RS else 0
        cut["merge"] = MergeCut(keys=("id",), staged_in=pipeline.make_channel("channel"), spark_above_bytes=above, **rule)
    return MappingProxyType(cut)


def graves_in(cut: Mapping[str, Any]) -> Graves:
    """Returns the deleted keys that a sink remembers."""
    rule = cut.get("merge")
    if rule is None or rule.tombstones is None:
        return {}
    found = rows_in(opened(rule.tombstones).to_pyarrow_table())
    assert len(found) == len(dict(found)), f"a key is remembered twice: {found}"
    return dict(found)


def rows_in(table: pa.Table) -> Rows:
    """Returns the ids and days of all rows, sorted. Other writers may have renamed the days or dropped them; then a day is None."""
    days = next(
        (table.column(name).to_pylist() for name in ("day", "date") if name in table.column_names), [None] * table.num_rows
    )
    return sorted(zip(table.column("id").to_pylist(), days, strict=True), key=str)


@dataclass
class Reference:
    """The expected rows of a table, and the expected memory of its sink."""

    kind: Kind
    rows: Rows = field(default_factory=list)
    graves: Graves = field(default_factory=dict)

    def publish(self, staged: Rows) -> None:
        """Publishes one transaction of the product."""
        if self.kind is Kind.COMPLETE:
            self.rows = list(staged)
        elif self.kind is Kind.APPEND:
            self.rows = self.rows + staged
        elif self.kind is Kind.UPSERT:
            keys = {number for number, _ in staged}
            self.rows = [row for row in self.rows if row[0] not in keys] + staged
        else:
            self.bury(staged)
            self._merge(staged)

    def bury(self, staged: Rows) -> None:
        """Remembers the deletes among the staged rows. This alone changes no row."""
        for number, day in staged:
            if _is_delete(day) and (number not in self.graves or _place(day) > _place(self.graves[number])):
                self.graves[number] = day

    def _merge(self, staged: Rows) -> None:
        for number in sorted({number for number, _ in staged}):
            last = max((day for key, day in staged if key == number), key=_place)
            there = [day for key, day in self.rows if key == number]
            assert len(there) <= 1
            if not _is_delete(last) and number in self.graves and _place(last) <= _place(self.graves[number]):
                continue  # deleted at the same time or later
            if there and _place(last) <= _place(there[0]):
                continue
            self.rows = [row for row in self.rows if row[0] != number] + ([] if _is_delete(last) else [(number, last)])


def _is_delete(day: str | None) -> bool:
    return day is not None and day.endswith("!")


def _place(day: str | None) -> tuple[bool, str]:
    """Returns the order of a row among those of its key. A row without a day is first."""
    return day is not None, day or ""
