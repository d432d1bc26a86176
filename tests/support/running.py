"""Runs a pipeline in a thread of its own. The test waits for its progress and ends it."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs import Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import Manifest, StartResponse, Status
from spark_jobs.protocol.errors import RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, RunId, new_run_id
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.launch import launch

_LOOK_S = 0.2
_PATIENCE_S = 120.0


def lose(directory: Path) -> None:
    """Removes a directory of ended queries in one step: the maintenance thread of their state stores may still write there."""
    directory.rename(Path(tempfile.mkdtemp()) / directory.name)


class Running:
    """Runs a pipeline while the context is open, and cancels it at its end.

    Args:
        spark: The session.
        pipeline: A pipeline, usually with an unbounded input.
        home: The path or the URL of the home.
        run: The run id, by default a new one.
        options: Other options of the run.
        patience_s: The time limit of :meth:`until`.
        parameters: The parameters of the pipeline.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        home: Path | str,
        run: str | None = None,
        options: StartOptions | None = None,
        patience_s: float = _PATIENCE_S,
        **parameters: Any,
    ) -> None:
        self._spark, self._pipeline, self._parameters = spark, pipeline, parameters
        self._options = (options or StartOptions()).model_copy(update={"run": RunId(run) if run else new_run_id()})
        self._patience_s = patience_s
        self.response: StartResponse | None = None
        self._ended_as_expected = False
        self.files = open_home(str(home))
        self.store = CheckpointStore(self.files)
        self.error: BaseException | None = None
        self._ticks = Event()
        self._thread = Thread(target=self._run, name="running-pipeline")

    def __enter__(self) -> "Running":
        self._before = max(Channel(self.files).attempts.numbers(), default=AttemptNumber(0))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()
        if error is None and not self._ended_as_expected and not isinstance(self.error, RunCancelledError):
            raise AssertionError(f"the pipeline ended by itself: {self.error!r}") from self.error

    def cancel(self) -> None:
        """Cancels the attempt and waits until it has ended."""
        if self._thread.is_alive():
            self.until(
                lambda: max(Channel(self.files).attempts.numbers(), default=0) > self._before or not self._thread.is_alive()
            )
            live = Channel(self.files).attempts.latest()
            assert live is not None
            owners = AttemptLease(self.files, live.attempt)
            owners.cancel(owners.take("test").owner, "the test is over")
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive(), "the attempt did not end"

    def stopped(self) -> StartResponse:
        """Waits until the attempt ends with success. Returns its answer."""
        self._thread.join(_PATIENCE_S)
        if self.response is None:
            raise AssertionError(f"the pipeline ended: {self.error!r}") from self.error
        self._ended_as_expected = True
        return self.response

    def ends(self) -> BaseException:
        """Waits until the attempt ends by itself. Returns its error."""
        self._thread.join(_PATIENCE_S)
        assert self.error is not None
        self._ended_as_expected = True
        return self.error

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until the condition holds."""
        deadline_s = time.monotonic() + self._patience_s
        while not condition():
            assert time.monotonic() < deadline_s, "it did not happen"
            if not self._thread.is_alive() and not condition():
                raise AssertionError(f"the pipeline ended: {self.error!r}") from self.error
            self._ticks.wait(_LOOK_S)

    def checkpointed(self, more: int = 1) -> Manifest:
        """Waits for ``more`` further checkpoints. Returns the newest."""
        newest = max(self.store.taken(), default=0)
        self.until(lambda: max(self.store.taken(), default=0) >= newest + more)
        return self.head()

    def head(self) -> Manifest:
        """Returns the newest checkpoint."""
        manifest = self.store.head()
        assert manifest is not None
        return manifest

    def is_quiet(self) -> bool:
        """Returns True if no checkpoint comes within three seconds."""
        newest = self.store.taken()
        self._ticks.wait(3.0)
        return self.store.taken() == newest

    @property
    def status(self) -> Status | None:
        """Returns the heartbeat of this attempt. Returns None while only an earlier attempt has one."""
        found = read_status(self.files)
        return found if found and found.attempt > self._before else None

    def _run(self) -> None:
        try:
            options = self._options
            self.response = launch(self._pipeline, self.files, self._parameters, options, lambda: self._spark)
        except BaseException as error:  # noqa: BLE001 - raised where the test checks it
            self.error = error
