"""Acts on a home like a driver, without Spark. The name of the pipeline's file selects the behaviour.

The tests start it as the driver's Python: ``fake_driver -P -m spark_jobs run ENTRY --home URL --request start-N [--conf …]``.
"""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

from spark_jobs.background import run_every
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.home import open_home
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import holding, noted
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse
from spark_jobs.protocol.documents import (
    AttemptDocument,
    ErrorReport,
    Publisher,
    RunState,
    SinkResult,
    StageState,
    StageStatus,
    StartResponse,
    Status,
    WorkDirectory,
)
from spark_jobs.protocol.errors import (
    CheckpointDeclinedError,
    ConflictError,
    CorruptDocumentError,
    FencedError,
    IncompleteError,
    InterruptedRunError,
    RejectedError,
    RunCancelledError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import (
    AppId,
    BatchId,
    CheckpointId,
    IncarnationId,
    RequestId,
    RoundNumber,
    SinkName,
    StageName,
    WorkDirectoryId,
)
from spark_jobs.protocol.restart_settings import FixedDelay, RestartSettings
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.publication.publisher import publish as make_public
from spark_jobs.publication.requests import answering
from spark_jobs.publication.transactions import Publishers, Transaction
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.storage.files import Files, local_path
from tests.support.hostile import HOSTILE
from tests.support.staged_pipeline import CHECKPOINTING, a_manifest

ERRORS = {
    "refused": RejectedError("The pipeline is wrong.", safe="Nothing was written.", remedy="Correct line 3."),
    "corrupt": CorruptDocumentError("A manifest is torn.", path="manifests/1.json"),
    "full": StorageFullError("The disk of the tables is full.", remedy="Free space."),
    "declined": CheckpointDeclinedError("A stage is failing.", remedy="Wait until it is back."),
    "beaten": ConflictError("Somebody else was faster.", remedy="Look again."),
    "hostile": InterruptedRunError(HOSTILE, exists=HOSTILE, safe=HOSTILE, remedy=HOSTILE),
    "failed": InterruptedRunError(
        "A stage failed.", exists="Checkpoint 4.", safe="Its tables.", remedy="Free space.", stage="hourly"
    ),
}


HEARTBEAT_S = 2.0
LIVE = "live_"
"""The prefix of names of unbounded pipelines."""
RESTART_DELAY_MS = "FAKE_DRIVER_RESTART_DELAY_MS"
"""The environment variable with the delay of restarts, for drivers that start from now on."""
STRATEGY = FixedDelay(attempts=2, delay_ms=int(os.environ.get(RESTART_DELAY_MS, "300")))
"""The restart strategy of unbounded pipelines."""


def claim(channel: Channel, request: StartRequest, strategy: RestartSettings | None) -> None:
    host = socket.gethostname()
    channel.attempts.begin(
        AttemptDocument(
            attempt=request.attempt,
            request=request.request,
            run=request.run,
            round=RoundNumber(1),
            incarnation=IncarnationId("first"),
            restored_from=None,
            work_directory=WorkDirectory(id=WorkDirectoryId("work"), path="/var/work", host=host),
            host=host,
            process=os.getpid(),
            started_at=datetime.now(UTC),
            versions={},
            checkpointing=CHECKPOINTING,
            restart=strategy,
        ),
        known=channel.attempts.numbers(),
    )


def respond(
    channel: Channel, request: StartRequest, error: StreamPipelineError | None, checkpoint: CheckpointId | None = None
) -> None:
    """Answers with the error or the checkpoint. Without either, completes a new checkpoint and answers with it."""
    report = None
    if error is None and checkpoint is None:
        manifest = a_manifest(int(request.attempt), run=request.run, attempt=request.attempt, round=RoundNumber(7), parent=None)
        CheckpointStore(channel.files).complete(manifest)
        checkpoint = manifest.checkpoint
    elif error is not None:
        report = ErrorReport(
            error=type(error).__name__,
            retry=error.retry.value,
            failed=error.failed,
            exists=error.exists,
            safe=error.safe,
            remedy=error.remedy,
            evidence=error.evidence,
        )
    channel.respond(
        StartResponse(
            request=request.request,
            attempt=request.attempt,
            run=request.run,
            checkpoint=checkpoint,
            sinks={SinkName("hourly"): SinkResult(table="file:///t/hourly", checkpoint=CheckpointId(1), version=3, rows=9)},
            error=report,
            answered_at=datetime.now(UTC),
        )
    )


def beside(files: Files, name: str) -> Path:
    """Returns the path of a file for messages between a test and its driver. It is in the home, or in a stored home's cache."""
    return local_path(files, "work").with_name(f".{name}")  # hidden, because a home begins in an empty directory


def record_start(channel: Channel) -> None:
    """Writes how this process was started, for the test."""
    facts = {
        "argv": sys.argv[1:],
        "environment": dict(os.environ),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "stdin": os.readlink("/proc/self/fd/0"),
    }
    path = beside(channel.files, f"started-{os.getpid()}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    half_written = path.with_suffix(".tmp")
    half_written.write_text(json.dumps(facts))
    half_written.rename(path)  # a reader never sees half a file


def wait_for_file(path: Path, cancellation: Cancellation) -> None:
    while not path.exists():
        cancellation.check()
        time.sleep(0.02)


def stop_in_two_attempts(channel: Channel, request: StartRequest) -> int:
    """Ends the first attempt when a requested stop has its checkpoint. The next attempt finishes the stop."""
    requests, store = CheckpointRequests(channel.files), CheckpointStore(channel.files)
    head = store.head()
    if head is None:
        while not requests.open() and not beside(channel.files, "go").exists():
            time.sleep(0.02)
        asked = requests.open()[0].request
        store.complete(a_manifest(run=request.run, attempt=request.attempt, round=RoundNumber(7), request=asked))
        respond(channel, request, IncompleteError("The stop did not finish.", exists="Checkpoint 1.", request=asked))
        return 3
    assert head.request is not None
    saved = channel.files.below(f"savepoints/{head.request}").url
    now = datetime.now(UTC)
    requests.answer(
        CheckpointResponse(
            request=head.request, attempt=request.attempt, checkpoint=head.checkpoint, savepoint=saved, answered_at=now
        )
    )
    respond(channel, request, None, head.checkpoint)
    return 0


class WithoutJvm(Publishers):
    """Publishers that use delta-rs where Spark is chosen."""

    def require(self, publisher: Publisher, what: str) -> None:
        del publisher, what

    def begin(self, publisher: Publisher, uri: str, app: AppId) -> Transaction:
        del publisher
        return super().begin(Publisher.DELTA_RS, uri, app)


def publish(arguments: list[str]) -> int:
    """Answers a request like the command, with progress for people. A test must allow the publication."""
    channel = Channel(open_home(arguments[arguments.index("--home") + 1]))
    print("publishing checkpoint 1", file=sys.stderr, flush=True)
    with answering(channel.files, RequestId(arguments[arguments.index("--request") + 1])) as checkpoint:
        if not beside(channel.files, "publishes").exists():
            raise RejectedError("There is starting no Spark in these tests.", remedy="Use the real one.")
        record_start(channel)
        while not beside(channel.files, "go").exists():
            time.sleep(0.02)
        make_public(channel.files, checkpoint, publishers=WithoutJvm())
        if beside(channel.files, "dies_unanswered").exists():
            os.kill(os.getpid(), signal.SIGKILL)
    return 0


def main() -> int:
    assert sys.argv[1] == "-P"
    arguments = sys.argv[2:]
    if arguments[:3] == ["-m", "spark_jobs", "publish"]:
        return publish(arguments)
    assert arguments[:3] == ["-m", "spark_jobs", "run"]
    behaviour = Path(arguments[3]).stem
    given = {name: value for name, value in pairwise(arguments) if name in ("--home", "--work-root")}
    channel = Channel(open_home(given["--home"], given.get("--work-root")))
    request = channel.request(RequestId(arguments[arguments.index("--request") + 1]))
    record_start(channel)
    print("the driver says hello", flush=True)
    if behaviour == "refused_before_anything":
        print("no such pipeline", flush=True)
        return 2
    if behaviour == "refused_before_it_began":
        respond(channel, request, ERRORS["refused"])
        return 2
    lock = local_path(channel.files, DRIVER_LOCK)
    try:
        if behaviour.removeprefix(LIVE) == "slow":
            with Cancellation(AttemptLease(channel.files, request.attempt), interval_s=0.2) as cancellation:
                wait_for_file(beside(channel.files, "begin"), cancellation)
        with holding(lock, request.request):
            return work(behaviour, channel, request)
    except RunCancelledError:
        return 3
    except BlockingIOError:  # like the real driver, which accepts another one only for the same request
        return 0 if noted(lock) == request.request else 3


def work(behaviour: str, channel: Channel, request: StartRequest) -> int:
    """Does the work that only one driver may do at a time."""
    try:
        claim(channel, request, STRATEGY if behaviour.startswith(LIVE) else None)
    except FencedError:
        return 0
    log = local_path(channel.files, "logs/1.log")
    log.parent.mkdir(exist_ok=True)
    log.write_text('{"time": "noon", "level": "error", "message": "out of disk"}\n')
    if behaviour == f"{LIVE}failed_at_once":
        respond(channel, request, ERRORS["failed"])
        return 3
    reason = HOSTILE if behaviour == "hostile" else None
    beat(channel, request, reason)
    with run_every(HEARTBEAT_S, partial(beat, channel, request, reason), "heartbeat"):
        return finish(behaviour.removeprefix(LIVE), channel, request)


def beat(channel: Channel, request: StartRequest, reason: str | None) -> None:
    """Writes a heartbeat. If the home does not accept it, the driver goes on."""
    stage = StageStatus(
        state=StageState.RUNNING,
        batch=BatchId(3),
        rows_in=1000,
        rows_per_s=50.0,
        watermark_ms=1_357_041_600_000,
        reason=reason,
    )
    with suppress(StorageError):
        write_status(
            channel.files,
            Status(
                attempt=request.attempt,
                run=request.run,
                state=RunState.RUNNING,
                updated_at=datetime.now(UTC),
                stages={StageName("hourly"): stage},
            ),
        )


def finish(behaviour: str, channel: Channel, request: StartRequest) -> int:
    if behaviour == "flaky":  # lost twice, then like any other driver
        behaviour = "killed" if request.attempt <= 2 else "waits"
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hangs":
        with Cancellation(AttemptLease(channel.files, request.attempt), interval_s=0.1, patience_s=3.0) as cancellation:
            with suppress(RunCancelledError):
                wait_for_file(beside(channel.files, "go"), cancellation)
            beside(channel.files, "hangs").touch()
            while not beside(channel.files, "go").exists():
                time.sleep(0.02)
    if behaviour == "incomplete":
        return stop_in_two_attempts(channel, request)
    if behaviour == "unknown":
        return 4
    if behaviour == "silent":
        return 0
    if behaviour == "stubborn":  # ignores signals and cancellations
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not beside(channel.files, "go").exists():
            time.sleep(0.02)
    if behaviour in ("waits", "slow", "beaten", "hostile"):
        try:
            with Cancellation(AttemptLease(channel.files, request.attempt), interval_s=0.2) as cancellation:
                wait_for_file(beside(channel.files, "go"), cancellation)
        except RunCancelledError as error:
            respond(channel, request, error)
            return 3
    respond(channel, request, ERRORS.get(behaviour))
    while behaviour == "lingers" and not beside(channel.files, "go").exists():
        time.sleep(0.02)
    return 0 if behaviour not in ERRORS else 3


if __name__ == "__main__":
    sys.exit(main())
