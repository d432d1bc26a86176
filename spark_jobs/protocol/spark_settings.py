"""The Spark settings that may be visible, by an allow-list of names. Every user of a host can read its command lines.

All others reach a driver through its environment, and its JVM through the gateway. No rule has to guess which names are those of secrets.
"""

import json
import re
from collections.abc import Mapping, Sequence

CONF_VARIABLE = "SPARK_JOBS_CONF"
"""The environment variable with a driver's other settings, a JSON object."""

PACKAGES = "spark.jars.packages"
"""Spark's setting for Maven packages."""
_DELTA = re.compile(r"io[.]delta:delta-spark_")
_ENVIRONMENT = r"(?:executorEnv|yarn[.]appMasterEnv|kubernetes[.]driverEnv)[.]"
"""The prefix of settings that set environment variables, whose names are arbitrary."""
_VARIABLES = (
    r"(?:TZ|LANG|LC_\w+|PATH|LD_LIBRARY_PATH|LD_PRELOAD|JAVA_HOME|HADOOP_CONF_DIR|YARN_CONF_DIR|PYTHON[A-Z]*|PYSPARK_(?:DRIVER_)?PYTHON"
    r"|SPARK_(?:HOME|CONF_DIR|LOCAL_DIRS|LOCAL_IP|USER)|OMP_NUM_THREADS|AWS_(?:DEFAULT_)?REGION|AWS_ROLE_ARN|\w+_FILE"
    r"|GOOGLE_APPLICATION_CREDENTIALS|XDG_CACHE_HOME)"
)
_PARTS = (
    r"app|archives|blockManager|broadcast|buffer|cleaner|cores|databricks[.]delta|default|deploy|driver|dynamicAllocation|"
    r"eventLog|excludeOnFailure|executor|files|io|jars|kerberos|kryo|kryoserializer|kubernetes|local|locality|log|master|"
    r"memory|network|pyspark|python|port|rdd|reducer|resources|rpc|scheduler|serializer|shuffle|speculation|sql|stage|"
    r"standalone|storage|submit|task|ui|worker|yarn"
)
_HADOOP = (
    r"hadoop[.](?:(?:dfs|hadoop|io|ipc|mapred|mapreduce|yarn)[.].+|fs[.]defaultFS"
    r"|fs[.].+[.](?:impl|endpoint|endpoint[.]region|path[.]style[.]access|connection[.]ssl[.]enabled|credentials[.]provider))"
)
_LINEAGE = r"openlineage[.](?:parent|rootParent)(?:JobNamespace|JobName|RunId)$"
_HIDDEN = rf"{_ENVIRONMENT}|sql[.]catalog[.](?!spark_catalog$)"
_SHOWN = rf"(?:{_ENVIRONMENT}{_VARIABLES}$|{_HADOOP}$|{_LINEAGE}|(?!{_HIDDEN})(?:{_PARTS})(?:[.]|$))"
_SECRET = (
    r"(?i:secret|pass(word|wd|phrase)|pwd|pgpass|token|bearer |(access|private|account|encryption|api)[._-]?key(?!gen|size|[.]?provider)"
    r"|[.]sas[.](?!expiry|key[.]mode)|credentials?$)"
)
"""Matches names of secrets: those of ``spark.redaction.regex``, and names that stores and environments use."""
REDACTED = rf"{_SECRET}|^spark[.](?!{_SHOWN})"
"""Matches secrets, and names of Spark that the allow-list does not know. See :func:`redaction`."""
_OF_HADOOP = "spark.hadoop."
_NAME = re.compile(rf"spark[.]{_SHOWN}")
_REFERENCE = re.compile(
    r"spark[.]kubernetes[.]((driver|executor)[.](secretKeyRef|secrets)[.]|kerberos[.]tokenSecret[.]|container[.]image[.]pullSecrets$)"
    r"|spark[.]yarn[.]am[.]tokenConfRegex$|spark[.]ssl[.].*privateKey$|.*secretBitLength$|.*(File|[._-]file|_FILE)s?$"
    r"|.*[.]token[.](provider|renew|binding)|.*GOOGLE_APPLICATION_CREDENTIALS$|spark[.]kerberos[.]renewal[.]credentials$"
)
"""Matches settings that say where a secret is, what provides it, or what it must look like."""


def requested_packages(conf: Mapping[str, str], more: Sequence[str] = ()) -> tuple[list[str], bool]:
    """Returns the Maven packages that a user wants, and True if Delta's has to be added.

    An empty list in the settings means that Spark already has Delta.

    Args:
        conf: The user's settings.
        more: Packages that were named beside the settings.
    """
    given = conf.get(PACKAGES)
    packages = [*more, *(stripped for each in (given or "").split(",") if (stripped := each.strip()))]
    return packages, given != "" and not any(_DELTA.match(package) for package in packages)


def sounds_secret(name: str) -> bool:
    """Returns True if the name of a setting, or of a Java property, says that its value is a secret."""
    return re.search(_SECRET, name) is not None and not _REFERENCE.match(name)


def is_shown(name: str) -> bool:
    """Returns True if a setting of this name may be on a command line."""
    return _NAME.match(name) is not None and not sounds_secret(name)


def shown_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that may be on a command line."""
    return {name: value for name, value in conf.items() if is_shown(name)}


def hidden_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that may not be on a command line."""
    return {name: value for name, value in conf.items() if not is_shown(name)}


def redaction(conf: Mapping[str, str]) -> str:
    """Returns the value of ``spark.redaction.regex``, which hides settings in Spark's pages and event logs.

    Spark also shows a setting ``spark.hadoop.NAME`` as ``NAME``, among Hadoop's own properties, of which no list of allowed names exists.
    So hidden settings of this kind are named.
    """
    hadoop = [re.escape(name.removeprefix(_OF_HADOOP)) for name in hidden_settings(conf) if name.startswith(_OF_HADOOP)]
    return "|".join([REDACTED, *(f"^{name}$" for name in sorted(hadoop))])


def conf_environment(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that gives a driver the settings that may not be on its command line."""
    hidden = hidden_settings(conf)
    return {CONF_VARIABLE: json.dumps(hidden)} if hidden else {}


def conf_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings in a variable of :func:`conf_environment`."""
    return dict(json.loads(environment.get(CONF_VARIABLE, "{}")))
