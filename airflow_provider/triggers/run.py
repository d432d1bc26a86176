"""The trigger that waits for the answer of a run, or until its pipeline runs."""

import asyncio
import time
from typing import Any, Unpack

from airflow.utils.state import TaskInstanceState

from airflow_provider.tasks.time_limits import not_due
from airflow_provider.triggers.home import WaitArguments, WaitingTrigger, failed
from airflow_provider.triggers.metrics import PipelineMetrics
from airflow_provider.version_compat import TRIGGERS_HEAR_KILLS, TaskStates, after_cancel
from airflow_provider.waits.goals import Goal, WaitFor
from airflow_provider.waits.runs import RunLook, RunWait, Waited, start_limit
from spark_jobs.background import run_in_lane
from spark_jobs.control.home import open_home
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.supervision import Restart, after_end
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RequestId
from spark_jobs.storage.files import Files


class RunTrigger(WaitingTrigger):
    """Waits for the end of a run, a deadline, or until the pipeline runs.

    It also supervises a pipeline with a restart strategy. If another attempt follows a failure, the event with the failure is sent when
    that attempt is due. The trigger writes only a cancel if its task is killed, and the answer of a lost driver.

    Any triggerer that sees the home can start it again at any time: its arguments and the home contain its whole state. The event has the
    ``"home"`` and the ``"attempt"``, and an error of :mod:`spark_jobs.protocol.errors` as ``"error"``. Without an error there is an
    answer, or ``"reached"`` names the goal that the pipeline has reached.

    Args:
        request: The start request.
        attempt: The attempt that answers it.
        owner: The owner number of the task's lease on the attempt. Only this owner may cancel it.
        token: The token of that owner, because a new home at the same place may reuse the number. None: it is not compared.
        cancel_on_kill: End the driver if the task is marked, cleared or failed by its DAG run.
        start_by: The time by which the driver has to begin, in seconds since 1970, if it may wait in a cluster's queue. None: it begins
            at once.
        start_timeout_s: The configured time for ``start_by``, for its error.
        wait_for: One of :class:`airflow_provider.waits.goals.WaitFor`.
        waiting: The arguments of every wait; see :class:`~airflow_provider.triggers.home.WaitArguments`.
    """

    hears_kills = TRIGGERS_HEAR_KILLS
    """True if Airflow calls :meth:`on_kill`."""
    task_states = TaskStates()
    """Tells whether the task still waits."""

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
        **waiting: Unpack[WaitArguments],
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

    def event_fields(self) -> dict[str, Any]:
        return {"attempt": self.attempt}

    async def wait(self, files: Files) -> dict[str, Any]:
        """Waits, logs the progress, and returns the reached goal or the error of the attempt."""
        start = start_limit(self.start_by, self.start_timeout_s)
        wait = RunWait(files, self.request, Goal(self.wait_for), start, limits=self.wait_limits)
        metrics = PipelineMetrics(files, self.task_instance)
        send_at = 0.0

        async def emit(look: RunLook, now_s: float) -> None:
            if look.status is not None and look.at_work and metrics.is_due(now_s):
                await run_in_lane(self.home, metrics.emit, look.status, now_s)

        async def reported(error: StreamPipelineError) -> StreamPipelineError:
            nonlocal send_at
            following, send_at = await run_in_lane(self.home, self._followed, error)
            return following

        try:
            found = await self.outcome_of(wait, emit, reported)
            await asyncio.sleep(max(0.0, send_at - time.time()))
        except asyncio.CancelledError:
            if self.trigger_id is None:  # a test run of the DAG, which its user has interrupted
                await run_in_lane(self.home, self._cancel, urgent=True)
            elif not self.hears_kills:
                await after_cancel(self.on_kill())
            raise
        if isinstance(found, StreamPipelineError):
            return failed(found)
        return {"reached": self.wait_for.value} if found is Waited.FAR_ENOUGH else {}

    def _followed(self, error: StreamPipelineError) -> tuple[StreamPipelineError, float]:
        """Returns the error to report for an ended attempt, and the time to report it: a restart that follows has its own time."""
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
        """Cancels the driver if the task no longer waits.

        Does nothing if the task waits in another triggerer, or if Airflow cannot say whether it does. Airflow also calls this if another
        triggerer has taken over the trigger. Without the check, a triggerer that was held up for longer than ``[triggerer]
        triggerer_health_check_threshold`` would end the driver of a task that was not killed.
        """
        if self.task_instance is not None and await self._may_wait_still():
            return
        await run_in_lane(self.home, self._cancel, urgent=True)

    async def _may_wait_still(self) -> bool:
        """Returns True if the task still waits in another triggerer, as far as Airflow can say."""
        try:
            waits = await self.task_states.of(self.task_instance) == TaskInstanceState.DEFERRED
        except TimeoutError:
            self.log.warning(
                "Airflow cannot say whether the task still waits in another triggerer, so its driver goes on. To end the driver: "
                "spark-jobs cancel --home %s",
                self.home,
            )
            return True
        if waits:
            self.log.info("The task still waits in another triggerer, so its driver goes on.")
        return waits

    def _cancel(self) -> None:
        """Stores a cancel of the attempt, if the task wants one and the owner is the one of this home."""
        lease = AttemptLease(open_home(self.home), self.attempt)
        newest = lease.newest()
        if self.cancel_on_kill and newest is not None and self.token in (None, newest.token):
            lease.cancel(self.owner, "its task was cleared, or marked, while it was deferred")
