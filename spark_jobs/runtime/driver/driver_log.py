"""The driver's own log in the home, JSON lines, rotated; and a bound for what its processes print."""

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path

from spark_jobs.protocol.masking import Mask, masked_value
from spark_jobs.storage.beside import every
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
    """A log file. A line that it cannot take, as on a full disk, is dropped: what has to be kept is in documents, whose errors count."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drops the line."""

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def driver_log(path: Path, mask: Mask) -> Iterator[None]:
    """Writes what ``spark_jobs`` logs to ``path`` while the context is open; what ends it with an error is logged too.

    Args:
        path: The file.
        mask: Takes secrets out of what is written.

    Raises:
        StorageError: The file cannot be opened.
    """
    with translated(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _BoundedFile(path, maxBytes=_SIZE_MAX_BYTES, backupCount=_FILES, encoding="utf-8")
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
    """Keeps files small that processes print into for months, while the context is open.

    Whoever prints holds the file open: what is too much is copied to a file that ends in ``.1``, and the file is emptied. A line that
    is printed just then can be lost.

    Args:
        paths: Files that are open for appending; those that are not there are left alone.
        size_max_bytes: What is longer is too much.
        interval_s: Between two looks.
    """
    with every(interval_s, partial(bound, paths, size_max_bytes), "bounded-outputs"):
        yield


def bound(paths: Sequence[Path], size_max_bytes: int) -> None:
    """One look of :func:`bounded_outputs`. A file that cannot be handled is left alone."""
    for path in paths:
        try:
            if path.is_file() and path.stat().st_size > size_max_bytes:
                shutil.copyfile(path, path.with_name(f"{path.name}.1"))
                with path.open("r+b") as file:
                    file.truncate(0)
        except OSError as error:
            logging.getLogger(__name__).warning("%s grows: %s", path, error)
