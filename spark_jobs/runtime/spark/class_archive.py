"""An archive of Spark's classes, as a JVM has read and verified them, for the next JVM on this host.

A JVM loads some twenty thousand classes before Spark's first batch, and a short run does little else. Java's class data sharing maps them
from an archive instead. The archive is for one Java, one Spark and their paths. A JVM that finds another archive starts without it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from spark_jobs.runtime.spark.jvm_options import JVM_OPTIONS, added
from spark_jobs.runtime.spark.spark_facts import SPARK_VERSION

_TAKES, _MAKES = "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit"
_SILENT = "-Xlog:cds*=off -Xlog:class+path=off"
"""Options that keep the JVM from reporting an unsuitable archive on standard output, which belongs to the command's answer."""


def archive_path(java_version: str, prefix: Path | None = None) -> Path:
    """Returns the path of the archive, next to the installed packages that it belongs to.

    Args:
        java_version: Version of Java, such as ``17.0.2``.
        prefix: The directory of the Python environment; by default this process's.
    """
    names = f"spark-{SPARK_VERSION}-delta-{version('delta-spark')}-java-{java_version}"
    return (prefix or Path(sys.prefix)) / "share" / "spark-jobs" / f"{names}.jsa"


@contextmanager
def using(archive: Path) -> Iterator[None]:
    """Lets JVMs that are started while open use the archive, if it exists and is not being made."""
    usable = archive.is_file() and _MAKES not in os.environ.get(JVM_OPTIONS, "")
    with added(f"{_SILENT} {_quoted(_TAKES, archive)}" if usable else ""):
        yield


@contextmanager
def making(archive: Path) -> Iterator[None]:
    """Makes the JVM that runs while open write the archive, completely or not at all.

    Raises:
        FileNotFoundError: The JVM has not written it.
        OSError: The directory cannot be written.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f".{os.getpid()}.{archive.name}")
    try:
        with added(f"-Xlog:disable {_quoted(_MAKES, unfinished)}"):
            yield
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)


def _quoted(option: str, path: Path) -> str:
    """Returns an option quoted for Spark's launcher, which splits a text into words."""
    return f'"{option}={path}"'
