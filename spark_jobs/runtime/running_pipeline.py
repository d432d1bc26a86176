"""A pipeline with an unbounded input: every stage behind one runs by itself, and checkpoints are taken while they run."""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.checkpointing import Checkpointing
from spark_jobs.protocol.documents import CheckpointKind, Manifest, RunState, SinkResult, StageState
from spark_jobs.protocol.errors import (
    FencedError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    RunCancelledError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import RequestId, SinkName, StageName
from spark_jobs.protocol.restarts import Restarts
from spark_jobs.runtime.build import build_stage
from spark_jobs.runtime.coordinator import Coordinator
from spark_jobs.runtime.cut import Alignment, Cut, Waiting, quiesce, release, take_cut
from spark_jobs.runtime.due import Due
from spark_jobs.runtime.gate import TurnedAwayError
from spark_jobs.runtime.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.restarting import StageRestarts
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.running_stage import EndingStage, RunningStage
from spark_jobs.runtime.schedule import CheckpointSchedule
from spark_jobs.runtime.stage import StageRun
from spark_jobs.runtime.stopping import Stop
from spark_jobs.runtime.way_back import begin_drain, drain_begun

_LOG = logging.getLogger(__name__)


class EndingStages:
    """The stages whose inputs all end, one after the other in a thread of their own; one that fails starts again.

    Args:
        run: The round.
        stages: In topological order.
        restarts: What happens when one fails.
        stopping: Set once no stage is to go on.
    """

    def __init__(self, run: RoundRun, stages: Sequence[EndingStage], restarts: StageRestarts, stopping: threading.Event) -> None:
        self._run = run
        self._stages = stages
        self._restarts = restarts
        self._stopping = stopping
        self._thread = threading.Thread(target=self._work, name="ending-stages", daemon=True)
        self.failure: BaseException | None = None
        """Why one has given up."""

    def start(self) -> None:
        """Starts the first one."""
        self._thread.start()

    def stop(self) -> None:
        """Waits until the one that runs has come to the end of its batch; to be called once ``stopping`` is set."""
        for stage in self._stages:
            stage.run.gate.turn_away()
        self._thread.join()

    def _work(self) -> None:
        try:
            for stage in self._stages:
                while not self._stopping.is_set() and not stage.run.output.ended.is_set():
                    self._try(stage)
        except BaseException as error:  # noqa: BLE001 - kept for the coordinator, which raises it
            self.failure = error

    def _try(self, stage: EndingStage) -> None:
        try:
            self._run.to_its_end(stage.run)
        except TurnedAwayError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises: a thread's edge
            stage.wait_for_restart(self._restarts, error)


class RunningPipeline:
    """Runs until it is stopped or cancelled, or a stage gives up.

    Args:
        run: The round.
        restarts: Of its stages together.
        checkpointing: When checkpoints are taken.
    """

    def __init__(self, run: RoundRun, restarts: Restarts, checkpointing: Checkpointing) -> None:
        self._run = run
        self._parent = run.parent()
        self._published: Mapping[SinkName, SinkResult] | None = None
        self._stopping = threading.Event()
        again = StageRestarts(restarts, self._stopping)
        self._stages: list[RunningStage | EndingStage] = []
        for built in run.build():
            if built.stage.unbounded:
                self._stages.append(RunningStage(built, self._rebuild(built), again, self._stopping))
            else:
                self._stages.append(EndingStage(built))
        self._running = [stage for stage in self._stages if isinstance(stage, RunningStage)]
        ending = [stage for stage in self._stages if isinstance(stage, EndingStage)]
        self._ending = EndingStages(run, ending, again, self._stopping)
        tables = [stage.run.outlet.public.uri for stage in self._stages if stage.run.outlet.public]
        self._requests = RequestedCheckpoints(run.home, run.attempt.attempt, run.mask, tables=tables)
        self._threads_run = False
        self._told: dict[StageName, StageState] = {}
        self._timeout_s = checkpointing.timeout_ms / 1000
        self._coordinator = self._coordinate(checkpointing)

    def go_on(self, *, in_place: bool) -> tuple[Manifest, Mapping[SinkName, SinkResult]]:
        """Runs; returns the checkpoint that it was stopped with, published by policy.

        Args:
            in_place: Whether every batch of the attempts before is still there.

        Raises:
            RunCancelledError: The attempt was cancelled.
            IncompleteError: It was stopped, and not all that follows the checkpoint is done.
            StreamPipelineError: A stage has given up, too many checkpoints failed, or one cannot be published.
        """
        self._requests.resume(self._parent)
        if not in_place:
            self._take_over_stops()
        drain = drain_begun(self._run.site.work)
        if drain is not None:
            return self._go_on_draining(drain), self._published or {}
        self._run.site.heartbeat.state(RunState.RUNNING)
        self._threads_run = True
        self._ending.start()
        for stage in self._running:
            stage.start()
        try:
            manifest = self._coordinator.run()
        finally:
            self._end_threads()
        return manifest, self._published or {}

    def quiesce(self) -> None:
        """Holds every stage once nothing is left for it, and keeps it held; see :class:`~spark_jobs.runtime.stopping.Stoppable`."""
        if drain_begun(self._run.site.work) is not None:
            return  # by an attempt before: none of them runs
        quiesce(self._stages, time.monotonic() + self._timeout_s, Waiting(time.monotonic, self._coordinator.pause))
        status = self._run.site.heartbeat.status.stages
        self._told = {name: status[name].state for name in self._held()}
        for name in self._told:
            self._run.site.heartbeat.stage(name, StageState.QUIESCED)

    def flush(self, request: CheckpointRequest) -> None:
        """Ends every stage where it is, one after the other: each flushes into the next. Idempotent, also for the next attempt."""
        begin_drain(self._run.site.work, request.request)
        self._end_threads()
        for stage in self._stages:
            self._run.site.heartbeat.stage(stage.name, StageState.DRAINING)
            stage.run.gate.admit()
            stage.release()
            stage.run.flush()
            self._run.site.heartbeat.stage(stage.name, StageState.ENDED)

    def checkpoint(self, request: CheckpointRequest) -> Manifest:
        """Completes the checkpoint of a stop, at whose cut all stages are."""

        def where_they_are() -> Cut:
            return Cut({stage.name: stage.committed() for stage in self._stages}, aligned=True, alignment_s=0.0)

        deadline_s = time.monotonic() + self._timeout_s
        due = Due(CheckpointKind.STOP, where_they_are, request.request, deadline_s, drained=request.drain)
        try:
            return self._complete(due)
        except (FencedError, RunCancelledError):
            raise
        except StreamPipelineError as error:
            return self._complete_all_the_same(request, error)

    def publish(self, manifest: Manifest) -> None:
        """Publishes a checkpoint by policy, and deletes what it has made needless."""
        self._published = self._run.publish([stage.run for stage in self._stages], manifest)

    def run_on(self) -> None:
        """Lets stages go on that are held."""
        self._run.site.heartbeat.state(RunState.RUNNING)
        for name, state in self._told.items():
            self._run.site.heartbeat.stage(name, state)
        release(self._stages)

    def _coordinate(self, given: Checkpointing) -> Coordinator:
        timeout_s = None if given.aligned_timeout_ms is None else given.aligned_timeout_ms / 1000
        return Coordinator(
            self._stages,
            self._failure,
            self._take,
            self._stop,
            alignment=Alignment(not given.unaligned, timeout_s, given.max_in_flight_bytes),
            timeout_s=self._timeout_s,
            schedule=CheckpointSchedule(
                given.interval_ms / 1000, given.min_pause_ms / 1000, given.tolerable_failures, time.monotonic()
            ),
            cancellation=self._run.site.cancellation,
            requests=self._requests,
            is_idle=self._is_idle,
            check_live=self._check_live,
        )

    def _stop(self, asked: Sequence[CheckpointRequest]) -> Manifest | None:
        self._run.site.heartbeat.state(RunState.STOPPING)
        return Stop(asked, self, self._requests, self._run.site.heartbeat.stop).run()

    def _complete_all_the_same(self, request: CheckpointRequest, error: StreamPipelineError) -> Manifest:
        """The checkpoint of a stop, where only what follows its manifest has failed: nobody may be told then that it was not taken."""
        try:
            head = CheckpointStore(self._run.home).head()
        except StreamPipelineError as unreadable:
            raise self._unknown(request, error) from unreadable
        if head is not None and head.request == request.request:
            self._parent, self._published = head, None
            return head
        if isinstance(error, OutcomeUnknownError):
            raise self._unknown(request, error) from error
        raise error

    def _unknown(self, request: CheckpointRequest, error: StreamPipelineError) -> InterruptedRunError:
        return InterruptedRunError(
            f"Whether the checkpoint for {request.request} is complete is unknown: {error.failed}",
            exists="Every batch that was staged is kept.",
            safe="Nothing was lost, and nobody was told that the stop has failed.",
            remedy="Start the pipeline again once the storage answers: it finds out, and goes on with the stop.",
            request=request.request,
        )

    def _go_on_draining(self, drain: RequestId) -> Manifest:
        """Goes on where the attempt before has died: no stage may run any more, and what is flushed stays flushed."""
        asked = sorted(self._requests.unanswered(), key=lambda each: each.request != drain)
        manifest = self._stop(asked)
        if manifest is None:
            raise InterruptedRunError(
                f"The drain for {drain} was begun by an earlier attempt, and cannot be ended.",
                exists="The newest checkpoint stands.",
                safe="Nothing is public that is not in a checkpoint.",
                remedy="Start the pipeline again: it goes on from its newest checkpoint.",
                request=drain,
            )
        return manifest

    def _take_over_stops(self) -> None:
        """Turns down the drains that the attempt before was asked for.

        What was read by then, and is in no checkpoint, is read again: a drain has to be asked for after that. That attempt may still be at
        a stop, on another host: once the next checkpoint is taken it cannot come to its end, whatever it is answered with here.
        """
        stops = [request for request in self._requests.unanswered() if request.wanted is Wanted.STOP]
        number = self._parent.checkpoint if self._parent else None
        if stops:
            self._complete(Due(CheckpointKind.PERIODIC, self._where_they_begin, deadline_s=time.monotonic() + self._timeout_s))
        if drains := [request for request in stops if request.drain]:
            lost = RejectedError(
                f"The attempt that was asked to drain was lost, with its work directory; attempt {self._run.attempt.attempt} reads again.",
                exists="It begins at the beginning." if number is None else f"It begins at checkpoint {number}.",
                safe="Nothing was flushed.",
                remedy="Ask again, with a new id, once spark-jobs status shows that it has caught up.",
                attempt=self._run.attempt.attempt,
                checkpoint=number,
            )
            self._requests.turn_down(drains, lost)

    def _where_they_begin(self) -> Cut:
        return take_cut(self._stages, Alignment(False), math.inf, Waiting(time.monotonic, self._coordinator.pause))

    def _end_threads(self) -> None:
        if not self._threads_run:
            return
        self._stopping.set()
        for stage in self._running:
            stage.stop()
        self._ending.stop()

    def _failure(self) -> BaseException | None:
        failures = (self._ending.failure, *(stage.failure for stage in self._running))
        return next((failure for failure in failures if failure is not None), None)

    def _take(self, due: Due) -> Manifest:
        manifest = self._complete(due)
        self.publish(manifest)
        return manifest

    def _complete(self, due: Due) -> Manifest:
        manifest = self._run.complete(due, [stage.run for stage in self._stages], self._parent)
        self._parent = manifest  # whatever becomes of its publication: the next one continues it, and publishes both
        self._published = None
        return manifest

    def _is_idle(self) -> bool:
        """Whether nothing has happened since the last checkpoint: another one would say the same."""
        last = self._parent.stages if self._parent and self._published is not None else {}
        return all(stage.name in last and stage.committed() == last[stage.name].batch for stage in self._stages)

    def _check_live(self) -> None:
        try:
            Attempts(self._run.home).check_live(self._run.attempt.attempt)
        except StorageError as error:
            _LOG.warning("whether a later attempt is live cannot be read: %s", error)

    def _held(self) -> list[StageName]:
        return [stage.name for stage in self._stages if not stage.run.output.ended.is_set()]

    def _rebuild(self, built: StageRun) -> Callable[[StageRun, Set[str]], StageRun]:
        return lambda earlier, ended: build_stage(built.stage, self._run.site, self._run.outputs, earlier, ended)


def run_until_stopped(run: RoundRun, *, in_place: bool) -> tuple[Manifest, Mapping[SinkName, SinkResult]]:
    """Runs a round that has an unbounded input; see :meth:`RunningPipeline.go_on`."""
    restarts = Restarts(run.graph.restart, time.time, random.Random())
    return RunningPipeline(run, restarts, run.graph.checkpointing).go_on(in_place=in_place)
