"""The operators that request a checkpoint, a savepoint or the stop of a running pipeline, and that delete a savepoint."""

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider.assets import emit_tables
from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import savepoint_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.links import LINKS, record_homes
from airflow_provider.operators.pipeline_task import PipelineOperator, WaitingOperator
from airflow_provider.orders import is_true
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.tasks.time_limits import time_limits
from airflow_provider.triggers.home import failure_of
from spark_jobs.checkpoint.savepoint import dispose
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.savepoint_use import needed_by
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.errors import InterruptedRunError, RejectedError
from spark_jobs.protocol.ids import RequestId, RunId
from spark_jobs.storage.files import Files
from spark_jobs.waits.requests import RequestWait, answer_to

if TYPE_CHECKING:
    from airflow.sdk import Context


class TriggerCheckpointOperator(WaitingOperator):
    """Requests a checkpoint of a running pipeline now, and waits until it is complete. The pipeline runs on.

    The request is in the pipeline's home, and is the same in every try: after any failure, a retry waits for the same answer. If the
    request was answered with an error, the next try makes a new one. Killing the task does not withdraw the request.

    Returns as XCom the value of :func:`airflow_provider.facts.savepoint_facts`.

    Args:
        restart_timeout_s: How long the wait tolerates that no driver is at work. A pipeline that starts again in this time answers the
            request.
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.WaitingOperator`.

    Raises:
        PipelineRunRefusedError: No driver is at work, or the home is not allowed; Airflow does not retry.
        PipelineRunError: Any other error; a retry waits for the same answer, or makes a new request.
    """

    wanted: ClassVar[Wanted] = Wanted.CHECKPOINT
    operator_extra_links = LINKS

    def __init__(self, *, restart_timeout_s: float = 300.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.restart_timeout_s = restart_timeout_s

    def execute(self, context: "Context") -> dict[str, Any]:
        """Makes the request, then waits in the triggerer or here."""
        limits = time_limits(self, self.timeout_s)
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            files = self.hook.files(self.home)
            record_homes(context, self.conn_id, {files.url: None})
            request = ask_once(files, self.wanted, run_id_of(context["ti"]), drain=self._drains(), target=self._target_url())
            self.log.info("Requested a %s of %s: %s", self.wanted.value, files.url, request)
            self.wait_or_defer(RequestWait(files, request, self.restart_timeout_s, self.wait_limits.driver_end_s), limits)
            return self._result(context, files.url, request)

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """Returns the result after the trigger has seen the answer."""
        with raising_airflow_errors():
            if (error := failure_of(event)) is not None:
                raise error
            return self._result(context, event["home"], RequestId(event["request"]))

    def _drains(self) -> bool:
        return False

    def _target_url(self) -> str | None:
        """Returns the directory for a savepoint; None: one below the home."""
        return None

    def _result(self, context: "Context", home: str, request: RequestId) -> dict[str, Any]:
        files = self.hook.files(home)
        answer = answer_to(files, request)
        facts = savepoint_facts(files, answer)
        record_homes(context, self.conn_id, {files.url: answer.checkpoint})
        self.log.info("Checkpoint %s is complete; savepoint: %s", answer.checkpoint, answer.savepoint or "none was requested")
        if answer.blocked:
            self.log.warning("%s", answer.blocked.summary)
        emit_tables(self, context, facts)
        return facts


class TriggerSavepointOperator(TriggerCheckpointOperator):
    """Requests a savepoint of a running pipeline, and waits until it is complete. The pipeline runs on.

    All tries of a task request one savepoint, and return the same XCom as :class:`TriggerCheckpointOperator`.

    Args:
        target: The URL of a new directory for the savepoint, inside the savepoint roots or the home roots. Empty: one below the home.
            Templated.
        kwargs: As for :class:`TriggerCheckpointOperator`.

    Raises:
        PipelineRunRefusedError: As :class:`TriggerCheckpointOperator`; or the target is not allowed, or the savepoint is not possible.
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

    The checkpoint contains every row that the pipeline has read, and the sinks' policies decide which rows are public. The task that
    supervises the pipeline succeeds. The pipeline's next start continues after the last row. With ``drain``, the rows in windows, joins
    and timers are flushed first, and the pipeline is finished. If a stop is interrupted after its checkpoint, the pipeline's next start
    completes it, and a retry of this task waits for that.

    Returns as XCom the value of :func:`airflow_provider.facts.savepoint_facts`.

    Args:
        drain: Flush everything first, for good. Templated: a text has to be ``true`` or ``false``, in upper or lower case, or empty.
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
        return is_true("drain", self.drain)


class DisposeSavepointOperator(PipelineOperator):
    """Deletes a savepoint, unless a request or a start in one of the homes needs it.

    Idempotent: a retry deletes the rest of a savepoint, and a missing savepoint is no error. Foreign files in the directory stay.

    Returns as XCom ``savepoint``: its URL.

    Args:
        savepoint: The URL of its directory, inside the connection's savepoint roots or home roots. Templated.
        home: The home that may need it, or several. Templated.
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.PipelineOperator`.

    Raises:
        PipelineRunRefusedError: The directory is no savepoint, a home needs it, or a place is not allowed. Nothing was deleted; Airflow
            does not retry.
        PipelineRunError: The storage fails; a retry deletes the rest.
    """

    template_fields: Sequence[str] = ("savepoint", "home")

    def __init__(self, *, savepoint: str, home: str | Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.home = home

    def execute(self, context: "Context") -> dict[str, Any]:
        """Checks that no home needs the savepoint, and deletes it."""
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            savepoint = self.hook.savepoint_files(self.savepoint)
            homes = [self.hook.files(home) for home in ([self.home] if isinstance(self.home, str) else self.home)]
            for home in homes:
                Channel(home).claimed()  # refuses a mistyped home: the intended one might need the savepoint
            dispose(savepoint, [user for home in homes for user in needed_by(home, savepoint)])
            self.log.info("Deleted the savepoint %s.", savepoint.url)
            return {"savepoint": savepoint.url}


def ask_once(files: Files, wanted: Wanted, run: RunId, *, drain: bool = False, target: str | None = None) -> RequestId:
    """Makes the request of a task, durably, with an id that is the same in every try. Idempotent.

    If the request was answered with an error, the next try makes a new request with a new id: the cause may be gone by then, and each id
    is answered only once.

    Args:
        files: The home.
        wanted: The requested action.
        run: The run id of the task instance.
        drain: For a stop: flush everything first.
        target: The URL of the directory for the savepoint.

    Raises:
        RejectedError: No driver would answer.
        InterruptedRunError: No driver is at work, but one may start soon.
    """
    requests, name = CheckpointRequests(files), f"airflow-{sha256(run.encode()).hexdigest()[:24]}"
    number = 1
    while True:
        request = request_id(name if number == 1 else f"{name}-{number}", wanted)
        answer = requests.answer_of(request)
        if answer is None or answer.error is None:
            try:
                requests.ask(request, drain=drain, target=target)
            except RejectedError as error:
                if error.evidence.get("at_work") is not False:
                    raise
                if Channel(files).attempts.latest() is not None and driver_at_work(files):
                    continue  # a driver has begun in the meantime
                raise _between_attempts(files, error) or error from None
            return request
        number += 1


def _between_attempts(files: Files, refused: RejectedError) -> InterruptedRunError | None:
    """Returns the error for a pipeline that may start again by its strategy or a retry of its task; None if it will not."""
    channel = Channel(files)
    live = channel.attempts.latest()
    if live is None:
        exists = "A driver is starting its first attempt." if driver_at_work(files) else ""
    else:
        answer = channel.response(live.request)
        ended_well = answer is not None and answer.error is None
        exists = "" if ended_well else f"Attempt {live.attempt} of run {live.run} did not finish."
    if not exists:
        return None
    return InterruptedRunError(
        refused.failed,
        exists=exists,
        safe=refused.safe,
        remedy="A retry of this task makes the request again. Make sure that the pipeline starts.",
        home=files.url,
        attempt=live and live.attempt,
    )
