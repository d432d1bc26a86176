"""Staged files as a frame. Delta reads them in their place, as files of the table that they were staged for.

Delta gets the names of the files from this process. It reads no log for them, so executors on other hosts need nothing but the files.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.labels import labelled
from spark_jobs.storage.table_uris import spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def staged_frame(
    spark: "SparkSession",
    uri: str,
    metadata: Mapping[str, Any],
    protocol: Mapping[str, Any],
    lines: Iterable[Mapping[str, Any]],
    *,
    label: str | None = None,
) -> "DataFrame":
    """Returns the rows of staged files.

    Args:
        spark: The session.
        uri: Directory of the staged files: that of a table.
        metadata: Metadata of the table that they were staged for.
        protocol: Protocol of the same table.
        lines: ``{"add": …}`` for each staged file, perhaps with other fields.
        label: Field of a line whose number each row of its file gets, in column :func:`~spark_jobs.publication.labels.column_of`.
    """
    from pyspark.sql import DataFrame

    described, adds = labelled(metadata, lines, label)
    return DataFrame(DeltaJvm(spark).rows_of(spark_path(uri), described, protocol, adds), spark)
