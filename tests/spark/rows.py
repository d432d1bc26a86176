"""Reads tables and compares rows without the product's code."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame

from tests.support.opened_tables import opened

Rows = Counter[tuple[Any, ...]]


def counted(table: pa.Table, columns: Iterable[str] | None = None) -> Rows:
    """Counts equal rows. The order of the rows does not matter; the order of ``columns`` does."""
    names = list(table.column_names if columns is None else columns)
    return Counter(zip(*(map(_hashable, table.column(name).to_pylist()) for name in names), strict=True))


def public(path: Path | str, columns: Iterable[str] | None = None, version: int | None = None) -> Rows:
    """Returns the rows that a reader of a Delta table sees."""
    return counted(opened(str(path), version).to_pyarrow_table(), columns)


def public_count(path: Path | str) -> int | None:
    """Returns the number of rows that a reader sees; None if the table does not exist."""
    try:
        return int(opened(str(path)).to_pyarrow_dataset().count_rows())
    except TableNotFoundError:
        return None


def answer(frame: DataFrame) -> Rows:
    """Returns the rows of a batch query."""
    return counted(frame.toArrow())


def assert_same(found: Rows, expected: Rows) -> None:
    """Fails with a few of the rows that differ."""
    extra, missing = found - expected, expected - found
    difference = (
        f"{found.total()} rows, expected {expected.total()}; {extra.total()} too many, such as {list(extra)[:3]}; "
        f"{missing.total()} missing, such as {list(missing)[:3]}"
    )
    assert not extra, difference
    assert not missing, difference
    assert expected.total() > 0, "an answer without rows proves nothing"


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.values())
    return tuple(value) if isinstance(value, list) else value
