"""Random changes of rows with keys, and what DuckDB says a table of each mode has of them. Imports nothing of the product."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import duckdb
import pyarrow as pa

KEYS = ("pair", "part")
COLUMNS = ("amount", "gone", "name", "pair", "part", "seq")
"""Those of the stage."""
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
    """Changes of a few keys, in no order: inserts, updates, deletes, repetitions, two at a time, null in any column."""
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


def upserted(changes: pa.Table, keys: Sequence[str] = KEYS) -> Counter[Row]:
    """The last change of each key, unless it is a delete."""
    return _rows(
        f"""
        SELECT {_list(keys)}, seq, gone, name, amount FROM changes
        QUALIFY row_number() OVER (
            PARTITION BY {_list(keys)}
            ORDER BY seq DESC NULLS LAST, coalesce(gone, false) DESC,
                amount DESC NULLS LAST, gone DESC NULLS LAST, name DESC NULLS LAST
        ) = 1 AND NOT coalesce(gone, false)
        """,
        {"changes": changes},
    )


def inserted(changes: pa.Table, order: str, keys: Sequence[str] = KEYS) -> Counter[Row]:
    """The first change of each key, by ``order`` and then by the other columns."""
    return _rows(
        f"""
        SELECT {_list(keys)}, seq, gone, name, amount FROM changes
        QUALIFY row_number() OVER (
            PARTITION BY {_list(keys)}
            ORDER BY {order}, amount NULLS FIRST, gone NULLS FIRST, name NULLS FIRST, seq NULLS FIRST
        ) = 1
        """,
        {"changes": changes},
    )


def versions(changes: pa.Table, keys: Sequence[str] = KEYS) -> Counter[Row]:
    """Every change of each key, one for each ``seq``, until the next one; deletes end a version and are none."""
    return _rows(
        f"""
        WITH one_at_a_time AS (
            SELECT * FROM changes
            QUALIFY row_number() OVER (
                PARTITION BY {_list(keys)}, seq
                ORDER BY coalesce(gone, false) DESC, amount DESC NULLS LAST, gone DESC NULLS LAST, name DESC NULLS LAST
            ) = 1
        ), ended AS (
            SELECT *, lead(seq) OVER (PARTITION BY {_list(keys)} ORDER BY seq NULLS FIRST) AS valid_to FROM one_at_a_time
        )
        SELECT {_list(keys)}, seq, gone, name, amount, seq AS valid_from, valid_to, valid_to IS NULL AS is_current
        FROM ended WHERE NOT coalesce(gone, false)
        """,
        {"changes": changes},
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _rows(query: str, tables: Mapping[str, pa.Table]) -> Counter[Row]:
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        return Counter(database.execute(query).fetchall())
