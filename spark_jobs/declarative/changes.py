"""AUTO CDC flows: translates their rules for replacing and deleting rows into a sink with ``mode="upsert"``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.pipelines.flow import AutoCdcFlow
from pyspark.sql import Column, DataFrame

from spark_jobs.declarative.definitions import Definitions
from spark_jobs.runtime.spark.columns_at_import import written_text

_COLUMN = re.compile(r"[^\W\d]\w*|`[^`]+`")


@dataclass(frozen=True)
class Changes:
    """The rules by which the rows of an AUTO CDC flow change its table."""

    keys: tuple[str, ...]
    sequence_by: str
    apply_as_deletes: str | None
    kept: tuple[str, ...] | None
    """The only columns of the table. None: all but those that are left out."""
    left_out: tuple[str, ...]

    def options(self) -> Mapping[str, Any]:
        """Returns the options of the table's sink."""
        return {
            "mode": "upsert",
            "keys": self.keys,
            "sequence_by": self.sequence_by,
            "apply_as_deletes": self.apply_as_deletes,
        }

    def of(self, frame: DataFrame) -> DataFrame:
        """Returns the flow's rows with the columns of the table."""
        return frame.drop(*self.left_out) if self.kept is None else frame.select(*self.kept)


def changes_of(definitions: Definitions, flow: AutoCdcFlow) -> Changes:
    """Returns the rules of an AUTO CDC flow.

    Raises:
        InvalidPipelineError: An argument is not a column name or not a text, or the table would lack a column that the merge compares.
    """
    location, who = flow.source_code_location, f"the AUTO CDC flow into {flow.target!r}"

    def column(argument: str, given: Column) -> str:
        text = _text(given)
        if text is None or not _COLUMN.fullmatch(text):
            raise definitions.refused(
                location,
                f"{who} has {argument}={text or given!r}, but it needs names of columns.",
                "Give the column's name as a text. Add a computed column to the source first.",
                condition="AUTOCDC_NON_COLUMN_IDENTIFIER",
                argument=argument,
            )
        return text.strip("`")

    def columns(argument: str, given: list[Column] | None) -> tuple[str, ...]:
        return tuple(column(argument, each) for each in given or ())

    deletes = None if flow.apply_as_deletes is None else _text(flow.apply_as_deletes)
    if flow.apply_as_deletes is not None and deletes is None:
        raise definitions.refused(
            location,
            f"{who} has a column expression as apply_as_deletes, whose text is not known before Spark starts.",
            "Write it in SQL: apply_as_deletes=\"operation = 'DELETE'\".",
        )
    keys, sequence_by = columns("keys", flow.keys), column("sequence_by", flow.sequence_by)
    kept = None if flow.column_list is None else columns("column_list", flow.column_list)
    left_out = columns("except_column_list", flow.except_column_list)
    if kept is not None and left_out:
        raise definitions.refused(
            location,
            f"{who} has both column_list and except_column_list.",
            "Give one of them.",
            condition="AUTOCDC_BOTH_COLUMN_LIST_AND_EXCEPT_COLUMN_LIST",
        )
    for name in (*keys, sequence_by):
        if name.casefold() in map(str.casefold, left_out) or (
            kept is not None and name.casefold() not in map(str.casefold, kept)
        ):
            raise definitions.refused(
                location,
                f"{who} leaves out {name!r}, but later changes are compared with it in the table.",
                "Keep keys and sequence_by in the table. A view of it may leave them out.",
                condition="AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA" if name in keys else None,
                column=name,
            )
    return Changes(keys, sequence_by, deletes, kept, left_out)


def _text(column: Any) -> str | None:
    """Returns the name of a column, or the SQL text of an expression, if it was given as one."""
    expression = getattr(column, "_expr", None)
    for attribute in ("_unparsed_identifier", "_expr"):  # of a text that PySpark has turned into a column of Spark Connect
        found = getattr(expression, attribute, None)
        if isinstance(found, str):
            return found
    return written_text(column)
