"""Spark's classes as a JVM has read and verified them, kept for the next JVM on this host.

A JVM loads some twenty thousand classes before Spark's first batch; a short run does little else. Java's class data sharing maps them from
an archive instead. The archive fits one Java, one Spark and the place where they are: a JVM that finds another one goes without it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from spark_jobs.runtime.spark.spark_facts import SPARK_VERSION

_JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Options for the JVM that come before every other, so that a user's own, in ``spark-defaults.conf`` too, stay and win."""
_TAKES, _MAKES = "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit"
_SILENT = "-Xlog:cds*=off -Xlog:class+path=off"
"""Where an archive does not fit the JVM says so on standard output, which is a command's answer."""


def archive_path(java_version: str, prefix: Path | None = None) -> Path:
    """Where the archive is: with the installed packages that it belongs to, and gone with them.

    Args:
        java_version: Such as ``17.0.2``.
        prefix: The directory of the Python environment; by default this process's.
    """
    names = f"spark-{SPARK_VERSION}-delta-{version('delta-spark')}-java-{java_version}"
    return (prefix or Path(sys.prefix)) / "share" / "spark-jobs" / f"{names}.jsa"


@contextmanager
def using(archive: Path) -> Iterator[None]:
    """JVMs that are started while it is open use the archive, if there is one and none is being made."""
    usable = archive.is_file() and _MAKES not in os.environ.get(_JVM_OPTIONS, "")
    with _options(f"{_SILENT} {_quoted(_TAKES, archive)}" if usable else ""):
        yield


@contextmanager
def making(archive: Path) -> Iterator[None]:
    """The JVM that is started while it is open, and has ended when it closes, leaves the archive. Whole or not at all.

    Raises:
        FileNotFoundError: It has left none.
        OSError: The directory cannot be written.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f".{os.getpid()}.{archive.name}")
    try:
        with _options(f"-Xlog:disable {_quoted(_MAKES, unfinished)}"):
            yield
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)


def _quoted(option: str, path: Path) -> str:
    """An option as Spark's launcher splits a text into words."""
    return f'"{option}={path}"'


@contextmanager
def _options(options: str) -> Iterator[None]:
    standing = os.environ.get(_JVM_OPTIONS)
    os.environ[_JVM_OPTIONS] = f"{options} {standing or ''}".strip()
    try:
        yield
    finally:
        if standing is None:
            del os.environ[_JVM_OPTIONS]
        else:
            os.environ[_JVM_OPTIONS] = standing
