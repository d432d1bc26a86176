"""The operator that ends a pipeline's driver at once."""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import cancel_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.links import LINKS, record_homes
from airflow_provider.retry import RETRIES
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.tasks.time_limits import TimeLimits, time_limits
from airflow_provider.triggers.end import EndTrigger
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.looking import look_for_end
from airflow_provider.waits.patient_look import patient_look
from airflow_provider.waits.progress import StateChangeLogger
from airflow_provider.waits.waiting import Patience
from spark_jobs.control.cancelling import Cancelled, cancel_newest, has_ended, too_late
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import Files

if TYPE_CHECKING:
    from airflow.sdk import Context


class CancelPipelineOperator(BaseOperator):
    """Ends the driver that is at work in a home, or on its way there, and waits until it has ended. It takes no further checkpoint.

    What was staged and what is published stays; the next start goes on after the last batch. The task that supervises the pipeline fails
    with that, and starts no other attempt; neither do its retries. A restart that is due later is prevented.

    All tries of a task are one cancel: a next try waits on, and leaves alone what somebody has begun since. Where nothing is at work the
    task succeeds. Killing it takes nothing back.

    Returns as XCom what :func:`airflow_provider.facts.cancel_facts` says.

    Args:
        home: The pipeline's home, inside the connection's home roots. Templated.
        deferrable: Wait in the triggerer, and hold no worker's slot meanwhile.
        timeout_s: How long to wait, from the try's start; None: as long as it takes.
        poll_interval_s: Between two looks at the home, while something changes.
        max_poll_interval_s: The same, once nothing has changed for a while; None: 3 s, and 30 s in an object store.
        conn_id: The connection, of type ``stream_pipeline``.
        retries: As for every operator, but for the default.
        kwargs: As for every operator.

    Raises:
        PipelineRunRefusedError: The home is not allowed; Airflow does not retry.
        PipelineRunError: The driver has not ended in time, or somebody has taken charge of it since; a retry waits on, or insists.
    """

    template_fields: Sequence[str] = ("home",)
    operator_extra_links = LINKS
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        home: str,
        deferrable: bool = True,
        timeout_s: float | None = None,
        poll_interval_s: float = 2.0,
        max_poll_interval_s: float | None = None,
        conn_id: str = StreamPipelineHook.default_conn_name,
        retries: int | None = RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        if poll_interval_s <= 0:
            raise ValueError("poll_interval_s is above 0.")
        self.home = home
        self.deferrable = deferrable
        self.timeout_s = timeout_s
        self.poll_interval_s = poll_interval_s
        self.max_poll_interval_s = max_poll_interval_s
        self.conn_id = conn_id

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Cancels; then waits in the triggerer, or here."""
        return self._carry_on(context, self.home, time_limits(self, self.timeout_s))

    def execute_complete(self, context: "Context", event: dict[str, Any], began_at: float | None = None) -> dict[str, Any]:
        """Ends the task, or cancels what the pipeline's strategy has started meanwhile.

        Args:
            context: The task's.
            event: What the trigger has sent.
            began_at: When the try began, in seconds since 1970.
        """
        with raising_airflow_errors():
            if "error" in event:
                raise reported_error(ErrorReport.model_validate(event["error"]))
        return self._carry_on(context, event["home"], time_limits(self, self.timeout_s, began_at))

    def _carry_on(self, context: "Context", home: str, limits: TimeLimits) -> dict[str, Any]:
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            files = self.hook.files(home)
            record_homes(context, self.conn_id, {files.url: None})
            cancelled = self._cancel(context, files)
            while cancelled is not None:
                self.log.info("Asked attempt %s in %s to end.", cancelled.attempt, files.url)
                if not self.deferrable:
                    self._wait(files, cancelled, limits)
                elif not has_ended(files, cancelled):
                    self._defer(files.url, cancelled, limits)
                time.sleep(self.poll_interval_s)  # a restart on which was decided before the cancel was there shows by now
                before, cancelled = cancelled, self._cancel(context, files)
                if cancelled == before:
                    break
            facts = cancel_facts(files, cancelled)
            self.log.info("Nothing is at work in %s; its newest checkpoint is %s.", files.url, facts["checkpoint"])
            return facts

    def _cancel(self, context: "Context", files: Files) -> Cancelled | None:
        run = run_id_of(context["ti"])
        return cancel_newest(files, run, f"{run} has cancelled it")

    def _defer(self, home: str, cancelled: Cancelled, limits: TimeLimits) -> NoReturn:
        self.defer(
            trigger=EndTrigger(
                home=home,
                attempt=cancelled.attempt,
                owner=cancelled.owner,
                deadline_at=limits.first_at,
                timeout_s=limits.first_s,
                poll_interval_s=self.poll_interval_s,
                max_poll_interval_s=self.max_poll_interval_s,
            ),
            method_name="execute_complete",
            kwargs={"began_at": limits.began_at},
        )

    def _wait(self, files: Files, cancelled: Cancelled, limits: TimeLimits) -> None:
        changes, patience = StateChangeLogger(self.log), Patience(limits.own_at and monotonic_at(limits.own_at))
        while True:
            seen = patient_look(lambda: look_for_end(files, cancelled), patience, self.log)
            if seen is not None:
                if seen.ended:
                    return
                changes.see(seen.doing)
                if limits.own_at is not None and time.time() >= limits.own_at:
                    raise too_late(files, cancelled, self.timeout_s)
            time.sleep(self.poll_interval_s)
