"""AUTO CDC flows: translates their rules for replacing and deleting rows into a sink with ``mode="upsert"``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.pipelines.flow import AutoCdcFlow
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.declarative.definitions import Definitions
from spark_jobs.runtime.spark.columns_at_import import UNKNOWN, is_recorded, readable_text, written_text

_COLUMN = re.compile(r"[^\W\d]\w*|`[^`]+`")
_WORDS = re.compile(r"'(?:[^'\\]|\\.)*'|`([^`]+)`|([^\W\d]\w*)\b(?!\s*\()|\d\w*")
"""Finds the names in a SQL expression. Texts, numbers and names of functions have no group."""
_KEYWORDS = frozenset({"and", "between", "false", "in", "is", "like", "not", "null", "or", "true"})
SEQUENCE, DELETED = "__spark_autocdc_sequence", "__spark_autocdc_deleted"
"""Columns with a computed ``sequence_by`` or ``apply_as_deletes``. Spark reserves this prefix for what it adds to such a table."""


@dataclass(frozen=True)
class Changes:
    """The rules by which the rows of an AUTO CDC flow change its table."""

    keys: tuple[str, ...]
    sequence_by: str
    apply_as_deletes: str | None
    kept: tuple[str, ...] | None
    """The only columns of the table. None: all but those that are left out."""
    left_out: tuple[str, ...]
    computed: Mapping[str, Any]
    """The expressions of :data:`SEQUENCE` and :data:`DELETED`, as SQL or as columns, if the table needs them."""

    def options(self) -> Mapping[str, Any]:
        """Returns the options of the table's sink."""
        return {
            "mode": "upsert",
            "keys": self.keys,
            "sequence_by": self.sequence_by,
            "apply_as_deletes": self.apply_as_deletes,
            "computed_by": {name: text for name, column in self.computed.items() if (text := _compared(column)) is not None},
        }

    def of(self, frame: DataFrame) -> DataFrame:
        """Returns the flow's rows with the columns of the table."""
        whole = frame.withColumns({name: _column(expression) for name, expression in self.computed.items()})
        return whole.drop(*self.left_out) if self.kept is None else whole.select(*self.kept, *self.computed)


def changes_of(definitions: Definitions, flow: AutoCdcFlow) -> Changes:
    """Returns the rules of an AUTO CDC flow.

    Later changes are compared with ``sequence_by`` in the table, and deletes are found among staged rows. So the table gets a column for
    each of them that is computed from others or left out.

    Raises:
        InvalidPipelineError: A key or a listed column is not a column name, or the table would lack a key.
    """
    location, who = flow.source_code_location, f"the AUTO CDC flow into {flow.target!r}"

    def columns(argument: str, given: list[Column] | None) -> tuple[str, ...]:
        found = []
        for each in given or ():
            name = _name(each)
            if name is None:
                raise definitions.refused(
                    location,
                    f"{who} has {argument}={_text(each) or each!r}, but it needs names of columns.",
                    "Give the column's name as a text. Add a computed column to the source first.",
                    condition="AUTOCDC_NON_COLUMN_IDENTIFIER",
                    argument=argument,
                )
            found.append(name)
        return tuple(found)

    keys = columns("keys", flow.keys)
    kept = None if flow.column_list is None else columns("column_list", flow.column_list)
    left_out = columns("except_column_list", flow.except_column_list)
    if kept is not None and left_out:
        raise definitions.refused(
            location,
            f"{who} has both column_list and except_column_list.",
            "Give one of them.",
            condition="AUTOCDC_BOTH_COLUMN_LIST_AND_EXCEPT_COLUMN_LIST",
        )
    lacking = _Lacking(kept, left_out)
    for key in keys:
        if key in lacking:
            raise definitions.refused(
                location,
                f"{who} leaves out the key {key!r}, but later changes are compared with it in the table.",
                "Keep the keys in the table. A view of it may leave them out.",
                condition="AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA",
                column=key,
            )
    computed: dict[str, Any] = {}
    sequence_by = _name(flow.sequence_by)
    if sequence_by is None or sequence_by in lacking:
        computed[SEQUENCE], sequence_by = _text(flow.sequence_by) or flow.sequence_by, SEQUENCE
    deletes = None
    if flow.apply_as_deletes is not None:
        deletes = _text(flow.apply_as_deletes)
        if deletes is None or any(name in lacking for name in _names(deletes)):
            computed[DELETED], deletes = deletes or flow.apply_as_deletes, DELETED
    return Changes(keys, sequence_by, deletes, kept, left_out, computed)


@dataclass(frozen=True)
class _Lacking:
    """The names that are not columns of the table, or may not be."""

    kept: tuple[str, ...] | None
    left_out: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        if self.kept is None:
            return name.casefold() in map(str.casefold, self.left_out)
        return name.casefold() not in map(str.casefold, self.kept)


def _name(column: Any) -> str | None:
    """Returns the name of a column, or None if it is another expression."""
    text = _text(column)
    return text.strip("`") if text is not None and _COLUMN.fullmatch(text) else None


def _names(expression: str) -> list[str]:
    """Returns the words of a SQL expression that may be names of columns."""
    found = [quoted or plain for quoted, plain in _WORDS.findall(expression)]
    return [name for name in found if name and name.casefold() not in _KEYWORDS]


def _column(expression: Any) -> Column:
    return F.expr(expression) if isinstance(expression, str) else expression


def _compared(column: Any) -> str | None:
    """Returns a text that is another one if the expression is changed.

    None if the expression has parts without a text, or if Spark has made the column already: it has other texts for the same columns.
    """
    if isinstance(column, str):
        return column
    text = readable_text(column) if is_recorded(column) else UNKNOWN
    return None if UNKNOWN in text else text


def _text(column: Any) -> str | None:
    """Returns the name of a column, or the SQL text of an expression, if it was given as one."""
    expression = getattr(column, "_expr", None)
    for attribute in ("_unparsed_identifier", "_expr"):  # of a text that PySpark has turned into a column of Spark Connect
        found = getattr(expression, attribute, None)
        if isinstance(found, str):
            return found
    return written_text(column)
