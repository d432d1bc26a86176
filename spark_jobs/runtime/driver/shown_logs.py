"""What a driver says, for hosts that do not have its workspace: the end of its logs, in the home's own storage."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spark_jobs.control.home import DividedHome
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.masking import Mask, unmasked
from spark_jobs.storage.beside import every
from spark_jobs.storage.files import Files

_SHOWN_BYTES = 256 << 10
_INTERVAL_S = 10.0
_LOG = logging.getLogger(__name__)


@contextmanager
def shown(home: Files, *logs: str, mask: Mask = unmasked, interval_s: float = _INTERVAL_S) -> Iterator[None]:
    """Shows the end of each log while the context is open, and once more when it closes. Nothing to do where the home is a directory.

    A hint: what could not be shown is tried again at the next look, and a driver that is killed has shown what it said until then.

    Args:
        home: The home.
        logs: Paths in it; what is not there is left out.
        mask: Takes secrets out of what is shown.
        interval_s: Between two looks at what has changed.
    """
    if not isinstance(home, DividedHome):
        yield
        return
    sizes: dict[str, int] = {}
    look = partial(_show, home, logs, mask, sizes)
    try:
        with every(interval_s, look, "shown-logs"):
            yield
    finally:
        look()


def _show(home: DividedHome, logs: Sequence[str], mask: Mask, sizes: dict[str, int]) -> None:
    """One look; ``sizes`` is how long each log was when it was shown last."""
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
    """The last whole lines of a file."""
    with path.open("rb") as file:
        begin = max(0, file.seek(0, 2) - _SHOWN_BYTES)
        file.seek(begin)
        end = file.read(_SHOWN_BYTES)
    return end.partition(b"\n")[2] if begin else end
