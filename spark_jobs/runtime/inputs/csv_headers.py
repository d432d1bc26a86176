"""Compares the header lines of CSV files with the columns of the schema.

Spark matches CSV columns by position and ignores the header: two swapped columns would have each other's values.
"""

from collections.abc import Iterable, Sequence

from pyspark.sql import SparkSession

from spark_jobs.runtime.spark.csv_reader import CsvReader
from spark_jobs.runtime.spark.plan import Leaf


def misplaced(session: SparkSession, leaf: Leaf, paths: Iterable[str]) -> str | None:
    """Returns the file with a misplaced column, in words. None if there is none, or if the header is ignored.

    Args:
        session: The session.
        leaf: The stream.
        paths: URLs of the files.
    """
    options = {key.lower(): value.lower() for key, value in leaf.options.items()}
    if leaf.format.lower() != "csv" or options.get("header") != "true" or options.get("enforceschema") == "true":
        return None
    reader = CsvReader(session, leaf)
    headers = ((path, reader.header(path)) for path in paths)
    differing = ((path, difference(reader.columns, header)) for path, header in headers if header is not None)
    return next((f"{path} {why}" for path, why in differing if why), None)


def difference(columns: Sequence[str], header: Sequence[str | None]) -> str | None:
    """Returns the difference of a header from the columns of a schema, in words. None if there is none.

    Names are compared without regard to case. Columns may be missing at the end, or be added there. An empty or repeated name is one that
    Spark has completed, if it has inferred the schema.
    """
    for place, (column, found) in enumerate(zip(columns, header, strict=False)):
        name = (found or "").strip()
        inferred = f"_c{place}" if not name else f"{name}{place}" if header.count(found) > 1 else name
        if column.casefold() not in (name.casefold(), inferred.casefold()):
            return f"has {name!r} as column {place + 1}, where the schema has {column!r}"
    return None
