"""Copies the end of a driver's logs to the store of its home, for hosts that do not have its cache."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spark_jobs.background import run_every
from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.storage.files import Files

_SHOWN_BYTES = 256 << 10
_INTERVAL_S = 10.0
_LOG = logging.getLogger(__name__)


@contextmanager
def shown(home: Files, *logs: str, mask: Mask = unmasked, interval_s: float = _INTERVAL_S) -> Iterator[None]:
    """Copies the end of each log while the context is open, and once more when it closes. Does nothing for a home that is a directory.

    The copies are a hint: a failed copy is tried again at the next interval, and a killed driver has copied its log until then.

    Args:
        home: The home.
        logs: Paths in it. Missing ones are left out.
        mask: Removes secrets from the copies.
        interval_s: Interval of the checks.
    """
    if not isinstance(home, HomeInStore):
        yield
        return
    sizes: dict[str, int] = {}
    look = partial(_show, home, logs, mask, sizes)
    try:
        with run_every(interval_s, look, "shown-logs"):
            yield
    finally:
        look()


def _show(home: HomeInStore, logs: Sequence[str], mask: Mask, sizes: dict[str, int]) -> None:
    """Runs one check. ``sizes`` has the length of each log at its last copy."""
    for log in logs:
        try:
            path = home.local(log)
            if path is None or not path.is_file() or (size_bytes := path.stat().st_size) == sizes.get(log):
                continue
            home.documents.replace(log, mask(_end(path).decode(errors="replace")).encode())
            sizes[log] = size_bytes
        except (OSError, StreamPipelineError) as error:
            _LOG.warning("%s could not be shown in %s: %s", log, home.url, error)


def _end(path: Path) -> bytes:
    """Returns the last complete lines of a file."""
    with path.open("rb") as file:
        begin = max(0, file.seek(0, 2) - _SHOWN_BYTES)
        file.seek(begin)
        end = file.read(_SHOWN_BYTES)
    return end.partition(b"\n")[2] if begin else end
