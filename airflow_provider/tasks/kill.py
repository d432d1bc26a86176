"""What becomes of what a task has in hand when Airflow asks its process to end."""

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider.tasks.charge import Charge
from airflow_provider.version_compat import TaskDeferred
from airflow_provider.waits.waiting import killed


class Kill:
    """That of one process.

    Airflow sends the signal also to a process whose task has ended: one whose callbacks take longer than ``[core]
    task_success_overtime``, or whose worker stops. It ends nothing then: what the task has left at work is to go on.
    """

    def __init__(self) -> None:
        self.came = False
        self._cancelled = False
        self._charge: Charge | None = None

    def ends(self, charge: Charge | None) -> None:
        """What it ends from now on; None: nothing."""
        self._charge = charge

    def hear(self) -> None:
        """It has come. Called from a signal handler."""
        self.came = True
        if self._charge is not None:
            self._cancelled = self._charge.kill("its task was killed")

    def check(self, home: str) -> None:
        """Lets no task go on that was killed: Airflow would call it a success if it returned.

        Raises:
            InterruptedRunError: It was.
        """
        if self.came:
            self.hear()  # once more: the signal may have come before the driver was known
            if self._charge is not None:
                self._charge.log_kill()
            raise killed(home, cancelled=self._cancelled)

    @contextmanager
    def until_the_end_of(self, home: str) -> Iterator[None]:
        """Around all that a try does with a home. A kill that follows an ``execution_timeout`` still ends what it has broken off.

        Raises:
            InterruptedRunError: It has come before the try was over, which neither returns then nor is deferred.
        """
        deferral = None
        try:
            yield
        except TaskDeferred as deferred:
            deferral = deferred
        except Exception:
            self._charge = None
            raise
        self.check(home)
        self._charge = None
        self.check(home)  # it may have come since
        if deferral is not None:
            raise deferral
