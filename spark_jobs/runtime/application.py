"""One attempt, from its start request to its answer."""

import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

import pyspark
from pyspark.sql import SparkSession

from spark_jobs import __version__
from spark_jobs.api.address import TableAddress
from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.sink import check_distinct
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts, log_path
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import works_elsewhere
from spark_jobs.control.owners import Owners
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import (
    AttemptDocument,
    Manifest,
    PipelineDocument,
    Publish,
    RoundDocument,
    RunState,
    SinkResult,
    StageState,
    StartRequest,
    StartResponse,
    WorkDirectory,
)
from spark_jobs.protocol.errors import FencedError, InterruptedRunError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import (
    InputName,
    RoundNumber,
    SinkName,
    StageName,
    new_incarnation_id,
    new_work_directory_id,
)
from spark_jobs.protocol.masking import Mask, masked_error, masking
from spark_jobs.protocol.reports import reported_error
from spark_jobs.publication.evidence import published_checkpoints
from spark_jobs.publication.publisher import publish, published
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.adoption import adopt_offsets, check_stages, old_offsets, refuse_moved
from spark_jobs.runtime.build import RoundSite, build_stage
from spark_jobs.runtime.cancellation import Cancellation
from spark_jobs.runtime.decision import Answer, Begin, BeginIncarnation, Continue, Decision, HomeFacts, decide
from spark_jobs.runtime.driver_log import driver_log
from spark_jobs.runtime.facts import read_facts
from spark_jobs.runtime.final_checkpoint import FinalCheckpoint
from spark_jobs.runtime.heartbeat import Heartbeat
from spark_jobs.runtime.home_locks import driver_lock, jvm_lock
from spark_jobs.runtime.incarnations import close_abandoned
from spark_jobs.runtime.log_folding import trim
from spark_jobs.runtime.session import jvm_has_ended, session_for_run
from spark_jobs.runtime.shared_storage import check_shared
from spark_jobs.runtime.spark_log import NO_BATCH
from spark_jobs.runtime.stage import StageOutput, StageRun
from spark_jobs.runtime.sweep import named_by_checkpoints, sweep, sweep_abandoned
from spark_jobs.runtime.table_places import TablePlace, locate
from spark_jobs.runtime.tombstones import TOMBSTONES, Tombstones
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import open_files

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Application:
    """A pipeline that is bound to its parameters and to a home.

    Args:
        graph: The checked pipeline; its ``on_end`` counts for a round that this run begins.
        parameters: Bound values.
        home: The home.
        pipeline: Whose home it is.
        start_spark: Makes the Spark session; called only if there is something to run.
        watch: Told the heartbeat while the stages run, for people who wait; returns what ends the watching.
        open_directory: Opens the directories of the sinks' tables.
    """

    graph: Graph
    parameters: BoundParameters
    home: Files
    pipeline: PipelineDocument
    start_spark: Callable[[], SparkSession]
    watch: Callable[[Heartbeat], Callable[[], None]] = lambda heartbeat: lambda: None
    open_directory: Callable[[str], Files] = open_files

    def answer(self, request: StartRequest) -> StartResponse:
        """Does what ``request`` asks for and answers it, once and for ever.

        A repeated request gets the answer that stands. An error that is worth an answer is answered and raised.

        Raises:
            StreamPipelineError: The run did not get to its end; the error says whether it can go on.
        """
        channel = Channel(self.home)
        standing = _standing(channel, request)
        if standing is not None:
            return standing
        with driver_lock(self.home, request):  # whoever finds it taken leaves the answer to the other driver
            try:
                return channel.respond(self._run(request))
            except FencedError:
                raise
            except Exception as error:
                mask = masking(self.parameters.secrets)
                known = masked_error(error if isinstance(error, StreamPipelineError) else _unexpected(error, mask), mask)
                self._answer_failure(channel, request, known)
                if known is error:
                    raise
                raise known from error

    def _answer_failure(self, channel: Channel, request: StartRequest, error: StreamPipelineError) -> None:
        """Tells the asker, if the storage lets us: what failed first is what the caller is told."""
        try:
            channel.respond_failure(request, error)
        except StreamPipelineError as second:
            _LOG.warning("the failure could not be answered: %s", second)

    def _run(self, request: StartRequest) -> StartResponse:
        facts = read_facts(self.home)
        decision = decide(request, facts, self.parameters.public(), self.graph.describe())
        if isinstance(decision, Answer):
            number = decision.manifest.checkpoint
            abandoned = decision.manifest.incarnation != facts.incarnation
            publishers = Publishers(self.start_spark)
            results = (
                published(self.home, number) if abandoned else publish(self.home, number, by_policy=True, publishers=publishers)
            )
            _refuse_unpublishable(decision.manifest, results)
            return _success(request, decision.manifest, results)
        self._check_first(request)
        adopted = {} if isinstance(decision, Continue) else old_offsets(self.graph, decision.adopt_offsets)
        with ExitStack() as stack:
            cancellation = stack.enter_context(Cancellation(Owners(self.home, request.attempt)))
            cancellation.check()
            spark = self.start_spark()
            check_shared(spark, self.home)
            stack.callback(jvm_lock(self.home, spark).release)
            places = self._places(spark)
            if adopted:
                check_stages(self.graph, session_for_run(spark), self.parameters.values, adopted)
            cancellation.check()
            # Spark may have waited long for the cluster: nobody may want it now
            standing = _standing(Channel(self.home), request)
            if standing is not None:
                return standing
            attempt = self._begin_attempt(request, decision, facts)
            stack.enter_context(driver_log(local_path(self.home, log_path(attempt.attempt)), masking(self.parameters.secrets)))
            heartbeat = Heartbeat(self.home, attempt.attempt, attempt.run, list(self.graph.stages), spark.sparkContext.uiWebUrl)
            stack.enter_context(heartbeat)
            stack.callback(self.watch(heartbeat))
            _LOG.info("attempt %d of run %s begins: %s", attempt.attempt, attempt.run, type(decision).__name__)
            publishers = Publishers(lambda: spark)
            sinks = {sink: (place.path.as_uri(), self.graph.sinks[sink].mode) for sink, place in places.items()}
            tombstones = Tombstones(session_for_run(spark), self.home, attempt.incarnation, self.graph.sinks, places)
            close_abandoned(self.home, self.pipeline.uuid, attempt, sinks, publishers, tombstones)
            round_document = self._round(request, decision, attempt, adopted)
            manifest, stages = self._run_round(
                self._site(spark, attempt, round_document, places, heartbeat, cancellation), attempt, round_document
            )
            heartbeat.state(RunState.PUBLISHING, manifest.checkpoint)
            results = publish(self.home, manifest.checkpoint, by_policy=True, publishers=publishers)
            _LOG.info("checkpoint %d is complete", manifest.checkpoint)
            self._sweep(stages, manifest)
            return _success(request, manifest, results)

    def _check_first(self, request: StartRequest) -> None:
        """Refuses to begin an attempt that has begun before."""
        live = Attempts(self.home).latest()
        if live is None or request.attempt > live.attempt:
            return
        if live.attempt == request.attempt and works_elsewhere(self.home, live):
            raise FencedError(
                f"Attempt {live.attempt} is at work on {live.host}.",
                safe="This process has done nothing.",
                remedy="None is needed: the other process does the work.",
                attempt=live.attempt,
                host=live.host,
                process=live.process,
            )
        raise InterruptedRunError(
            f"Attempt {request.attempt}, or a later one, was started before and did not finish.",
            safe="What it made durable is kept.",
            remedy="Ask for a new start; it goes on from there.",
            attempt=request.attempt,
        )

    def _places(self, spark: SparkSession) -> dict[SinkName, TablePlace]:
        """Where the sinks' tables are; two names may be those of one table."""
        places = {sink: locate(spark, address) for sink, address in self.graph.tables(self.parameters).items()}
        found = {self.graph.sinks[sink]: TableAddress(str(place.path.resolve()), named=False) for sink, place in places.items()}
        check_distinct(found)
        return places

    def _sweep(self, stages: list[StageRun], manifest: Manifest) -> None:
        """Deletes what nothing names. The run is over by then: what cannot be deleted now is by the next run."""
        try:
            store = CheckpointStore(self.home)
            named = {stage.stage.name: named_by_checkpoints(store, manifest, stage.stage, stage.log.oldest()) for stage in stages}
            deleted = sweep(stages, named)
            self._trim(stages, manifest, named)
            sweep_abandoned(self.home, [Attempts(self.home).read(n) for n in Attempts(self.home).numbers()])
        except (OSError, StreamPipelineError) as error:
            _LOG.warning("not all that nothing names was deleted: %s", error)
        else:
            _LOG.info("%d orphans swept", len(deleted))

    def _trim(self, stages: list[StageRun], manifest: Manifest, named: Mapping[StageName, Set[str]]) -> None:
        parent = None if manifest.parent is None else CheckpointStore(self.home).manifest(manifest.parent)
        for stage in stages:  # after the sweep, which knows the batches of the parent for the last time
            cut = parent.stages.get(stage.stage.name) if parent else None
            batch = cut.batch if cut else NO_BATCH
            trim(stage.log, stage.output.consumers, batch, stage.directory, named[stage.stage.name])

    def _begin_attempt(self, request: StartRequest, decision: Decision, facts: HomeFacts) -> AttemptDocument:
        host = socket.gethostname()
        if isinstance(decision, BeginIncarnation):
            incarnation, directory = new_incarnation_id(), new_work_directory_id()
            work = WorkDirectory(id=directory, path=f"work/{directory}", host=host)
            restored = None
        else:
            previous = facts.attempts[-1]
            incarnation, work = previous.incarnation, previous.work_directory
            restored = decision.parent if isinstance(decision, Begin) else previous.restored_from
        attempt = AttemptDocument(
            attempt=request.attempt,
            request=request.request,
            run=request.run,
            round=decision.round.round if isinstance(decision, Continue) else _round_number(decision),
            incarnation=incarnation,
            follows=decision.follows if isinstance(decision, BeginIncarnation) else facts.attempts[-1].follows,
            on_rewind=decision.on_rewind if isinstance(decision, BeginIncarnation) else facts.attempts[-1].on_rewind,
            restored_from=restored,
            work_directory=work,
            host=host,
            process=os.getpid(),
            started_at=datetime.now(UTC),
            versions={"spark_jobs": __version__, "pyspark": pyspark.__version__, "python": platform.python_version()},
        )
        Attempts(self.home).create(attempt)
        return attempt

    def _round(
        self, request: StartRequest, decision: Decision, attempt: AttemptDocument, adopted: dict[InputName, AdoptedOffsets]
    ) -> RoundDocument:
        if isinstance(decision, Continue):
            return decision.round
        return Rounds(self.home).begin(
            RoundDocument(
                round=attempt.round,
                run=request.run,
                incarnation=attempt.incarnation,
                on_end=self.graph.on_end,
                publish=request.publish,
                parameters=self.parameters.public(),
                graph=self.graph.describe(),
                adopted=adopted,
                begun_at=datetime.now(UTC),
            )
        )

    def _site(
        self,
        spark: SparkSession,
        attempt: AttemptDocument,
        round_document: RoundDocument,
        places: Mapping[SinkName, TablePlace],
        heartbeat: Heartbeat,
        cancellation: Cancellation,
    ) -> RoundSite:
        return RoundSite(
            spark=spark,
            pipeline=self.pipeline.name,
            incarnation=attempt.incarnation,
            round=round_document.round,
            rounds=Rounds(self.home),
            work=self.home.below(attempt.work_directory.path),
            places=places,
            channels=local_path(self.home, f"channels/{attempt.incarnation}"),
            tombstones=local_path(self.home, f"{TOMBSTONES}/{attempt.incarnation}"),
            params=self.parameters.values,
            heartbeat=heartbeat,
            cancellation=cancellation,
            open_directory=self.open_directory,
            adopted=round_document.adopted,
        )

    def _run_round(
        self, site: RoundSite, attempt: AttemptDocument, round_document: RoundDocument
    ) -> tuple[Manifest, list[StageRun]]:
        store, heartbeat = CheckpointStore(self.home), site.heartbeat
        parent = store.manifest(attempt.restored_from) if attempt.restored_from is not None else None
        stages = self._build(site)
        for stage in stages:
            adopt_offsets(stage, round_document)
        heartbeat.state(RunState.RUNNING)
        for stage in stages:
            self._run_stage(stage, round_document, attempt, heartbeat)
        heartbeat.state(RunState.COMPLETING)
        inputs = {name: pinned.pins for name in self._inputs() if (pinned := site.rounds.pinned(round_document.round, name))}
        reached = published_checkpoints(parent) if parent else {}
        refuse_moved(round_document.adopted)
        final = FinalCheckpoint(self.home, site.work, self.pipeline, attempt, round_document, parent, inputs, reached)
        return final.take(stages), stages

    def _build(self, site: RoundSite) -> list[StageRun]:
        outputs: dict[StageName, StageOutput] = {}
        stages = []
        for stage in self.graph.stages.values():
            run = build_stage(stage, site, outputs)
            outputs[stage.name] = run.output
            stages.append(run)
        return stages

    def _run_stage(self, stage: StageRun, round_document: RoundDocument, attempt: AttemptDocument, heartbeat: Heartbeat) -> None:
        name = stage.stage.name
        Attempts(self.home).check_live(attempt.attempt)
        heartbeat.stage(name, StageState.RUNNING)
        stage.run_to_end()
        heartbeat.stage(name, StageState.DRAINING)
        if round_document.on_end.value == "drain":
            stage.drain()
        else:
            stage.release()
        heartbeat.stage(name, StageState.ENDED)

    def _inputs(self) -> list[InputName]:
        return [*self.graph.sources, *self.graph.statics]


def _standing(channel: Channel, request: StartRequest) -> StartResponse | None:
    """The answer that was given before; raises it where it is an error."""
    standing = channel.response(request.request)
    if standing is not None and standing.error is not None:
        raise reported_error(standing.error)
    return standing


def _round_number(decision: Decision) -> RoundNumber:
    if isinstance(decision, Begin | BeginIncarnation):
        return decision.round
    raise ValueError(f"{decision} begins no round")


def _refuse_unpublishable(manifest: Manifest, results: Mapping[SinkName, SinkResult]) -> None:
    """A run whose rows can never become public any more has not succeeded."""
    lost = [sink for sink, cut in manifest.sinks.items() if cut.publish is not Publish.EXTERNAL and results[sink].version is None]
    if lost:
        raise RejectedError(
            f"Checkpoint {manifest.checkpoint} of run {manifest.run} was never published into {', '.join(lost)}, and never can be.",
            exists="A later start began a new incarnation, which closed this one.",
            safe="Nothing was changed.",
            remedy="Use the answer of the later run.",
            checkpoint=manifest.checkpoint,
            sinks=lost,
        )


def _success(request: StartRequest, manifest: Manifest, results: Mapping[SinkName, SinkResult]) -> StartResponse:
    return StartResponse(
        request=request.request,
        attempt=request.attempt,
        run=request.run,
        checkpoint=manifest.checkpoint,
        sinks=dict(results),
        answered_at=datetime.now(UTC),
    )


def _unexpected(error: Exception, mask: Mask) -> InterruptedRunError:
    if jvm_has_ended(error):
        return InterruptedRunError(
            "Spark's Java process has ended, or does not answer any more.",
            exists="Every batch that was staged is kept, and so is a checkpoint that was completed.",
            remedy="Look for the reason in what it printed last (often too little memory: --driver-memory), then run again: it goes on.",
        )
    return InterruptedRunError(
        f"{type(error).__name__}: {mask(str(error).strip())[:2000]}",
        exists="Every batch that was staged is kept, and so is a checkpoint that was completed.",
        remedy="Mend the cause and run it again: it goes on where it was.",
    )
