"""The decision whether an attempt begins, before Spark starts and again afterwards. No JVM is started."""

import errno
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.checkpoint.savepoint import export
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import driver_at_work, holding
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import (
    AttemptDocument,
    CheckpointKind,
    OnRewind,
    Publish,
    RunState,
    StartResponse,
    Status,
    WorkDirectory,
)
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    FencedError,
    InterruptedRunError,
    InvalidPipelineError,
    NotFoundError,
    RejectedError,
    RunCancelledError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import (
    IncarnationId,
    PipelineName,
    RequestId,
    RoundNumber,
    RunId,
    WorkDirectoryId,
)
from spark_jobs.protocol.start_requests import StartOptions, StartRequest
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.application import Application
from spark_jobs.runtime.launch import launch, launch_requested, plan
from spark_jobs.runtime.start_planner import StartPlanner
from spark_jobs.storage.files import create_document, local_path
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from tests.support import small_pipeline
from tests.support.attempts import attempt
from tests.support.staged_pipeline import CHECKPOINTING, HOURLY, NOW, StagedPipeline, path_of


class SparkStartedError(Exception):
    """Raised at the point where Spark would start."""


def no_spark() -> SparkSession:
    raise SparkStartedError


class Home:
    """A home with an open request for a driver."""

    def __init__(self, directory: Path) -> None:
        self.files = LocalFiles(directory / "home")
        self.channel = Channel(self.files)
        self.channel.claim(PipelineName("small"))
        (directory / "events").mkdir()
        parameters = {"events": str(directory / "events"), "warehouse": "/w"}
        self.request: StartRequest = self.channel.request_start(RunId("a task"), parameters=parameters)

    def begun(self, host: str, heard: datetime, incarnation: str = "i") -> None:
        """Begins the attempt, as a driver that sends a heartbeat at this time."""
        work = WorkDirectory(id=WorkDirectoryId("w"), path="work/w", host=host)
        self.channel.attempts.begin(
            AttemptDocument(
                attempt=self.request.attempt,
                request=self.request.request,
                run=self.request.run,
                round=RoundNumber(1),
                incarnation=IncarnationId(incarnation),
                restored_from=None,
                work_directory=work,
                host=host,
                process=1,
                started_at=heard,
                versions={},
                checkpointing=CHECKPOINTING,
            ),
            known=self.channel.attempts.numbers(),
        )
        running = Status(attempt=self.request.attempt, run=self.request.run, state=RunState.RUNNING, updated_at=heard, stages={})
        write_status(self.files, running)

    def launch(self, start: Any = no_spark) -> None:
        launch_requested(small_pipeline.pipeline, self.files, self.request.request, start)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("warehouse", ["warehouse", "home", "home/work"])
def test_a_table_inside_the_home_is_refused_at_every_start(home: Home, warehouse: str) -> None:
    directory = local_path(home.files).parent / warehouse
    parameters = home.request.parameters | {"warehouse": str(directory)}
    request = home.channel.request_start(RunId("b task"), parameters=parameters)
    expected = "SparkStartedError" if warehouse == "warehouse" else r"table of sink '\w+', \S+ is inside the home"
    with pytest.raises(StreamPipelineError, match=expected):
        launch_requested(small_pipeline.pipeline, home.files, request.request, no_spark)


@pytest.mark.parametrize("home", ["warehouse/hourly", "warehouse/hourly/home", "warehouse"])
def test_a_refused_first_start_leaves_nothing_behind(tmp_path: Path, home: str) -> None:
    (tmp_path / "events").mkdir()
    parameters = {"events": str(tmp_path / "events"), "warehouse": str(tmp_path / "warehouse")}
    with pytest.raises(RejectedError, match=r"The home \S+ is (also|inside|around) the table of sink 'hourly'"):
        launch(small_pipeline.pipeline, str(tmp_path / home), parameters, StartOptions(), no_spark)
    with pytest.raises(RejectedError, match="the table of sink 'hourly'"):
        plan(small_pipeline.pipeline, LocalFiles(tmp_path / home), parameters, StartOptions(), no_spark)
    assert list(tmp_path.iterdir()) == [tmp_path / "events"]


class FirstStart:
    """A place for a home, in which a start is planned without Spark."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (directory / "events").mkdir()
        self.files, self.channel = LocalFiles(directory / "home"), Channel(LocalFiles(directory / "home"))
        self.parameters = {"events": str(directory / "events"), "warehouse": str(directory / "warehouse")}
        self.plans = 0
        self.in_the_meantime: Callable[[], object] = lambda: None
        self.carried_out: list[bool] = []
        """For each attempt, whether it has the plan that was made before the claim."""
        for name in ("check_shared", "check_stores"):
            monkeypatch.setattr(f"spark_jobs.runtime.application.{name}", lambda *_: None)
        monkeypatch.setattr(StartPlanner, "plan", lambda *_: self.plan())
        monkeypatch.setattr(Application, "_run", lambda *_: self.carry_out(False))
        monkeypatch.setattr(Application, "_carry_out", lambda *_: self.carry_out(True))

    def plan(self) -> Any:
        self.plans += 1
        self.in_the_meantime()
        return SimpleNamespace(new_places={})

    def carry_out(self, planned: bool) -> StartResponse:
        self.carried_out.append(planned)
        raise InterruptedRunError("This test ends here.")

    def launch(self) -> None:
        launch(small_pipeline.pipeline, self.files, self.parameters, StartOptions(), lambda: NO_SESSION)

    def launch_requested(self) -> None:
        request = self.channel.request_start(RunId("a task"), parameters=self.parameters)
        launch_requested(small_pipeline.pipeline, self.files, request.request, lambda: NO_SESSION)


NO_SESSION: Any = SimpleNamespace()
DOORS = pytest.mark.parametrize("door", [FirstStart.launch, FirstStart.launch_requested], ids=["run", "request"])


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FirstStart:
    return FirstStart(tmp_path, monkeypatch)


def test_a_first_start_is_planned_once_before_its_home_exists(first: FirstStart) -> None:
    found = []
    first.in_the_meantime = lambda: found.append(local_path(first.files).exists())
    with pytest.raises(InterruptedRunError, match="ends here"):
        first.launch()
    assert (first.plans, found, first.carried_out) == (1, [False], [True])
    assert first.channel.pipeline() is not None


def test_a_requested_first_start_only_holds_its_lock_while_it_is_planned(first: FirstStart) -> None:
    found: list[str] = []
    first.in_the_meantime = lambda: found.extend(path for path in first.files.paths() if "start-1" not in path)
    with pytest.raises(InterruptedRunError, match="ends here"):
        first.launch_requested()
    assert [path.partition("/")[0] for path in found] == ["runs", "work"]
    assert driver_at_work(first.files) is False
    assert first.carried_out == [True]


@DOORS
def test_the_slower_of_two_first_starts_drops_its_plan(first: FirstStart, door: Callable[[FirstStart], None]) -> None:
    first.in_the_meantime = lambda: first.channel.claim(PipelineName("small"))
    with pytest.raises(InterruptedRunError, match="ends here"):
        door(first)
    assert first.carried_out == [False]


@DOORS
def test_a_plan_is_dropped_if_another_attempt_has_begun_since_the_claim(
    first: FirstStart, door: Callable[[FirstStart], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = Application._claimed

    def late(self: Application, plan: Any) -> Any:
        found = claimed(self, plan)
        first.channel.attempts.create(attempt(1))
        return found

    monkeypatch.setattr(Application, "_claimed", late)
    with pytest.raises(InterruptedRunError, match="ends here"):
        door(first)
    assert first.carried_out == [False]


@DOORS
def test_a_start_takes_the_id_of_a_home_that_begins_while_the_start_is_checked(
    first: FirstStart, door: Callable[[FirstStart], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[str] = []

    def run(self: Application, *_: object) -> StartResponse:
        ids.append(self.pipeline.uuid)
        return first.carry_out(False)

    monkeypatch.setattr("spark_jobs.runtime.launch.check_claim", lambda *_: first.channel.claim(PipelineName("small")))
    monkeypatch.setattr(Application, "_run", run)
    with pytest.raises(InterruptedRunError, match="ends here"):
        door(first)
    begun = first.channel.pipeline()
    assert begun is not None
    assert ids == [begun.uuid]


@DOORS
def test_a_start_is_refused_if_another_pipeline_has_begun_the_home_in_the_meantime(
    first: FirstStart, door: Callable[[FirstStart], None]
) -> None:
    first.in_the_meantime = lambda: first.channel.claim(PipelineName("another"))
    with pytest.raises(RejectedError, match="the home of pipeline 'another', not of 'small'"):
        door(first)
    assert first.carried_out == []


@DOORS
def test_a_directory_with_other_files_is_refused_before_the_plan(
    first: FirstStart, door: Callable[[FirstStart], None], tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "notes.txt").touch()
    with pytest.raises(RejectedError, match=r"cannot begin there: .* notes\.txt"):
        door(first)
    assert first.plans == 0


def test_a_home_that_cannot_be_written_is_refused_before_the_plan(first: FirstStart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(AccessDeniedError, match="no right to write"):
        first.launch()
    assert first.plans == 0


@pytest.mark.parametrize("error", [RejectedError("A wrong column."), ValueError("a defect")])
def test_a_first_start_whose_plan_fails_leaves_nothing(first: FirstStart, tmp_path: Path, error: Exception) -> None:
    def fail() -> None:
        raise error

    first.in_the_meantime = fail
    with pytest.raises(StreamPipelineError):
        first.launch()
    assert [path.name for path in tmp_path.iterdir()] == ["events"]
    with pytest.raises(StreamPipelineError):
        first.launch_requested()
    assert {path.partition("/")[0] for path in first.files.paths()} == {"requests", "responses", "runs"}
    assert "work" not in first.files.names("")


def test_a_request_that_is_answered_while_its_first_start_is_planned_does_not_begin(first: FirstStart) -> None:
    def give_up() -> None:
        request = first.channel.unclaimed()
        assert request is not None
        first.channel.respond_failure(request, InterruptedRunError("It has not begun in time."))

    first.in_the_meantime = give_up
    with pytest.raises(InterruptedRunError, match="It has not begun in time"):
        first.launch_requested()
    assert first.channel.pipeline() is None


def test_a_second_driver_of_a_requested_first_start_leaves_the_lock_alone(first: FirstStart) -> None:
    lock = local_path(first.files, DRIVER_LOCK)
    with holding(lock, "start-1"), pytest.raises(FencedError):
        first.launch_requested()
    assert lock.exists()


def test_a_full_disk_is_answered_with_the_path(tmp_path: Path) -> None:
    home = Home(tmp_path)

    def full() -> SparkSession:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/work/modules.zip")

    with pytest.raises(StorageFullError) as told:
        home.launch(full)
    assert told.value.evidence["path"] == "/work/modules.zip"
    answer = home.channel.response(home.request.request)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "StorageFullError"


def test_a_driver_with_an_open_request_starts_spark(home: Home) -> None:
    with pytest.raises(InterruptedRunError, match="SparkStartedError"):
        home.launch()


def test_checkpoint_settings_that_contradict_those_of_the_pipeline_are_refused_and_answered(home: Home) -> None:
    overrides = CheckpointOverrides(aligned_timeout_ms=600_000)
    request = home.channel.request_start(
        RunId("b task"), parameters=home.request.parameters, options=StartOptions(checkpoint=overrides)
    )
    with pytest.raises(InvalidPipelineError, match="aligned_timeout .* is not shorter than timeout"):
        launch_requested(small_pipeline.pipeline, home.files, request.request, no_spark)
    answer = home.channel.response(request.request)
    assert answer is not None
    assert answer.error is not None


def test_a_second_driver_does_not_answer_for_a_driver_on_another_host(home: Home) -> None:
    home.begun("another-host", datetime.now(UTC))
    with pytest.raises(FencedError, match="at work on another-host"):
        home.launch()
    assert home.channel.response(home.request.request) is None, "the other one answers"


@pytest.mark.parametrize(
    ("host", "age"),
    [("another-host", timedelta(hours=1)), (socket.gethostname(), timedelta())],
    ids=["an old heartbeat on another host", "this host"],
)
def test_an_attempt_whose_driver_is_gone_is_answered_and_not_started_again(home: Home, host: str, age: timedelta) -> None:
    home.begun(host, datetime.now(UTC) - age)
    with pytest.raises(InterruptedRunError, match="was started before and did not finish"):
        home.launch()
    assert home.channel.response(home.request.request) is not None


def test_an_attempt_that_was_cancelled_before_its_driver_came_starts_no_spark(home: Home) -> None:
    owners = AttemptLease(home.files, home.request.attempt)
    owners.cancel(owners.take("a try").owner, "its task was cleared")
    with pytest.raises(RunCancelledError, match="its task was cleared"):
        home.launch()
    assert home.channel.attempts.numbers() == []


def test_a_request_that_was_answered_before_its_driver_came_starts_no_spark(home: Home) -> None:
    home.channel.respond_failure(home.request, InterruptedRunError("It has not begun in time."))
    with pytest.raises(InterruptedRunError, match="It has not begun in time"):
        home.launch()
    assert home.channel.attempts.numbers() == []


def test_a_run_fails_if_another_driver_has_answered_its_request_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)

    def run(self: Application, request: StartRequest, *_: object) -> StartResponse:
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


class StoppedHome(Home):
    """A home in which a stop has its checkpoint, which is not published. The stop is not answered."""

    def __init__(self, directory: Path, *, drained: bool = True, run: RunId | None = None, **begun: Any) -> None:
        super().__init__(directory)
        if begun:
            self.channel.respond_failure(self.request, InterruptedRunError("It has not begun in time."))
            self.request = self.channel.request_start(
                self.request.run, parameters=self.request.parameters, options=StartOptions(**begun)
            )
        (directory / "warehouse").mkdir()
        self.begun(socket.gethostname(), datetime.now(UTC))
        self.channel.respond_failure(self.request, InterruptedRunError("Its host went down."))
        self.stop = CheckpointRequest(request=RequestId("stop-it"), requested_at=NOW, wanted=Wanted.STOP)
        create_document(self.files, f"requests/{self.stop.request}.json", self.stop)
        self.staged = StagedPipeline(self.files, directory / "warehouse")
        self.table = path_of(self.staged.make_table())
        self.head = self.staged.checkpoint(
            {HOURLY: [(1, "a")]},
            publish=Publish.EVERY_CHECKPOINT,
            request=self.stop.request,
            checkpoint_kind=CheckpointKind.STOP,
            incarnation=IncarnationId("i"),
            round=RoundNumber(1),
            run=run or self.request.run,
            drained=drained,
        )
        self.start: Callable[[], SparkSession] = no_spark

    def start_again(self, run: str = "b task", **how: Any) -> None:
        self.request = self.channel.request_start(RunId(run), parameters=self.request.parameters, options=StartOptions(**how))
        self.launch(self.start)

    def is_planned(
        self,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception | None = None,
        in_the_meantime: Callable[[], object] = lambda: None,
    ) -> None:
        """Lets later starts plan without Spark. A start with a plan ends when it would begin its attempt."""

        def plan(*_: object) -> Any:
            in_the_meantime()
            if error is not None:
                raise error
            settled = SimpleNamespace(renewed=frozenset(), replaces_round=False)
            return SimpleNamespace(
                decision=None, facts=None, savepoint=None, places={}, new_places={}, source_tables_in_stores=(), settled=settled
            )

        def begin(*_: object, **__: object) -> AttemptDocument:
            raise InterruptedRunError("This test ends here.")

        replaced: dict[str, Any] = {
            "check_shared": lambda *_: None,
            "check_stores": lambda *_: None,
            "replaced_round": lambda _: None,
        }
        replaced |= {"jvm_lock": lambda *_: SimpleNamespace(release=lambda: None), "begin_attempt": begin}
        for name, function in replaced.items():
            monkeypatch.setattr(f"spark_jobs.runtime.application.{name}", function)
        monkeypatch.setattr(StartPlanner, "plan", plan)
        self.start = lambda: NO_SESSION

    def answer(self) -> CheckpointResponse | None:
        return CheckpointRequests(self.files).answer_of(self.stop.request)


def vacuum(home: StoppedHome) -> None:
    for path in home.table.rglob("*part-*.parquet"):
        path.unlink()


def drop(home: StoppedHome) -> None:
    home.table.rename(home.table.with_name("dropped"))


@pytest.mark.parametrize("spoil", [vacuum, drop])
def test_a_stop_that_can_never_become_public_blocks_the_next_start_but_no_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[StoppedHome], None]
) -> None:
    home = StoppedHome(tmp_path)
    spoil(home)
    with pytest.raises(NotFoundError):
        home.start_again()
    assert home.answer() is None, "it may be mended yet"
    home.is_planned(monkeypatch)
    with pytest.raises(InterruptedRunError, match="ends here"):
        home.start_again(fresh=True, on_rewind=OnRewind.KEEP)
    answer = home.answer()
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "NotFoundError"


def test_a_fresh_start_whose_plan_is_refused_abandons_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = StoppedHome(tmp_path)
    vacuum(home)
    home.is_planned(monkeypatch, RejectedError("A wrong column."))
    with pytest.raises(RejectedError, match="A wrong column"):
        home.start_again(fresh=True, on_rewind=OnRewind.KEEP)
    assert home.answer() is None


def test_a_stop_that_comes_while_a_fresh_start_is_planned_is_left_to_the_attempt_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StoppedHome(tmp_path)
    vacuum(home)
    later = home.stop.model_copy(update={"request": RequestId("stop-later")})
    home.is_planned(monkeypatch, in_the_meantime=lambda: create_document(home.files, f"requests/{later.request}.json", later))
    with pytest.raises(InterruptedRunError, match="ends here"):
        home.start_again(fresh=True, on_rewind=OnRewind.KEEP)
    assert home.answer() is not None
    assert [each.request for each in CheckpointRequests(home.files).open()] == [later.request]


def test_a_fresh_start_completes_a_stop_that_can_become_public(tmp_path: Path) -> None:
    home = StoppedHome(tmp_path)
    with pytest.raises(InterruptedRunError, match="SparkStartedError"):
        home.start_again(fresh=True, on_rewind=OnRewind.KEEP)
    answer = home.answer()
    assert answer is not None
    assert (answer.checkpoint, home.staged.rows(HOURLY)) == (home.head.checkpoint, [(1, "a")])


def test_a_savepoint_that_was_requested_before_an_interrupted_stop_is_the_answer_to_its_request(tmp_path: Path) -> None:
    home = StoppedHome(tmp_path)
    target = open_files(str(tmp_path / "savepoint"))
    request = home.stop.model_copy(
        update={"request": RequestId("savepoint-before"), "wanted": Wanted.SAVEPOINT, "target": target.url}
    )
    create_document(home.files, f"requests/{request.request}.json", request)
    export(home.files, home.head.checkpoint, target, request=request.request)  # the driver is killed after this
    with pytest.raises(RejectedError, match="was drained by"):
        home.start_again()
    answer = CheckpointRequests(home.files).answer_of(request.request)
    assert answer is not None
    assert (answer.checkpoint, answer.savepoint) == (home.head.checkpoint, target.url)


def test_a_refused_fresh_start_leaves_a_stop_that_can_never_become_public_open(tmp_path: Path) -> None:
    home = StoppedHome(tmp_path)
    publish(home.files, by_policy=True)
    home.staged.checkpoint({HOURLY: [(2, "b")]}, request=home.stop.request, checkpoint_kind=CheckpointKind.STOP, drained=True)
    vacuum(home)
    with pytest.raises(RejectedError, match="would compute public rows again"):
        home.start_again(fresh=True)
    assert home.answer() is None


def test_a_repeated_fresh_start_does_not_abandon_a_stop_since_its_first_attempt(tmp_path: Path) -> None:
    anew: dict[str, Any] = {"fresh": True, "on_rewind": OnRewind.KEEP}
    home = StoppedHome(tmp_path, drained=False, run=RunId("b task"), **anew)
    vacuum(home)
    with pytest.raises(NotFoundError):
        home.start_again("a task", **anew)
    assert home.answer() is None


def test_a_stopped_run_gets_its_answer_again_after_a_fresh_start_without_a_checkpoint(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.begun(socket.gethostname(), datetime.now(UTC))
    head = StagedPipeline(home.files, tmp_path).checkpoint(
        {}, checkpoint_kind=CheckpointKind.STOP, incarnation=IncarnationId("i"), run=home.request.run
    )
    stopped, given = (
        home.request,
        StartResponse(
            request=home.request.request,
            attempt=home.request.attempt,
            run=home.request.run,
            checkpoint=head.checkpoint,
            sinks={},
            answered_at=NOW,
        ),
    )
    home.channel.respond(given)
    home.request = home.channel.request_start(RunId("b task"), parameters=stopped.parameters, options=StartOptions(fresh=True))
    home.begun(socket.gethostname(), datetime.now(UTC), incarnation="j")
    home.channel.respond_failure(home.request, InterruptedRunError("Its host went down."))
    again = home.channel.request_start(stopped.run, parameters=stopped.parameters)
    assert launch_requested(small_pipeline.pipeline, home.files, again.request, no_spark).checkpoint == head.checkpoint
    assert home.channel.attempts.numbers() == [stopped.attempt, home.request.attempt]
