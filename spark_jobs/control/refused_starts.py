"""Forgets a first start that was requested and then refused, so that a mistyped home is left as it was found."""

from contextlib import suppress

from spark_jobs.control.channel import Channel
from spark_jobs.home.layout import (
    ATTEMPTS,
    LOGS,
    PIPELINE,
    REQUESTS,
    RESPONSES,
    RUNS,
    attempt_of,
    output_path,
    request_path,
    response_path,
)
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import AttemptNumber, start_request_id
from spark_jobs.protocol.reports import reported_error
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files


def forget_refused_start(files: Files, attempt: AttemptNumber) -> None:
    """Deletes the request of a refused start, and its answer, from a directory that is the home of no pipeline. Idempotent.

    The driver writes nothing else before it has planned the start and made the home (ADR 0039). A home keeps its answers. A start that
    has no answer, or another one, stays.

    Args:
        files: The directory.
        attempt: The number of the start. Its asker has the answer.

    Raises:
        StorageError: Not everything was deleted; repeat.
    """
    if PIPELINE in files.names(""):
        return
    request = start_request_id(attempt)
    answer = Channel(files).response(request)
    if answer is None or answer.error is None or not isinstance(reported_error(answer.error), RejectedError):
        return
    paths = [request_path(request), response_path(request), output_path(attempt)]
    paths += [f"{place}/{name}" for place in (RUNS, ATTEMPTS) for name in files.names(place) if attempt_of(name) == attempt]
    for path in paths:
        with step(Step.FORGET):
            files.delete(path)
    here = files.local()
    if here is not None:
        for directory in (*(here / name for name in (REQUESTS, RESPONSES, RUNS, ATTEMPTS, LOGS)), here):
            with suppress(OSError):  # it is not empty, or somebody else was faster
                directory.rmdir()
