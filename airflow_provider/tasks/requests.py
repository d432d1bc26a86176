"""Requests of tasks to running pipelines."""

from hashlib import sha256

from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.errors import InterruptedRunError, RejectedError
from spark_jobs.protocol.ids import RequestId, RunId
from spark_jobs.storage.files import Files


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
