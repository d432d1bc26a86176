"""The wait of a worker for an attempt. It watches the driver's process, and ends if the task is killed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from airflow_provider.drivers.local_driver import LocalDriver
from airflow_provider.waits.goals import Goal
from airflow_provider.waits.looking import look_at_run
from airflow_provider.waits.waiting import RunLook, RunWait, Waited
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.files import Files, is_here
from spark_jobs.waits.in_process import look_until
from spark_jobs.waits.patience import Patience
from spark_jobs.waits.progress import ProgressLog


@dataclass(frozen=True)
class WorkerWait:
    """Waits for an attempt in this process.

    Args:
        files: The home.
        request: The start request.
        driver: The driver, if this process has started it.
        log: The task's log.
        pause: Waits between two looks. Raises if the task was killed.
        check: Raises if the task was killed.
        look: Looks once.
    """

    files: Files
    request: RequestId
    driver: LocalDriver | None
    log: Any
    pause: Callable[[], None]
    check: Callable[[], None]
    look: Callable[[Files, RequestId, LocalDriver | None], RunLook] = look_at_run

    def answer(self, wait: RunWait, patience: Patience, goal: Goal, until_seen_s: float | None) -> StartResponse | Waited:
        """Returns the answer, or the reason why the wait has ended without one.

        Args:
            wait: Judges the looks.
            patience: Decides how long the home may be unavailable.
            goal: The goal of the task.
            until_seen_s: How long to wait for the first sign of the driver; None: until the driver has answered.

        Raises:
            StreamPipelineError: See :meth:`airflow_provider.waits.waiting.RunWait.judge`.
        """
        began_s, progress, driver = time.monotonic(), ProgressLog(), self.driver
        triggerer_sees_lock = is_here(self.files)  # it may not have the cache of a home in a store

        def judge(look: RunLook) -> StartResponse | Waited | None:
            now_s = time.monotonic()
            for line in progress.lines(look.status, now_s):
                self.log.info(line)
            answer = wait.judge(look, now_s)
            if answer is not None:
                return answer
            submitted = driver is not None and driver.submits and driver.exit_code == 0  # the next look reports a failure
            started = look.at_work or submitted or look.ours_runs
            if goal.is_reached(look.status, now_s, started=started):
                return Waited.FAR_ENOUGH
            seen = submitted or look.status is not None or (look.at_work and triggerer_sees_lock)
            if until_seen_s is not None and (seen or now_s - began_s >= until_seen_s):
                return Waited.SEEN
            return None

        found = look_until(
            lambda: self.look(self.files, self.request, self.driver),
            judge,
            patience=patience,
            log=self.log,
            pause=self.pause,
            check=self.check,
            home_is_back=lambda: wait.home_is_back(time.monotonic()),
        )
        return cast("StartResponse | Waited", found)
