"""Engines other than Spark that read Delta tables."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.spark.rows import Rows, counted
from tests.support.table_features import DELTA_RS_READER, DUCKDB_READER


class ReaderError(Exception):
    """The engine cannot read the table."""


def by_delta_rs(path: Path, columns: Sequence[str]) -> Rows:
    """Returns the rows as delta-rs's own query engine reads them."""
    try:
        query = f"SELECT {_listed(columns)} FROM t"
        found = pa.table(QueryBuilder().register("t", DeltaTable(str(path))).execute(query).read_all())
    except Exception as error:
        raise ReaderError(f"{type(error).__name__} {error}") from error
    return counted(found, columns)


def by_duckdb(path: Path, columns: Sequence[str]) -> Rows:
    """Returns the rows as DuckDB's delta extension reads them. The extension comes as a package, and DuckDB checks its signature."""
    extension = files("duckdb_extension_delta") / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    with duckdb.connect() as database:
        database.execute(f"LOAD '{extension}'; SET TimeZone = 'UTC'")
        try:
            found = database.execute(f"SELECT {_listed(columns)} FROM delta_scan(?)", [path.as_uri()]).to_arrow_table()
        except duckdb.Error as error:
            raise ReaderError(str(error)) from error
    return counted(found, columns)


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


ENGINES: dict[str, Callable[[Path, Sequence[str]], Rows]] = {DELTA_RS_READER: by_delta_rs, DUCKDB_READER: by_duckdb}
