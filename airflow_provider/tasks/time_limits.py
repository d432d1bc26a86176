"""When a try has to have ended: by the limit of its own, and by Airflow's, which Airflow does not enforce while a task is deferred."""

import time
from dataclasses import dataclass, field

from airflow.sdk import BaseOperator

from spark_jobs.control.supervision import Restart
from spark_jobs.protocol.errors import DeadlineExceededError


@dataclass(frozen=True)
class TimeLimits:
    """The limits of one try, which has begun when this is made."""

    own_s: float | None
    """What the task waits at most."""
    airflows_s: float | None
    """Its ``execution_timeout``."""
    began_at: float = field(default_factory=time.time)
    """In seconds since 1970."""

    @property
    def first_s(self) -> float | None:
        """The shorter one; None: there is none."""
        return min((limit_s for limit_s in (self.own_s, self.airflows_s) if limit_s is not None), default=None)

    @property
    def airflows_is_first(self) -> bool:
        """Whether a deferred wait ends by Airflow's limit."""
        return self.airflows_s is not None and self.first_s == self.airflows_s

    @property
    def own_at(self) -> float | None:
        """When a wait in a worker ends, where Airflow sees to its own limit; in seconds since 1970."""
        return None if self.own_s is None else self.began_at + self.own_s

    @property
    def first_at(self) -> float | None:
        """When a deferred wait ends, in seconds since 1970."""
        return None if self.first_s is None else self.began_at + self.first_s


def time_limits(task: BaseOperator, own_s: float | None = None, began_at: float | None = None) -> TimeLimits:
    """The limits of the try of a task that has begun then, in seconds since 1970; None: that begins now."""
    airflows_s = None if task.execution_timeout is None else task.execution_timeout.total_seconds()
    return TimeLimits(own_s, airflows_s, time.time() if began_at is None else began_at)


def not_due(restart: Restart, timeout_s: float | None) -> DeadlineExceededError:
    """That a wait is over before a restart is due."""
    return DeadlineExceededError(
        f"Attempt {restart.after} has failed, and its restart is not due within {timeout_s or 0.0:g} s from the task's start.",
        safe="Completed checkpoints, and what was published, stay.",
        remedy="A retry starts the next attempt when it is due. Raise timeout_s, or leave it out.",
        attempt=restart.after,
    )
