"""The operators that ask a running pipeline for a checkpoint, a savepoint or its stop, and that delete a savepoint."""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator

from airflow_provider.assets import emit_tables
from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import savepoint_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.links import LINKS, record_homes
from airflow_provider.orders import is_true
from airflow_provider.retry import RETRIES
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.tasks.time_limits import TimeLimits, time_limits
from airflow_provider.triggers.request import RequestTrigger
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.patient_look import patient_look
from airflow_provider.waits.progress import StateChangeLogger
from airflow_provider.waits.requests import LookForAnswer, RequestWait, ask_once
from airflow_provider.waits.waiting import Patience
from spark_jobs.checkpoint.savepoint import dispose
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.savepoint_use import needed_by
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import Files

if TYPE_CHECKING:
    from airflow.sdk import Context


class TriggerCheckpointOperator(BaseOperator):
    """Asks a running pipeline for a checkpoint now, and waits until it is complete. The pipeline runs on.

    The request is in the pipeline's home, and the same in every try: whatever dies, a retry waits on for the same answer. A try whose
    request was answered with an error asks again. Killing the task takes no request back.

    Returns as XCom what :func:`airflow_provider.facts.savepoint_facts` says.

    Args:
        home: The pipeline's home, inside the connection's home roots. Templated.
        deferrable: Wait in the triggerer, without a worker's slot.
        timeout_s: How long to wait; None: as long as it takes.
        restart_timeout_s: How long the wait tolerates that no driver is at work: a pipeline that starts again answers then.
        poll_interval_s: Between two looks at the home, while something changes.
        max_poll_interval_s: The same, once nothing has changed for a while; None: 3 s, and 30 s in an object store.
        conn_id: The connection, of type ``stream_pipeline``.
        retries: As for every operator, but for the default.
        kwargs: As for every operator.

    Raises:
        PipelineRunRefusedError: No driver is at work, or the home is not allowed; Airflow does not retry.
        PipelineRunError: Anything else; a retry waits on, or asks again.
    """

    wanted: ClassVar[Wanted] = Wanted.CHECKPOINT
    template_fields: Sequence[str] = ("home",)
    operator_extra_links = LINKS
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        home: str,
        deferrable: bool = True,
        timeout_s: float | None = None,
        restart_timeout_s: float = 300.0,
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
        self.restart_timeout_s = restart_timeout_s
        self.poll_interval_s = poll_interval_s
        self.max_poll_interval_s = max_poll_interval_s
        self.conn_id = conn_id

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Asks; then waits in the triggerer, or here."""
        limits = time_limits(self, self.timeout_s)
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            files = self.hook.files(self.home)
            record_homes(context, self.conn_id, {files.url: None})
            request = ask_once(files, self.wanted, run_id_of(context["ti"]), drain=self._drains(), target=self._target_url())
            self.log.info("Asked %s for a %s: %s", files.url, self.wanted.value, request)
            if not self.deferrable:
                self._wait(files, request, limits)
            elif not LookForAnswer(files, request)().is_over:
                self._defer(files.url, request, limits.first_at, limits.first_s)
            return self._result(context, files.url, request)

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """What the trigger has seen."""
        with raising_airflow_errors():
            if "error" in event:
                raise reported_error(ErrorReport.model_validate(event["error"]))
            return self._result(context, event["home"], RequestId(event["request"]))

    def _drains(self) -> bool:
        return False

    def _target_url(self) -> str | None:
        """Returns the directory that a savepoint is to be in; None: one below the home."""
        return None

    def _defer(self, home: str, request: RequestId, deadline_at: float | None, timeout_s: float | None) -> NoReturn:
        self.defer(
            trigger=RequestTrigger(
                home=home,
                request=request,
                restart_timeout_s=self.restart_timeout_s,
                deadline_at=deadline_at,
                timeout_s=timeout_s,
                poll_interval_s=self.poll_interval_s,
                max_poll_interval_s=self.max_poll_interval_s,
            ),
            method_name="execute_complete",
        )

    def _wait(self, files: Files, request: RequestId, limits: TimeLimits) -> None:
        waits, changes = RequestWait(files.url, request, self.restart_timeout_s, limits.own_s), StateChangeLogger(self.log)
        look, patience = LookForAnswer(files, request), Patience(limits.own_at and monotonic_at(limits.own_at))
        while True:
            seen = patient_look(look, patience, self.log)
            if seen is None:
                waits.began_anew()
            elif waits.is_over(seen, time.monotonic(), limits.own_at and limits.own_at - time.time()):
                return
            else:
                changes.see(seen.doing)
            time.sleep(self.poll_interval_s)

    def _result(self, context: "Context", home: str, request: RequestId) -> dict[str, Any]:
        files = self.hook.files(home)
        answer = CheckpointRequests(files).answer_of(request)
        if answer is None:
            raise InterruptedRunError(
                f"{request} in {files.url} has no answer any more.",
                safe="Nothing was changed.",
                remedy="Somebody has removed it, or made the home anew. A retry asks what is there.",
                home=files.url,
                request=request,
            )
        if answer.error is not None:
            raise reported_error(answer.error)
        facts = savepoint_facts(files.url, answer)
        record_homes(context, self.conn_id, {files.url: answer.checkpoint})
        self.log.info("Checkpoint %s is complete; savepoint: %s", answer.checkpoint, answer.savepoint or "none was asked for")
        if answer.blocked:
            self.log.warning("%s", answer.blocked.summary)
        emit_tables(self, context, facts)
        return facts


class TriggerSavepointOperator(TriggerCheckpointOperator):
    """Asks a running pipeline for a savepoint, and waits until it is whole. The pipeline runs on.

    Every try of a task asks for one savepoint, as :class:`TriggerCheckpointOperator` asks for one checkpoint. Returns the same XCom.

    Args:
        target: URL of the directory that the savepoint is to be in, inside the savepoint roots or the home roots; it is made. Empty: one
            below the home. Templated.
        kwargs: As for :class:`TriggerCheckpointOperator`.

    Raises:
        PipelineRunRefusedError: As :class:`TriggerCheckpointOperator`; or the target is not allowed, or the savepoint cannot be.
        PipelineRunError: As :class:`TriggerCheckpointOperator`.
    """

    wanted: ClassVar[Wanted] = Wanted.SAVEPOINT
    template_fields: Sequence[str] = ("home", "target")

    def __init__(self, *, target: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target

    def _target_url(self) -> str | None:
        return self.hook.savepoint_files(self.target).url if self.target else None


class StopWithSavepointOperator(TriggerSavepointOperator):
    """Stops a running pipeline with a savepoint, and waits until its driver has ended.

    Every row that the pipeline has read is in the checkpoint, and public by its sinks' policies; the task that supervises it ends with
    success. Its next start goes on after the last row. With ``drain``, what windows, joins and timers hold back is flushed before that,
    and the pipeline is finished. A stop that is cut short after its checkpoint is finished by the pipeline's next start, which a retry
    of this task waits for.

    Returns as XCom what :func:`airflow_provider.facts.savepoint_facts` says.

    Args:
        drain: Flush first, for ever. Templated: a text is true if it is ``true``, whatever its case.
        kwargs: As for :class:`TriggerSavepointOperator`.

    Raises:
        PipelineRunRefusedError: As :class:`TriggerSavepointOperator`.
        PipelineRunError: As :class:`TriggerSavepointOperator`. Before the checkpoint exists, the pipeline runs on.
    """

    wanted: ClassVar[Wanted] = Wanted.STOP
    template_fields: Sequence[str] = ("home", "target", "drain")

    def __init__(self, *, drain: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drain = drain

    def _drains(self) -> bool:
        return is_true(self.drain)


class DisposeSavepointOperator(BaseOperator):
    """Deletes a savepoint, unless a request or a start in one of the homes needs it.

    Idempotent: a try after one that was cut short deletes what is left, and one that is gone is no error. Files that somebody has put
    into the directory stay.

    Returns as XCom ``savepoint``: its URL.

    Args:
        savepoint: URL of its directory, inside the connection's savepoint roots or home roots. Templated.
        home: The home that may need it, or several. Templated.
        conn_id: The connection, of type ``stream_pipeline``.
        retries: As for every operator, but for the default.
        kwargs: As for every operator.

    Raises:
        PipelineRunRefusedError: It is no savepoint, somebody needs it, or a place is not allowed. Nothing was deleted; Airflow does not
            retry.
        PipelineRunError: The storage fails; a retry deletes the rest.
    """

    template_fields: Sequence[str] = ("savepoint", "home")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        savepoint: str,
        home: str | Sequence[str],
        conn_id: str = StreamPipelineHook.default_conn_name,
        retries: int | None = RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.savepoint = savepoint
        self.home = home
        self.conn_id = conn_id

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Looks who needs it, and deletes it."""
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            savepoint = self.hook.savepoint_files(self.savepoint)
            homes = [self.hook.files(home) for home in ([self.home] if isinstance(self.home, str) else self.home)]
            for home in homes:
                Channel(home).claimed()  # one that is mistyped needs nothing, and the one that was meant might
            dispose(savepoint, [user for home in homes for user in needed_by(home, savepoint)])
            self.log.info("The savepoint %s is deleted.", savepoint.url)
            return {"savepoint": savepoint.url}
