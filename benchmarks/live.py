"""Pipelines whose input has no end: what they read, and how they are run, asked, and ended."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.site import Site
from spark_jobs import Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.home import open_home
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.status import read_status
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.documents import RunState, Status
from spark_jobs.protocol.errors import RunCancelledError
from spark_jobs.protocol.history import CheckpointHistory
from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.storage.files import is_mounted
from spark_jobs.storage.open import open_files

_LOOK_S, _LOOK_IN_STORES_S = 0.005, 0.25
_PATIENCE_S = 1_800.0
_UUIDS = 28
"""So many ids of 36 characters are a row of about a kilobyte, which hardly compresses."""


@dataclass
class Arrivals:
    """A Delta table that grows.

    Args:
        site: Where.
        path: Its directory.
        payload: Whether a row has a kilobyte; else few bytes.
    """

    site: Site
    path: Path
    payload: bool = False
    rows: int = 0

    def add(self, rows: int, files: int = 1) -> None:
        """Appends rows whose ids and times go on, in one commit."""
        text = f"concat_ws('', transform(sequence(1, {_UUIDS}), x -> uuid()))" if self.payload else "concat('row ', id)"
        frame = self.site.spark.range(self.rows, self.rows + rows, numPartitions=files)
        frame = frame.select("id", F.expr(text).alias("text"), F.timestamp_seconds("id").alias("at"))
        frame.write.format("delta").mode("append").save(str(self.path))
        self.rows += rows


class Live:
    """Runs a pipeline in a thread while the context is open; what still runs at its end is cancelled.

    Args:
        site: Whose session it runs in.
        pipeline: With an unbounded input.
        home: Its home: a directory or a place in a store.
        options: Others of :meth:`spark_jobs.Pipeline.run`.
    """

    _numbers = count()

    def __init__(self, site: Site, pipeline: Pipeline, home: Path | str, **options: Any) -> None:
        self.files = open_home(str(home))
        self._look_s = _LOOK_S if is_mounted(self.files) else _LOOK_IN_STORES_S
        self.store = CheckpointStore(self.files)
        self._run: Callable[[], object] = lambda: pipeline.run(spark=site.spark, home=home, **options)
        self._thread = threading.Thread(target=self._guarded)
        self._error: BaseException | None = None

    def __enter__(self) -> "Live":
        self._before = max(Attempts(self.files).numbers(), default=0)
        self.began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread.is_alive():
            self.until(lambda: self._begun())
            live = Attempts(self.files).latest()
            if live is not None:
                owners = AttemptLease(self.files, live.attempt)
                owners.cancel(owners.take("benchmark").owner, "it was measured")
        self._thread.join(_PATIENCE_S)
        if error is None and self._error is not None and not isinstance(self._error, RunCancelledError):
            raise self._error

    @property
    def status(self) -> Status | None:
        """The status of the newest attempt."""
        found = read_status(self.files)
        return found if found is not None and found.attempt > self._before else None

    def until(self, condition: Callable[[], object]) -> float:
        """Waits; how long, in seconds."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > _PATIENCE_S or not (self._thread.is_alive() or condition()):
                raise RuntimeError(f"it did not happen: {self._error!r}") from self._error
            time.sleep(self._look_s)
        return time.monotonic() - began_s

    def runs(self) -> bool:
        """Returns whether the stages run."""
        return self.status is not None and self.status.state is RunState.RUNNING

    def has_read(self, stage: str, rows: int) -> bool:
        """Returns whether the status shows that a stage has read at least ``rows`` rows in this attempt."""
        found = self.status
        return found is not None and found.stages[StageName(stage)].rows_in >= rows

    def batches(self, stage: str) -> int:
        """Returns the number of batches that a stage has committed in its work directory."""
        live = Attempts(self.files).latest()
        if live is None or live.attempt <= self._before:
            return 0
        return SparkLog(self.files.below(live.work_directory.path), checkpoint_directory(StageName(stage))).last_commit() + 1

    def ask(self, wanted: Wanted, *, drain: bool = False, target: Path | None = None) -> tuple[CheckpointResponse, float]:
        """Asks for a checkpoint, a savepoint or a stop; the answer, and how long it took in seconds."""
        asked, requests = request_id(f"benchmark-{next(self._numbers)}", wanted), CheckpointRequests(self.files)
        url = None if target is None else open_files(str(target)).url
        began_s = time.monotonic()
        requests.ask(asked, drain=drain, target=url)
        self.until(lambda: requests.answer_of(asked) is not None)
        took_s, answer = time.monotonic() - began_s, requests.answer_of(asked)
        if answer is None or answer.error is not None:
            raise RuntimeError(f"{asked} failed: {answer}")
        return answer, took_s

    def ended(self) -> None:
        """Waits until it has ended by itself."""
        self._thread.join(_PATIENCE_S)
        if self._error is not None:
            raise self._error

    def checkpoint(self) -> CheckpointHistory:
        """Asks for a checkpoint; what happened to it."""
        answer, _ = self.ask(Wanted.CHECKPOINT)
        return next(each for each in self.store.history() if each.checkpoint == answer.checkpoint and each.failure is None)

    def _begun(self) -> bool:
        return max(Attempts(self.files).numbers(), default=0) > self._before

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - a thread's edge: raised where it is waited for
            self._error = error


def read(pipeline: Pipeline, arrivals: Arrivals, files_per_trigger: int | None = None, *, timed: bool = True) -> None:
    """Declares the source ``arrivals``, by default with a watermark."""
    path = str(arrivals.path)

    def source(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.format("delta")
        return (stream.option("maxFilesPerTrigger", files_per_trigger) if files_per_trigger else stream).load(path)

    event_time, delay = ("at", "1 minute") if timed else (None, None)
    pipeline.source(bounded=False, event_time=event_time, watermark_delay=delay, name="arrivals")(source)


def remove(directory: Path) -> None:
    """Deletes what a run has left; a state store's maintenance may still write there."""
    shutil.rmtree(directory, ignore_errors=True)
