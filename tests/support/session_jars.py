"""The jars of the tests' Spark sessions."""

from tests.support.kafka_broker import SOURCE_JARS, jars
from tests.support.object_store import S3_JARS


def session_jars() -> list[str]:
    """Returns the jars of every session. The sessions of a process share one JVM, which has the jars of the first session."""
    return [*jars(SOURCE_JARS), *jars(S3_JARS)]
