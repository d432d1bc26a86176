"""One attempt, from its start request to its answer."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import SparkSession

from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.background import beside, run_all
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import forget_old_logs
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import look_interval_s
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.old_starts import forget_old_starts
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.control.rounds import LeftOut, Rounds
from spark_jobs.home.layout import SPARK_LOG, channels_path, log_path, output_path, tombstones_path
from spark_jobs.protocol.documents import (
    AttemptDocument,
    BlockedPublication,
    CheckpointKind,
    Manifest,
    PipelineDocument,
    RoundDocument,
    SinkResult,
    StartResponse,
)
from spark_jobs.protocol.errors import (
    CorruptDocumentError,
    FencedError,
    InterruptedRunError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, SinkName
from spark_jobs.protocol.masking import Mask, masked_error, masking
from spark_jobs.protocol.reports import reported_error
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.publication.pending import is_due, refuse_missing_table
from spark_jobs.publication.publisher import never_public, publish_due, published
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.checkpoints.blocked_publication import Blocking
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.driver.driver_log import bounded_outputs, driver_log
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.driver.home_locks import check_free, driver_lock, forget_driver_lock, jvm_lock
from spark_jobs.runtime.driver.metrics_export import MetricsExport
from spark_jobs.runtime.driver.shared_storage import check_shared
from spark_jobs.runtime.driver.shown_logs import shown
from spark_jobs.runtime.inputs.delta_source import counted_ahead
from spark_jobs.runtime.open_requests import OpenRequests, UnfinishedStop
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.running_pipeline import RunningPipeline
from spark_jobs.runtime.spark.direct_checkpoint_files import write_directly
from spark_jobs.runtime.spark.session import SHUFFLE_PARTITIONS, jvm_has_ended, session_for_run
from spark_jobs.runtime.spark.spark_errors import full, without_stack
from spark_jobs.runtime.stages.lost_input import is_half_done
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.runtime.start.attempt import begin_attempt, build_work_directory, check_first
from spark_jobs.runtime.start.begin_round import begin_round
from spark_jobs.runtime.start.decision import (
    NO_PAST,
    Answer,
    BeginFromSavepoint,
    BeginIncarnation,
    HomeFacts,
    replaced_round,
)
from spark_jobs.runtime.start.early_copy import EarlyCopy, early_copy
from spark_jobs.runtime.start.facts import read_facts
from spark_jobs.runtime.start.incarnations import close_abandoned
from spark_jobs.runtime.start.source_identity import (
    SettledSources,
)
from spark_jobs.runtime.start.start_plan import StartPlan
from spark_jobs.runtime.start_planner import StartPlanner
from spark_jobs.runtime.tables.store_requirements import check_stores
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tombstones import Tombstones
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import check_create_if_absent
from spark_jobs.storage.table_uris import table_files, uri_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Application:
    """A pipeline with its parameters and its home.

    Args:
        graph: The checked pipeline. Its ``on_end`` is used for a round that this run begins.
        parameters: Bound values.
        start_spark: Creates the Spark session. Called only if there is something to run.
        watch: Called with the heartbeat when the stages start. Returns a function that stops watching.
        open_directory: Opens the directories of the sinks' tables.
    """

    graph: Graph
    parameters: BoundParameters
    home: Files
    pipeline: PipelineDocument
    """Document of the home, or the one with which the first start will claim it."""
    start_spark: Callable[[], SparkSession]
    begun: bool = True
    """False if the home had no document when ``pipeline`` was made."""
    watch: Callable[[Heartbeat], Callable[[], None]] = lambda heartbeat: lambda: None
    open_directory: Callable[[str], Files] = table_files

    @property
    def _planner(self) -> StartPlanner:
        return StartPlanner(self.graph, self.parameters, self.home, self.pipeline)

    def begin(self, request: StartRequest) -> StartResponse:
        """Plans the first start of a home, claims the home, writes the request, and answers it as :meth:`answer` does.

        Nothing is written before the claim, so a start that is refused or dies leaves nothing behind. If another first start claims the
        home in the meantime, the plan is made again, in the home of that start.

        Args:
            request: The request, not written yet.
        """
        with self._masked():
            plan = self._first_plan(request, lambda: None)
            claimed, own = self._claimed(plan)
            request = Channel(self.home).request_start(
                request.run, parameters=request.parameters, options=request, restarts=request.restarts
            )
        return claimed.answer(request, own)

    def begin_requested(self, request: StartRequest) -> StartResponse:
        """Plans and claims as :meth:`begin` does, for a request that was written before the home begins."""

        def run(afterwards: ExitStack, metrics: MetricsExport) -> StartResponse:
            afterwards.callback(self._forget_lock_unless_begun)
            with Cancellation(AttemptLease(self.home, request.attempt), interval_s=look_interval_s(self.home)) as cancellation:
                plan = self._first_plan(request, cancellation.check)
                earlier = _earlier_answer(Channel(self.home), request)  # Spark may have waited long for the cluster
                if earlier is not None:
                    return earlier
                claimed, own = self._claimed(plan)
            return claimed._run_planned(request, afterwards, metrics, own)

        return self._answer(request, run)

    def _forget_lock_unless_begun(self) -> None:
        with suppress(StreamPipelineError):  # the start has its own error
            if Channel(self.home).pipeline() is None:
                forget_driver_lock(self.home)

    def _first_plan(self, request: StartRequest, check: Callable[[], object]) -> StartPlan:
        """Plans the first start of a home. Leaves nothing behind.

        Args:
            request: Start request.
            check: Called between the steps. Its exceptions are raised.
        """
        check()
        facts, decision = self._planner.decided(request, NO_PAST)
        assert not isinstance(decision, Answer), "a home without a checkpoint has no answer"
        start = self._planner.savepoint(request, facts, decision)
        spark = self.start_spark()
        check_shared(spark, self.home)
        check()
        plan = self._planner.plan(request, decision, facts, start, spark)
        check_stores(spark, plan.new_places)
        check()
        return plan

    def _claimed(self, plan: StartPlan) -> tuple["Application", StartPlan | None]:
        """Claims the home. Returns the application with the home's document, and the plan if no other start has claimed it before."""
        check_create_if_absent(self.home)
        document = Channel(self.home).claim(self.pipeline.name, self.pipeline.uuid)
        return replace(self, pipeline=document, begun=True), plan if document.uuid == self.pipeline.uuid else None

    def answer(self, request: StartRequest, plan: StartPlan | None = None) -> StartResponse:
        """Runs the start request and answers it once.

        A repeated request gets the same answer. An error that belongs to the request is answered and raised.

        Args:
            request: The request.
            plan: Plan of the first start, which has claimed the home.

        Raises:
            StreamPipelineError: The run did not reach its end. The error says whether it can go on.
        """
        return self._answer(request, lambda afterwards, metrics: self._run_planned(request, afterwards, metrics, plan))

    def _run_planned(
        self, request: StartRequest, afterwards: ExitStack, metrics: MetricsExport, plan: StartPlan | None
    ) -> StartResponse:
        """Carries out the plan of a first start, or plans again if there is none, or if another attempt has begun since."""
        if plan is None or Channel(self.home).attempts.numbers():
            return self._run(request, afterwards, metrics)
        return self._carry_out(request, afterwards, metrics, lambda *_: plan, EarlyCopy(self.home))

    def _answer(self, request: StartRequest, run: Callable[[ExitStack, MetricsExport], StartResponse]) -> StartResponse:
        channel = Channel(self.home)
        earlier = _earlier_answer(channel, request)
        if earlier is not None:
            return earlier
        with (
            MetricsExport(self.home) as metrics,  # the last export begins when the request is answered and the home is free
            driver_lock(self.home, request),
            ExitStack() as afterwards,
        ):  # a driver that finds the home in use leaves the answer to the other driver
            try:
                with self._masked():
                    answer = _raised_if_error(channel.respond(run(afterwards, metrics)))
                    self._open_requests().answer_late(answer)
                return answer
            except FencedError:
                raise
            except StreamPipelineError as error:
                self._answer_failure(channel, request, error)
                raise

    @contextmanager
    def _masked(self) -> Iterator[None]:
        """Raises every error inside as an error of this package, without secrets."""
        try:
            yield
        except Exception as error:
            mask = masking(self.parameters.secrets)
            known = masked_error(self._as_pipeline_error(error, mask), mask)
            if known is error:
                raise
            raise known from error

    def _as_pipeline_error(self, error: Exception, mask: Mask) -> StreamPipelineError:
        if isinstance(error, StreamPipelineError):
            return error
        safe = "No file is half-written. Every batch that was staged is kept, and so is a checkpoint that was completed."
        return full("The run failed", error, [self.home.url], safe=safe) or _unexpected(error, mask)

    def _answer_failure(self, channel: Channel, request: StartRequest, error: StreamPipelineError) -> None:
        """Answers the request with an error, if the storage permits. The caller gets the first error."""
        try:
            channel.respond_failure(request, error)
        except StreamPipelineError as second:
            _LOG.warning("the failure could not be answered: %s", second)

    def _run(self, request: StartRequest, afterwards: ExitStack, metrics: MetricsExport) -> StartResponse:
        facts = read_facts(self.home)
        if facts.head is not None:  # an earlier attempt may have died before it recorded its backfills
            LossLedger(self.home).backfill(facts.head)
        unfinished = self._open_requests().roll_forward(facts.head, request)
        earlier = self._earlier_answer_of_run(request, facts)
        if earlier is not None:
            return earlier
        facts, decision = self._planner.decided(request, facts)
        if isinstance(decision, Answer):
            return self._answer_again(request, decision.manifest, abandoned=decision.manifest.incarnation != facts.incarnation)
        check_first(self.home, request, facts.claimed)
        start = self._planner.savepoint(request, facts, decision)
        if unfinished is not None and not isinstance(decision, BeginIncarnation):
            raise unfinished.error

        def find_plan(spark: SparkSession, publishers: Publishers) -> StartPlan:
            check_shared(spark, self.home)
            if isinstance(decision, BeginFromSavepoint) and decision.checkpoint is not None:
                self._publish_before_savepoint(decision.checkpoint, publishers)
            plan = self._planner.plan(request, decision, facts, start, spark, partial(check_stores, spark, are_known=True))
            check_stores(spark, plan.new_places)
            return plan

        early = early_copy(self.home, request, decision, facts, second_copy=self.graph.checkpointing.second_copy)
        return self._carry_out(request, afterwards, metrics, find_plan, early, unfinished)

    def _publish_before_savepoint(self, checkpoint: CheckpointId, publishers: Publishers) -> None:
        """Publishes a checkpoint before the start takes a savepoint of it.

        Raises:
            NotFoundError: A table that it publishes into is missing.
            StreamPipelineError: It cannot be published.
        """
        manifest = CheckpointStore(self.home).manifest(checkpoint)
        due = {sink: cut.table for sink, cut in manifest.sinks.items() if is_due(manifest, cut.publish)}
        run_all([partial(refuse_missing_table, checkpoint, sink, table) for sink, table in due.items()])
        publish_due(self.home, checkpoint, publishers)

    def _carry_out(
        self,
        request: StartRequest,
        afterwards: ExitStack,
        metrics: MetricsExport,
        find_plan: Callable[[SparkSession, Publishers], StartPlan],
        early: EarlyCopy,
        unfinished: UnfinishedStop | None = None,
    ) -> StartResponse:
        """Begins an attempt by a plan, and runs it to its end. A plan that is refused changes nothing, and abandons no stop.

        Args:
            request: The start request.
            afterwards: Closed after the request is answered, while this driver still holds the home.
            metrics: Exports the attempt's metrics from its beginning.
            find_plan: Returns the plan. Called when Spark runs.
            early: The copy of the state, which begins while Spark starts.
            unfinished: A stop that an earlier attempt has left unfinished. It is abandoned before this attempt begins.
        """
        with ExitStack() as stack:
            cancellation = stack.enter_context(
                Cancellation(AttemptLease(self.home, request.attempt), interval_s=look_interval_s(self.home))
            )
            cancellation.check()
            stack.enter_context(early)
            spark = self.start_spark()
            stack.callback(jvm_lock(self.home, spark).release)
            # Spark may have waited long for the cluster. In between the attempt may have been cancelled.
            earlier = _earlier_answer(Channel(self.home), request)
            if earlier is not None:
                return earlier
            publishers = Publishers(lambda: spark, in_driver=True)
            plan = find_plan(spark, publishers)
            decision, facts, start, places, settled = plan.decision, plan.facts, plan.savepoint, plan.places, plan.settled
            counting = stack.enter_context(ExitStack())
            counting.enter_context(counted_ahead(spark, plan.source_tables_in_stores))
            cancellation.check()
            earlier = _earlier_answer(Channel(self.home), request)  # planning a folder with many files also takes long
            if earlier is not None:
                return earlier
            leaves_out = bool(request.accept_data_loss or self.graph.skips_what_is_gone)
            rebuilds = settled.replaces_round or replaced_round(decision) or (leaves_out and self._is_half_done(facts))
            restore = start.take_own(cancellation.check) if start else None
            if unfinished is not None:
                self._open_requests().abandon_stop(unfinished)
            attempt = begin_attempt(
                self.home,
                self.pipeline,
                self.graph,
                request,
                decision,
                facts,
                early.directory,
                restore=restore,
                in_place=not rebuilds,
            )
            mask = masking(self.parameters.secrets)
            afterwards.enter_context(shown(self.home, log_path(attempt.attempt), output_path(attempt.attempt), mask=mask))
            self._write_log(stack, attempt.attempt, mask)
            stack.enter_context(beside(partial(self._forget_old, attempt)))
            stages, spark_ui = list(self.graph.stages), spark.sparkContext.uiWebUrl
            heartbeat = Heartbeat(self.home, attempt.attempt, attempt.run, stages, spark_ui, mask=mask)
            stack.enter_context(heartbeat)
            metrics.begin(lambda: heartbeat.status)
            stack.callback(self.watch(heartbeat))
            _LOG.info("attempt %d of run %s begins: %s", attempt.attempt, attempt.run, type(decision).__name__)
            afterwards.callback(publishers.finish)
            sinks = {sink: (place.uri, self.graph.sinks[sink].mode) for sink, place in places.items()}
            tombstones = Tombstones(session_for_run(spark), self.home, attempt.incarnation, self.graph.sinks, places)
            close_abandoned(self.home, self.pipeline.uuid, attempt, sinks, publishers, tombstones, plan.reached)
            if start:
                start.close_origin(publishers)
            round_document = begin_round(self.home, self.graph, self.parameters, request, plan, attempt)
            LossLedger(self.home).undo(round_document.undoes, round_document.round)
            if start:
                attempt = start.bring_in(attempt, round_document, self.graph)
            left_out = Rounds(self.home).left_out(round_document)
            site = self._site(spark, attempt, round_document, settled, places, heartbeat, cancellation, left_out)
            run = RoundRun(
                graph=self.graph,
                home=self.home,
                pipeline=self.pipeline,
                attempt=attempt,
                round=round_document,
                site=site,
                publishers=publishers,
                mask=mask,
                accept_data_loss=request.accept_data_loss,
                tidying=self._planner.tidying(session_for_run(spark)),
                backfills=request.backfill,
                left_out=left_out,
                before_queries=counting.close,
            )
            self._publish_head(run)
            run.tidy()
            build_work_directory(self.home, attempt, run.parent, facts, spark, partial(early.copied, attempt))
            run.subsumption.begin()
            manifest, results = RunningPipeline(run).run_to_end(first=facts.newest_attempt is None)
            return _success(request, manifest, results, run.blocking.blocked)

    def plan(self, request: StartRequest) -> StartPlan | Manifest:
        """Returns the plan of a start. Writes nothing. The errors are those of the start.

        Returns:
            The checkpoint that answers the start, if nothing would run.
        """
        check_free(self.home, request)
        facts, decision = self._planner.decided(request, read_facts(self.home))
        if isinstance(decision, Answer):
            return decision.manifest
        start = self._planner.savepoint(request, facts, decision)
        plan = self._planner.plan(request, decision, facts, start, self.start_spark())
        return replace(plan, gone=self._planner.lost_rows(request, plan))

    def _earlier_answer_of_run(self, request: StartRequest, facts: HomeFacts) -> StartResponse | None:
        """Returns the run's earlier answer if its checkpoint was a stop's or was discarded, and the pipeline has gone on since."""
        earlier = facts.answer_of(request.run)
        if earlier is None or earlier.checkpoint is None:
            return None
        if facts.head is not None and earlier.checkpoint == facts.head.checkpoint:
            return None  # the pipeline has not gone on: this start first finishes the publication, then repeats the answer
        try:
            kept = CheckpointStore(self.home).kept(earlier.checkpoint)
        except CorruptDocumentError:  # a corrupt checkpoint does not count: the run continues without it
            return None
        if kept is not None and kept.checkpoint_kind is not CheckpointKind.STOP:
            return None
        return earlier.model_copy(
            update={"request": request.request, "attempt": request.attempt, "answered_at": datetime.now(UTC)}
        )

    def _answer_again(self, request: StartRequest, manifest: Manifest, *, abandoned: bool) -> StartResponse:
        """Returns the answer of a run that has its checkpoint, after finishing its publication."""
        if abandoned:
            results: Mapping[SinkName, SinkResult] = published(self.home, manifest.checkpoint)
            if (lost := never_public(manifest, results)) is not None:
                raise lost
            return _success(request, manifest, results)
        blocking, publishers = Blocking(self.home, masking(self.parameters.secrets)), Publishers(self.start_spark)
        results = blocking.results(manifest, publishers, may_block=manifest.may_end_blocked)
        return _success(request, manifest, results, blocking.blocked)

    def _open_requests(self) -> OpenRequests:
        return OpenRequests(self.home, masking(self.parameters.secrets), self.start_spark)

    def _write_log(self, stack: ExitStack, attempt: AttemptNumber, mask: Mask) -> None:
        """Writes the driver's log, and limits its size, until ``stack`` closes."""
        log, outputs = log_path(attempt), (SPARK_LOG, output_path(attempt))
        stack.enter_context(driver_log(local_path(self.home, log), mask))
        stack.enter_context(bounded_outputs(*(local_path(self.home, path) for path in outputs)))

    def _forget_old(self, attempt: AttemptDocument) -> None:
        """Deletes logs and documents of old attempts. If that fails, the next attempt does it."""
        try:
            forget_old_logs(self.home, attempt.attempt)
            forget_old_starts(self.home, attempt)
        except Exception as error:  # noqa: BLE001 - a thread's edge: the attempt goes on without it
            _LOG.warning("not all documents of old attempts were deleted: %s", error)

    def _publish_head(self, run: RoundRun) -> None:
        """Publishes the complete checkpoint before anything else runs, because the earlier attempt may have died before it did.

        Later publications do not depend on it: each begins at the table's own checkpoint. So a table that refuses its rows does not end the
        start. It blocks the publication, which is tried again while the stages run.

        Raises:
            ConflictError: See :attr:`RoundRun.parent`.
            StreamPipelineError: The checkpoint, and all later ones, can never become public.
        """
        if run.parent is not None:
            run.blocking.publish_or_block(run.parent, run.publishers)

    def _is_half_done(self, facts: HomeFacts) -> bool:
        """Returns True if a planned batch must be computed again unchanged, although some of its input may be missing."""
        if facts.newest_attempt is None:
            return False
        work = self.home.below(facts.newest_attempt.work_directory.path)
        return any(is_half_done(work, name) for name in self.graph.stages)

    def _site(
        self,
        spark: SparkSession,
        attempt: AttemptDocument,
        round_document: RoundDocument,
        settled: SettledSources,
        places: Mapping[SinkName, TablePlace],
        heartbeat: Heartbeat,
        cancellation: Cancellation,
        left_out: LeftOut,
    ) -> RoundSite:
        own = session_for_run(spark)
        if attempt.state_partitions is not None:
            own.conf.set(SHUFFLE_PARTITIONS, str(attempt.state_partitions))
        work = self.home.below(attempt.work_directory.path)
        write_directly(own, work.url)
        return RoundSite(
            spark=own,
            pipeline=self.pipeline.name,
            incarnation=attempt.incarnation,
            attempt=attempt,
            checkpoints=CheckpointStore(self.home),
            round=round_document,
            rounds=Rounds(self.home),
            statics=pins_of_attempt(self.home, attempt.attempt),
            work=work,
            places=places,
            channels=uri_of(self.home.below(channels_path(attempt.incarnation))),
            tombstones=uri_of(self.home.below(tombstones_path(attempt.incarnation))),
            params=self.parameters.values,
            heartbeat=heartbeat,
            cancellation=cancellation,
            open_directory=self.open_directory,
            sources=settled.sources,
            losses=list(left_out.losses),
        )


def _earlier_answer(channel: Channel, request: StartRequest) -> StartResponse | None:
    """Returns the answer that the request already has, or None. Raises the error of an answer that is one."""
    earlier = channel.response(request.request)
    return None if earlier is None else _raised_if_error(earlier)


def _raised_if_error(answer: StartResponse) -> StartResponse:
    """Returns a successful answer. Raises the error of any other. Another driver may have written the answer."""
    if answer.error is not None:
        raise reported_error(answer.error)
    return answer


def _success(
    request: StartRequest,
    manifest: Manifest,
    results: Mapping[SinkName, SinkResult],
    blocked: BlockedPublication | None = None,
) -> StartResponse:
    return StartResponse(
        request=request.request,
        attempt=request.attempt,
        run=request.run,
        checkpoint=manifest.checkpoint,
        ends_round=manifest.ends_round,
        sinks=dict(results),
        blocked=blocked,
        answered_at=datetime.now(UTC),
    )


def _unexpected(error: Exception, mask: Mask) -> InterruptedRunError:
    failed = f"{type(error).__name__}: {mask(without_stack(str(error)))[:2000]}"
    remedy = "Remove the cause and run it again: it goes on from there."
    if jvm_has_ended(error):
        failed = "Spark's Java process has ended, or does not answer any more."
        remedy = "Look for the reason in its last output (often too little memory: --driver-memory), then run again: it goes on."
    exists = "All staged batches and complete checkpoints are kept."
    return InterruptedRunError(failed, exists=exists, remedy=remedy)
