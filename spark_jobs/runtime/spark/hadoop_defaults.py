"""Removes the defaults of YARN and MapReduce from the Hadoop configuration of a Spark on a single host.

Spark copies the configuration for each query and each access to a table, and sends it with each task. Two thirds of its 1,100 entries are
defaults of services that a single host does not have.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from spark_jobs.publication.delta_jvm import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONFIGURATION = "org.apache.hadoop.conf.Configuration"
_ENTRIES = "properties"
"""The field with the entries. Hadoop's own method removes one entry at a time, and a start would call it 700 times."""
_DEFAULTS = ("yarn-default.xml", "mapred-default.xml")
_COMMITTERS = "mapreduce.outputcommitter."
"""The beginning of the names of the classes that commit output. The code has no other defaults for them."""


def remove_service_defaults(spark: "SparkSession", configuration: Any) -> None:
    """Removes the entries that are equal to the defaults of YARN and MapReduce; idempotent. All others stay.

    Nothing needs the removal. A Hadoop that stores its entries in another way keeps them.

    Args:
        spark: A session, for its JVM.
        configuration: The Hadoop configuration.
    """
    from py4j.protocol import Py4JJavaError

    defaults = java_class(spark, _CONFIGURATION)(False)
    for resource in _DEFAULTS:
        defaults.addResource(resource)
    names = java_class(spark, "java.lang.String").join("\n", defaults.getPropsWithPrefix(_COMMITTERS).keySet())
    for name in str(names).splitlines():
        defaults.unset(_COMMITTERS + name)
    configuration.size()  # it is read when it is used for the first time
    with suppress(Py4JJavaError):
        stored = java_class(spark, "java.lang.Class").forName(_CONFIGURATION).getDeclaredField(_ENTRIES)
        stored.setAccessible(True)
        stored.get(configuration).entrySet().removeAll(stored.get(defaults).entrySet())
