"""Errors that cross a process, in a response or in a command's JSON output."""

import json

from spark_jobs.protocol.codec import INTEGER_END
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import StreamPipelineError, error_from


def report_error(error: StreamPipelineError) -> ErrorReport:
    """Returns a report of ``error`` for another process. Evidence that is not a JSON value becomes text."""
    return ErrorReport(
        error=type(error).__name__,
        retry=error.retry.value,
        failed=error.failed,
        exists=error.exists,
        safe=error.safe,
        remedy=error.remedy,
        evidence=json.loads(json.dumps(error.evidence, default=str), parse_int=_whole, parse_constant=str),
    )


def _whole(digits: str) -> int | str:
    """Returns a number that documents accept. Numbers with more than 64 bits become text."""
    number = int(digits)
    return number if -INTEGER_END <= number < INTEGER_END else digits


def reported_error(report: ErrorReport) -> StreamPipelineError:
    """Returns the error that another process has reported."""
    return error_from(report.error, report.failed, report.exists, report.safe, report.remedy, report.evidence)
