"""Decides when a pipeline has reached the goal of its task. Reads no home and no clock, so operators and triggers share it."""

from enum import StrEnum

from spark_jobs.protocol.documents import RunState, StageState, Status

IDLE_S = 30.0
"""A pipeline without new input runs no batch. It counts as running after this time without a failure."""


class WaitFor(StrEnum):
    """The event that ends a task. An answer to its start request always ends it, too."""

    FINAL_CHECKPOINT = "final_checkpoint"
    """The answer. A pipeline without an end is supervised for as long as it lives."""
    RUNNING = "running"
    """The pipeline runs: no stage is failing, and it has completed a batch or a checkpoint, or was idle for :data:`IDLE_S`."""
    SUBMITTED = "submitted"
    """A driver was started, or was already at work."""


class Goal:
    """Decides for one attempt whether it has reached the goal of its task.

    Args:
        wait_for: The event that the task waits for.
        idle_s: How long an attempt without input has to run until it counts as running.
    """

    def __init__(self, wait_for: WaitFor, idle_s: float = IDLE_S) -> None:
        self._wait_for, self._idle_s = wait_for, idle_s
        self._runs_since_s: float | None = None

    @property
    def follows(self) -> bool:
        """True if the goal depends on the driver's activity, and not only on its start and its answer."""
        return self._wait_for is WaitFor.RUNNING

    def is_reached(self, status: Status | None, now_s: float, *, started: bool) -> bool:
        """Returns True if the attempt has reached the goal.

        Args:
            status: The heartbeat of the attempt; None: there is none.
            now_s: The time on a monotonic clock.
            started: True if its driver was started.
        """
        match self._wait_for:
            case WaitFor.FINAL_CHECKPOINT:
                return False
            case WaitFor.SUBMITTED:
                return started
        states = {stage.state for stage in status.stages.values()} if status is not None else set()
        fails = not states.isdisjoint({StageState.RESTARTING, StageState.FAILED})
        if status is None or status.state is not RunState.RUNNING or fails:
            self._runs_since_s = None
            return False
        if self._runs_since_s is None:
            self._runs_since_s = now_s
        worked = status.checkpoint is not None or any(stage.batch is not None for stage in status.stages.values())
        return worked or now_s - self._runs_since_s >= self._idle_s
