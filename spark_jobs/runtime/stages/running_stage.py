"""A stage that runs until it is stopped, with its own query and its own thread."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field

from spark_jobs.protocol.documents import InputLag, StageState
from spark_jobs.protocol.errors import (
    PermanentFailureError,
    RejectedError,
    RestartsExhaustedError,
    SourceChangedError,
    SourceGoesOnError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.protocol.restarts import Exhausted, Restarts, exhausted, may_heal
from spark_jobs.runtime.spark.session import application_has_ended
from spark_jobs.runtime.staged.channel_bound import Consumption
from spark_jobs.runtime.stages.gate import TurnedAwayError
from spark_jobs.runtime.stages.passing_over import PassingOver
from spark_jobs.runtime.stages.source_watch import SourceWatch
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.stage_query import StageQuery

_LOG = logging.getLogger(__name__)
_LOOK_S = 1
_COMMIT_LOOK_S = 0.02


@dataclass(eq=False)
class StageAtWork:
    """A stage that runs in its own thread. If it fails, only this stage is restarted, by its restart settings.

    The cut rule uses it as a :class:`~spark_jobs.runtime.checkpoints.cut.Cuttable`.

    Args:
        run: The present build of the stage.
        restarts: Restart strategy of the pipeline, and failures of this stage. None: the first failure ends the run.
        stopping: Set when all stages must stop.
        check_lost: Refuses a restart if a source has lost rows that the stage has not read.
        check_skipped: Requests new stages if such a source is read without its lost rows.
        isolated: True if the others run on when the stage has failed permanently.
        passing_over: Lets the stage continue without rows that it cannot process. None: it tolerates no failure.
    """

    run: StageRun
    restarts: Restarts | None
    stopping: threading.Event
    check_lost: Callable[[StageRun, Exception], object]
    check_skipped: Callable[[StageRun], object]
    isolated: bool
    passing_over: PassingOver | None = field(default=None, kw_only=True)
    failure: BaseException | None = field(default=None, init=False)
    """The error that ends the run, because the stage has failed permanently."""
    given_up: Exception | None = field(default=None, init=False)
    """The permanent error of the stage, if the others run on without it."""
    _failed: tuple[Exception, BatchId] | None = field(default=None, init=False)
    """The last failure, and the last committed batch before it."""
    _waits_for_restart: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._work, name=f"stage-{self.name}", daemon=True)

    @property
    def name(self) -> StageName:
        return self.run.stage.name

    @property
    def ends(self) -> bool:
        return not self.run.stage.unbounded

    @property
    def waits_for_none(self) -> bool:
        return self.ends or not self.run.upstream

    def committed(self) -> BatchId:
        return self.run.spark_log.last_commit()

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        return self._consumption().consumed_by(batch)

    def has_consumed(self, producers: Collection[StageName]) -> bool:
        return self._consumption().has_consumed(producers)

    def in_flight_bytes(self, producers: Collection[StageName]) -> int:
        return self._consumption().in_flight_bytes(producers)

    def hold(self) -> None:
        self.run.gate.close()

    def release(self) -> None:
        self.run.gate.open()

    def is_at_rest(self) -> bool:
        gate = self.run.gate
        return gate.is_closed() and gate.is_empty() and (gate.is_waiting() or not self._is_committing())

    def is_failing(self) -> bool:
        if self.given_up is not None:
            return True
        if self._failed is None or self.committed() > self._failed[1]:
            return False
        return self._waits_for_restart or self.run.spark_log.pending() or not self._has_consumed_all()

    def failing_with(self) -> Exception | None:
        if self.given_up is not None:
            return self.given_up
        if self._failed is None or not self.is_failing() or (self._has_consumed_all() and not self._is_committing()):
            return None
        return self._failed[0]

    def _has_consumed_all(self) -> bool:
        return self.has_consumed({output.producer for output in self.run.upstream})

    def _is_committing(self) -> bool:
        """Returns True if a batch is staged, visible to consumers, and not committed.

        Every start of the query runs it again until it is committed.
        """
        planned = self.run.spark_log.last_offsets()
        return self.run.spark_log.last_commit() < planned < self.run.log.latest()

    def _consumption(self) -> Consumption:
        return Consumption(self.run.spark_log, self.run.bounds)

    def start(self) -> None:
        """Starts the stage. Its failures are in :attr:`failure`."""
        self._thread.start()

    def stop(self) -> None:
        """Waits until the stage has stopped at the end of its batch. Call it after setting ``stopping``. Idempotent."""
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self.stopping.is_set() and not self.run.output.ended.is_set():
                try:
                    if self.passing_over is not None and self.passing_over.is_due:
                        self.run = self.passing_over.pass_over(self.run)
                    self._go_on()
                except TurnedAwayError:
                    pass
                except SourceChangedError:  # not a failure: all stages are built again
                    raise
                except Exception as error:  # noqa: BLE001 - whatever a user's code raises: a thread's edge
                    self._wait_for_restart(error)
        except Exception as error:  # noqa: BLE001 - kept for the pipeline
            if self._fails_alone(error):
                self._give_up(error)
            else:
                self.failure = error
        except BaseException as error:  # noqa: BLE001 - kept for the pipeline, which raises it
            self.failure = error

    def _fails_alone(self, error: Exception) -> bool:
        """Returns True if an error comes from the stage's rows, code or inputs, and the other stages run on.

        Every other error ends the attempt: a later attempt is live, the attempt was cancelled, or a file is missing or damaged, which the
        next attempt may heal.
        """
        return self.isolated and isinstance(error, PermanentFailureError | RejectedError | RestartsExhaustedError)

    def _give_up(self, error: Exception) -> None:
        _LOG.error(
            "stage %s has failed permanently. The other stages run on, and its consumers get no more rows. "
            "To start it again: remove the cause, stop the pipeline and start it. Its error: %s",
            self.name,
            error,
            extra={"stage": self.name},
        )
        self.run.heartbeat.failed(self.name, error)
        self.given_up = error

    def gets_rows(self, stuck: Set[StageName]) -> bool:
        """Returns True if the stage may still get rows.

        Args:
            stuck: Upstream stages that do not work any more and have not ended.
        """
        producers = {output.producer for output in self.run.upstream}
        reads_sources = any(stream is not None for stream in self.run.sources)
        return self.given_up is None and (reads_sources or not producers or not producers <= stuck)

    def _wait_for_restart(self, error: Exception) -> None:
        """Waits for the strategy's delay after a failure. Returns at once if all stages must stop.

        Raises:
            RestartsExhaustedError: The strategy allows no more restarts.
            RejectedError: A source has lost rows that the stage has not read. A restart does not bring them back.
            SourceGoesOnError: A source that skips lost rows has lost some.
            Exception: ``error``, if no restart can heal it, or there is no strategy.
        """
        progressed = False
        with suppress(StreamPipelineError):  # while the log cannot be read, no cut can be found anyway
            committed = self.committed()
            progressed = self._failed is None or committed > self._failed[1]
            self._failed = error, committed
        if self.stopping.is_set():
            return
        self._look_for_losses(lambda: self.check_skipped(self.run))
        has_spark = not application_has_ended(self.run.frame.sparkSession)  # else a new one needs a new attempt
        if has_spark and self.passing_over is not None and self.passing_over.tolerates(self.run, error):
            _LOG.warning("stage %s failed, and tries its batch again: %s", self.name, error, extra={"stage": self.name})
            self.run.heartbeat.restarting(self.name, error)
            return
        if self.restarts is None or not may_heal(error) or not has_spark:
            raise error
        decision, extra = self.restarts.failed(progressed=progressed), {"stage": self.name}
        if isinstance(decision, Exhausted):
            _LOG.error("stage %s failed for the last time: %s", self.name, decision.reason, extra=extra)
            raise exhausted(decision, error) from error
        _LOG.warning("stage %s failed and starts again in %.1f s: %s", self.name, decision.delay_s, error, extra=extra)
        self.run.heartbeat.restarting(self.name, error)
        self._waits_for_restart = True
        is_stopping = self.stopping.wait(decision.delay_s)
        self._waits_for_restart = False
        if not is_stopping:
            self._look_for_losses(lambda: self.check_lost(self.run, error))

    def _look_for_losses(self, look: Callable[[], object]) -> None:
        try:
            look()
        except SourceGoesOnError:
            raise
        except Exception as error:  # an exception of Spark, Delta or Kafka: the service may be available again for the query
            if not may_heal(error):
                raise
            _LOG.warning("stage %s could not be checked for lost input: %s", self.name, error)

    def _go_on(self) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class EndingStage(StageAtWork):
    """A stage whose inputs all end. It begins when the stages that it reads have ended, independently of others."""

    to_its_end: Callable[[StageRun], object]
    """Runs a stage to its end."""

    def has_consumed(self, producers: Collection[StageName]) -> bool:
        return True

    def stop(self) -> None:
        self.run.gate.turn_away()
        super().stop()

    def _go_on(self) -> None:
        if all(producer.ended.wait(_LOOK_S) for producer in self.run.upstream):
            self.to_its_end(self.run)


@dataclass(eq=False)
class RunningStage(StageAtWork):
    """A stage with an unbounded input. If an input ends, it is stopped at a batch boundary and goes on without that input."""

    rebuild: Callable[[StageRun, Set[str]], StageRun]
    """Builds the stage again without these ended inputs."""
    _watch: SourceWatch = field(default_factory=SourceWatch, init=False)

    def _go_on(self) -> None:
        self.run.heartbeat.stage(self.name, StageState.RUNNING)
        self._go_on_without_ended()
        self.run.gate.admit()
        interval_ms = self.run.stage.limits.trigger_interval_ms or 0
        failure = self.run.run_query({"processingTime": f"{interval_ms} milliseconds"}, self._look)
        if failure is not None:
            self.run.replan(failure)

    def _look(self, query: StageQuery) -> bool:
        """Checks the running query. Returns True if it was stopped, because all stages must stop or an input has ended."""
        self._tell_lag()
        query.watch(self._watch)
        is_to_stop = self.stopping.is_set() or self.run.ended_inputs() > self.run.ended
        if is_to_stop:
            self._stop_at_boundary(query)
        return is_to_stop

    def _go_on_without_ended(self) -> None:
        """Builds the stage again if inputs have ended.

        It is called before each start, because a query that reads beyond an end fails before anything can check it.
        """
        ended = self.run.ended_inputs()
        if ended > self.run.ended:
            _LOG.info("stage %s goes on without %s, which has ended", self.name, ", ".join(sorted(ended - self.run.ended)))
            self.run = self.rebuild(self.run, ended)
            self.run.plan_without_ended()

    def _tell_lag(self) -> None:
        try:
            left = self._consumption().lag()
        except StreamPipelineError as error:  # only for display: the stage runs on
            _LOG.debug("the lag of stage %s cannot be read: %s", self.name, error)
            return
        arguments = self.run.arguments
        lag = {arguments[stream]: InputLag(rows=staged.rows, size_bytes=staged.size_bytes) for stream, staged in left.items()}
        self.run.heartbeat.lag(self.name, lag)

    def _stop_at_boundary(self, query: StageQuery) -> None:
        gate, log = self.run.gate, self.run.spark_log
        with query.ending():
            gate.turn_away()
            while not gate.wait_until_empty(_LOOK_S):
                self.run.cancellation.check()
            # The batch that came out is being committed, or the planned one is rejected.
            while log.pending() and query.is_active():
                time.sleep(_COMMIT_LOOK_S)
            query.stop()
