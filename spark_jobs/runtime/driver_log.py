"""The driver's own log in the home: JSON lines, rotated."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from spark_jobs.protocol.masking import Mask

_SIZE_MAX_BYTES = 20_000_000
_FILES = 3
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
        return self._mask(json.dumps(line, default=str))


@contextmanager
def driver_log(path: Path, mask: Mask) -> Iterator[None]:
    """Writes what ``spark_jobs`` logs to ``path`` while the context is open; what ends it with an error is logged too.

    Args:
        path: The file.
        mask: Takes secrets out of what is written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=_SIZE_MAX_BYTES, backupCount=_FILES, encoding="utf-8")
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
