"""What differs between the versions of Spark that pipelines run on.

No other module looks at a difference. It is found by a probe (is the class there, has the session the attribute, has the function the
parameter), never by a version number: vendors bring single changes into older releases. ``docs/reference/versions.md`` says what an older
version lacks.
"""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.protocol.spark_versions import cannot_repartition, check_spark_version, spark_minor
from spark_jobs.publication.delta_jvm import java_class

SPARK_VERSION: str = pyspark.__version__
"""The release of Spark that this process has."""
SPARK_MINOR = spark_minor(SPARK_VERSION)


def check_own_spark() -> None:
    """Refuses to run pipelines on a release of Spark for which Delta Lake has no jars.

    Raises:
        MissingRequirementError: This process has one.
    """
    check_spark_version(
        SPARK_VERSION,
        owner="This process",
        remedy="Use one of them: the extra 'spark' of this package installs one, and spark-submit has its own.",
    )


def _available_now() -> tuple[type, ...]:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return ()
    return (SupportsTriggerAvailableNow,)


AVAILABLE_NOW = _available_now()
"""The base class by which a stream reader in Python says that it knows ``Trigger.AvailableNow``; empty where Spark asks no reader."""


def _arrow_schema() -> Callable[[StructType], Any]:
    if "timezone" in signature(to_arrow_schema).parameters:
        return partial(to_arrow_schema, timezone="UTC")
    return to_arrow_schema  # with UTC


arrow_schema = _arrow_schema()
"""Returns the Arrow schema of rows that Python gives to Spark. A function of PySpark alone: Python workers may not have this package."""

_STREAMING = "org.apache.spark.sql.execution.streaming"


def checkpoint_class(spark: SparkSession, name: str) -> Any:
    """Returns the ``java.lang.Class`` of one of the classes by which Spark writes its checkpoints.

    Args:
        spark: The session.
        name: Its name without the package, which is another one from Spark 4.1 on.
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
"""Whether Spark can bring the state of a query into another number of partitions."""


def repartition_state(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    """Brings the state of a query, which must not be running, into another number of partitions.

    Raises:
        RejectedError: This Spark cannot.
        Py4JJavaError: It has failed.
    """
    if not hasattr(spark, _STATE_MANAGER):
        raise cannot_repartition(SPARK_MINOR, partitions)
    getattr(spark, _STATE_MANAGER).repartition(checkpoint, partitions)
