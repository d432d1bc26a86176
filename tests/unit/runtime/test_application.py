"""Whether an attempt begins at all: decided before Spark starts, and once more after it has. No JVM is started."""

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.channel import Channel
from spark_jobs.control.owners import Owners
from spark_jobs.control.status import write_status
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import AttemptDocument, RunState, StartRequest, StartResponse, Status, WorkDirectory
from spark_jobs.protocol.errors import FencedError, InterruptedRunError, InvalidPipelineError, RunCancelledError
from spark_jobs.protocol.ids import IncarnationId, PipelineName, RoundNumber, RunId, WorkDirectoryId
from spark_jobs.runtime.application import Application
from spark_jobs.runtime.launch import launch_requested
from spark_jobs.storage.local import LocalFiles
from tests.support import small_pipeline


class SparkStartedError(Exception):
    """Where Spark would start."""


def no_spark() -> SparkSession:
    raise SparkStartedError


class Home:
    """A home in which a driver was asked for."""

    def __init__(self, directory: Path) -> None:
        self.files = LocalFiles(directory / "home")
        self.channel = Channel(self.files)
        self.channel.claim(PipelineName("small"))
        parameters = {"events": "/e", "warehouse": "/w"}
        self.request: StartRequest = self.channel.request_start(RunId("a task"), parameters=parameters)

    def begun(self, host: str, heard: datetime) -> None:
        """A driver has begun the attempt, and was heard from."""
        work = WorkDirectory(id=WorkDirectoryId("w"), path="work/w", host=host)
        self.channel.attempts.create(
            AttemptDocument(
                attempt=self.request.attempt,
                request=self.request.request,
                run=self.request.run,
                round=RoundNumber(1),
                incarnation=IncarnationId("i"),
                restored_from=None,
                work_directory=work,
                host=host,
                process=1,
                started_at=heard,
                versions={},
            )
        )
        running = Status(attempt=self.request.attempt, run=self.request.run, state=RunState.RUNNING, updated_at=heard, stages={})
        write_status(self.files, running)

    def launch(self, start: Any = no_spark) -> None:
        launch_requested(small_pipeline.pipeline, self.files, self.request.request, start)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_driver_that_is_wanted_starts_spark(home: Home) -> None:
    with pytest.raises(InterruptedRunError, match="SparkStartedError"):
        home.launch()


def test_checkpoint_settings_that_make_no_sense_with_the_pipelines_are_refused_and_answered(home: Home) -> None:
    overrides = CheckpointOverrides(aligned_timeout_ms=600_000)
    request = home.channel.request_start(RunId("b task"), parameters=home.request.parameters, checkpoint=overrides)
    with pytest.raises(InvalidPipelineError, match="aligned_timeout .* is not shorter than timeout"):
        launch_requested(small_pipeline.pipeline, home.files, request.request, no_spark)
    answer = home.channel.response(request.request)
    assert answer is not None
    assert answer.error is not None


def test_a_second_driver_leaves_the_one_on_another_host_alone(home: Home) -> None:
    home.begun("another-host", datetime.now(UTC))
    with pytest.raises(FencedError, match="at work on another-host"):
        home.launch()
    assert home.channel.response(home.request.request) is None, "the other one answers"


@pytest.mark.parametrize(
    ("host", "age"),
    [("another-host", timedelta(hours=1)), (socket.gethostname(), timedelta())],
    ids=["not heard of", "this host"],
)
def test_an_attempt_whose_driver_is_gone_is_answered_and_not_begun_again(home: Home, host: str, age: timedelta) -> None:
    home.begun(host, datetime.now(UTC) - age)
    with pytest.raises(InterruptedRunError, match="was started before and did not finish"):
        home.launch()
    assert home.channel.response(home.request.request) is not None


def test_an_attempt_that_was_cancelled_before_its_driver_came_starts_no_spark(home: Home) -> None:
    owners = Owners(home.files, home.request.attempt)
    owners.cancel(owners.take_charge("a try").owner, "its task was cleared")
    with pytest.raises(RunCancelledError, match="its task was cleared"):
        home.launch()
    assert home.channel.attempts.numbers() == []


def test_a_request_that_was_given_up_before_its_driver_came_starts_no_spark(home: Home) -> None:
    home.channel.respond_failure(home.request, InterruptedRunError("It has not begun in time."))
    with pytest.raises(InterruptedRunError, match="It has not begun in time"):
        home.launch()
    assert home.channel.attempts.numbers() == []


def test_a_run_whose_request_another_driver_has_answered_with_an_error_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)

    def run(self: Application, request: StartRequest) -> StartResponse:
        home.channel.respond_failure(request, InvalidPipelineError("The other driver cannot run it."))
        return StartResponse(
            request=request.request,
            attempt=request.attempt,
            run=request.run,
            checkpoint=None,
            sinks={},
            answered_at=datetime.now(UTC),
        )

    monkeypatch.setattr(Application, "_run", run)
    with pytest.raises(InvalidPipelineError, match="The other driver cannot run it"):
        launch_requested(small_pipeline.pipeline, home.files, home.request.request, no_spark)
