"""The trigger that waits for a run's answer, or until its pipeline runs."""

import asyncio
import time
from typing import Any, Unpack

from airflow.utils.state import TaskInstanceState

from airflow_provider.tasks.time_limits import not_due
from airflow_provider.triggers.metrics import PipelineMetrics
from airflow_provider.triggers.patience import Waiting, WaitingTrigger, failed
from airflow_provider.version_compat import TRIGGERS_HEAR_KILLS, after_cancel, state_of
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.goals import Goal, WaitFor
from airflow_provider.waits.looking import LookForRun, same_run, start_limit
from airflow_provider.waits.progress import ProgressLog
from airflow_provider.waits.threads import in_thread
from airflow_provider.waits.waiting import Look, Wait
from spark_jobs.control.home import open_home
from spark_jobs.control.owners import Owners
from spark_jobs.control.supervision import Restart, after_end
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RequestId
from spark_jobs.storage.files import Files


class RunTrigger(WaitingTrigger):
    """Waits until the driver of a run has answered, is gone, or time is up, or until the pipeline is at work, if that is waited for.

    A pipeline with a restart strategy is supervised: where the strategy lets another attempt follow, the event that tells of the
    failure comes when that is due. The trigger writes only a cancel when its task is killed, and the answer of a driver that was lost.

    It can be started again at any time, in any triggerer that sees the home: everything it knows is in its arguments or in the home.
    The event has the ``"home"`` and the ``"attempt"``, and an error of :mod:`spark_jobs.protocol.errors` as ``"error"``; one without says
    that there is an answer, or, with ``"reached"``, what was waited for instead.

    Args:
        request: The start request.
        attempt: The attempt that answers it.
        owner: As whom the task has taken charge of the attempt: what it may cancel.
        token: Who that is: a home that was made anew meanwhile may have an owner of the same number. None: it is not asked.
        cancel_on_kill: A task that is marked, cleared or failed by its DAG run ends the driver.
        start_by: Until when the driver may be on its way from a cluster's queue, in seconds since 1970; None: it starts at once.
        start_timeout_s: The time that ``start_by`` ends, for its error.
        wait_for: One of :class:`airflow_provider.waits.goals.WaitFor`.
        waiting: As for every :class:`~airflow_provider.triggers.patience.WaitingTrigger`.
    """

    def __init__(
        self,
        *,
        request: str,
        attempt: int,
        owner: int,
        cancel_on_kill: bool,
        start_by: float | None = None,
        start_timeout_s: float = 0.0,
        token: str | None = None,
        wait_for: str = WaitFor.FINAL_CHECKPOINT.value,
        **waiting: Unpack[Waiting],
    ) -> None:
        super().__init__(
            {
                "request": request,
                "attempt": attempt,
                "owner": owner,
                "cancel_on_kill": cancel_on_kill,
                "start_by": start_by,
                "start_timeout_s": start_timeout_s,
                "token": token,
                "wait_for": wait_for,
            },
            **waiting,
        )
        self.request = RequestId(request)
        self.attempt, self.owner = AttemptNumber(attempt), OwnerNumber(owner)
        self.token = token
        self.cancel_on_kill = cancel_on_kill
        self.wait_for = WaitFor(wait_for)
        self.start_by, self.start_timeout_s = start_by, start_timeout_s

    def told(self) -> dict[str, Any]:
        """Which attempt."""
        return {"attempt": self.attempt}

    async def wait(self, files: Files) -> dict[str, Any]:
        """What was reached, or what the attempt has failed with; logs the progress meanwhile."""
        began_s = time.monotonic()
        deadline_s = None if self.deadline_at is None else monotonic_at(self.deadline_at)
        start = start_limit(self.start_by, self.start_timeout_s)
        wait = Wait(self.home, self.request, began_s=began_s, deadline_s=deadline_s, timeout_s=self.timeout_s, start=start)
        progress, goal, metrics = ProgressLog(), Goal(self.wait_for), PipelineMetrics(files, self.task_instance)
        found: dict[str, Any] = {}
        send_at = 0.0

        async def see(look: Look, _: float | None) -> bool:
            nonlocal send_at
            now_s = time.monotonic()
            for line in progress.lines(look.status, now_s):
                self.log.info(line)
            if look.status is not None and look.at_work and metrics.is_due(now_s):
                await in_thread(self.home, metrics.emit, look.status, now_s)
            try:
                if wait.see(look, now_s) is not None:
                    return True
            except StreamPipelineError as error:  # the run's own, such as a disk that was full: the home could be read
                told, send_at = await in_thread(self.home, self._followed, error)
                found.update(failed(told))
                return True
            reached = goal.is_reached(look.status, now_s, started=look.at_work)
            found.update({"reached": self.wait_for.value} if reached else {})
            return reached

        try:
            follows = self.wait_for is WaitFor.RUNNING
            key, look = ("answer", self.request, follows), LookForRun(files, self.request, follows=follows)
            event = await self.event_of(key, look, see, same_run, lambda: wait.began_anew(time.monotonic()))
            await asyncio.sleep(max(0.0, send_at - time.time()))
        except asyncio.CancelledError:
            if self.trigger_id is None:  # not in a triggerer but in a test run of the DAG, whose user has interrupted it
                await in_thread(self.home, self._cancel, urgent=True)
            elif not TRIGGERS_HEAR_KILLS:
                await after_cancel(self.on_kill())
            raise
        return event | found

    def _followed(self, error: StreamPipelineError) -> tuple[StreamPipelineError, float]:
        """What to tell of an attempt that has ended with ``error``, and when: a restart that follows has its time."""
        supervised = self.wait_for is WaitFor.FINAL_CHECKPOINT
        following = after_end(open_home(self.home), self.attempt, self.owner, error) if supervised else None
        if not isinstance(following, Restart):
            return error, 0.0
        self.log.warning(
            "Attempt %s failed; %s is due in %.1f s. %s", self.attempt, following, following.due_at - time.time(), error
        )
        if self.deadline_at is not None and following.due_at > self.deadline_at:
            return not_due(following, self.timeout_s), self.deadline_at
        return error, following.due_at

    async def on_kill(self) -> None:
        """Ends the driver, unless somebody else has taken charge of it, or the task goes on to wait, or nobody can say whether it does.

        Airflow's triggerer takes a trigger that another one has taken over for one whose task was killed: a triggerer that was held up
        for longer than ``[triggerer] triggerer_health_check_threshold`` would end the driver of a task that nobody has touched.
        """
        if self.task_instance is not None and await self._may_wait_still():
            return
        await in_thread(self.home, self._cancel, urgent=True)

    async def _may_wait_still(self) -> bool:
        """Whether the task waits in another triggerer, as far as Airflow can say."""
        try:
            waits = await state_of(self.task_instance) == TaskInstanceState.DEFERRED
        except TimeoutError:
            self.log.warning(
                "Airflow does not say whether the task waits still, in another triggerer: its driver goes on. If nobody wants it: "
                "spark-jobs cancel --home %s",
                self.home,
            )
            return True
        if waits:
            self.log.info("The task waits still, in another triggerer: its driver goes on.")
        return waits

    def _cancel(self) -> None:
        owners = Owners(open_home(self.home), self.attempt)
        newest = owners.newest()
        if self.cancel_on_kill and newest is not None and self.token in (None, newest.token):
            owners.cancel(self.owner, "its task was cleared, or marked, while it was deferred")
