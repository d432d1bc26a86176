"""The files that remain after a first start was refused."""

from pathlib import Path

import pytest

from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.refused_starts import forget_refused_start
from spark_jobs.home.layout import output_path
from spark_jobs.protocol.errors import InterruptedRunError, MissingRequirementError, StreamPipelineError
from spark_jobs.protocol.ids import PipelineName, RunId
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.local import LocalFiles

REFUSED = MissingRequirementError("There is no Java.", remedy="Install it.")


def asked(home: Path, answer: StreamPipelineError | None = REFUSED) -> StartRequest:
    """Creates a start request from Airflow, with the output of its driver."""
    files = LocalFiles(home)
    request = Channel(files).request_start(RunId("a task"), parameters={})
    AttemptLease(files, request.attempt).take("a try")
    files.create(output_path(request.attempt), b"no Java")
    if answer is not None:
        Channel(files).respond_failure(request, answer)
    return request


def test_a_refused_start_leaves_a_directory_that_is_no_home_as_it_was(tmp_path: Path) -> None:
    request = asked(tmp_path / "misspelt")
    for _ in range(2):
        forget_refused_start(LocalFiles(tmp_path / "misspelt"), request.attempt)
        assert list(tmp_path.iterdir()) == []


def test_files_of_others_in_the_directory_stay(tmp_path: Path) -> None:
    request = asked(tmp_path)
    other = Channel(LocalFiles(tmp_path)).request_start(RunId("another task"), parameters={})
    (tmp_path / "notes.txt").touch()
    forget_refused_start(LocalFiles(tmp_path), request.attempt)
    assert Channel(LocalFiles(tmp_path)).unclaimed() == other
    assert (tmp_path / "notes.txt").exists()
    assert Channel(LocalFiles(tmp_path)).response(request.request) is None


@pytest.mark.parametrize("answer", [None, InterruptedRunError("It failed.", remedy="Run it again.")])
def test_a_start_that_was_not_refused_stays(tmp_path: Path, answer: StreamPipelineError | None) -> None:
    request = asked(tmp_path, answer)
    before = LocalFiles(tmp_path).paths()
    forget_refused_start(LocalFiles(tmp_path), request.attempt)
    assert LocalFiles(tmp_path).paths() == before


def test_the_answer_of_an_existing_home_stays(tmp_path: Path) -> None:
    request, files = asked(tmp_path), LocalFiles(tmp_path)
    Channel(files).claim(PipelineName("small"))
    forget_refused_start(files, request.attempt)
    assert Channel(files).response(request.request) is not None
