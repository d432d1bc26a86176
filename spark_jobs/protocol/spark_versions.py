"""The supported releases of Spark, and their order."""

import re
from importlib.metadata import PackageNotFoundError, version

from spark_jobs.protocol.errors import MissingRequirementError, RejectedError

SUPPORTED = ("4.0", "4.1", "4.2")
"""Spark's minor versions that pipelines run on, oldest first. Delta Lake has jars for these."""
NEWEST = SUPPORTED[-1]


def spark_minor(release: str) -> str:
    """Returns the minor version of a release of Spark: ``4.2`` for ``4.2.0`` and for a vendor's ``4.2.0-amzn-1``."""
    found = re.match(r"\d+\.\d+", release)
    return found[0] if found else release


def installed_minor() -> str | None:
    """Returns the minor version of the installed Spark, or None if none is installed. Does not load Spark."""
    try:
        return spark_minor(version("pyspark"))
    except PackageNotFoundError:
        return None


def is_older(minor: str, other: str) -> bool:
    """Returns True if one of Spark's minor versions is older than another."""
    return _numbers(minor) < _numbers(other)


def _numbers(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", minor))


def check_spark_version(release: str, *, owner: str, remedy: str) -> None:
    """Refuses a release of Spark that pipelines do not run on.

    Args:
        release: The release.
        owner: The owner of the Spark, as the subject of a sentence.
        remedy: The remedy of the error.

    Raises:
        MissingRequirementError: The release is not supported.
    """
    minor = spark_minor(release)
    if minor in SUPPORTED:
        return
    newer = re.fullmatch(r"\d+\.\d+", minor) and is_older(NEWEST, minor)
    why = "Delta Lake has no jars for it" if newer else "pipelines do not run on it"
    raise MissingRequirementError(
        f"{owner} has Spark {release}, and {why}.",
        exists=f"Pipelines run on Spark {', '.join(SUPPORTED[:-1])} and {NEWEST}.",
        remedy=remedy,
        found=release,
    )


def cannot_repartition(minor: str, partitions: int) -> RejectedError:
    """Returns the error for a start that needs another number of state partitions than its Spark can provide.

    Args:
        minor: Minor version of the Spark.
        partitions: The requested number.
    """
    return RejectedError(
        f"Spark {minor} cannot change the number of state partitions to {partitions}.",
        exists="The number of partitions is unchanged.",
        remedy="Start with Spark 4.2 or newer, or without --state-partitions (state_partitions).",
        state_partitions=partitions,
    )


def cannot_load_projects(minor: str) -> MissingRequirementError:
    """Returns the error for a Spark Declarative Pipelines project where Spark has no definitions of one, or lacks some of them.

    Args:
        minor: The Spark's minor version.
    """
    return MissingRequirementError(
        f"Spark {minor} lacks definitions that a Spark Declarative Pipelines project is loaded with.",
        exists="They are in Spark 4.2 and newer.",
        remedy="Load the project with one of those, or write the pipeline in Python: it runs on Spark "
        f"{', '.join(SUPPORTED[:-1])} and {NEWEST}.",
        found=minor,
    )
