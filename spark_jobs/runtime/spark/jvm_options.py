"""Options of the driver's JVM that come before all others, so that the user's own options, also in ``spark-defaults.conf``, win."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable with which Spark's launcher takes them."""
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m -XX:+NeverActAsServerClassMachine -XX:MetaspaceSize=256m"
"""Options for a JVM that ends before its second compiler and its parallel collector have saved the time that they take.

- With the first compiler alone Java reserves 48 MB for compiled code. Spark fills that, and Java would sweep and compile for ever.
- ``NeverActAsServerClassMachine`` makes the serial collector Java's own choice. ``UseSerialGC`` would not start beside a collector of the
  user's options.
- Spark's classes need more than the 21 MB at which Java begins to collect the whole heap for the sake of classes.
"""


@contextmanager
def added(options: str) -> Iterator[None]:
    """Gives these options to JVMs that are started while the context is open."""
    standing = os.environ.get(JVM_OPTIONS)
    os.environ[JVM_OPTIONS] = f"{options} {standing or ''}".strip()
    try:
        yield
    finally:
        if standing is None:
            del os.environ[JVM_OPTIONS]
        else:
            os.environ[JVM_OPTIONS] = standing
