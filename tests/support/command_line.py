"""A home, its tables and the file of its pipeline, for tests of the command line. Calls the command line in this process."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typer.testing import CliRunner, Result

from spark_jobs.api.load import load_pipeline
from spark_jobs.cli import app
from spark_jobs.cli.pauses import Pauses
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import holding
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.rounds import Rounds
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.documents import (
    AttemptDocument,
    BlockedPublication,
    CheckpointKind,
    ErrorReport,
    Manifest,
    OnEnd,
    PipelineDocument,
    Publish,
    RoundDocument,
    RunState,
    StageState,
    StageStatus,
    Status,
    StopStatus,
    WorkDirectory,
)
from spark_jobs.protocol.history import CheckpointHistory, StepTime
from spark_jobs.protocol.ids import (
    AttemptNumber,
    BatchId,
    CheckpointId,
    IncarnationId,
    InputName,
    LossId,
    PipelineName,
    RoundNumber,
    RunId,
    StageName,
    WorkDirectoryId,
)
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.protocol.stage_cut import StageCut
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import create_document
from spark_jobs.storage.local import LocalFiles
from tests.support.staged_in_s3 import PipelineInS3
from tests.support.staged_pipeline import CHECKPOINTING, DAILY, HOURLY, NOW, PIPELINE, Row, StagedPipeline, a_channel, a_stage_cut

FLIGHTS = """
from pydantic import BaseModel, SecretStr
from spark_jobs import DeltaSink, Pipeline


class Params(BaseModel):
    warehouse: str
    days: int = 1
    token: SecretStr | None = None


pipeline = Pipeline("flights", params=Params, conf={"spark.executor.memory": "1g"})


@pipeline.source(bounded=True, event_time="at")
def events(spark, params): ...


@pipeline.static
def airlines(spark, params): ...


@pipeline.stage(sink=DeltaSink("{warehouse}/hourly", partition_by=["day"]))
def hourly(events, airlines): ...


@pipeline.stage(sink=DeltaSink("{warehouse}/daily"))
def daily(hourly): ...
"""


BLOCKED = BlockedPublication(
    checkpoint=CheckpointId(4),
    since=NOW,
    tries=3,
    waiting=(DAILY,),
    error=ErrorReport(
        error="UnsupportedTableError", retry="never", failed="Sink daily: 7 rows break positive.", remedy="Drop the constraint."
    ),
    rows_kept_until=NOW,
)
"""A blocked publication: the table of one sink refuses it."""


class UsedHome:
    """The home of the pipeline ``flights``, which has run before, and the pipeline's file, with this code.

    Args:
        directory: Of the file, the home and the tables.
        code: The pipeline.
        store: A place in S3 that has the home and the tables instead.
    """

    def __init__(self, directory: Path, code: str = FLIGHTS, store: str | None = None) -> None:
        self.directory = directory
        self.entry = str(directory / "flights.py")
        Path(self.entry).write_text(code)
        self.staged = (
            PipelineInS3(store, directory / "warehouse")
            if store
            else StagedPipeline(LocalFiles(directory / "home"), directory / "warehouse")
        )
        self.files = self.staged.files
        self.url = self.files.url
        (directory / "warehouse").mkdir()
        self.params = ["--param", f"warehouse={directory / 'warehouse'}"]
        self.graph = load_pipeline(self.entry).graph().describe()

    def driver(self) -> AbstractContextManager[None]:
        """Returns a context in which a driver is at work: this process holds its lock."""
        return holding(self.directory / "home" / DRIVER_LOCK, "start-1")

    def begin(self, attempt: int = 1, *, run: str = "monday", **changes: Any) -> None:
        """Begins an attempt with a round of its own. It counts as interrupted unless a checkpoint follows."""
        if Channel(self.files).pipeline() is None:
            create_document(self.files, "pipeline.json", PipelineDocument(name=PipelineName("flights"), uuid=PIPELINE))
            self.staged.make_table(HOURLY)
            self.staged.make_table(DAILY, partition_by=())
        request = self.ask(run)
        fields: dict[str, Any] = {
            "attempt": AttemptNumber(attempt),
            "request": request.request,
            "run": RunId(run),
            "round": RoundNumber(attempt),
            "incarnation": IncarnationId("first"),
            "restored_from": None,
            "work_directory": WorkDirectory(id=WorkDirectoryId("work"), path="work/work", host="elsewhere"),
            "host": "elsewhere",
            "process": 4711,
            "started_at": NOW,
            "versions": {},
            "checkpointing": CHECKPOINTING,
        }
        attempts = Attempts(self.files)
        attempts.begin(AttemptDocument(**(fields | changes)), known=attempts.numbers())
        Rounds(self.files).begin(
            RoundDocument(
                round=RoundNumber(attempt),
                run=RunId(run),
                incarnation=IncarnationId("first"),
                on_end=OnEnd.DRAIN,
                publish=None,
                parameters={"warehouse": str(self.directory / "warehouse"), "days": 1},
                graph=self.graph,
                begun_at=NOW,
            )
        )

    def complete(self, *, run: str = "monday", late_rows: int = 0, **changes: Any) -> Manifest:
        """Completes the final checkpoint of the newest round, with three rows staged in each sink."""
        number = max(Attempts(self.files).numbers())
        rows: dict[Any, list[Row]] = {sink: [(number, "a"), (number, "b"), (number, "c")] for sink in (HOURLY, DAILY)}
        fields: dict[str, Any] = {
            "publish": Publish.EXTERNAL,
            "checkpoint_kind": CheckpointKind.FINAL,
            "graph": self.graph,
            "round": RoundNumber(number),
            "run": RunId(run),
            "attempt": number,
            "drained": True,
            "on_end": OnEnd.DRAIN,
            "completed_at": NOW + timedelta(seconds=2),
            "stages": {name: self._cut(name, late_rows) for name in (StageName("hourly"), StageName("daily"))},
            "parameters": {"warehouse": "w", "days": 1},
        }
        manifest = self.staged.checkpoint(rows, **(fields | changes))
        self.staged.store.record(a_try(manifest.checkpoint, began_at=manifest.began_at))
        return manifest

    def _cut(self, stage: StageName, late_rows: int) -> StageCut:
        head = self.staged.store.head()
        path, digest = self.staged.store.write_channel(CheckpointId((head.checkpoint if head else 0) + 1), stage, [])
        return a_stage_cut(
            3,
            watermark_ms=253_402_300_799_000,
            finished=True,
            drained=True,
            drain_batches=1,
            rows=3,
            late_rows=late_rows,
            channel=a_channel(3, path=path, sha256=digest),
        )

    def beat(self, state: RunState = RunState.DONE, stop: StopStatus | None = None, *, updated_at: datetime = NOW) -> None:
        """Writes a heartbeat of attempt 1."""
        stages = {
            StageName("daily"): StageStatus(state=StageState.WAITING),
            StageName("hourly"): StageStatus(
                state=StageState.RUNNING, batch=BatchId(2), rows_in=12_345, progress=0.5, late_rows=7
            ),
        }
        status = Status(
            attempt=AttemptNumber(1), run=RunId("monday"), state=state, updated_at=updated_at, stages=stages, stop=stop
        )
        write_status(self.files, status)

    def ask(self, run: str = "tuesday") -> StartRequest:
        """Writes a start request, as another client does."""
        return Channel(self.files).request_start(RunId(run), parameters={"warehouse": str(self.directory / "warehouse")})


def lose_files(home: UsedHome, *names: str) -> list[LossId]:
    """Records the loss of files of the source ``events`` in the newest attempt, one by one. Returns the ids."""
    attempt = Attempts(home.files).latest()
    assert attempt is not None
    found = []
    for name in names:
        loss = LostFiles(input=InputName("events"), stage=StageName("hourly"), files=(LostFile(path=name, rows=7),))
        (recorded,) = LossLedger(home.files).record(RoundNumber(1), attempt, [loss])
        assert recorded.id is not None
        found.append(recorded.id)
    return found


def a_try(checkpoint: int, **changes: Any) -> CheckpointHistory:
    """Returns the history of one try, which succeeded."""
    fields: dict[str, Any] = {
        "checkpoint": CheckpointId(checkpoint),
        "checkpoint_kind": CheckpointKind.FINAL,
        "attempt": AttemptNumber(1),
        "began_at": NOW,
        "steps": (StepTime(step="cut", duration_s=0.25), StepTime(step="persist", duration_s=1.5)),
        "files": 4,
        "size_bytes": 1000,
        "rows": 6,
    }
    return CheckpointHistory(**(fields | changes))


def spark_jobs(*arguments: object, sleep: Callable[[float], object] = time.sleep, **environment: str) -> Result:
    """Calls the command line in this process, with a terminal so wide that no line wraps. ``sleep`` is called between two looks."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "300", **environment}, obj=Pauses(sleep))


def document(result: Result) -> Any:
    """Returns the JSON document that a command wrote to standard output."""
    return json.loads(result.stdout)


def session_of_java(version: str) -> Any:
    """Returns a session that knows nothing but the version of its Java."""
    return SimpleNamespace(_jvm=SimpleNamespace(System=SimpleNamespace(getProperty={"java.version": version}.get)))
