"""A pipeline with an unbounded input: every stage behind one runs by itself, and checkpoints are taken while they run."""

import random
import threading
import time
from collections.abc import Callable, Sequence, Set

from spark_jobs.protocol.checkpointing import Checkpointing
from spark_jobs.protocol.documents import Manifest, RunState
from spark_jobs.protocol.restarts import Restarts
from spark_jobs.runtime.build import build_stage
from spark_jobs.runtime.coordinator import Coordinator, Due
from spark_jobs.runtime.cut import Alignment
from spark_jobs.runtime.gate import TurnedAwayError
from spark_jobs.runtime.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.restarting import StageRestarts
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.running_stage import RunningStage, StageInCut
from spark_jobs.runtime.schedule import CheckpointSchedule
from spark_jobs.runtime.stage import StageRun


class EndingStages:
    """The stages whose inputs all end, one after the other in a thread of their own; one that fails starts again.

    Args:
        run: The round.
        stages: In topological order.
        restarts: What happens when one fails.
        stopping: Set once no stage is to go on.
    """

    def __init__(self, run: RoundRun, stages: Sequence[StageInCut], restarts: StageRestarts, stopping: threading.Event) -> None:
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

    def _try(self, stage: StageInCut) -> None:
        try:
            self._run.to_its_end(stage.run)
        except TurnedAwayError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises: a thread's edge
            stage.wait_for_restart(self._restarts, error)


class RunningPipeline:
    """Runs until it is cancelled or a stage gives up.

    Args:
        run: The round.
        restarts: Of its stages together.
        checkpointing: When checkpoints are taken.
    """

    def __init__(self, run: RoundRun, restarts: Restarts, checkpointing: Checkpointing) -> None:
        self._run = run
        self._parent = run.parent()
        self._published = False
        self._stopping = threading.Event()
        again = StageRestarts(restarts, self._stopping)
        self._stages: list[StageInCut] = []
        for built in run.build():
            if built.stage.unbounded:
                self._stages.append(RunningStage(built, self._rebuild(built), again, self._stopping))
            else:
                self._stages.append(StageInCut(built))
        self._running = [stage for stage in self._stages if isinstance(stage, RunningStage)]
        ending = [stage for stage in self._stages if not isinstance(stage, RunningStage)]
        self._ending = EndingStages(run, ending, again, self._stopping)
        self._checkpointing = checkpointing
        self._requests = RequestedCheckpoints(run.home, run.attempt.attempt, run.mask)

    def go_on(self) -> None:
        """Runs; never returns without an error.

        Raises:
            RunCancelledError: The attempt was cancelled.
            StreamPipelineError: A stage has given up, too many checkpoints failed, or one cannot be published.
        """
        self._requests.resume(self._parent)
        self._run.site.heartbeat.state(RunState.RUNNING)
        self._ending.start()
        for stage in self._running:
            stage.start()
        try:
            self._coordinator().run()
        finally:
            self._stop()

    def _coordinator(self) -> Coordinator:
        given = self._checkpointing
        timeout_s = None if given.aligned_timeout_ms is None else given.aligned_timeout_ms / 1000
        return Coordinator(
            self._stages,
            self._failure,
            self._take,
            alignment=Alignment(not given.unaligned, timeout_s, given.max_in_flight_bytes),
            timeout_s=given.timeout_ms / 1000,
            schedule=CheckpointSchedule(
                given.interval_ms / 1000, given.min_pause_ms / 1000, given.tolerable_failures, time.monotonic()
            ),
            cancellation=self._run.site.cancellation,
            requests=self._requests,
            is_idle=self._is_idle,
        )

    def _stop(self) -> None:
        self._stopping.set()
        for stage in self._running:
            stage.stop()
        self._ending.stop()

    def _failure(self) -> BaseException | None:
        failures = (self._ending.failure, *(stage.failure for stage in self._running))
        return next((failure for failure in failures if failure is not None), None)

    def _take(self, due: Due) -> Manifest:
        stages = [stage.run for stage in self._stages]
        manifest = self._run.complete(due.kind, stages, self._parent, due.find_cut, due.request, due.deadline_s)
        self._parent = manifest  # whatever becomes of its publication: the next one continues it, and publishes both
        self._published = False
        self._run.publish(stages, manifest)
        self._published = True
        return manifest

    def _is_idle(self) -> bool:
        """Whether nothing has happened since the last checkpoint: another one would say the same."""
        last = self._parent.stages if self._parent and self._published else {}
        return all(stage.name in last and stage.committed() == last[stage.name].batch for stage in self._stages)

    def _rebuild(self, built: StageRun) -> Callable[[StageRun, Set[str]], StageRun]:
        return lambda earlier, ended: build_stage(built.stage, self._run.site, self._run.outputs, earlier, ended)


def run_until_stopped(run: RoundRun) -> None:
    """Runs a round that has an unbounded input; see :meth:`RunningPipeline.go_on`."""
    restarts = Restarts(run.graph.restart, time.time, random.Random())
    RunningPipeline(run, restarts, run.graph.checkpointing).go_on()
