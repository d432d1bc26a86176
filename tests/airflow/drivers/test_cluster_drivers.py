"""The operator with drivers that a cluster starts: late, independently, and sometimes not at all."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider.drivers.local_driver import LocalDriver
from airflow_provider.exceptions import PipelineRunError, PipelineRunRefusedError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.orders import StartOrder
from airflow_provider.version_compat import container_of_one_task
from airflow_provider.waits.goals import Goal, WaitFor
from airflow_provider.waits.runs import RunLook, WorkerWait, look_at_run
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import holding
from spark_jobs.control.supervision import answer_for_unstarted
from spark_jobs.home.layout import DRIVER_LOCK, request_path
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    ExitCode,
    HomeInUseError,
    InterruptedRunError,
    RejectedError,
    RunCancelledError,
    StorageFullError,
)
from spark_jobs.protocol.ids import AttemptNumber, RequestId, RunId, start_request_id
from spark_jobs.storage.files import Files, create_document
from spark_jobs.storage.local import LocalFiles
from spark_jobs.waits.in_process import wait_here
from spark_jobs.waits.limits import WaitLimits
from tests.airflow.conftest import Homes, connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import GIVEN, RUN, TaskLog, context, failure, once, operator, task_log, until
from tests.support import small_pipeline

__all__ = ["task_log"]
SILENCE_S = 0.3
PARAMETERS = {"events": str(Path(__file__).parent), "warehouse": "/data/warehouse"}  # the events directory exists
SUBMIT = """#!/bin/sh
case "$1" in --version) echo "version 4.2.0" >&2; exit 0 ;; esac
n=$(ls {queue} | wc -l)
printf '%s\\n' "$@" > {queue}/.$n && mv {queue}/.$n {queue}/$n
cat {queue}/../says 2>/dev/null && exit 1
exit 0
"""


class Cluster:
    """A fake YARN that keeps submissions until a test starts them."""

    def __init__(self, directory: Path, python: Path) -> None:
        self._python = python
        self.queue = directory / "queue"
        self.queue.mkdir(parents=True)
        self.submit = directory / "bin/spark-submit"
        self.submit.parent.mkdir()
        self.submit.write_text(SUBMIT.format(queue=self.queue))
        self.submit.chmod(0o755)
        self._started: list[subprocess.Popen[bytes]] = []

    def submitted(self) -> list[list[str]]:
        return [path.read_text().splitlines() for path in sorted(self.queue.iterdir()) if not path.name.startswith(".")]

    def refuse(self, words: str) -> None:
        """Makes every further submission fail."""
        (self.queue.parent / "says").write_text(words + "\n")

    def begin(self, submission: int = 0, *, after_s: float = 0.0) -> None:
        """Starts a submitted driver."""
        until(lambda: len(self.submitted()) > submission)
        threading.Event().wait(after_s)
        argv = self.submitted()[submission]
        (main,) = (number for number, each in enumerate(argv) if each.endswith("main.py"))
        command = [str(self._python), "-P", "-m", "spark_jobs", "run", *argv[main + 1 :]]
        self._started.append(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL))

    def end(self) -> None:
        for process in self._started:
            process.wait(20.0)


@pytest.fixture(params=[True, False], ids=["deferred", "in the worker"], autouse=True)
def waits_deferred(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(GIVEN, "deferrable", request.param)
    return bool(request.param)


deferred = pytest.mark.parametrize("waits_deferred", [True], indirect=True)


@pytest.fixture
def cluster(homes: Homes, fake_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = Cluster(tmp_path / "cluster", fake_python)
    monkeypatch.setenv("PATH", str(found.submit.parent), prepend=os.pathsep)
    spark = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps(spark))
    given = connection(home_root=str(homes.root), python=str(fake_python), spark_conn_id="yarn")
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", given)
    monkeypatch.setitem(GIVEN, "wait_limits", WaitLimits(silence_s=SILENCE_S))
    yield found
    for home in homes.root.iterdir():
        (home / ".go").touch()
    found.end()


def asked_by_an_earlier_try(run: RunId = RUN) -> None:
    order = StartOrder(entry="/pipelines/answers.py", run=run, parameters=PARAMETERS)
    _, submitter = StreamPipelineHook().submit("flights", order)
    assert submitter.wait(20.0)


def channel(homes: Homes) -> Channel:
    return Channel(LocalFiles(homes.path()))


def real_driver(homes: Homes, request: str) -> subprocess.CompletedProcess[str]:
    """Runs the real driver, late."""
    command = [sys.executable, "-P", "-m", "spark_jobs", "run", small_pipeline.__file__, "--home", str(homes.path())]
    return subprocess.run([*command, "--request", request], capture_output=True, text=True, check=False)


def test_a_task_waits_for_a_driver_that_is_still_queued(homes: Homes, cluster: Cluster, task_log: TaskLog) -> None:
    begun = once(cluster.submitted, lambda: cluster.begin(after_s=4 * SILENCE_S))
    assert carry_out(operator(), context())["attempt"] == 1
    assert "Requested attempt 1; spark-submit is process" in task_log.text
    begun.join()
    (argv,) = cluster.submitted()
    assert argv[-5:] == ["/pipelines/answers.py", "--home", f"file://{homes.path()}", "--request", "start-1"]


def test_the_next_try_waits_for_the_driver_that_the_last_try_submitted(homes: Homes, cluster: Cluster, task_log: TaskLog) -> None:
    asked_by_an_earlier_try()
    begun = once(lambda: "A driver for attempt 1 was requested" in task_log.text, cluster.begin)
    assert carry_out(operator(), context())["attempt"] == 1
    begun.join()
    assert len(cluster.submitted()) == 1


def test_another_run_is_refused_while_a_submitted_driver_is_queued(homes: Homes, cluster: Cluster) -> None:
    asked_by_an_earlier_try(RunId("somebody-else"))
    assert "attempt 1 is asked for, for the run somebody-else" in str(failure(operator(), HomeInUseError))
    assert len(cluster.submitted()) == 1


def test_a_driver_that_starts_after_the_start_timeout_ends_by_itself(homes: Homes, cluster: Cluster) -> None:
    assert "has not begun within 0.5 s" in str(failure(operator(start_timeout_s=0.5, parameters=PARAMETERS), InterruptedRunError))
    late = real_driver(homes, "start-1")
    assert late.returncode == ExitCode.FAILED, late.stderr
    assert "has not begun within 0.5 s" in " ".join(late.stderr.split())
    assert channel(homes).attempts.numbers() == []
    begun = once(lambda: len(cluster.submitted()) == 2, lambda: cluster.begin(1))
    assert carry_out(operator(), context())["attempt"] == 2
    begun.join()


@deferred
def test_the_next_try_answers_a_request_whose_driver_missed_the_start_timeout(homes: Homes, cluster: Cluster) -> None:
    """The worker was lost while its task waited."""
    asked_by_an_earlier_try()
    files, first = LocalFiles(homes.path()), start_request_id(AttemptNumber(1))
    asked = channel(homes).request(first)
    files.delete(request_path(first))
    create_document(
        files, request_path(first), asked.model_copy(update={"requested_at": asked.requested_at - timedelta(hours=1)})
    )
    begun = once(lambda: len(cluster.submitted()) == 2, lambda: cluster.begin(1))
    assert carry_out(operator(parameters=PARAMETERS), context())["attempt"] == 2
    begun.join()
    assert "was asked for" in " ".join(real_driver(homes, "start-1").stderr.split())


@deferred
@pytest.mark.parametrize(
    ("exit_code", "at_work", "expected"), [(None, False, None), (0, False, None), (1, False, 1), (1, True, None)]
)
def test_the_exit_code_of_a_submitter_counts_only_if_it_failed_and_no_driver_runs(
    homes: Homes, cluster: Cluster, exit_code: int | None, at_work: bool, expected: int | None
) -> None:
    asked_by_an_earlier_try()
    submitter = cast(LocalDriver, SimpleNamespace(exit_code=exit_code, submits=True))
    with holding(homes.path() / DRIVER_LOCK, "start-1") if at_work else nullcontext():
        look = look_at_run(StreamPipelineHook().files("flights"), start_request_id(AttemptNumber(1)), submitter)
    assert (look.exit_code, look.ours_runs) == (expected, False)


def test_a_task_that_times_out_leaves_the_driver_in_the_queue(homes: Homes, cluster: Cluster) -> None:
    failure(operator(timeout_s=0.1), DeadlineExceededError)
    assert channel(homes).unclaimed() is not None
    begun = once(lambda: True, cluster.begin)
    assert carry_out(operator(), context())["attempt"] == 1
    begun.join()


def test_a_failed_submission_is_an_error_with_its_output_and_the_next_try_submits_again(
    homes: Homes, cluster: Cluster, task_log: TaskLog
) -> None:
    cluster.refuse("the queue is closed")
    assert "ended with exit code 1" in str(failure(operator(), InterruptedRunError))
    assert "the queue is closed" in task_log.text
    answer = channel(homes).response(start_request_id(AttemptNumber(1)))
    assert answer is not None
    assert answer.error is not None
    (cluster.queue.parent / "says").unlink()
    begun = once(lambda: len(cluster.submitted()) == 2, lambda: cluster.begin(1))
    assert carry_out(operator(), context())["attempt"] == 2
    begun.join()


@deferred
@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("airflow_provider.hooks.stream_pipeline.start_local_driver", StorageFullError("The disk is full.")),
        ("airflow_provider.drivers.spark_submit.Submission.command", ValueError("The provider's builder has failed.")),
    ],
)
def test_the_next_try_submits_at_once_if_the_last_submission_failed(
    homes: Homes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fails: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(fails, fail)
        with pytest.raises((PipelineRunError, ValueError), match=str(error)):
            carry_out(operator(), context())
    answer = channel(homes).response(start_request_id(AttemptNumber(1)))
    assert answer is not None
    assert answer.error is not None
    assert str(error) in answer.error.failed
    begun = once(lambda: len(cluster.submitted()) == 1, cluster.begin)
    assert carry_out(operator(), context())["attempt"] == 2
    begun.join()


@pytest.mark.parametrize("waits_deferred", [False], indirect=True)
def test_a_killed_task_leaves_a_driver_in_the_queue_that_ends_by_itself(homes: Homes, cluster: Cluster) -> None:
    task = operator(parameters=PARAMETERS)
    charge = AttemptLease(LocalFiles(homes.path()), AttemptNumber(1))
    # an earlier kill ends spark-submit, and no driver is in the queue
    killer = once(lambda: charge.newest() is not None and cluster.submitted(), task.on_kill)
    assert "The task was killed" in str(failure(task, InterruptedRunError))
    killer.join()
    begun = once(lambda: len(cluster.submitted()) == 2, lambda: cluster.begin(1))
    assert carry_out(operator(parameters=PARAMETERS), context(token="second try"))["attempt"] == 2
    begun.join()
    assert real_driver(homes, "start-1").returncode == ExitCode.FAILED
    assert channel(homes).attempts.numbers() == [2]


@deferred
def test_a_driver_of_a_cancelled_attempt_ends_before_it_starts_spark(homes: Homes, cluster: Cluster) -> None:
    asked_by_an_earlier_try()
    owners = AttemptLease(LocalFiles(homes.path()), AttemptNumber(1))
    owners.cancel(owners.take("a task").owner, "its task was cleared")
    late = real_driver(homes, "start-1")
    assert late.returncode == ExitCode.FAILED, late.stderr
    assert "its task was cleared" in " ".join(late.stderr.split())
    assert not (homes.path() / "work/spark.log").exists()
    answer = channel(homes).response(start_request_id(AttemptNumber(1)))
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == RunCancelledError.__name__
    assert channel(homes).attempts.numbers() == []


@deferred
def test_an_owner_that_lost_its_lease_does_not_answer_for_the_attempt(homes: Homes, cluster: Cluster) -> None:
    asked_by_an_earlier_try()
    hook = StreamPipelineHook()
    owners = AttemptLease(hook.files("flights"), AttemptNumber(1))
    first = owners.take("a try that the scheduler has lost").owner
    owners.take("the next one")
    answer_for_unstarted(hook.files("flights"), AttemptNumber(1), InterruptedRunError("It has not begun."), first)
    assert channel(homes).unclaimed() is not None


@deferred
def test_secrets_for_a_cluster_are_refused_before_anything_is_written(
    homes: Homes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_API", '{"conn_type": "http", "password": "s3cr3t"}')
    refused = failure(operator(secrets={"token": "api"}), RejectedError)
    assert isinstance(refused, PipelineRunRefusedError)
    assert "token cannot reach a driver in cluster mode" in str(refused)
    assert list(homes.root.iterdir()) == []
    assert cluster.submitted() == []


@deferred
def test_the_test_of_a_connection_says_where_drivers_are_submitted(homes: Homes, cluster: Cluster) -> None:
    well, said = StreamPipelineHook().test_connection()
    assert well, said
    for part in ("Spark connection 'yarn': YARN master yarn, deploy mode cluster", f"{cluster.submit} of Spark 4.2.0"):
        assert part in said
    assert list(homes.root.iterdir()) == []


@deferred
@pytest.mark.parametrize(
    ("says", "expected"),
    [("echo version 3.5.1 >&2", "has Spark 3.5.1, and pipelines do not run on it"), ("exit 1", "does not run")],
)
def test_the_test_of_a_connection_reports_a_spark_submit_that_cannot_run_pipelines(
    homes: Homes, cluster: Cluster, says: str, expected: str
) -> None:
    cluster.submit.write_text(f"#!/bin/sh\n{says}\n")
    well, said = StreamPipelineHook().test_connection()
    assert not well
    assert expected in said


@pytest.mark.parametrize("mark", ["AIRFLOW_IS_K8S_EXECUTOR_POD", "AIRFLOW_IS_EXECUTOR_CONTAINER"])
def test_a_driver_that_would_end_with_its_tasks_container_is_refused(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    assert container_of_one_task() is None
    monkeypatch.setenv(mark, "True")
    refused = failure(operator(), RejectedError)
    assert isinstance(refused, PipelineRunRefusedError)
    assert "allow_driver_in_pod=True" in str(refused)
    assert list(homes.root.iterdir()) == []


def test_a_task_that_may_share_its_container_with_the_driver_stays_until_the_run_has_ended(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is deferred raises an exception."""
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    assert operator(allow_driver_in_pod=True).execute(context())["attempt"] == 1


def test_a_cluster_takes_drivers_from_a_container_too(homes: Homes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    begun = once(lambda: len(cluster.submitted()) == 1, cluster.begin)
    assert carry_out(operator(), context())["attempt"] == 1
    begun.join()


class Submission:
    """A ``spark-submit`` that ends with an error immediately after the first look at it."""

    submits = True
    looks = 0

    @property
    def exit_code(self) -> int | None:
        return 1 if self.looks else None

    def look(self, files: Files, request: RequestId, driver: object) -> RunLook:
        code = self.exit_code
        self.looks += 1
        return RunLook(exit_code=code, ours_runs=False, at_work=False, status=None, answer=None)


def test_a_wait_whose_submission_fails_between_two_looks_is_not_deferred() -> None:
    submission, home, request = Submission(), "/data/homes/flights", RequestId("start-1")
    driver = cast(Any, submission)
    goal = Goal(WaitFor.FINAL_CHECKPOINT)
    wait = WorkerWait(open_home(home), request, goal, driver=driver, until_seen_s=600.0, look_at=submission.look)
    with pytest.raises(InterruptedRunError, match="ended with exit code 1"):
        wait_here(wait, end_s=None, timeout_s=None, log=TaskLog(), pause=lambda: None)
