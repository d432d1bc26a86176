"""Two days of departures."""

from collections import Counter
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

KEY = ["departure", "origin", "carrier", "flight"]
FIRST_DAY, SECOND_DAY = 842, 943


def departures(table: Path) -> Counter[tuple[object, ...]]:
    """Returns how often a table contains each departure. Without a table, returns no departures."""
    try:
        rows = DeltaTable(str(table)).to_pyarrow_table(columns=KEY)
    except TableNotFoundError:
        return Counter()
    return Counter(zip(*(rows[name].to_pylist() for name in KEY), strict=True))
