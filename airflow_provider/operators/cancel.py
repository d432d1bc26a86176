"""The operator that cancels a pipeline."""

import time
from typing import TYPE_CHECKING, Any

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import cancel_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.links import LINKS, record_homes
from airflow_provider.operators.pipeline_task import WaitingOperator
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.tasks.time_limits import TimeLimits, time_limits
from airflow_provider.triggers.home import failure_of
from spark_jobs.waits.ends import EndWait, end_all

if TYPE_CHECKING:
    from airflow.sdk import Context


class CancelPipelineOperator(WaitingOperator):
    """Ends the driver that is at work in a home or is starting there, without another checkpoint, and waits until it has ended.

    Staged and published rows stay, and the next start continues after the last batch. The task that supervises the pipeline fails with
    the cancel, and neither its restart strategy nor its retries start another attempt. A restart that is due later is prevented.

    All tries of a task are one cancel: a retry waits for the same driver, and leaves alone an attempt that began later. If no driver is
    at work, the task succeeds. Killing the task does not withdraw the cancel.

    Returns as XCom the value of :func:`airflow_provider.facts.cancel_facts`.

    Args:
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.WaitingOperator`.

    Raises:
        PipelineRunRefusedError: The home is not allowed; Airflow does not retry.
        PipelineRunError: The driver has not ended in time, or another task has taken the lease of its attempt. A retry waits for the
            driver, or cancels it again.
    """

    operator_extra_links = LINKS

    def execute(self, context: "Context") -> dict[str, Any]:
        """Cancels, then waits in the triggerer or here."""
        return self._carry_on(context, self.home, time_limits(self, self.timeout_s))

    def execute_complete(self, context: "Context", event: dict[str, Any], began_at: float | None = None) -> dict[str, Any]:
        """Ends the task, or cancels an attempt that the restart strategy has started in the meantime.

        Args:
            context: The task's context.
            event: The event of the trigger.
            began_at: The start of the try, in seconds since 1970.
        """
        with raising_airflow_errors():
            if (error := failure_of(event)) is not None:
                raise error
        return self._carry_on(context, event["home"], time_limits(self, self.timeout_s, began_at))

    def _carry_on(self, context: "Context", home: str, limits: TimeLimits) -> dict[str, Any]:
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            files = self.hook.files(home)
            record_homes(context, self.conn_id, {files.url: None})

            def wait(end: EndWait) -> None:
                self.log.info("Cancelled attempt %s in %s.", end.attempt, files.url)
                self.wait_or_defer(end, limits, began_at=limits.began_at)

            run = run_id_of(context["ti"])
            cancelled = end_all(files, run, f"{run} has cancelled it", wait, lambda: time.sleep(self.poll_interval_s))
            facts = cancel_facts(files, cancelled)
            self.log.info("No driver is at work in %s; its newest checkpoint is %s.", files.url, facts["checkpoint"])
            return facts
