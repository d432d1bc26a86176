"""The driver's own log in the home as rotated JSON lines, and a size limit for the output of its processes."""

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path

from spark_jobs.background import run_every
from spark_jobs.protocol.masking import Mask, masked_value
from spark_jobs.storage.os_errors import translated

_SIZE_MAX_BYTES = 20_000_000
_FILES = 3
_LOOK_S = 60.0
_EXTRAS = ("stage", "progress")


class _JsonLines(logging.Formatter):
    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _EXTRAS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(masked_value(json.loads(json.dumps(line, default=str)), self._mask))


class _BoundedFile(RotatingFileHandler):
    """A log file. It drops a line that it cannot write, as on a full disk: everything important is in documents, whose errors count."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drops the line."""

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def driver_log(path: Path, mask: Mask, *, size_max_bytes: int = _SIZE_MAX_BYTES) -> Iterator[None]:
    """Writes the logs of ``spark_jobs`` to ``path`` while the context is open, and the error that ends it, if any.

    Args:
        path: The file.
        mask: Removes secrets from the log.
        size_max_bytes: Size at which the file is rotated.

    Raises:
        StorageError: The file cannot be opened.
    """
    with translated(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _BoundedFile(path, maxBytes=size_max_bytes, backupCount=_FILES, encoding="utf-8")
    handler.setFormatter(_JsonLines(mask))
    logger = logging.getLogger("spark_jobs")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    except BaseException:
        logger.error("the attempt ends with an error", exc_info=True)
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


@contextmanager
def bounded_outputs(*paths: Path, size_max_bytes: int = _SIZE_MAX_BYTES, interval_s: float = _LOOK_S) -> Iterator[None]:
    """Limits the size of output files of long-running processes while the context is open.

    The process holds the file open, so a file that is too long is copied to one that ends in ``.1``, and is then emptied. A line that is
    printed at that moment can be lost.

    Args:
        paths: Files that are open for appending. Missing ones are left alone.
        size_max_bytes: Maximum size.
        interval_s: Interval of the checks.
    """
    with run_every(interval_s, partial(bound, paths, size_max_bytes), "bounded-outputs"):
        yield


def bound(paths: Sequence[Path], size_max_bytes: int) -> None:
    """Runs one check of :func:`bounded_outputs`. A file with an error is left alone."""
    for path in paths:
        try:
            if path.is_file() and path.stat().st_size > size_max_bytes:
                shutil.copyfile(path, path.with_name(f"{path.name}.1"))
                with path.open("r+b") as file:
                    file.truncate(0)
        except OSError as error:
            logging.getLogger(__name__).warning("%s grows: %s", path, error)
