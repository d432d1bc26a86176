"""Plans a start: everything is checked before anything is written."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.api.continuation import Fate, StageFate, with_fate
from spark_jobs.api.full_refresh import refreshed_stages
from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.stage import BeginAt
from spark_jobs.background import beside, run_all
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.losses import LossLedger
from spark_jobs.home.places import check_places, check_sources
from spark_jobs.home.source_places import archive_places, source_places
from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import OnRewind, PipelineDocument
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.ids import InputName, SinkName, StageName, app_id
from spark_jobs.protocol.known_sources import KnownDelta, KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.masking import masking
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.publication.pending import refuse_missing_table, refuse_unknown
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.checkpoints.tidying import Tidying
from spark_jobs.runtime.planned_pipeline import find_places, plan_pipeline
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.spark.spark_facts import CAN_REPARTITION, SPARK_MINOR
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.start.adoption import check_stages, old_offsets
from spark_jobs.runtime.start.attempt import why_not_continued
from spark_jobs.runtime.start.beginnings import in_sources
from spark_jobs.runtime.start.decision import (
    BeginFromSavepoint,
    BeginIncarnation,
    Continue,
    Decision,
    HomeFacts,
    StartDecision,
    check_parameters,
    check_spark,
    continued,
    decide,
    goes_on_from,
    inputs_to_renew,
    interrupted_round,
    replace_round,
    stage_fates,
)
from spark_jobs.runtime.start.facts import look_at_savepoint
from spark_jobs.runtime.start.incarnations import check_new_stages, check_replacement
from spark_jobs.runtime.start.lost_sources import log_of_cut, predict_losses
from spark_jobs.runtime.start.savepoint_start import SavepointStart, savepoint_start
from spark_jobs.runtime.start.source_identity import (
    FoundSource,
    SettledSources,
    Sources,
    check_names,
    ended_sources,
    find_sources,
    settle,
    sources_before,
)
from spark_jobs.runtime.start.start_plan import StartPlan, known_places
from spark_jobs.runtime.start.static_versions import replaced_statics
from spark_jobs.runtime.start.waiting_rows import (
    WaitingRows,
    check_waiting,
    gained_columns,
    waiting_in_checkpoint,
    waiting_in_work,
)
from spark_jobs.runtime.tables.store_requirements import prepare_stores
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class StartPlanner:
    """Plans starts of a pipeline. Writes nothing.

    Args:
        graph: The checked pipeline.
        parameters: Bound values.
        home: The home.
        pipeline: Document of the home, or the one with which the first start will claim it.
    """

    graph: Graph
    parameters: BoundParameters
    home: Files
    pipeline: PipelineDocument

    def decided(self, request: StartRequest, facts: HomeFacts) -> tuple[HomeFacts, Decision]:
        """Returns the facts with the request's savepoint, and the decision."""
        LossLedger(self.home).check_backfill(request.backfill, request.run, facts.incarnation)
        facts = look_at_savepoint(request, facts)
        refreshed = refreshed_stages(self.graph, request.full_refresh)
        return facts, decide(request, facts, self.parameters.public(), self.graph.describe(), refreshed)

    def savepoint(self, request: StartRequest, facts: HomeFacts, decision: StartDecision) -> SavepointStart | None:
        """Checks the request against the decision. Returns the savepoint that the start begins with, if there is one."""
        check_spark(decision, request, facts, SPARK_MINOR, can_repartition=CAN_REPARTITION)
        check_names(self.graph, request.new_sources, statics=True)
        check_names(self.graph, request.accept_data_loss)
        return savepoint_start(self.home, self.pipeline, request, facts, decision)

    def plan(
        self,
        request: StartRequest,
        decision: StartDecision,
        facts: HomeFacts,
        start: SavepointStart | None,
        spark: SparkSession,
        try_known: Callable[[Mapping[SinkName, TablePlace]], object] = lambda places: None,
    ) -> StartPlan:
        """Plans a start by checking its sources, tables and functions. Writes nothing; ``try_known`` may.

        Args:
            request: The start request.
            decision: The decision.
            facts: The facts of the home.
            start: The savepoint that the start begins with.
            spark: Session of the driver.
            try_known: Called in the background during the last checks, with the places of known tables. The sources are checked before.
        """
        adopted = {} if isinstance(decision, Continue) else old_offsets(self.graph, decision.adopt_offsets)
        session = session_for_run(spark)
        places = find_places(self.graph, self.parameters, spark)
        tables = {sink: place.uri for sink, place in places.items()}
        run_all([partial(check_places, self.home, tables, begins=False), partial(self._check_continued, decision, facts, places)])
        reached = start.check(places) if start else None
        prepare_stores(spark, self.home, places)
        planned = plan_pipeline(self.graph, self.parameters, session, places)
        sources, settled = self._look_at_sources(request, decision, facts, session, adopted)
        archives = archive_places(self.graph.archives(self.parameters))
        check_sources(self.home, tables, [*source_places(settled.sources), *archives], planned.partitioned)
        if settled.replaces_round:
            decision = replace_round(decision, facts)
            offsets = {name: place for name, place in decision.adopt_offsets.items() if name not in settled.renewed}
            adopted = old_offsets(self.graph, offsets)
            settled = replace(settled, before=self._sources_before(decision, facts))
        returned = {name: stage.frame.schema for name, stage in planned.stages.items()}
        fates = stage_fates(decision, facts, self.graph.describe())
        with beside(partial(try_known, known_places(facts, places, planned.tables))):
            check_waiting(returned, self._waiting(request, decision, facts), gained_columns(settled.before, settled.sources))
            check_stages(self.graph, session, planned.stages, adopted)
            losses = self._losses_by_tidying(request, decision, places, spark, self.tidying(session))
            self._check_empty_stages(decision, fates, places, spark)
        return StartPlan(
            decision=decision,
            facts=facts,
            stages=fates,
            savepoint=start,
            reached=reached,
            places=places,
            tables=planned.tables,
            planned=planned.stages,
            settled=settled,
            source_tables_in_stores=tables_in_stores(sources),
            begins_now=self._begins_now(decision, facts, sources, settled),
            adopted=adopted,
            losses=losses,
        )

    def tidying(self, session: SparkSession) -> Tidying:
        """Returns what archives or deletes the files that were read."""
        return Tidying(self.home, self.graph, self.graph.archives(self.parameters), session)

    def lost_rows(self, request: StartRequest, plan: StartPlan) -> Sequence[Loss]:
        """Returns the lost rows of sources that the start would leave out. Checks nothing if its savepoint is in another place."""
        decision, state = plan.decision, plan.goes_on_from
        goes_on = decision.round if isinstance(decision, Continue) else None
        read_on = {name: known for name, known in plan.settled.sources.items() if name not in plan.settled.renewed}
        stages = [StageName(each.stage) for each in with_fate(plan.stages, Fate.CONTINUES)]
        if goes_on is not None and why_not_continued(self.home, request, plan.facts) is None:
            work = self.home.below(plan.facts.newest.work_directory.path)
            logs = {name: SparkLog(work, checkpoint_directory(name)) for name in stages}
        elif state is None and goes_on is None:
            return ()  # no position was read before, so no row can be lost
        elif state is not None and CheckpointStore(self.home).kept(state.checkpoint) != state:
            return ()
        else:
            cuts = state.stages if state else {}
            logs = {name: log_of_cut(self.home, name, cuts.get(name)) for name in stages}
        left_out = {*request.accept_data_loss, *self.graph.skips_what_is_gone}
        return predict_losses(self.home, self.graph, plan.planned, logs, read_on, goes_on, left_out)

    def _check_continued(self, decision: StartDecision, facts: HomeFacts, places: Mapping[SinkName, TablePlace]) -> None:
        """Refuses tables that are gone, and those with rows of checkpoints that the home does not have."""
        kept, store = continued(decision, facts), CheckpointStore(self.home)

        def check(sink: SinkName, table: str) -> None:
            if kept is not None and sink in kept.sinks:
                refuse_missing_table(kept.checkpoint, sink, kept.sinks[sink].table)
            if facts.incarnation is not None and not isinstance(decision, BeginIncarnation):
                refuse_unknown(store, decision.parent, sink, table, app_id(self.pipeline.uuid, facts.incarnation, sink))

        run_all([partial(check, sink, place.uri) for sink, place in places.items()])

    def _look_at_sources(
        self,
        request: StartRequest,
        decision: StartDecision,
        facts: HomeFacts,
        session: SparkSession,
        adopted: Mapping[InputName, AdoptedOffsets],
    ) -> tuple[dict[InputName, FoundSource], SettledSources]:
        """Returns the sources as they are now, and those that the stages read."""
        to_renew = inputs_to_renew(request, decision)
        if isinstance(decision, Continue):
            asked = self.graph.statics.keys() & request.new_sources
            to_renew |= replaced_statics(self.graph, self.home, decision.round, session, self.parameters.values, asked - to_renew)
            ended = ended_sources(self.graph, facts.head, decision.round.round, to_renew)
        else:
            ended = ended_sources(self.graph, goes_on_from(decision, facts), None)
        before = self._sources_before(decision, facts)
        known = {name: each for name, each in before.items() if name not in to_renew}
        mask = masking(self.parameters.secrets)
        sources = find_sources(self.graph, session, self.parameters.values, mask, before=known, ended=ended, adopted=adopted)
        return sources, self._settle(request, decision, facts, sources, before, to_renew)

    def _settle(
        self,
        request: StartRequest,
        decision: StartDecision,
        facts: HomeFacts,
        found: Mapping[InputName, FoundSource],
        before: Sources,
        to_renew: Collection[InputName],
    ) -> SettledSources:
        """Compares the sources with those that were read before. Writes nothing."""
        newest = goes_on_from(decision, facts) or facts.head
        if newest is not None and newest.drained and isinstance(decision, BeginFromSavepoint):
            newest = None  # such a start resets every watermark to its value before the drain
        is_drained = newest is not None and any(cut.drain_batches for cut in newest.stages.values())
        settled = settle(found, before, request.new_sources, newest if is_drained else None, to_renew=to_renew)
        if isinstance(decision, Continue) and not settled.replaces_round:
            check_parameters(decision.round, self.parameters.public())
        return settled

    def _sources_before(self, decision: StartDecision, facts: HomeFacts) -> Sources:
        """Returns the sources of the interrupted round, or of the checkpoint that the start goes on from."""
        interrupted = interrupted_round(decision)
        if interrupted is not None:
            return sources_before(interrupted, facts.head)
        return sources_before(None, goes_on_from(decision, facts))

    def _waiting(self, request: StartRequest, decision: StartDecision, facts: HomeFacts) -> Mapping[StageName, WaitingRows]:
        """Returns the rows that earlier code has staged and that the stages will read."""
        if isinstance(decision, Continue) and why_not_continued(self.home, request, facts) is None:
            with suppress(CorruptDocumentError, NotFoundError):  # damaged files are taken from the checkpoint
                return waiting_in_work(self.home.below(facts.newest.work_directory.path), self.graph, decision.round.begins)
        state = goes_on_from(decision, facts)
        return waiting_in_checkpoint(state, self.graph) if state else {}

    def _losses_by_tidying(
        self,
        request: StartRequest,
        decision: StartDecision,
        places: Mapping[SinkName, TablePlace],
        spark: SparkSession,
        tidying: Tidying,
    ) -> Sequence[Loss]:
        """Checks the tables of stages that are computed again. Returns losses: their input files that were archived or deleted since."""
        if not isinstance(decision, BeginIncarnation):
            return ()
        replaces = decision.on_rewind is OnRewind.REPLACE
        stages = [stage for name, stage in self.graph.stages.items() if replaces or name in decision.refreshed]
        if not stages:
            return ()
        check_replacement(self.pipeline.uuid, stages, places, Publishers(lambda: spark, in_driver=True))
        return tidying.missing_files(stages, request.accept_data_loss)

    def _check_empty_stages(
        self,
        decision: StartDecision,
        fates: Sequence[StageFate],
        places: Mapping[SinkName, TablePlace],
        spark: SparkSession,
    ) -> None:
        """Checks the tables of stages that a savepoint has no state for, and that read their sources from the beginning."""
        if not isinstance(decision, BeginFromSavepoint) or decision.on_rewind is not OnRewind.REFUSE:
            return
        empty = [self.graph.stages[StageName(each.stage)] for each in with_fate(fates, Fate.STARTS_EMPTY)]
        again = [stage for stage in empty if stage.begin is BeginAt.EARLIEST and stage.name not in decision.refreshed]
        check_new_stages(self.pipeline.uuid, again, places, Publishers(lambda: spark, in_driver=True))

    def _begins_now(
        self,
        decision: StartDecision,
        facts: HomeFacts,
        sources: Mapping[InputName, FoundSource],
        settled: SettledSources,
    ) -> Mapping[StageName, Mapping[InputName, tuple[KnownSource, ...]]]:
        """Returns the beginning in each source for each stage that begins now."""
        state = goes_on_from(decision, facts)
        if state is None or isinstance(decision, Continue):
            return {}
        if isinstance(decision, BeginIncarnation):
            refreshed = decision.refreshed
        else:
            refreshed = frozenset(facts.newest_attempt.refreshed if facts.newest_attempt else ())
        return in_sources(state, self.graph, settled, sources, refreshed)


def tables_in_stores(sources: Mapping[InputName, FoundSource]) -> frozenset[str]:
    """Returns the paths of the Delta tables in stores among sources. Leaves out ended sources: their tables may be gone."""
    known = [each for found in sources.values() if found.leaves for each in found.known]
    return frozenset(
        each.path for each in known if isinstance(each, KnownDelta) and urlsplit(each.path).scheme not in ("", "file")
    )
