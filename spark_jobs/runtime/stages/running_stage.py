"""A stage that runs until it is told to stop: a query of its own, in a thread of its own."""

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
    """A stage that works in a thread of its own. One that fails starts again as its restarts say, alone: the others go on.

    The cut rule sees it as a :class:`~spark_jobs.runtime.checkpoints.cut.Cuttable`.

    Args:
        run: The stage as it is built now.
        restarts: The pipeline's strategy, and the failures of this stage. None: the first failure ends the run.
        stopping: Set once no stage is to go on.
        check_lost: Refuses to start the stage again if a source has lost what the stage has not read.
        check_skipped: Lets all stages be built again if one has that goes on without it.
        isolated: Whether the others run on when the stage has failed for good.
        passing_over: Lets it go on without what it cannot process. None: it tolerates no failure.
    """

    run: StageRun
    restarts: Restarts | None
    stopping: threading.Event
    check_lost: Callable[[StageRun, Exception], object]
    check_skipped: Callable[[StageRun], object]
    isolated: bool
    passing_over: PassingOver | None = field(default=None, kw_only=True)
    failure: BaseException | None = field(default=None, init=False)
    """What the run ends with: the stage has failed for good."""
    given_up: Exception | None = field(default=None, init=False)
    """What the stage has failed with for good, where the others run on without it."""
    _failed: tuple[Exception, BatchId] | None = field(default=None, init=False)
    """The last failure, and the last batch that was committed before it."""
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
        """Returns whether a batch is staged, where consumers see it, and not committed.

        Every start of the query does it again until it is.
        """
        planned = self.run.spark_log.last_offsets()
        return self.run.spark_log.last_commit() < planned < self.run.log.latest()

    def _consumption(self) -> Consumption:
        return Consumption(self.run.spark_log, self.run.bounds)

    def start(self) -> None:
        """Starts the stage; its failures are in :attr:`failure`."""
        self._thread.start()

    def stop(self) -> None:
        """Waits until it has stopped, at the end of its batch; to be called once ``stopping`` is set. Idempotent."""
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
                except SourceChangedError:  # no failure: all stages are built again
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
        """Returns whether an error is of the stage's rows, code or inputs, and the other stages are to run on.

        Any other one ends the attempt: a later attempt is live, somebody has cancelled, or a file is gone or damaged, which the next
        attempt may heal.
        """
        return self.isolated and isinstance(error, PermanentFailureError | RejectedError | RestartsExhaustedError)

    def _give_up(self, error: Exception) -> None:
        _LOG.error(
            "stage %s has failed for good. The other stages run on, and what it feeds gets nothing more. "
            "To start it again: mend the cause, stop the pipeline and start it. It failed with: %s",
            self.name,
            error,
            extra={"stage": self.name},
        )
        self.run.heartbeat.failed(self.name, error)
        self.given_up = error

    def gets_rows(self, stuck: Set[StageName]) -> bool:
        """Returns whether rows may still come to the stage.

        Args:
            stuck: The stages before it that work no more, and have not come to their end.
        """
        producers = {output.producer for output in self.run.upstream}
        reads_sources = any(stream is not None for stream in self.run.sources)
        return self.given_up is None and (reads_sources or not producers or not producers <= stuck)

    def _wait_for_restart(self, error: Exception) -> None:
        """Waits as long as the strategy says after a failure. Returns at once if no stage is to go on.

        Raises:
            RestartsExhaustedError: The strategy allows no more.
            RejectedError: A source has lost what the stage has not read: no restart brings it back.
            SourceGoesOnError: A source has that goes on without it.
            Exception: ``error``, if no restart can heal it, or there is no strategy.
        """
        progressed = False
        with suppress(StreamPipelineError):  # while the log cannot be read, no cut can be found either
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
        except Exception as error:  # of Spark, of Delta or of Kafka: what is away now may be back for the query
            if not may_heal(error):
                raise
            _LOG.warning("stage %s could not be checked for lost input: %s", self.name, error)

    def _go_on(self) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class EndingStage(StageAtWork):
    """A stage whose inputs all end. It begins when the stages that it reads have ended, whatever becomes of others."""

    to_its_end: Callable[[StageRun], object]
    """Runs it to its end."""

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
    """A stage with an unbounded input. Where an input has ended, it is stopped at a batch boundary and goes on without it."""

    rebuild: Callable[[StageRun, Set[str]], StageRun]
    """Makes it anew, with these of its inputs ended."""
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
        """Looks at the running query; returns whether it was stopped, because no stage is to go on or an input has ended."""
        self._tell_lag()
        query.watch(self._watch)
        is_to_stop = self.stopping.is_set() or self.run.ended_inputs() > self.run.ended
        if is_to_stop:
            self._stop_at_boundary(query)
        return is_to_stop

    def _go_on_without_ended(self) -> None:
        """Builds the stage anew if inputs have ended.

        Before each start: a query that reads past an end fails before anybody looks at it.
        """
        ended = self.run.ended_inputs()
        if ended > self.run.ended:
            _LOG.info("stage %s goes on without %s, which has ended", self.name, ", ".join(sorted(ended - self.run.ended)))
            self.run = self.rebuild(self.run, ended)
            self.run.plan_without_ended()

    def _tell_lag(self) -> None:
        try:
            left = self._consumption().lag()
        except StreamPipelineError as error:  # for people only: the stage runs on
            _LOG.debug("what stage %s has not read cannot be told: %s", self.name, error)
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
            # The batch that came out is being committed, or the one that was planned is turned away.
            while log.pending() and query.is_active():
                time.sleep(_COMMIT_LOOK_S)
            query.stop()
