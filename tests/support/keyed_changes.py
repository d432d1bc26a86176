"""Random changes of rows with keys, and DuckDB's answer for a table of each mode. Imports no code of the product."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import duckdb
import pyarrow as pa

KEYS = ("pair", "part")
OTHERS = ("amount", "gone", "name")
"""The columns that settle ties."""
COLUMNS = (*KEYS, "seq", *OTHERS)
"""The columns of the stage."""
SCHEMA = pa.schema(
    [
        *(pa.field("pair", pa.int64()), pa.field("part", pa.string())),
        *(pa.field("seq", pa.int64()), pa.field("gone", pa.bool_())),
        *(pa.field("name", pa.string()), pa.field("amount", pa.float64())),
    ]
)
DELETES = "gone"

Row = tuple[Any, ...]


def changes_of_one_case(draw: Random) -> list[dict[str, Any]]:
    """Returns changes of a few keys, in no order: inserts, updates, deletes, repetitions, two at a time, null in any column."""
    keys = [(draw.choice((None, 1, 2)), draw.choice((None, "x", "süd"))) for _ in range(draw.randint(1, 3))]
    changes = []
    for _ in range(draw.randint(1, 14)):
        pair, part = draw.choice(keys)
        changes.append(
            {
                "pair": pair,
                "part": part,
                "seq": draw.choice((None, *range(8), *range(8))),
                "gone": draw.choice((True, False, False, None)),
                "name": draw.choice((None, "a", "b")),
                "amount": draw.choice((None, 0.5, 2.0)),
            }
        )
    changes += draw.choices(changes, k=draw.randint(0, 3))
    draw.shuffle(changes)
    return changes


def upserted(changes: pa.Table, keys: Sequence[str] = KEYS, others: Sequence[str] = OTHERS) -> Counter[Row]:
    """Returns the last change of each key unless it is a delete. As in the functions below, rows have the keys, ``seq`` and ``others``."""
    return query(
        f"""
        SELECT {_list(keys)}, seq, {_list(others)} FROM changes
        QUALIFY row_number() OVER (
            PARTITION BY {_list(keys)} ORDER BY seq DESC NULLS LAST, coalesce(gone, false) DESC, {_last(others)}
        ) = 1 AND NOT coalesce(gone, false)
        """,
        changes=changes,
    )


def inserted(changes: pa.Table, order: str, keys: Sequence[str] = KEYS, others: Sequence[str] = OTHERS) -> Counter[Row]:
    """Returns the first change of each key, by ``order`` and then by the other columns."""
    ties = ", ".join(f"{name} NULLS FIRST" for name in sorted([*others, "seq"]))
    return query(
        f"""
        SELECT {_list(keys)}, seq, {_list(others)} FROM changes
        QUALIFY row_number() OVER (PARTITION BY {_list(keys)} ORDER BY {order}, {ties}) = 1
        """,
        changes=changes,
    )


def versions(changes: pa.Table, keys: Sequence[str] = KEYS, others: Sequence[str] = OTHERS) -> Counter[Row]:
    """Returns every change of each key, one for each ``seq``, valid until the next one. A delete ends a version and makes none."""
    return query(
        f"""
        WITH one_at_a_time AS (
            SELECT * FROM changes
            QUALIFY row_number() OVER (
                PARTITION BY {_list(keys)}, seq ORDER BY coalesce(gone, false) DESC, {_last(others)}
            ) = 1
        ), ended AS (
            SELECT *, lead(seq) OVER (PARTITION BY {_list(keys)} ORDER BY seq NULLS FIRST) AS valid_to FROM one_at_a_time
        )
        SELECT {_list(keys)}, seq, {_list(others)}, seq AS valid_from, valid_to, valid_to IS NULL AS is_current
        FROM ended WHERE NOT coalesce(gone, false)
        """,
        changes=changes,
    )


def query(sql: str, **tables: pa.Table) -> Counter[Row]:
    """Returns the rows of DuckDB's answer."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            database.register(name, table)
        return Counter(database.execute(sql).fetchall())


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _last(ties: Sequence[str]) -> str:
    return ", ".join(f"{name} DESC NULLS LAST" for name in sorted(ties))
