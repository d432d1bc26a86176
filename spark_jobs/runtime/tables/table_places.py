"""The places of sinks' tables, addressed by path or by name."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_jobs.api.address import TableAddress
from spark_jobs.protocol.errors import UnsupportedTableError, first_line
from spark_jobs.publication.staged_files import check_no_file
from spark_jobs.runtime.spark.session import new_table, table_location
from spark_jobs.storage.table_uris import table_uri


@dataclass(frozen=True)
class TablePlace:
    """The place of a table."""

    uri: str
    name: str | None = None
    """The name in the catalog; None for a path. For a missing table it includes catalog and schema."""
    staged_prefix: str | None = None
    """The name prefix of staged files that a savepoint has brought before the table is created; None without such files."""
    location: str | None = None
    """The URL at which Spark's catalog would create the table; None if the table exists or has a path."""


def check_address(address: TableAddress) -> None:
    """Refuses an address that cannot be a table's. A name is only looked up if there is a catalog.

    Raises:
        RejectedError: The address is not a supported path or URL, Spark and delta-rs would read it differently, or a file is in its place.
    """
    if not address.named:
        check_no_file(table_uri(address.text))


def locate(spark: SparkSession, address: TableAddress) -> TablePlace:
    """Returns the place of a table that may not exist yet.

    Raises:
        RejectedError: As in :func:`check_address`; or the table does not exist and cannot be created by that name.
        UnsupportedTableError: The name is not that of a Delta table.
    """
    if not address.named:
        return TablePlace(table_uri(address.text))
    name = address.text
    try:
        exists = spark.catalog.tableExists(name)
    except AnalysisException as error:
        raise UnsupportedTableError(
            f"Table {name} cannot be looked up: {first_line(error)}",
            remedy="Correct the name, or give Spark the catalog (spark.sql.catalog.…).",
            table=name,
        ) from error
    full_name, location = (name, table_location(spark, name)) if exists else new_table(spark, name) or (name, None)
    if location is None:
        raise UnsupportedTableError(
            f"{name} is not a Delta table." if exists else f"Table {name} does not exist, and only its catalog can create it.",
            remedy="Name a Delta table." if exists else f"Create it first: CREATE TABLE {name} (…) USING delta.",
            table=name,
        )
    uri = table_uri(unquote(urlsplit(location).path) if location.startswith("file:") else unquote(location))
    return TablePlace(uri, full_name, location=None if exists else unquote(location))
