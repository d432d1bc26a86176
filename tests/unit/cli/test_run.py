"""The parts of ``spark-jobs run`` that need no JVM: refusals, answers from the home, and errors."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spark_jobs.checkpoint.retention import discard
from spark_jobs.cli import app
from spark_jobs.cli.run import SUBMITTED
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import holding
from spark_jobs.control.refused_starts import forget_refused_start
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import (
    CheckpointKind,
    ErrorReport,
    OnEnd,
    OnRewind,
    Publish,
    SinkResult,
    StartResponse,
)
from spark_jobs.protocol.errors import FencedError, InterruptedRunError, OutcomeUnknownError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, RunId, SinkName, start_request_id
from spark_jobs.protocol.start_requests import StartRequest, start_request
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.files import local_path
from spark_jobs.storage.open import open_files
from tests.support import small_pipeline
from tests.support.command_line import BLOCKED, UsedHome, document, session_of_java, spark_jobs
from tests.support.secret_shapes import CORE, SHAPES

QUOTING = """
import os
from pydantic import BaseModel, SecretStr, model_validator
from spark_jobs import DeltaSink, Pipeline

if WHERE == "when it is imported":
    raise ValueError(os.environ["SPARK_JOBS_PARAM_TOKEN"])

class Params(BaseModel):
    token: SecretStr

    @model_validator(mode="after")
    def login(self):
        kind = RuntimeError if "unexpectedly" in WHERE else ValueError
        raise kind(f"no login with {self.token.get_secret_value()}")

pipeline = Pipeline("quoting", params=Params)

@pipeline.source(bounded=True)
def numbers(spark, params):
    return spark.readStream.format("rate").load()

@pipeline.stage(sink=DeltaSink("/tmp/copy"))
def copy(numbers):
    return numbers
"""
MAIN = Path(small_pipeline.__file__).parents[2] / "spark_jobs" / "main.py"


def run(home: UsedHome, *options: object) -> Result:
    return spark_jobs("run", home.entry, "--home", home.url, *options)


def answered(home: UsedHome, monkeypatch: pytest.MonkeyPatch, function: str = "launch", **checkpoint: Any) -> dict[str, Any]:
    """Replaces the driver with one that completes checkpoint 1. Returns the arguments with which it was called."""
    given: dict[str, Any] = {}

    def launched(pipeline: Any, files: Any, *rest: Any) -> StartResponse:
        given.update(pipeline=pipeline, rest=rest)
        home.begin()
        manifest = home.complete(late_rows=5, **checkpoint)
        request = home.ask()
        return StartResponse(
            request=request.request,
            attempt=request.attempt,
            run=request.run,
            checkpoint=manifest.checkpoint,
            sinks=publish(home.files, by_policy=True),
            answered_at=datetime.now(UTC),
        )

    monkeypatch.setattr(f"spark_jobs.runtime.launch.{function}", launched)
    return given


def fails(monkeypatch: pytest.MonkeyPatch, error: BaseException, function: str = "launch") -> None:
    def launched(*arguments: Any) -> StartResponse:
        raise error

    monkeypatch.setattr(f"spark_jobs.runtime.launch.{function}", launched)


def test_a_run_of_a_drained_pipeline_does_nothing_and_shows_the_checkpoint(drained: UsedHome) -> None:
    publish(drained.files)
    again = run(drained, *drained.params)
    assert again.exit_code == 0
    assert "Nothing was left to do: the pipeline is drained since checkpoint 1" in again.stdout
    assert "run monday" in again.stdout
    assert "add --fresh and --on-rewind replace or keep; another pipeline needs another --home" in again.stdout
    assert "version 1" in again.stdout
    assert drained.staged.commits(next(iter(drained.staged.tables))) == [1]


def test_the_refusal_of_a_drained_pipeline_with_another_table_names_the_difference(drained: UsedHome) -> None:
    entry = Path(drained.entry)
    entry.write_text(entry.read_text().replace("{warehouse}/daily", "{warehouse}/days"))
    refused = run(drained, *drained.params)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "stage daily has path '{warehouse}/days' (before '{warehouse}/daily')" in refused.stderr


def test_the_json_answer_says_that_nothing_ran(drained: UsedHome) -> None:
    answer = document(run(drained, *drained.params, "--run-id", "tuesday", "--output", "json"))
    assert (answer["ran"], answer["checkpoint"], answer["drained"], answer["run"]) == (False, 1, True, "tuesday")
    assert {sink: result["version"] for sink, result in answer["sinks"].items()} == {"hourly": None, "daily": None}


def test_staged_rows_are_called_staged_and_the_answer_names_the_command_that_publishes_them(drained: UsedHome) -> None:
    shown = run(drained, *drained.params).stdout
    assert "staged" in shown
    assert f"spark-jobs publish --home {drained.url}" in shown
    assert "consistent_versions" not in shown


def test_after_a_stop_in_the_middle_of_a_round_the_next_step_is_another_run(
    unused: UsedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that this run has staged cannot be published before the round ends."""
    stop: dict[str, Any] = {
        "checkpoint_kind": CheckpointKind.STOP,
        "drained": False,
        "request": RequestId("stop-mine"),
        "publish": Publish.FINAL,
    }
    answered(unused, monkeypatch, **stop)
    shown = run(unused, *unused.params)
    assert shown.exit_code == 0
    assert "round 1 is interrupted: the next run goes on with it" in shown.stdout
    assert "spark-jobs publish" not in shown.stdout


def test_the_result_of_a_run_is_shown_with_its_late_rows(unused: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(unused, monkeypatch)
    shown = run(unused, *unused.params)
    assert shown.exit_code == 0
    assert "5 rows of the checkpoint were late in stage hourly" in shown.stdout
    assert "rows of the round" in shown.stdout
    assert f"{unused.url}/manifests/1.json" in shown.stdout


def test_the_options_reach_the_driver(unused: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    given = answered(unused, monkeypatch)
    options = ["--run-id", "r", "--on-end", "suspend", "--publish", "external", "--fresh", "--on-rewind", "keep"]
    conf = ["--conf", "spark.executor.memory=2g", "--conf", "spark.x=a=b", "--packages", "g:n:1,g:m:2", "--driver-memory", "1g"]
    adopt = ["--adopt-offsets", "a=/old a", "--adopt-offsets", "b=s3://lake/old=b"]
    checkpoint = ["--checkpoint-interval", "30 seconds", "--retained", "3", "--aligned"]
    assert run(unused, *unused.params, *options, *adopt, *checkpoint, *conf).exit_code == 0
    parameters, chosen, _, _ = given["rest"]
    assert parameters == {"warehouse": str(unused.directory / "warehouse")}
    assert (chosen.run, chosen.on_end, chosen.publish) == ("r", OnEnd.SUSPEND, Publish.EXTERNAL)
    assert (chosen.fresh, chosen.on_rewind) == (True, OnRewind.KEEP)
    assert chosen.adopt_offsets == {"a": "/old a", "b": "s3://lake/old=b"}
    assert chosen.checkpoint == CheckpointOverrides(interval_ms=30_000, retained=3, unaligned=False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--full-refresh", "hourly, daily", "--full-refresh", "other"], (False, OnRewind.REFUSE, ("hourly", "daily", "other"))),
        (["--full-refresh-all"], (True, OnRewind.REPLACE, ())),
        (["--refresh", "hourly"], (False, OnRewind.REFUSE, ())),
    ],
)
def test_refresh_options_reach_the_driver(
    unused: UsedHome, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: tuple[bool, OnRewind, tuple[str, ...]]
) -> None:
    given = answered(unused, monkeypatch)
    assert run(unused, *unused.params, *options).exit_code == 0
    chosen = given["rest"][1]
    assert (chosen.fresh, chosen.on_rewind, chosen.full_refresh) == expected
    assert start_request(chosen, AttemptNumber(1), {}).full_refresh == tuple(sorted(expected[2]))


def test_spark_settings_of_the_command_line_override_those_of_the_pipeline(
    unused: UsedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("spark_jobs.runtime.spark.session.start_session", lambda name, conf, **rest: given.update(conf))
    monkeypatch.setattr("spark_jobs.runtime.launch.launch", lambda pipeline, files, parameters, options, start, watch: start())
    run(unused, *unused.params, "--conf", "spark.x=a=b")
    assert given.items() >= {"spark.executor.memory": "1g", "spark.x": "a=b"}.items()
    run(unused, *unused.params, "--conf", "spark.executor.memory=2g")
    assert given["spark.executor.memory"] == "2g"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--param", "warehouse"], "no value"),
        (["--param", "warehouse=w", "--param", "warehouse=v"], "twice"),
        (["--conf", "spark.sql.streaming.stateStore.providerClass=mine"], "spark.sql.streaming.stateStore.providerClass"),
        (["--conf", "executor.memory=1g"], "not a Spark setting"),
        (["--param", "warehouse=w", "--param", "days=many"], "days"),
        (["--request", "tuesday"], "start-N"),
        (["--request", "start-1", "--param", "warehouse=w", "--fresh"], "--param, --fresh"),
        (["--request", "start-1", "--on-rewind", "keep"], "--on-rewind"),
        (["--request", "start-1", "--adopt-offsets", "flights=old"], "--adopt-offsets"),
        (["--request", "start-1", "--aligned", "--retained", "2"], "--retained, --aligned"),
        (["--request", "start-1", "--max-in-flight-bytes", "2"], "--max-in-flight-bytes"),
        (["--checkpoint-interval", "soon"], "checkpoint interval='soon' is not an interval"),
        (["--retained", "0"], "checkpoint retained=0 is not a whole number above 0"),
        (["--unaligned", "--aligned-timeout", "1 second"], "aligned_timeout= is for aligned checkpoints"),
        (["--request", "start-1", "--full-refresh-all"], "--full-refresh-all"),
        (["--refresh", "hourley"], "it has no table 'hourley' to refresh"),
        (["--full-refresh-all", "--full-refresh", "hourly"], "--full-refresh-all cannot be given with"),
        (["--full-refresh-all", "--on-rewind", "keep"], "--full-refresh-all cannot be given with"),
        (["--adopt-offsets", "old"], "no value"),
        (["--adopt-offsets", "flights=old", "--adopt-offsets", "flights=older"], "twice"),
    ],
)
def test_an_invalid_command_is_refused_before_anything_is_written(unused: UsedHome, options: list[str], reason: str) -> None:
    refused = run(unused, *options)
    assert refused.exit_code == 2
    assert reason in refused.stderr
    assert unused.files.names("") == []


@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_a_parameter_that_was_forgotten_is_named_with_its_option(unused: UsedHome, option: list[str]) -> None:
    refused = run(unused, *option)
    assert refused.exit_code == 2
    assert "Refused: Pipeline 'flights' needs a value for warehouse." in refused.stderr
    assert "Add --param warehouse=VALUE, or a --params-file." in refused.stderr
    assert "needs a value for warehouse" in spark_jobs("validate", unused.entry, "--no-spark").stderr
    another = run(unused, *option, "--param", "days=many").stderr
    assert "warehouse: Field required" in another
    assert "days: " in another


@pytest.mark.parametrize("below", ["", "/home"])
@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_the_refusal_of_a_home_that_is_a_file_says_so(unused: UsedHome, below: str, option: list[str]) -> None:
    refused = spark_jobs("run", unused.entry, "--home", f"{unused.entry}{below}", *unused.params, *option)
    assert refused.exit_code == 2
    what = unused.entry if below else "it"
    assert f"Refused: {unused.entry}{below} cannot be a directory: {what} is a file." in refused.stderr


def test_the_error_names_a_request_that_does_not_exist(interrupted: UsedHome) -> None:
    failed = run(interrupted, "--request", "start-9", "--output", "json")
    assert document(failed)["error"]["error"] == "NotFoundError"
    assert "start-9" in failed.stderr


@pytest.mark.parametrize("shape", ["a JAAS text", "a URL", "a JSON object"])
@pytest.mark.parametrize("where", ["when it is imported", "in a validator", "in a validator, unexpectedly"])
def test_a_secret_that_a_pipelines_code_quotes_is_neither_shown_nor_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, shape: str
) -> None:
    monkeypatch.setenv("SPARK_JOBS_PARAM_TOKEN", SHAPES[shape])
    (tmp_path / "quoting.py").write_text(QUOTING.replace("WHERE", repr(where)))
    channel = Channel(open_files(str(tmp_path / "home")))
    request = channel.request_start(RunId("monday"), parameters={})
    refused = spark_jobs("run", tmp_path / "quoting.py", "--home", tmp_path / "home", "--request", request.request)
    assert (refused.exit_code, "defect" in refused.stderr) == (2, False)
    assert CORE not in refused.stdout + refused.stderr
    answer = channel.response(request.request)
    assert answer is not None
    assert answer.error is not None
    assert "***" in answer.error.failed
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file() and CORE in path.read_text()] == []


def test_a_request_that_was_answered_with_an_error_gets_the_same_error_again(drained: UsedHome) -> None:
    request = drained.ask()
    report = ErrorReport(
        error="RejectedError", retry="never", failed="The graph is wrong.", remedy="Mend it.", evidence={"stage": "x"}
    )
    Channel(drained.files).respond(failure(request, report))
    again = run(drained, "--request", request.request, "--output", "json")
    assert again.exit_code == 2
    assert document(again)["error"] == report.model_dump()


def failure(request: StartRequest, report: ErrorReport) -> StartResponse:
    return StartResponse(
        request=request.request,
        attempt=request.attempt,
        run=request.run,
        checkpoint=None,
        sinks={},
        error=report,
        answered_at=datetime.now(UTC),
    )


def test_a_request_runs_with_its_own_parameters(drained: UsedHome) -> None:
    request = drained.ask("tuesday")
    answer = document(run(drained, "--request", request.request, "--output", "json"))
    assert (answer["run"], answer["attempt"], answer["ran"]) == ("tuesday", 2, False)
    response = Channel(drained.files).response(request.request)
    assert response is not None
    assert response.checkpoint == 1


@pytest.mark.parametrize("discarded", [True, False], ids=["discarded", "kept"])
def test_a_stopped_run_gets_its_first_answer_again_although_later_runs_have_continued(
    interrupted: UsedHome, discarded: bool
) -> None:
    stop: dict[str, Any] = {"checkpoint_kind": CheckpointKind.STOP, "drained": False, "request": "stop-1"}
    interrupted.complete(run="monday", publish=Publish.FINAL, **stop)
    sinks = publish(interrupted.files, by_policy=True)
    Channel(interrupted.files).respond(success(Channel(interrupted.files).request(start_request_id(AttemptNumber(1))), sinks))
    interrupted.begin(2, run="tuesday")
    interrupted.complete(run="tuesday", **stop)
    if discarded:
        discard(interrupted.files, [CheckpointId(1)])
    for asked in (["--request", "start-1"], ["--run-id", "monday", *interrupted.params]):
        answer = document(run(interrupted, *asked, "--output", "json"))
        assert (answer["run"], answer["ran"], answer["checkpoint"]) == ("monday", False, 1)
        assert answer["sinks"] == {sink: result.model_dump() for sink, result in sinks.items()}
        assert (answer["manifest"] is None, answer["completed_at"] is None) == (discarded, discarded)
        assert answer["blocked"]["waiting"] == ["daily"]
        shown = run(interrupted, *asked).stdout
        assert ("was discarded since" in shown) is discarded
        assert BLOCKED.summary in " ".join(shown.split())


def success(request: StartRequest, sinks: dict[SinkName, SinkResult]) -> StartResponse:
    return StartResponse(
        request=request.request,
        attempt=request.attempt,
        run=request.run,
        checkpoint=CheckpointId(1),
        sinks=sinks,
        blocked=BLOCKED,
        answered_at=datetime.now(UTC),
    )


def test_a_second_driver_for_a_request_has_nothing_to_do(interrupted: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, FencedError("Somebody else is at it."), "launch_requested")
    second = run(interrupted, "--request", "start-1")
    assert second.exit_code == 0
    assert second.stdout.splitlines() == [
        "Attempt 1 is being run by process 4711 on elsewhere: nothing to do for a second driver."
    ]
    answer = document(run(interrupted, "--request", "start-1", "--output", "json"))
    assert answer == {"request": "start-1", "attempt": 1, "host": "elsewhere", "process": 4711}


def test_a_second_driver_has_nothing_to_do_while_the_first_one_is_starting(
    unused: UsedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, FencedError("Another driver is at work."), "launch_requested")
    with holding(local_path(unused.files, DRIVER_LOCK), "start-1"):
        second = run(unused, "--request", "start-1", "--output", "json")
        assert run(unused, "--request", "start-2").exit_code == 3
    assert second.exit_code == 0
    assert document(second) == {"request": "start-1", "attempt": 1, "host": socket.gethostname(), "process": None}


def test_a_driver_that_was_fenced_has_failed(unused: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    unused.begin(host=socket.gethostname(), process=os.getpid())
    fails(monkeypatch, FencedError("Attempt 1 stops: attempt 2 is live.", attempt=1, live=2), "launch_requested")
    assert run(unused, "--request", "start-1").exit_code == 3
    assert run(unused, "--request", "start-2").exit_code == 3
    fails(monkeypatch, FencedError("Attempt 1 stops."))
    assert run(unused, *unused.params).exit_code == 3


@pytest.mark.parametrize(
    ("error", "code", "headline"),
    [
        (RejectedError("No."), 2, "Refused"),
        (InterruptedRunError("A stage failed.", remedy="Mend it."), 3, "Failed"),
        (OutcomeUnknownError("Perhaps."), 4, "Outcome unknown"),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_the_exit_code_and_the_headline_tell_how_a_run_ended_early(
    unused: UsedHome, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, headline: str
) -> None:
    fails(monkeypatch, error)
    ended = run(unused, *unused.params)
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert f"{headline}: " in ended.stderr


def test_an_interrupted_run_names_its_id_and_the_command_to_continue(unused: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, KeyboardInterrupt())
    error = document(run(unused, "--output", "json"))["error"]
    go_on = f"spark-jobs run {unused.entry} --home {unused.url} --output json --run-id {error['evidence']['run']}"
    assert error["failed"] == f"Run {error['evidence']['run']} was interrupted."
    assert (error["remedy"], error["evidence"]["command"]) == (f"Go on with it: {go_on}", go_on)
    own = spark_jobs("run", unused.entry, "--home", unused.url, "--run-id", "the night's", COLUMNS="40").stderr
    line = f"  spark-jobs run {unused.entry} --home {unused.url} --run-id 'the night'\"'\"'s'"
    assert line in own.splitlines(), "however narrow the terminal is"


EVERY_KIND_OF_OPTION = [
    *("--py-files", "a b.py", "--param", "warehouse=$HOME/w", "--param", "days=2", "--params-file", "p.json"),
    *("--on-end", "suspend", "--publish", "external", "--fresh", "--new-source", "events", "--retained", "3"),
    *("--aligned", "--no-second-copy", "--conf", "spark.sql.shuffle.partitions=4", "--driver-memory", "4g"),
]


def test_the_command_to_continue_has_every_option_that_was_given(unused: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, KeyboardInterrupt())
    (unused.directory / "p.json").write_text("{}")
    monkeypatch.chdir(unused.directory)
    found = document(run(unused, *EVERY_KIND_OF_OPTION, "--output", "json"))["error"]["evidence"]
    typed = shlex.split(found["command"])
    assert typed[:5] == ["spark-jobs", "run", unused.entry, "--home", unused.url]
    assert typed[-2:] == ["--run-id", found["run"]]
    assert sorted(typed[5:-2]) == sorted([*EVERY_KIND_OF_OPTION, "--output", "json"])


@pytest.mark.parametrize(
    ("option", "name"), [("--param", "token"), ("--conf", "spark.hadoop.fs.s3a.secret.key"), ("--param", "warehouse")]
)
def test_the_command_to_continue_has_no_secret(unused: UsedHome, monkeypatch: pytest.MonkeyPatch, option: str, name: str) -> None:
    """Tries parameters and settings with names of secrets, and a public parameter with a secret value from the environment."""
    fails(monkeypatch, KeyboardInterrupt())
    if name == "warehouse":
        monkeypatch.setenv("SPARK_JOBS_PARAM_TOKEN", CORE)
    ended = run(unused, option, f"{name}={CORE}", "--output", "json")
    assert CORE not in ended.stdout + ended.stderr
    remedy = document(ended)["error"]["remedy"]
    assert remedy.startswith("Go on with it, with the values for ***: spark-jobs run ")
    assert f"{option} '{name}=***'" in remedy


def test_the_command_to_continue_an_interrupted_request_has_its_id(unused: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, KeyboardInterrupt(), "launch_requested")
    ended = run(unused, "--request", "start-3")
    assert "start-3 was interrupted." in ended.stderr
    assert f"spark-jobs run {unused.entry} --home {unused.url} --request start-3" in ended.stderr
    submitted = CliRunner().invoke(app, ["run", unused.entry, "--home", unused.url, "--request", "start-3"], obj=SUBMITTED)
    assert "Submit it again with the arguments:" in submitted.stderr
    assert f"  {unused.entry} --home {unused.url} --request start-3" in submitted.stderr.splitlines()


def failing_after_spark(monkeypatch: pytest.MonkeyPatch, error: StreamPipelineError) -> None:
    """Lets a run fail after the start of Spark, which prints a line."""

    def launched(pipeline: Any, files: Any, parameters: Any, options: Any, start: Any, watch: Any) -> StartResponse:
        start()
        raise error

    def started(name: str, conf: Any, **rest: Any) -> object:
        os.write(2, b"the JVM says this\n")
        return session_of_java("99")

    monkeypatch.setattr("spark_jobs.runtime.spark.session.start_session", started)
    monkeypatch.setattr("spark_jobs.runtime.launch.launch", launched)


def test_a_failed_run_names_its_logs(drained: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_after_spark(monkeypatch, InterruptedRunError("A stage failed."))
    failed = run(drained, *drained.params)
    assert str(drained.directory / "home" / "logs") in failed.stderr
    assert str(drained.directory / "home" / "work" / "spark.log") in failed.stderr


@pytest.mark.parametrize("error", [InterruptedRunError("It failed."), RejectedError("It is refused.")])
def test_a_first_start_that_has_not_begun_leaves_no_log(
    unused: UsedHome, monkeypatch: pytest.MonkeyPatch, error: StreamPipelineError
) -> None:
    failing_after_spark(monkeypatch, error)
    failed = run(unused, *unused.params)
    assert ("the JVM says this" in failed.stderr) is not isinstance(error, RejectedError)
    assert not (unused.directory / "home").exists()


def test_the_error_without_pyspark_names_the_package_to_install(unused: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_jobs.runtime.launch", None)
    refused = run(unused, *unused.params)
    assert refused.exit_code == 2
    assert "pip install '.[spark]'" in refused.stderr


def test_a_first_start_without_java_leaves_nothing(unused: UsedHome) -> None:
    refused = spark_jobs("run", unused.entry, "--home", unused.url, *unused.params, JAVA_HOME="/nowhere")
    assert refused.exit_code == 2
    assert "JAVA_HOME is /nowhere, which has no bin/java" in refused.stderr
    assert not (unused.directory / "home").exists()


def test_a_first_start_from_airflow_without_java_is_refused_before_the_home_begins(unused: UsedHome) -> None:
    channel = Channel(unused.files)
    request = channel.request_start(RunId("monday"), parameters={"warehouse": str(unused.directory / "warehouse")})
    refused = spark_jobs("run", unused.entry, "--home", unused.url, "--request", request.request, JAVA_HOME="/nowhere")
    assert refused.exit_code == 2
    answer = channel.response(request.request)
    assert answer is not None
    assert answer.error is not None
    assert (answer.error.error, channel.pipeline()) == ("MissingRequirementError", None)
    forget_refused_start(unused.files, request.attempt)
    assert not (unused.directory / "home").exists()


def test_a_run_of_a_drained_pipeline_does_nothing_also_without_java(drained: UsedHome) -> None:
    again = spark_jobs("run", drained.entry, "--home", drained.url, *drained.params, JAVA_HOME="/nowhere")
    assert again.exit_code == 0


def test_the_error_for_spark_submit_names_the_options_that_cannot_be_applied_any_more(unused: UsedHome) -> None:
    arguments = ["run", unused.entry, "--home", unused.url, *unused.params, "--driver-memory", "1g"]
    refused = CliRunner().invoke(app, arguments, obj=SUBMITTED)
    assert refused.exit_code == 2
    assert "--driver-memory cannot be set any more" in refused.stderr
    assert unused.files.names("") == []


@pytest.mark.slow
def test_main_py_does_the_same_as_the_run_command(drained: UsedHome) -> None:
    command = [sys.executable, str(MAIN), drained.entry, "--home", drained.url, *drained.params, "--output", "json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=drained.directory)
    assert done.returncode == 0, done.stderr
    assert '"checkpoint": 1' in done.stdout


def submitted(main: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(main), *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=main.parent)


@pytest.mark.slow
def test_main_py_runs_the_package_that_its_python_has_installed(tmp_path: Path) -> None:
    """The file may belong to another environment, such as that of an Airflow worker."""
    another = tmp_path / "spark_jobs"
    another.mkdir()
    (another / "__init__.py").write_text("raise RuntimeError('This package is for another Python.')\n")
    (another / "typer.py").write_text("raise RuntimeError('Found bare.')\n")
    main = Path(shutil.copy(MAIN, another))
    done = submitted(main, "--help")
    assert done.returncode == 0, done.stderr
    assert "--request" in done.stdout


@pytest.mark.slow
def test_a_copy_of_main_py_finds_the_modules_next_to_it(tmp_path: Path) -> None:
    """YARN runs such a copy, with the other files of the application."""
    shutil.copy(small_pipeline.__file__, tmp_path / "sent_along.py")
    main = Path(shutil.copy(MAIN, tmp_path))
    done = submitted(main, "sent_along", "--home", str(tmp_path / "home"))
    assert "needs a value for events, warehouse" in " ".join(done.stderr.split())
