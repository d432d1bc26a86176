"""The time limits of a try: the task's own, and Airflow's, which Airflow does not enforce while a task is deferred."""

import time
from dataclasses import dataclass, field

from airflow.sdk import BaseOperator

from spark_jobs.control.supervision import Restart
from spark_jobs.protocol.errors import DeadlineExceededError


@dataclass(frozen=True)
class TimeLimits:
    """The time limits of one try."""

    own_s: float | None
    """The task's own limit."""
    airflows_s: float | None
    """The task's ``execution_timeout``."""
    began_at: float = field(default_factory=time.time)
    """The start of the try, in seconds since 1970."""

    @property
    def first_s(self) -> float | None:
        """The shorter limit; None without limits."""
        return min((limit_s for limit_s in (self.own_s, self.airflows_s) if limit_s is not None), default=None)

    @property
    def airflows_is_first(self) -> bool:
        """True if Airflow's limit ends a deferred wait."""
        return self.airflows_s is not None and self.first_s == self.airflows_s

    @property
    def own_at(self) -> float | None:
        """The end of a wait in a worker, in seconds since 1970. Airflow itself enforces its limit there."""
        return None if self.own_s is None else self.began_at + self.own_s

    @property
    def first_at(self) -> float | None:
        """The end of a deferred wait, in seconds since 1970."""
        return None if self.first_s is None else self.began_at + self.first_s


def time_limits(task: BaseOperator, own_s: float | None = None, began_at: float | None = None) -> TimeLimits:
    """Returns the limits of a task's try that began at ``began_at``, in seconds since 1970; None: it begins now."""
    airflows_s = None if task.execution_timeout is None else task.execution_timeout.total_seconds()
    return TimeLimits(own_s, airflows_s, time.time() if began_at is None else began_at)


def not_due(restart: Restart, timeout_s: float | None) -> DeadlineExceededError:
    """Returns the error of a wait that ends before a restart is due."""
    return DeadlineExceededError(
        f"Attempt {restart.after} has failed, and its restart is due later than {timeout_s or 0.0:g} s after the task's start.",
        safe="Completed checkpoints and published rows stay.",
        remedy="A retry starts the next attempt when it is due. Otherwise raise timeout_s, or leave it out.",
        attempt=restart.after,
    )
