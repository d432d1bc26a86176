"""Ends an attempt that nobody wants any more: whoever has charge of it says so in the home."""

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType

from spark_jobs.control.owners import Owners
from spark_jobs.protocol.errors import ExitCode, RunCancelledError, StreamPipelineError
from spark_jobs.protocol.ownership import CancelRequest

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 1.0
_PATIENCE_S = 30.0


def _end_process() -> None:
    os._exit(ExitCode.FAILED)


class Cancellation:
    """Looks for a cancel while the context is open, and once before that; :meth:`check` raises it.

    A process that has not left the context ``patience_s`` after a cancel, because Spark does not let go, is ended as by a kill: every
    step of a run survives that.

    Args:
        owners: Of this attempt.
        interval_s: Between two looks.
        patience_s: From the first sight of a cancel.
        end: What ends the process.
    """

    def __init__(
        self,
        owners: Owners,
        *,
        interval_s: float = _INTERVAL_S,
        patience_s: float = _PATIENCE_S,
        end: Callable[[], None] = _end_process,
    ) -> None:
        self._owners = owners
        self._interval_s, self._patience_s, self._end = interval_s, patience_s, end
        self._request: CancelRequest | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cancellation", daemon=True)

    def __enter__(self) -> "Cancellation":
        self._look()  # a driver may begin long after it was asked for, and be unwanted by then
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()

    def check(self) -> None:
        """Refuses to go on once a cancel was seen.

        Raises:
            RunCancelledError: Whoever has charge of the attempt wants it to end.
        """
        request = self._request
        if request is None:
            return
        raise RunCancelledError(
            f"Attempt {request.attempt} was cancelled: {request.reason}.",
            exists="Batches that were staged, and complete checkpoints, stay.",
            safe="Nothing was published that is not in a complete checkpoint.",
            remedy="Run it again to go on from there.",
            attempt=request.attempt,
            owner=request.owner,
        )

    def _watch(self) -> None:
        while not self._closed.wait(self._interval_s):
            if self._request is None:
                self._look()
            if self._request is not None:
                _LOG.info("attempt %d is to end: %s", self._request.attempt, self._request.reason)
                break
        if not self._closed.wait(self._patience_s):
            _LOG.error("the attempt did not end within %.0f s of its cancel: the process ends now", self._patience_s)
            self._end()

    def _look(self) -> None:
        try:
            self._request = self._owners.cancelled()
        except StreamPipelineError as error:
            _LOG.warning("whether the attempt was cancelled cannot be read: %s", error)
