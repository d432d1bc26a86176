"""What a process of a task has in hand: the driver that it has started, and the attempt that it has taken charge of."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from airflow_provider.drivers.driver_log import log_last_lines
from airflow_provider.drivers.local_driver import STOP_GRACE_S, LocalDriver
from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.orders import StartOrder
from spark_jobs.control.cancelling import called_off
from spark_jobs.control.channel import Channel
from spark_jobs.control.owners import Owners
from spark_jobs.control.supervision import End, Restart, after_end, is_of_the_wait
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    InterruptedRunError,
    RejectedError,
    RunCancelledError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId, start_request_id
from spark_jobs.storage.beside import in_time

T = TypeVar("T")

KILL_LIMIT_S = 4.0
"""From a kill until the task has seen to its driver: Airflow kills a process five seconds after it has asked it to end."""
_CHARGE_LIMIT_S = 1.5
"""Of it, for the home to say who has charge."""
_KEEP_LIMIT_S = 1.0
"""Of it, for the home to keep the cancel."""
_LIMIT_S = 60.0
"""For the home to answer a task that was not killed."""


class Charge:
    """The charge of one attempt in one home; empty at first.

    Args:
        hook: Reads and writes the home.
        home: The home.
        log: The task's.
    """

    def __init__(self, hook: StreamPipelineHook, home: str, log: Any) -> None:
        self._hook, self._home, self._log = hook, home, log
        self.driver: LocalDriver | None = None
        """The one that this process has started."""
        self.held: tuple[AttemptNumber, OwnerNumber] | None = None
        """The attempt, and as whom."""
        self._kill_by_s: float | None = None
        self._cancelled: tuple[AttemptNumber, OwnerNumber] | None = None
        self._not_kept: tuple[AttemptNumber, StorageError] | None = None

    def check_not_called_off(self, run: RunId) -> None:
        """Refuses to go on with a run that somebody has cancelled.

        Raises:
            PipelineRunRefusedError: See :func:`spark_jobs.control.cancelling.called_off`.
        """
        cancelled = called_off(self._hook.files(self._home), run)
        if cancelled is not None:
            raise PipelineRunRefusedError(cancelled)

    def take(self, attempt: AttemptNumber, token: str) -> None:
        """Makes ``token`` the one who may cancel an attempt."""
        self.held = (attempt, self._hook.take_charge(self._home, attempt, token))

    def start(self, order: StartOrder) -> AttemptNumber:
        """Asks for a run and starts a driver for it; see :meth:`StreamPipelineHook.submit`."""
        request, driver = self._hook.submit(self._home, order)
        self.driver = driver
        what = "spark-submit" if driver.submits else "its driver"
        self._log.info("Requested attempt %s; %s is process %s.", request.attempt, what, driver.pid)
        self._log.info("Its output: %s", driver.output)
        return request.attempt

    def cancel(self, reason: str) -> None:
        """Ends the attempt, at once where its driver is a process of this one; not what somebody else has taken charge of.

        A storage that is away, or does not answer, keeps no driver alive that is a process of this one; one that is elsewhere goes on then,
        for the next try.

        Args:
            reason: Kept with the cancel.
        """
        now_s = time.monotonic()
        self._end(reason, now_s + _LIMIT_S, now_s + _LIMIT_S)
        self.log_kill()

    def kill(self, reason: str) -> bool:
        """As :meth:`cancel`, from a signal handler, and again where the signal may have come before the driver was known.

        All of it has ended ``KILL_LIMIT_S`` after the first call that has something in hand, whatever the driver and the storage do. It
        logs nothing: what the signal has interrupted may hold the log's lock.

        Returns:
            Whether a driver was stopped, or its cancel is in the home.
        """
        if self.driver is None and self.held is None:
            return False
        now_s = time.monotonic()
        if self._kill_by_s is None:
            self._kill_by_s = now_s + KILL_LIMIT_S
        return self._end(reason, min(now_s + _CHARGE_LIMIT_S, self._kill_by_s), self._kill_by_s)

    def _end(self, reason: str, charge_by_s: float, by_s: float) -> bool:
        held, driver = self.held, self.driver
        if driver is not None and not driver.was_stopped and (held is None or self._has_charge(*held, charge_by_s)):
            # First, as a home that is full takes no cancel.
            driver.stop(min(STOP_GRACE_S, max(0.0, by_s - _KEEP_LIMIT_S - time.monotonic())))
        if held is not None and held != self._cancelled:
            try:
                _in_time(lambda: self._hook.cancel(self._home, *held, reason), by_s)
                self._cancelled = held
                self._not_kept = None
            except StorageError as error:
                self._not_kept = (held[0], error)
        return self._cancelled is not None or (driver is not None and driver.was_stopped and not driver.submits)

    def log_kill(self) -> None:
        """Tells in the task's log what has become of the cancel, where that is worth a line."""
        if self._not_kept is not None:
            self._log.warning("That attempt %s is cancelled could not be written into its home: %s", *self._not_kept)
            self._not_kept = None

    def _has_charge(self, attempt: AttemptNumber, owner: OwnerNumber, by_s: float) -> bool:
        """Whether nobody else has; so it is, too, where nobody can say: a next try goes on from what is durable."""
        try:
            return _in_time(lambda: self._hook.has_charge(self._home, attempt, owner), by_s)
        except StreamPipelineError:
            return True

    def let_end(self, timeout_s: float) -> None:
        """Waits for the end of a driver that has answered."""
        if self.driver is not None and not self.driver.wait(timeout_s):
            self._log.info("The driver, process %s, has answered and is still on its way to its end.", self.driver.pid)

    def leave(self, attempt: AttemptNumber, token: str) -> None:
        """Leaves the driver at work for good: whoever has waited for it under ``token`` cancels it no more, however late."""
        self.let_go()
        self.take(attempt, f"left at work by {token}")

    def let_go(self) -> None:
        """Leaves the driver to itself."""
        if self.driver is not None:
            self.driver.let_go()
            self.driver = None

    def give_up(self, attempt: AttemptNumber, error: StreamPipelineError) -> None:
        """Sees to it that a driver that has not begun never does; one that goes on is left alone.

        Of a first start that was refused nothing stays.
        """
        if self._hook.submits and not isinstance(error, DeadlineExceededError | StorageError):
            self._hook.give_up(self._home, attempt, error, None if self.held is None else self.held[1])
        if isinstance(error, RejectedError):
            with suppress(StorageError):  # it is not what the task has failed with
                self._hook.forget_refused(self._home, attempt)

    def was_ended_before(self, error: StreamPipelineError) -> bool:
        """Whether who had charge of the attempt before has ended it: then this task goes on with the next one."""
        if self.held is None or not isinstance(error, InterruptedRunError):
            return False
        attempt, owner = self.held
        if isinstance(error, RunCancelledError):
            before = int(error.evidence.get("owner", 0)) < owner
        else:
            before = self._hook.ended_by_another(self._home, attempt, owner)
        if before:
            self._log.info("Attempt %s was cancelled by who had charge of it before; the next one begins.", attempt)
        return before

    def cancelled_since(self, error: StreamPipelineError) -> RunCancelledError | None:
        """That somebody else has taken charge of the attempt and has cancelled it, whatever its driver has ended with.

        Args:
            error: What the wait for it has ended with.

        Returns:
            None where nobody has, or the home does not say so.
        """
        try:
            return _in_time(lambda: self._cancelled_since(error), time.monotonic() + _LIMIT_S)
        except StorageError as silent:
            self._log.warning("Whether somebody has cancelled the attempt cannot be read: %s", silent)
            return None

    def _cancelled_since(self, error: StreamPipelineError) -> RunCancelledError | None:
        if self.held is None:
            return None
        attempt, owner = self.held
        files = self._hook.files(self._home)
        if is_of_the_wait(Channel(files).response(start_request_id(attempt)), error):
            return None
        owners = Owners(files, attempt)
        newest, asked = owners.newest(), owners.cancelled()
        if newest is None or asked is None or newest.owner <= owner:
            return None
        if isinstance(error, RunCancelledError):
            return error
        return RunCancelledError(
            f"Attempt {attempt} was cancelled: {asked.reason}.",
            exists=f"It has ended with {type(error).__name__}: {error.failed}",
            safe="Completed checkpoints, and what was published, stay.",
            remedy="Run it again, or clear the task, to go on from there.",
            attempt=attempt,
            owner=newest.owner,
        )

    def after_end(self, error: StreamPipelineError) -> Restart | End | None:
        """What follows from the end of the attempt; see :func:`spark_jobs.control.supervision.after_end`."""
        held = self.held
        if held is None:
            return None
        try:
            following = _in_time(lambda: after_end(self._hook.files(self._home), *held, error), time.monotonic() + _LIMIT_S)
        except StorageError as silent:
            self._log.warning("What follows from the end of attempt %s is for the next try: %s", held[0], silent)
            return None
        if isinstance(following, Restart):
            self._log.warning("Attempt %s failed; %s follows. %s", held[0], following, error)
        return following

    def log_driver(self, attempt: AttemptNumber, secrets: Mapping[str, str]) -> None:
        """Tells in the task's log what the driver of an attempt has said last, without the values of its ``secrets``."""
        self._hook.hide_secrets(secrets)

        def tell() -> None:
            log_last_lines(self._log, self._hook.driver_log(self._home, attempt), self._hook.driver_output(self._home, attempt))

        with suppress(StorageError):  # it is not what the task has failed with
            _in_time(tell, time.monotonic() + _LIMIT_S)


def _in_time(work: Callable[[], T], by_s: float) -> T:
    late = StorageError(
        "The home's storage does not answer.",
        safe="Completed checkpoints, and what was published, stay.",
        remedy="A driver that is a process of this task is ended all the same. Another one goes on, and a next try waits for it; if nobody "
        "wants it: spark-jobs cancel, once the storage is back.",
    )
    return in_time(work, by_s, lambda: late)
