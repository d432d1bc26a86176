"""The Spark application that all tests of a process share: a process has one JVM, with the settings and jars of its first session."""

from tests.support.azurite import AZURE_JARS
from tests.support.kafka_broker import SOURCE_JARS, jars
from tests.support.object_store import S3_JARS
from tests.support.short_jvm import FEW_ROWS, SHARED_BY_MANY

HIDDEN_SETTING = {"spark.executorEnv.SHOP_LOGIN": "open-sesame"}
"""A setting whose name is not on the allow-list of visible settings."""
SHARED_APPLICATION = (
    {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.ui.enabled": "false"}
    | HIDDEN_SETTING
    | FEW_ROWS
    | SHARED_BY_MANY
)


def session_jars() -> list[str]:
    """Returns the jars of every session."""
    return [*jars(SOURCE_JARS), *jars(S3_JARS), *jars(AZURE_JARS)]
