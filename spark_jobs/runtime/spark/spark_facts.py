"""The differences between the supported versions of Spark.

Only this module handles these differences. It finds them by probes (does the class, the attribute or the parameter exist), never by a
version number, because vendors backport single changes. ``docs/reference/versions.md`` lists what older versions lack.
"""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.protocol.spark_versions import cannot_repartition, check_spark_version, spark_minor
from spark_jobs.publication.delta_jvm import java_class

SPARK_VERSION: str = pyspark.__version__
"""The release of Spark in this process."""
SPARK_MINOR = spark_minor(SPARK_VERSION)


def check_own_spark() -> None:
    """Refuses to run pipelines on a release of Spark for which Delta Lake has no jars.

    Raises:
        MissingRequirementError: This process has such a release.
    """
    check_spark_version(
        SPARK_VERSION,
        owner="This process",
        remedy="Use one of these releases: the extra 'spark' of this package installs one, and spark-submit has its own.",
    )


def _available_now() -> tuple[type, ...]:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return ()
    return (SupportsTriggerAvailableNow,)


AVAILABLE_NOW = _available_now()
"""The base class of Python stream readers that support ``Trigger.AvailableNow``; empty if Spark does not check readers."""


def _arrow_schema() -> Callable[[StructType], Any]:
    if "timezone" in signature(to_arrow_schema).parameters:
        return partial(to_arrow_schema, timezone="UTC")
    return to_arrow_schema  # with UTC


arrow_schema = _arrow_schema()
"""Returns the Arrow schema of rows from Python to Spark. It only uses PySpark, because Python workers may not have this package."""


def partitioned(frame: DataFrame, count: int, number: Column) -> DataFrame:
    """Returns a frame whose rows are in the partitions that a column of numbers from 0 names.

    Spark 4.0 only partitions by a hash, so each number is replaced by one whose hash leads to its partition.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, number)
    found, tried = dict[int, int](), count
    while len(found) < count:
        tried *= 2
        candidate = F.col("id").cast("int").alias("candidate")
        hashed = frame.sparkSession.range(tried).select(candidate, F.pmod(F.hash(candidate), F.lit(count)).alias("partition"))
        found = {row.partition: row.candidate for row in hashed.collect()}
    return frame.repartition(count, F.element_at(F.lit([found[each] for each in range(count)]), number + 1))


_STREAMING = "org.apache.spark.sql.execution.streaming"


def checkpoint_class(spark: SparkSession, name: str) -> Any:
    """Returns the ``java.lang.Class`` of a class with which Spark writes its checkpoints.

    Args:
        spark: The session.
        name: Name of the class without the package, which has changed in Spark 4.1.
    """
    classes = java_class(spark, "java.lang.Class")
    try:
        return classes.forName(f"{_STREAMING}.checkpointing.{name}")
    except Py4JJavaError as error:
        if "ClassNotFoundException" not in str(error.java_exception):
            raise
    return classes.forName(f"{_STREAMING}.{name}")


_STATE_MANAGER = "_streamingCheckpointManager"
CAN_REPARTITION = hasattr(SparkSession, _STATE_MANAGER)
"""True if Spark can change the number of state partitions of a query."""


def repartition_state(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    """Changes the number of state partitions of a query, which must not be running.

    Raises:
        RejectedError: This Spark cannot do it.
        Py4JJavaError: The change has failed.
    """
    if not hasattr(spark, _STATE_MANAGER):
        raise cannot_repartition(SPARK_MINOR, partitions)
    getattr(spark, _STATE_MANAGER).repartition(checkpoint, partitions)
