"""How far a pipeline has to be for a task to end. No I/O, no clock of its own: an operator and a trigger share it."""

from enum import StrEnum

from spark_jobs.protocol.documents import RunState, StageState, Status

IDLE_S = 30.0
"""A pipeline whose inputs have no rows does no batch: after so long without a failure it counts as running all the same."""


class WaitFor(StrEnum):
    """What ends a task. Whatever it waits for, an answer ends it, too."""

    FINAL_CHECKPOINT = "final_checkpoint"
    """The answer; a pipeline that has none is supervised for as long as it lives."""
    RUNNING = "running"
    """Its pipeline runs: no stage is failing, and it has done a batch or a checkpoint, or has had nothing to do for :data:`IDLE_S`."""
    SUBMITTED = "submitted"
    """A driver was started, or was there."""


class Goal:
    """Whether one attempt is as far as a task waits for.

    Args:
        wait_for: How far that is.
        idle_s: How long an attempt without rows has to run until it counts as running.
    """

    def __init__(self, wait_for: WaitFor, idle_s: float = IDLE_S) -> None:
        self._wait_for, self._idle_s = wait_for, idle_s
        self._runs_since_s: float | None = None

    def is_reached(self, status: Status | None, now_s: float, *, started: bool) -> bool:
        """Whether it is by now.

        Args:
            status: The heartbeat of the attempt; None: there is none.
            now_s: On a clock that only goes forward.
            started: Whether its driver was started.
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
