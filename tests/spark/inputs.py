"""The input rows of the tests: shuffled, with late, duplicate and null-time rows. Imports no code of the product."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from tests.support.short_jvm import COMPILED

ROWS = 100_000 if COMPILED else 20_000
"""The number of rows of a large input. An interpreted row costs several times as much as a compiled one."""
BEGIN = pd.Timestamp("2024-03-01", tz="UTC")
KEYS = [f"k{number:04d}" for number in range(2000)]
TEAMS = [f"team {number}" for number in range(50)]
REGIONS = ["north west", "süd%20/100%", "east=1"]
DAY_MS = 86_400_000


def events(rows: int = ROWS, days: int = 10, seed: int = 1) -> pd.DataFrame:
    """Returns rows in no order, with the columns ``id``, ``ts``, ``key``, ``value``, ``team`` and ``region``.

    3% are exact duplicates, 2% have the id of an earlier row and a time within five minutes of it, and 1% have no time.
    """
    random = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "id": np.arange(rows, dtype="int64"),
            "ts": _times(random, rows, days),
            "key": random.choice(KEYS, rows),
            "value": random.integers(-1000, 1000, rows).astype("int32"),
            "team": random.choice(TEAMS, rows),
            "region": random.choice(REGIONS, rows),
        }
    )
    table.loc[random.choice(rows, rows // 100, replace=False), "ts"] = None
    again = table.sample(rows * 3 // 100, random_state=seed)
    moved = table[table["ts"].notna()].sample(rows * 2 // 100, random_state=seed + 1)
    moved["ts"] += pd.to_timedelta(random.integers(1, 300, len(moved)), unit="s")
    return pd.concat([table, again, moved]).sample(frac=1, random_state=seed).reset_index(drop=True)


def payments(rows: int = ROWS, days: int = 10, seed: int = 2) -> pd.DataFrame:
    """Returns rows in no order, with the columns ``payment``, ``paid_at``, ``payer`` and ``amount``. 1% have no time."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "payment": np.arange(rows, dtype="int64"),
            "paid_at": _times(random, rows, days),
            "payer": random.choice(KEYS, rows),
            "amount": random.integers(1, 100, rows).astype("int32"),
        }
    )
    table.loc[random.choice(rows, rows // 100, replace=False), "paid_at"] = None
    return table


def places() -> pd.DataFrame:
    """Returns a name for every second key."""
    return pd.DataFrame({"key": KEYS[::2], "place": [f"place {key}" for key in KEYS[::2]]})


def in_order(rows: int, batches: int, late_fraction: float, seed: int = 3) -> list[pd.DataFrame]:
    """Returns batches of ``id``, ``ts``, ``key`` and ``value``. The times advance, except that some rows are hours late."""
    random = np.random.default_rng(seed)
    day = np.arange(rows, dtype="int64") * (DAY_MS * 5 // rows)
    late = random.random(rows) < late_fraction
    at = day - np.where(late, random.integers(1, 48, rows) * 3_600_000, random.integers(0, 600_000, rows))
    table = pd.DataFrame(
        {
            "id": np.arange(rows, dtype="int64"),
            "ts": (BEGIN + pd.to_timedelta(at, unit="ms")).astype("datetime64[us, UTC]"),
            "key": random.choice(KEYS, rows),
            "value": random.integers(-1000, 1000, rows).astype("int32"),
        }
    )
    size = rows // batches
    return [table.iloc[start : start + size].sample(frac=1, random_state=seed) for start in range(0, rows, size)]


def write_versions(path: Path, table: pd.DataFrame, versions: int, partition_by: list[str] | None = None) -> Path:
    """Writes rows to a Delta table in several versions. Returns its path."""
    for part in np.array_split(np.arange(len(table)), versions):
        append(path, table.iloc[part], partition_by)
    return path


def append(path: Path | str, table: pd.DataFrame, partition_by: list[str] | None = None) -> None:
    """Adds rows to a Delta table as one version."""
    write_deltalake(str(path), _arrow(table), mode="append", partition_by=partition_by)


def write_parquet(path: Path, table: pd.DataFrame, files: int) -> Path:
    """Writes rows to a directory of Parquet files. Returns its path."""
    path.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(table)), files)):
        pq.write_table(_arrow(table.iloc[part]), path / f"part {number}%20.parquet")
    return path


def _arrow(table: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(table, preserve_index=False)


def _times(random: np.random.Generator, rows: int, days: int) -> pd.Series:
    milliseconds = random.integers(0, days * DAY_MS, rows)
    return pd.Series(BEGIN + pd.to_timedelta(milliseconds, unit="ms")).astype("datetime64[us, UTC]")
