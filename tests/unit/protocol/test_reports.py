"""Errors that pass from one process to another."""

from pathlib import Path

from spark_jobs.protocol.errors import InterruptedRunError, StorageFullError
from spark_jobs.protocol.reports import report_error, reported_error


def test_an_error_arrives_as_it_was_raised() -> None:
    error = StorageFullError("It is full.", exists="A.", safe="B.", remedy="C.", path="/data", free=0)
    arrived = reported_error(report_error(error))
    assert type(arrived) is StorageFullError
    assert (str(arrived), arrived.evidence) == (str(error), error.evidence)


def test_evidence_that_json_does_not_support_arrives_as_text() -> None:
    assert report_error(StorageFullError("It is full.", path=Path("/data"))).evidence == {"path": "/data"}


def test_an_error_of_a_newer_version_arrives_as_an_interruption() -> None:
    report = report_error(StorageFullError("It is full.")).model_copy(update={"error": "NotYetKnownError"})
    assert type(reported_error(report)) is InterruptedRunError
