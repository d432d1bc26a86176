"""The right of a task's process to end a driver, and the end of that driver when Airflow kills the task."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from airflow_provider.drivers.driver_log import driver_log, driver_output, log_last_lines
from airflow_provider.drivers.local_driver import STOP_GRACE_S, LocalDriver
from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.orders import StartOrder
from airflow_provider.version_compat import TaskDeferred
from spark_jobs.background import run_with_deadline
from spark_jobs.control.cancelling import cancelled_by_user
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.lease_table import LeaseAction, LeaseEvent
from spark_jobs.control.refused_starts import forget_refused_start
from spark_jobs.control.supervision import End, Restart, after_end, answer_for_unstarted, is_error_of_wait
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    InterruptedRunError,
    RejectedError,
    RunCancelledError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId, start_request_id
from spark_jobs.waits.limits import LIMITS, WaitLimits

T = TypeVar("T")

KILL_LIMIT_S = 4.0
"""The time for ending the driver of a killed task. Airflow kills the process five seconds after it has asked it to end."""
_OWNER_LIMIT_S = 1.5
"""The part of :data:`KILL_LIMIT_S` for reading the owner of the attempt from the home."""
_CANCEL_LIMIT_S = 1.0
"""The part of :data:`KILL_LIMIT_S` for storing the cancel in the home."""


class DriverLease:
    """The lease of a task on one attempt: only its newest owner may cancel the attempt. A new lease holds nothing.

    Args:
        hook: Reads and writes the home.
        home: The home.
        log: The task's log.
        limits: The time limits of the task.
    """

    def __init__(self, hook: StreamPipelineHook, home: str, log: Any, limits: WaitLimits = LIMITS) -> None:
        self._hook, self._home, self._log, self._limits = hook, home, log, limits
        self.driver: LocalDriver | None = None
        """The driver that this process has started."""
        self.held: tuple[AttemptNumber, OwnerNumber] | None = None
        """The attempt, and this task's owner number."""
        self._kill_by_s: float | None = None
        self._cancelled: tuple[AttemptNumber, OwnerNumber] | None = None
        self._not_stored: tuple[AttemptNumber, StorageError] | None = None

    def check_not_cancelled(self, run: RunId) -> None:
        """Refuses to continue a run that was cancelled.

        Raises:
            PipelineRunRefusedError: See :func:`spark_jobs.control.cancelling.cancelled_by_user`.
        """
        cancelled = cancelled_by_user(self._hook.files(self._home), run)
        if cancelled is not None:
            raise PipelineRunRefusedError(cancelled)

    def take(self, attempt: AttemptNumber, token: str) -> None:
        """Makes ``token`` the newest owner of an attempt. Idempotent, durable on return."""
        self.held = (attempt, self._lease_of(attempt).take(token).owner)

    def start(self, order: StartOrder) -> AttemptNumber:
        """Requests a run and starts a driver for it; see :meth:`StreamPipelineHook.submit`."""
        request, driver = self._hook.submit(self._home, order)
        self.driver = driver
        what = "spark-submit" if driver.submits else "its driver"
        self._log.info("Requested attempt %s; %s is process %s.", request.attempt, what, driver.pid)
        self._log.info("Its output: %s", driver.output)
        return request.attempt

    def cancel(self, reason: str) -> None:
        """Ends the attempt unless another owner has taken it: at once if the driver is a process of this task.

        If the storage is unavailable, a driver that is a process of this task is ended, and any other driver goes on until a retry.

        Args:
            reason: Stored with the cancel.
        """
        by_s = time.monotonic() + self._limits.lease_s
        self._end(reason, by_s, by_s)
        self.log_unstored_cancel()

    def kill(self, reason: str) -> bool:
        """Cancels from a signal handler, and again later, because the signal may have come before the driver was known.

        All calls together take at most ``KILL_LIMIT_S``, even if the driver or the storage hangs. Nothing is logged, because the
        interrupted code may hold the log's lock.

        Args:
            reason: Stored with the cancel.

        Returns:
            True if a driver was stopped, or its cancel was stored in the home.
        """
        if self.driver is None and self.held is None:
            return False
        now_s = time.monotonic()
        if self._kill_by_s is None:
            self._kill_by_s = now_s + KILL_LIMIT_S
        return self._end(reason, min(now_s + _OWNER_LIMIT_S, self._kill_by_s), self._kill_by_s)

    def _end(self, reason: str, owner_by_s: float, by_s: float) -> bool:
        """Stops this process's driver and stores the cancel of the attempt, unless another owner has taken the attempt.

        Args:
            reason: Stored with the cancel.
            owner_by_s: Deadline for reading the owner, by ``time.monotonic``.
            by_s: Deadline for all of it, by ``time.monotonic``.

        Returns:
            See :meth:`kill`.
        """
        held, driver = self.held, self.driver
        if driver is not None and not driver.was_stopped and (held is None or self._is_owner(*held, owner_by_s)):
            # The driver is stopped first, because a full home cannot store the cancel.
            driver.stop(min(STOP_GRACE_S, max(0.0, by_s - _CANCEL_LIMIT_S - time.monotonic())))
        if held is not None and held != self._cancelled:
            attempt, owner = held
            try:
                _before(by_s, lambda: self._lease_of(attempt).cancel(owner, reason))
                self._cancelled = held
                self._not_stored = None
            except StorageError as error:
                self._not_stored = (attempt, error)
        return self._cancelled is not None or (driver is not None and driver.was_stopped and not driver.submits)

    def log_unstored_cancel(self) -> None:
        """Logs a cancel that could not be stored."""
        if self._not_stored is not None:
            self._log.warning("The cancel of attempt %s could not be written into its home: %s", *self._not_stored)
            self._not_stored = None

    def _is_owner(self, attempt: AttemptNumber, owner: OwnerNumber, by_s: float) -> bool:
        """Returns True if no other owner has taken the attempt, or if the home cannot be read. A retry continues from the durable state."""
        try:
            decision = _before(by_s, lambda: self._lease_of(attempt).decide(LeaseEvent.TASK_ENDS_DRIVER, owner))
            return decision.action is LeaseAction.END
        except StreamPipelineError:
            return True

    def _lease_of(self, attempt: AttemptNumber) -> AttemptLease:
        return AttemptLease(self._hook.files(self._home), attempt)

    def wait_for_end(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` for the end of this process's driver, which has answered. Logs a driver that has not ended then."""
        if self.driver is not None and not self.driver.wait(timeout_s):
            self._log.info("The driver, process %s, has answered but has not ended yet.", self.driver.pid)

    def leave_running(self, attempt: AttemptNumber, token: str) -> None:
        """Leaves the driver at work for good. From now on, a kill of this task cannot cancel it."""
        self.release_driver()
        self.take(attempt, f"left at work by {token}")

    def release_driver(self) -> None:
        """Forgets the driver's process, which goes on."""
        if self.driver is not None:
            self.driver.detach()
            self.driver = None

    def abandon(self, attempt: AttemptNumber, error: StreamPipelineError) -> None:
        """Answers the request of a submitted driver that has not begun, so that it ends at its start.

        A driver that has begun is left alone. If the first start of a home was refused, it is deleted from the home.

        Args:
            attempt: The attempt.
            error: The error with which the wait for the attempt has ended. It becomes the answer.
        """
        if self._hook.submits and not isinstance(error, DeadlineExceededError | StorageError):
            owner = None if self.held is None else self.held[1]
            answer_for_unstarted(self._hook.files(self._home), attempt, error, owner)
        if isinstance(error, RejectedError):
            with suppress(StorageError):  # the task fails with its own error
                forget_refused_start(self._hook.files(self._home), attempt)

    def was_ended_by_earlier_owner(self, error: StreamPipelineError) -> bool:
        """Returns True if a previous owner has ended the attempt. This task then continues with the next attempt."""
        if self.held is None or not isinstance(error, InterruptedRunError):
            return False
        attempt, owner = self.held
        if isinstance(error, RunCancelledError):
            before = int(error.evidence.get("owner", 0)) < owner
        else:
            answer = Channel(self._hook.files(self._home)).response(start_request_id(attempt))
            decision = self._lease_of(attempt).decide(LeaseEvent.WAIT_HAS_FAILED, owner)
            before = answer is None and decision.action is LeaseAction.RETAKE
        if before:
            self._log.info("Attempt %s was cancelled by its previous owner; the next one begins.", attempt)
        return before

    def later_cancel(self, error: StreamPipelineError) -> RunCancelledError | None:
        """Returns a later owner's cancel of the attempt, also if the driver has ended with another error.

        Args:
            error: The error with which the wait for the attempt has ended.

        Returns:
            The cancel; None if there is none, or if the home cannot be read.
        """
        try:
            return _before(time.monotonic() + self._limits.lease_s, lambda: self._later_cancel(error))
        except StorageError as silent:
            self._log.warning("The home does not say whether the attempt was cancelled: %s", silent)
            return None

    def _later_cancel(self, error: StreamPipelineError) -> RunCancelledError | None:
        if self.held is None:
            return None
        attempt, owner = self.held
        files = self._hook.files(self._home)
        if is_error_of_wait(Channel(files).response(start_request_id(attempt)), error):
            return None
        decision = AttemptLease(files, attempt).decide(LeaseEvent.WAIT_HAS_FAILED, owner)
        if decision.action is not LeaseAction.END:
            return None
        if isinstance(error, RunCancelledError):
            return error
        assert decision.cancel is not None
        return RunCancelledError(
            f"Attempt {attempt} was cancelled: {decision.cancel.reason}.",
            exists=f"It has ended with {type(error).__name__}: {error.failed}",
            remedy="To continue from there, run it again, or clear the task.",
            attempt=attempt,
            owner=decision.cancel.owner,
        )

    def after_end(self, error: StreamPipelineError) -> Restart | End | None:
        """Returns the decision that follows the end of the attempt; see :func:`spark_jobs.control.supervision.after_end`."""
        held = self.held
        if held is None:
            return None
        try:
            following = _before(
                time.monotonic() + self._limits.lease_s, lambda: after_end(self._hook.files(self._home), *held, error)
            )
        except StorageError as silent:
            self._log.warning("A retry decides what follows the end of attempt %s: %s", held[0], silent)
            return None
        if isinstance(following, Restart):
            self._log.warning("Attempt %s failed; %s follows. %s", held[0], following, error)
        return following

    def log_driver(self, attempt: AttemptNumber, secrets: Mapping[str, str]) -> None:
        """Writes the last lines of an attempt's driver into the task's log, with the values of its ``secrets`` masked."""
        self._hook.hide_secrets(secrets)

        def log_lines() -> None:
            files = self._hook.files(self._home)
            log_last_lines(self._log, driver_log(files, attempt), driver_output(files, attempt))

        with suppress(StorageError):  # the task fails with its own error
            _before(time.monotonic() + self._limits.lease_s, log_lines)


class TaskKillHandler:
    """Ends a task's driver when Airflow kills the task. One per task process.

    Airflow also kills a process whose task has ended, if its callbacks take longer than ``[core] task_success_overtime`` or its worker
    stops. The handler then ends nothing, because the task has left its driver at work.
    """

    def __init__(self) -> None:
        self.was_killed = False
        """True if Airflow has killed the task."""
        self._cancelled = False
        self._lease: DriverLease | None = None

    def guard(self, lease: DriverLease | None) -> None:
        """Sets the lease whose driver a kill ends from now on; None: a kill ends nothing."""
        self._lease = lease

    def handle(self) -> None:
        """Ends the driver. Called from a signal handler."""
        self.was_killed = True
        if self._lease is not None:
            self._cancelled = self._lease.kill("its task was killed")

    def check(self, home: str) -> None:
        """Raises an error in a killed task. If the task returned, Airflow would mark it as successful.

        Raises:
            InterruptedRunError: The task was killed.
        """
        if self.was_killed:
            self.handle()  # again, because the signal may have come before the driver was known
            if self._lease is not None:
                self._lease.log_unstored_cancel()
            raise killed(home, cancelled=self._cancelled)

    @contextmanager
    def during_try(self, home: str) -> Iterator[None]:
        """A context around the whole work of a try. A kill after an ``execution_timeout`` still ends the interrupted driver.

        Raises:
            InterruptedRunError: The task was killed during the try. It then neither returns nor is deferred.
        """
        deferral = None
        try:
            yield
        except TaskDeferred as deferred:
            deferral = deferred
        except Exception:
            self._lease = None
            raise
        self.check(home)
        self._lease = None
        self.check(home)  # the kill may have come since
        if deferral is not None:
            raise deferral


def killed(home: str, *, cancelled: bool) -> InterruptedRunError:
    """Returns the error of a killed task, which may have cancelled its driver or left it at work."""
    return InterruptedRunError(
        "The task was killed.",
        exists="Its driver was cancelled." if cancelled else "If it has a driver, that driver goes on.",
        remedy="A retry resumes." if cancelled else "A retry waits for that driver, or resumes.",
        home=home,
    )


def _before(by_s: float, work: Callable[[], T]) -> T:
    """Returns the result of ``work``. Raises StorageError if it has not ended at ``by_s``."""
    late = StorageError(
        "The home's storage does not answer.",
        safe="Completed checkpoints and published rows stay.",
        remedy="A driver that is a process of this task was ended. Any other driver goes on, and a retry waits for it. To end it, run "
        "spark-jobs cancel when the storage is back.",
    )
    return run_with_deadline(work, by_s, lambda: late)
