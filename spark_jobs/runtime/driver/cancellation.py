"""Ends an attempt that its owner has cancelled in the home."""

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType

from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.lease_table import LeaseAction, LeaseEvent
from spark_jobs.protocol.errors import ExitCode, RunCancelledError, StreamPipelineError
from spark_jobs.protocol.ownership import CancelRequest

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 1.0
_PATIENCE_S = 30.0


def _end_process() -> None:
    os._exit(ExitCode.FAILED)


class Cancellation:
    """Looks for a cancel once at the beginning, and while the context is open. :meth:`check` raises it.

    If a process has not left the context ``patience_s`` after a cancel, because Spark does not return, it is killed: every step of a run
    survives that.

    Args:
        lease: The lease of this attempt.
        interval_s: Interval of the checks.
        patience_s: Time from the first sight of a cancel to the kill.
        end: Ends the process.
    """

    def __init__(
        self,
        lease: AttemptLease,
        *,
        interval_s: float = _INTERVAL_S,
        patience_s: float = _PATIENCE_S,
        end: Callable[[], None] = _end_process,
    ) -> None:
        self._lease = lease
        self._interval_s, self._patience_s, self._end = interval_s, patience_s, end
        self._request: CancelRequest | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cancellation", daemon=True)

    def __enter__(self) -> "Cancellation":
        self._look()  # a driver may begin long after its request, and be cancelled by then
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()

    def check(self) -> None:
        """Refuses to go on after a cancel was seen.

        Raises:
            RunCancelledError: The owner of the attempt has cancelled it.
        """
        request = self._request
        if request is None:
            return
        raise RunCancelledError(
            f"Attempt {request.attempt} was cancelled: {request.reason}.",
            exists="Staged batches and complete checkpoints stay.",
            safe="Only rows of complete checkpoints were published.",
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
            decision = self._lease.decide(LeaseEvent.ATTEMPT_CONTINUES)
            self._request = decision.cancel if decision.action is LeaseAction.END else None
        except StreamPipelineError as error:
            _LOG.warning("the cancel requests of the attempt cannot be read: %s", error)
