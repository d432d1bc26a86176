"""Decides when a periodic checkpoint is due, and how many failed ones are too many. Pure: the time is an argument.

A requested checkpoint waits for neither interval nor pause. It leaves the next periodic one where it was planned, or moves it to
``min_pause_s`` after its own end if that is later. A failed one counts like any other, as a manually triggered checkpoint does in Flink. A
failed savepoint does not count: it is always aligned, which the pipeline's own checkpoints need not be.
"""

from dataclasses import dataclass, field

from spark_jobs.protocol.checkpointing import Checkpointing


@dataclass
class CheckpointSchedule:
    """Flink's rules (``execution.checkpointing``): a trigger every ``interval_s``, but none within ``min_pause_s`` of an end.

    A trigger that is late moves no later one. Triggers that are missed are left out.

    Args:
        interval_s: Between the times at which two triggers are due.
        min_pause_s: Between the end of a try and the next trigger.
        tolerable_failures: Number of consecutive tries that may fail. A complete checkpoint resets the count. None: any number.
        began_s: Time at which the pipeline began to run.
    """

    interval_s: float
    min_pause_s: float
    tolerable_failures: int | None
    began_s: float
    failures: int = 0
    """Failed tries since the last complete checkpoint, without savepoints."""
    _due_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._due_s = self.began_s + self.interval_s

    @staticmethod
    def declared(given: Checkpointing, began_s: float) -> "CheckpointSchedule":
        """Returns the schedule of a pipeline that began to run at ``began_s``."""
        return CheckpointSchedule(given.interval_ms / 1000, given.min_pause_ms / 1000, given.tolerable_failures, began_s)

    def is_due(self, now_s: float) -> bool:
        """Returns True if a periodic checkpoint is to be triggered."""
        return now_s >= self._due_s

    def completed(self, triggered_s: float, now_s: float) -> None:
        """Counts a complete checkpoint, and plans the next one."""
        self.failures = 0
        self._plan(triggered_s, now_s)

    def skipped(self, now_s: float) -> None:
        """Plans the next checkpoint after the interval, because none was needed."""
        self._plan(now_s, now_s)

    def failed(self, triggered_s: float, now_s: float, *, counts: bool = True) -> bool:
        """Counts a failed try, and plans the next one. Returns whether the pipeline may go on."""
        self.failures += counts
        self._plan(triggered_s, now_s)
        return self.tolerable_failures is None or self.failures <= self.tolerable_failures

    def _plan(self, triggered_s: float, now_s: float) -> None:
        if self.is_due(triggered_s):
            late_s = (triggered_s - self._due_s) % self.interval_s if self.interval_s else 0.0
            self._due_s = triggered_s - late_s + self.interval_s
        self._due_s = max(self._due_s, now_s + self.min_pause_s)
