"""How a worker waits for an attempt: as a trigger does, but with the driver's process at hand, and its task may be killed meanwhile."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider.drivers.local_driver import LocalDriver
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.waits.goals import Goal
from airflow_provider.waits.patient_look import patient_look
from airflow_provider.waits.progress import ProgressLog
from airflow_provider.waits.waiting import Patience, RunLook, RunWait, Waited
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.ids import RequestId
from spark_jobs.storage.files import is_here


@dataclass(frozen=True)
class WorkerWait:
    """Waits in this process.

    Args:
        hook: Reads the home.
        home: The home.
        request: What is waited for.
        driver: The driver, where this process has started it.
        log: The task's.
        pause: Lets time pass between two looks; raises once the task was killed.
        check: Raises once the task was killed.
    """

    hook: StreamPipelineHook
    home: str
    request: RequestId
    driver: LocalDriver | None
    log: Any
    pause: Callable[[], None]
    check: Callable[[], None]

    def answer(self, wait: RunWait, patience: Patience, goal: Goal, until_seen_s: float | None) -> StartResponse | Waited:
        """The answer, or why there is none yet.

        Args:
            wait: Knows what a look means.
            patience: Knows how long a home may be away.
            goal: Knows how far is enough.
            until_seen_s: How long to wait for the first sign of the driver; None: until it has answered.

        Raises:
            StreamPipelineError: See :meth:`airflow_provider.waits.waiting.RunWait.judge`.
        """
        began_s, progress, driver = time.monotonic(), ProgressLog(), self.driver
        lock_is_seen = is_here(self.hook.files(self.home))  # by the triggerer, which may not have a workspace
        while True:
            look = self._look(wait, patience)
            now_s = time.monotonic()
            for line in progress.lines(look.status, now_s):
                self.log.info(line)
            answer = wait.judge(look, now_s)
            if answer is not None:
                return answer
            submitted = driver is not None and driver.submits and driver.exit_code == 0  # else the next look tells why
            started = look.at_work or submitted or look.ours_runs
            if goal.is_reached(look.status, now_s, started=started):
                return Waited.FAR_ENOUGH
            seen = submitted or look.status is not None or (look.at_work and lock_is_seen)
            if until_seen_s is not None and (seen or now_s - began_s >= until_seen_s):
                return Waited.SEEN
            self.pause()

    def _look(self, wait: RunWait, patience: Patience) -> RunLook:
        """What the home shows, once it can be read; a home that does not answer keeps no killed task."""
        while (look := patient_look(self._look_once, patience, self.log, self.check)) is None:
            self.pause()
            wait.home_is_back(time.monotonic())
        self.check()
        return look

    def _look_once(self) -> RunLook:
        return self.hook.look(self.home, self.request, self.driver)
