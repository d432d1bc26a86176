"""A running pipeline: its stages run independently while checkpoints are taken and published. The final checkpoint is taken at the end.

One thread, that of :class:`RunningPipeline`, takes the checkpoints. Publications and answers run in other threads.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from shlex import quote

from spark_jobs.api.restarts import OnStageFailure
from spark_jobs.background import run_with_deadline
from spark_jobs.checkpoint.savepoint import places_of
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.home import look_interval_s
from spark_jobs.control.request_table import RequestEvent, rejected_after
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest, OnEnd, RunState, SinkResult, StageState
from spark_jobs.protocol.errors import (
    CheckpointDeclinedError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    Retry,
    RunCancelledError,
    SourceChangedError,
    SourceGoesOnError,
    SparkJobFailedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import RequestId, SinkName, StageName
from spark_jobs.protocol.restarts import Restarts
from spark_jobs.protocol.stage_cut import StageCut
from spark_jobs.publication.holds import may_heal
from spark_jobs.runtime.checkpoints.answers import Answers
from spark_jobs.runtime.checkpoints.cut import Alignment, CheckpointOrder, Cut, Waiting, quiesce, release, take_cut
from spark_jobs.runtime.checkpoints.publishing import Publishing
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.checkpoints.schedule import CheckpointSchedule
from spark_jobs.runtime.checkpoints.stopping import Stop
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.stages.running_stage import EndingStage, RunningStage, StageAtWork
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.start.drain_marks import begin_drain, drain_begun, is_taken_over, take_over

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.05
_LIVE_LIMIT_S = 10.0
"""Time limit for finding out whether a later attempt is live. If the home does not answer, the next checkpoint finds out."""
_TRIED_AGAIN = (ConflictError, DeadlineExceededError, OutcomeUnknownError, SparkJobFailedError, StorageError)
"""Errors of a try at a checkpoint with which the pipeline runs on. :mod:`~spark_jobs.publication.blocked` has those of its publication."""


class RunningPipeline:
    """Runs until all stages have ended, the pipeline is stopped or cancelled, a stage's failure ends it, or no stage can work.

    A stage with an unbounded input does not end by itself. Any other stage begins when the stages that it reads have ended.
    A stop uses it as a :class:`~spark_jobs.runtime.checkpoints.stopping.Stoppable`.
    """

    def __init__(self, run: RoundRun) -> None:
        checkpointing = run.graph.checkpointing
        self._run = run
        self._parent = run.parent
        self._published: Mapping[SinkName, SinkResult] | None = None
        self._stopping = threading.Event()
        self._restarts: dict[StageName, Restarts] = {}
        """The restart counters by stage. They are kept when all stages are built again."""
        self.stages = self._built()
        self._alignment, self._timeout_s = Alignment.declared(checkpointing), checkpointing.timeout_ms / 1000
        self._schedule = CheckpointSchedule.declared(checkpointing, time.monotonic())
        tables = [stage.run.outlet.public.uri for stage in self.stages if stage.run.outlet.public]
        self._requests = RequestedCheckpoints(
            run.home,
            run.attempt.attempt,
            run.mask,
            others=places_of(tables, run.site.sources),
            check=self._check_copy,
            timeout_s=self._timeout_s,
            interval_s=look_interval_s(run.home),
            blocked=lambda: run.blocking.blocked,
        )
        self._answers = Answers(self._requests)
        self._publishing = Publishing(run, run.blocking, self.check_live, self._parent)
        self._is_ending = threading.Event()
        """Set when the attempt ends. Then no savepoint is copied any more."""
        self._in_doubt = False
        """True if a failed try may have left a manifest."""
        self._threads_run = False
        self._state_before_hold: dict[StageName, StageState] = {}
        """The heartbeat's state of each held stage before the hold."""

    def run_to_end(self, *, first: bool) -> tuple[Manifest, Mapping[SinkName, SinkResult]]:
        """Runs the pipeline. Returns the final checkpoint, or that of a stop, published by policy.

        Args:
            first: True if this is the home's first attempt. Then no earlier request is open.

        Raises:
            RunCancelledError: The attempt was cancelled.
            IncompleteError: The pipeline was stopped, and a step after the checkpoint failed.
            StreamPipelineError: A stage has failed permanently, too many checkpoints failed, or one can never become public.
        """
        self._requests.resume(self._parent)
        try:
            manifest = self._run_or_drain(first)
        finally:
            self._is_ending.set()
            self._end_threads()
            self._publishing.end()
            self._answers.end()
        return manifest, self._published or {}

    def _run_or_drain(self, first: bool) -> Manifest:
        drain = drain_begun(self._run.site.work)
        if drain is not None:
            return self._continue_drain(drain)
        if not is_taken_over(self._run.site.work):
            if not first:
                self._take_over_stops()
            take_over(self._run.site.work)
        self._run.site.heartbeat.state(RunState.RUNNING)
        return self._run_stages()

    def _run_stages(self) -> Manifest:
        """Runs the stages to the last checkpoint. Builds them again if a source gets other columns, or skips lost rows."""
        while True:
            self._threads_run = True
            for stage in self.stages:
                stage.start()
            try:
                return self._take_checkpoints()
            except SourceChangedError as changed:
                _LOG.info("all stages are built again: %s", changed.failed)
                self._let_consume()
                self._end_threads()
                self._stopping.clear()
                self._run.look_again(self._parent)
                self.stages = self._built()

    def _let_consume(self) -> None:
        """Waits until all staged rows of the stages that found the new columns are consumed. These rows have the old columns.

        The code of the next start would expect the new ones.
        """
        failures = {stage.name: stage.failure for stage in self.stages if isinstance(stage.failure, SourceChangedError)}
        stopped = {name for name, failure in failures.items() if not isinstance(failure, SourceGoesOnError)}
        while not all(stage.has_consumed(stopped) for stage in self.stages if stage.failure is None and stage.given_up is None):
            self._run.site.cancellation.check()
            for stage in self.stages:
                if stage.failure is not None and not isinstance(stage.failure, SourceChangedError):
                    raise stage.failure
            time.sleep(_LOOK_S)

    def _built(self) -> list[StageAtWork]:
        """Builds the stages, and returns them ready to start."""
        run, at_work = self._run, list[StageAtWork]()
        isolated = run.graph.on_stage_failure is OnStageFailure.ISOLATE
        for built in self._build():
            restarts, checks = self._restarts_of(built.stage.name), (run.check_lost, run.check_skipped)
            common = (built, restarts, self._stopping, *checks, isolated)
            passing_over = run.passing_over(built.stage, self._stopping)
            if built.stage.unbounded:
                at_work.append(RunningStage(*common, run.build_again, passing_over=passing_over))
            else:
                at_work.append(EndingStage(*common, run.to_its_end, passing_over=passing_over))
        return at_work

    def _restarts_of(self, stage: StageName) -> Restarts | None:
        strategy = self._run.graph.restart
        if strategy is None:
            return None
        return self._restarts.setdefault(stage, Restarts(strategy, time.time, random.Random()))

    def _build(self) -> list[StageRun]:
        while True:
            try:
                return self._run.build()
            except SourceChangedError:  # a source has got other columns while the stages were built
                self._run.look_again(self._parent)

    def _take_checkpoints(self) -> Manifest:
        """Takes checkpoints when they are due, one at a time. Returns the last one: the final checkpoint, or the one of a stop.

        A checkpoint answers every request that is open when it is triggered, also if it was triggered because it was due. The answer is
        written when the checkpoint is public or its publication is blocked. The last checkpoint also answers all waiting requests.

        A stop after the end of all stages gets the final checkpoint. A drain at that time still flushes every stage.

        Raises:
            RunCancelledError: The attempt was cancelled.
            FencedError: A later attempt is live.
            InterruptedRunError: Too many tries have failed, or one with an error that no other try heals. Failed savepoints do not count.
            IncompleteError: The pipeline was stopped, and a step after its checkpoint failed.
            StreamPipelineError: A stage has failed permanently, the final checkpoint or its publication failed, or a checkpoint can never
                become public.
        """
        while True:
            self._pause()
            asked = self._requests.open({request.request for request in self._answers.waiting})
            now_s = time.monotonic()
            stops = [request for request in asked if request.wanted is Wanted.STOP]
            if self.has_ended() and not any(request.drain for request in stops):
                manifest = self.finish()
                self._requests.completed([*self._answers.waiting, *asked], manifest)
                return manifest
            if stops:
                others = [request for request in asked if request.wanted is not Wanted.STOP]
                stopped = self.stop([*stops, *others, *self._answers.waiting])
                if stopped is not None:
                    return stopped
            elif asked or (self._schedule.is_due(now_s) and not self.is_idle()):
                self._try(asked)
            elif self._schedule.is_due(now_s):
                self.check_live()
                self._schedule.skipped(now_s)

    def _try(self, asked: Sequence[CheckpointRequest]) -> None:
        """Tries to take a checkpoint for open requests, or because one is due. After most failures the pipeline runs on."""
        triggered_s, deadline_s = time.monotonic(), self._deadline_s()
        saving = any(request.wanted is Wanted.SAVEPOINT for request in asked)
        alignment = Alignment() if saving else self._alignment  # a savepoint is always aligned

        def find_cut() -> Cut:
            return take_cut(self.stages, alignment, Waiting(deadline_s, time.monotonic, self._pause))

        kind = CheckpointKind.SAVEPOINT if saving else CheckpointKind.PERIODIC
        try:
            manifest = self.complete(
                CheckpointOrder(kind, find_cut, asked[0].request if asked else None, deadline_s, self._pause)
            )
        except (FencedError, RunCancelledError):
            raise
        except StreamPipelineError as error:
            self.check_live()
            if not isinstance(error, _TRIED_AGAIN):
                raise
            _LOG.warning("a checkpoint failed: %s", error)
            self._requests.failed(asked, error)
            counts = not (saving or isinstance(error, CheckpointDeclinedError))
            if not self._schedule.failed(triggered_s, time.monotonic(), counts=counts):
                raise self._too_many(error) from error
            if counts and self._schedule.tolerable_failures is None and error.retry is Retry.NEVER:
                raise self._lasting(error) from error
        else:
            _LOG.info("checkpoint %d took %.2f s", manifest.checkpoint, time.monotonic() - triggered_s)
            self._answers.add(asked, manifest)
            stages, copied = [stage.run for stage in self.stages], self._answers.checkpoints
            self._run.subsume(stages, manifest, self._publishing.reached, copied=copied, shown=self._publishing.shown)
            self._schedule.completed(triggered_s, time.monotonic())

    def _check_copy(self) -> None:
        """Ends the copy of a savepoint. The copied files stay for the next attempt."""
        self._run.site.cancellation.check()
        if self._is_ending.is_set():
            raise RunCancelledError(
                f"Attempt {self._run.attempt.attempt} has ended.",
                safe="The copied files stay.",
                remedy="Start the pipeline again: it continues with the savepoint.",
            )

    def _too_many(self, last: StreamPipelineError) -> InterruptedRunError:
        return InterruptedRunError(
            f"Exceeded checkpoint tolerable failure threshold: {self._schedule.failures} checkpoints have failed in a row, but "
            f"{self._schedule.tolerable_failures} are tolerable. The last one: {last.failed}",
            exists="All staged batches and complete checkpoints are kept.",
            safe="Only rows of complete checkpoints were published.",
            remedy="Remove the cause and run it again, or allow more with tolerable_failures.",
            failures=self._schedule.failures,
        )

    def _lasting(self, last: StreamPipelineError) -> InterruptedRunError:
        return InterruptedRunError(
            f"This attempt cannot take another checkpoint: another try would fail with the same error. {last.failed}",
            exists="All staged batches and complete checkpoints are kept.",
            safe="Only rows of complete checkpoints were published.",
            remedy=f"Start the pipeline again: it verifies its files and heals what it can. {last.remedy}",
        )

    def _pause(self) -> None:
        """Waits a moment while publications and answers go on.

        Raises:
            RunCancelledError: The attempt was cancelled.
            FencedError: A later attempt is live.
            StreamPipelineError: A stage has failed permanently, and the others must not or cannot run on without it; or a
                checkpoint can never become public.
        """
        self._run.site.cancellation.check()
        self._publishing.advance(None if self._answers.copies_deleted_keys else self._parent)
        self._answers.advance(self._publishing.is_settled)
        failure = next((stage.failure for stage in self.stages if stage.failure is not None), None) or self._failure_of_all()
        if failure is not None:
            raise failure
        time.sleep(_LOOK_S)

    def _failure_of_all(self) -> Exception | None:
        """Returns the first permanent failure of a stage if no stage can work any more; otherwise None."""
        given_up = self._given_up()
        if not given_up:
            return None
        stuck = set[StageName]()
        for stage in self.stages:
            if not stage.run.output.ended.is_set():
                if stage.gets_rows(stuck):
                    return None
                stuck.add(stage.name)
        return next(iter(given_up.values()))

    def _given_up(self) -> dict[StageName, Exception]:
        """Returns the errors of stages that have failed permanently while the others run on."""
        return {stage.name: stage.given_up for stage in self.stages if stage.given_up is not None}

    def _deadline_s(self) -> float:
        """Returns the deadline of a try that is triggered now, on the monotonic clock."""
        return time.monotonic() + self._timeout_s

    def quiesce(self, request: CheckpointRequest) -> None:
        """Holds each stage as soon as it has read all its rows, and keeps it held. Permanently failed stages need no hold.

        Raises:
            RejectedError: A stage has failed permanently, and the stop needs it.
            StreamPipelineError: A stage has not reached this state before the deadline.
        """
        if drain_begun(self._run.site.work) is not None:
            return  # an earlier attempt did this: no stage runs
        self._state_before_hold = {}
        given_up = self._given_up()
        if request.drain and given_up:
            raise self._cannot_stop(
                next(iter(given_up)),
                "a drain flushes every stage",
                "stop the pipeline without a drain and start it again. Then drain it",
            )
        at_work = [stage for stage in self.stages if stage.name not in given_up]
        quiesce(at_work, Waiting(self._deadline_s(), time.monotonic, self._pause, self._show_held, self._show_released))
        if (stage := self._ahead_of_its_commit()) is not None:
            raise self._cannot_stop(
                stage,
                "another stage has read a batch that it has not committed",
                "end the pipeline with spark-jobs cancel and start it again",
            )

    def _ahead_of_its_commit(self) -> StageName | None:
        """Returns a failed stage with a staged, uncommitted batch of which another stage has read rows, or None."""
        given_up = self._given_up()
        if not given_up:
            return None
        committed = {stage.name: stage.committed() for stage in self.stages}
        for stage in self.stages:
            for producer, last in stage.consumed_by(committed[stage.name]).items():
                if producer in given_up and last > committed[producer]:
                    return producer
        return None

    def _cannot_stop(self, stage: StageName, why: str, remedy: str) -> RejectedError:
        return RejectedError(
            f"The pipeline cannot be stopped in this way: stage '{stage}' has failed, and {why}. "
            f"The stage failed with {self._run.site.heartbeat.status.stages[stage].reason}",
            exists="The other stages run on, and earlier checkpoints are valid.",
            safe="Nothing was flushed, and nothing was lost.",
            remedy=f"Remove the cause, then {remedy}.",
            stage=stage,
        )

    def flush(self, request: CheckpointRequest) -> None:
        """Ends every stage at its present position, one after the other: each flushes into the next. Idempotent, also for the next attempt.

        Only a start from an earlier checkpoint undoes a flush.
        """
        begin_drain(self._run.site.work, request.request)
        self._end_threads()
        for stage in self.stages:
            self._run.site.heartbeat.stage(stage.name, StageState.DRAINING)
            stage.run.gate.admit()
            stage.run.gate.make_room()  # its consumers come later, and the rows of one drain are finite
            stage.release()
            self._run.flush(stage.run)
            self._run.site.heartbeat.stage(stage.name, StageState.ENDED)

    def checkpoint(self, request: CheckpointRequest) -> Manifest:
        """Completes the checkpoint of a stop. All stages are at its cut."""
        order = CheckpointOrder(
            CheckpointKind.STOP, self._where_they_are, request.request, self._deadline_s(), self._pause, request.drain
        )
        try:
            return self.complete(order)
        except (FencedError, RunCancelledError):
            raise
        except StreamPipelineError as error:
            if self._in_doubt:  # the answer must not say that the checkpoint was not taken
                raise self._unknown(request, error) from error
            raise

    def publish(self, manifest: Manifest, *, may_block: bool = False) -> None:
        """Publishes the last checkpoint by policy, after the running publications, and deletes unneeded files.

        Args:
            manifest: The checkpoint.
            may_block: True if the attempt may end while a table refuses it. Then the next start tries again.

        Raises:
            FencedError: A later attempt is live.
            StreamPipelineError: The checkpoint is not public, or can never become public; or waiting rows may be deleted soon.
        """
        self._publishing.rest(self._pause)
        self._answers.end()
        stages, shown = [stage.run for stage in self.stages], self._publishing.shown
        self._published = self._run.publish(stages, manifest, shown, may_block=may_block)

    def run_on(self) -> None:
        """Releases the held stages."""
        self._run.site.heartbeat.state(RunState.RUNNING)
        for stage in self.stages:
            self._show_released(stage.name)
        release(self.stages)

    def stop(self, asked: Sequence[CheckpointRequest]) -> Manifest | None:
        """Stops the pipeline for these requests, of which the first is a stop. Returns None if the stop failed and it runs on."""
        self._run.site.heartbeat.state(RunState.STOPPING)
        return Stop(asked, self, self._requests, self._run.site.heartbeat.stop).run()

    def has_ended(self) -> bool:
        """Returns True if every stage has staged its last row."""
        return all(stage.run.output.ended.is_set() for stage in self.stages)

    def finish(self) -> Manifest:
        """Completes and publishes the final checkpoint. It has no time limit, because no stage waits for it."""
        self._run.site.heartbeat.state(RunState.COMPLETING)

        def at_the_end() -> Cut:
            return Cut({stage.name: stage.run.spark_log.last_batch() for stage in self.stages}, aligned=True, alignment_s=0.0)

        order = CheckpointOrder(
            CheckpointKind.FINAL,
            at_the_end,
            pause=self._pause,
            drained=self._run.round.on_end is OnEnd.DRAIN,
        )
        manifest = self.complete(order)
        self._run.site.heartbeat.state(RunState.PUBLISHING)
        try:
            self.publish(manifest)
        except (FencedError, RunCancelledError):
            raise
        except StreamPipelineError as error:
            if not may_heal(error):
                raise
            raise self._not_public(manifest, error) from error
        return manifest

    def _not_public(self, final: Manifest, error: StreamPipelineError) -> StreamPipelineError:
        """Returns the error of a publication that keeps a run from its end, with the retry policy of the original error."""
        publishing = f"spark-jobs publish --home {quote(self._run.home.url)} --checkpoint {final.checkpoint}"
        return type(error)(
            f"The final checkpoint {final.checkpoint} of run {final.run} cannot be published: {error.failed}",
            exists=f"The checkpoint is complete and has every row of the run. {error.exists}".strip(),
            safe=error.safe,
            remedy=f"{error.remedy} After that, publish the rows without computing them again: {publishing}. Or run it again.",
            **error.evidence,
        )

    def _where_they_are(self) -> Cut:
        """Returns the cut of stages that are all at rest. Rows upstream of a failed stage are in flight."""
        batches = {stage.name: stage.committed() for stage in self.stages}
        return Cut(batches, aligned=True, alignment_s=0.0, failing=frozenset(self._given_up()))

    def _unknown(self, request: CheckpointRequest, error: StreamPipelineError) -> InterruptedRunError:
        return InterruptedRunError(
            f"It is unknown whether the checkpoint for {request.request} is complete: {error.failed}",
            exists="All staged batches are kept.",
            safe="Nothing was lost, and the stop is still open.",
            remedy="Start the pipeline again when the storage is available: it reads the outcome, and finishes the stop.",
            request=request.request,
        )

    def _continue_drain(self, drain: RequestId) -> Manifest:
        """Continues the drain of a dead attempt: no stage may run any more, and flushed rows stay flushed."""
        asked = sorted(self._requests.unanswered(), key=lambda each: each.request != drain)
        manifest = self.stop(asked)
        if manifest is None:
            raise InterruptedRunError(
                f"The drain for {drain} was begun by an earlier attempt, and cannot be finished.",
                exists="The newest checkpoint is valid.",
                safe="Only rows of checkpoints are public.",
                remedy="Start the pipeline again: it continues from its newest checkpoint.",
                request=drain,
            )
        return manifest

    def _take_over_stops(self) -> None:
        """Takes a checkpoint if requests for a stop are open, and rejects those for a drain. Stops without a drain stay open.

        A drain would flush too early: the rows that the earlier attempt had read after its last checkpoint have yet to be read again. The
        earlier attempt may still be stopping on another host. After the checkpoint of this attempt, that stop can no longer finish.
        """
        stops = [request for request in self._requests.unanswered() if request.wanted is Wanted.STOP]
        number = self._parent.checkpoint if self._parent else None
        if stops:
            self.complete(
                CheckpointOrder(CheckpointKind.PERIODIC, self._where_they_begin, deadline_s=self._deadline_s(), pause=self._pause)
            )
        if drains := rejected_after(RequestEvent.WORK_IS_LOST, stops):
            lost = RejectedError(
                f"The attempt that was asked to drain was lost, with its work directory; attempt {self._run.attempt.attempt} reads again.",
                exists="It begins at the beginning." if number is None else f"It begins at checkpoint {number}.",
                safe="Nothing was flushed.",
                remedy="Repeat the request with a new id when spark-jobs status shows that it has caught up.",
                attempt=self._run.attempt.attempt,
                checkpoint=number,
            )
            self._requests.reject(RequestEvent.WORK_IS_LOST, drains, lost)

    def _where_they_begin(self) -> Cut:
        """Returns an unaligned cut of the stages, without a deadline. Called before they start."""
        return take_cut(self.stages, Alignment(False), Waiting(math.inf, time.monotonic, self._pause))

    def _end_threads(self) -> None:
        if not self._threads_run:
            return
        self._threads_run = False
        self._stopping.set()
        for stage in self.stages:
            stage.stop()

    def complete(self, order: CheckpointOrder) -> Manifest:
        """Completes a checkpoint. Durable on return.

        A checkpoint whose manifest exists counts as complete, even if a later step has failed. Otherwise the next checkpoint
        would get the same number.

        Raises:
            FencedError: A later attempt is live.
            RunCancelledError: The attempt was cancelled.
            StreamPipelineError: The checkpoint is not complete, or it is unknown whether it is.
        """
        if self._in_doubt:
            self._find_out()
        try:
            manifest = self._run.complete(order, [stage.run for stage in self.stages], self._parent)
        except RunCancelledError:
            raise
        except FencedError:
            Attempts(self._run.home).check_live(self._run.attempt.attempt)
            if self._find_out() is None:
                raise
            return self.complete(order)  # an earlier try of this attempt has this number, and its manifest appeared late
        except StreamPipelineError as error:
            self._in_doubt = True
            try:
                landed = self._find_out()
            except StreamPipelineError as unreadable:
                raise error from unreadable
            if landed is None:
                self._in_doubt = isinstance(error, OutcomeUnknownError)
                raise
            _LOG.warning("checkpoint %d is complete in spite of an error: %s", landed.checkpoint, error)
            return landed
        return self._take_up(manifest)

    def _find_out(self) -> Manifest | None:
        """Returns the checkpoint that a failed try has completed, or None.

        Raises:
            StreamPipelineError: It is unknown whether it has completed one.
        """
        landed = self._run.landed(self._parent)
        self._in_doubt = False
        return None if landed is None else self._take_up(landed)

    def _take_up(self, manifest: Manifest) -> Manifest:
        self._parent = manifest  # even if its publication fails: the next checkpoint continues it and publishes both
        self._published = None
        return manifest

    def is_idle(self) -> bool:
        """Returns True if nothing has happened since the last checkpoint. Another one would have the same content, and publish nothing."""
        last = self._parent.stages if self._parent else {}
        return all(stage.name in last and _is_at(last[stage.name], stage) for stage in self.stages)

    def check_live(self) -> None:
        """Raises an error if a later attempt is live. It may have deleted the files of a failed try."""
        attempts, live = Attempts(self._run.home), self._run.attempt.attempt
        silent = StorageError(
            f"{self._run.home.url} does not answer.", safe="Nothing was changed.", remedy="Check whether its storage answers."
        )
        try:
            run_with_deadline(
                lambda: attempts.check_live(live),
                time.monotonic() + _LIVE_LIMIT_S,
                lambda: silent,
                self._run.site.cancellation.check,
            )
        except StorageError as error:
            _LOG.warning("it is unknown whether a later attempt is live: %s", error)

    def _show_held(self, name: StageName) -> None:
        heartbeat = self._run.site.heartbeat
        state = heartbeat.status.stages[name].state
        if state not in (StageState.ENDED, StageState.QUIESCED):
            self._state_before_hold[name] = state
            heartbeat.stage(name, StageState.QUIESCED)

    def _show_released(self, name: StageName) -> None:
        heartbeat, before = self._run.site.heartbeat, self._state_before_hold.pop(name, None)
        if before is not None and heartbeat.status.stages[name].state is StageState.QUIESCED:  # a failing stage reports it itself
            heartbeat.stage(name, before)


def _is_at(cut: StageCut, stage: StageAtWork) -> bool:
    """Returns True if a checkpoint has the stage's present position. A stage's end is known a moment after its last batch."""
    return stage.committed() == cut.batch and (cut.finished or not stage.run.output.ended.is_set())
