"""Begins with a savepoint, step by step: opens it, decides about its tables, and brings it into the home."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote

from spark_jobs.api.graph import Graph
from spark_jobs.checkpoint.savepoint_files import pending_actions, staged_path
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.home.layout import channels_path
from spark_jobs.protocol.documents import (
    AttemptDocument,
    OnRewind,
    PipelineDocument,
    Publish,
    RoundDocument,
    StartRequest,
)
from spark_jobs.protocol.ids import AppId, CheckpointId, SinkName
from spark_jobs.publication.publisher import plan_publication
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.start.decision import HomeFacts, named_savepoint
from spark_jobs.runtime.start.rewind import SavepointTables
from spark_jobs.runtime.start.savepoint_import import Beginning, OpenedSavepoint, bring_in, open_savepoint
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import open_files

_LOG = logging.getLogger(__name__)


class SavepointStart:
    """Made by :func:`savepoint_start`; its methods are called in this order, and may be repeated by a later attempt.

    Args:
        named: Whether the request names it; else an attempt before has begun with it, and has not come to a checkpoint.
        by: The request that names it, or has named it before.
    """

    def __init__(
        self, home: Files, pipeline: PipelineDocument, opened: OpenedSavepoint, by: StartRequest, *, named: bool
    ) -> None:
        self._home, self._pipeline, self.opened = home, pipeline, opened
        self._named, self._keep = named, by.on_rewind is OnRewind.KEEP
        self._take = by.restore is not None and by.restore.take_pending
        self._tables = SavepointTables(home, pipeline.uuid, opened, {})
        self._decided: dict[AppId, CheckpointId | None] = {}

    def told_to(self, facts: HomeFacts) -> HomeFacts:
        """What the decision has to know."""
        return replace(facts, savepoint=self.opened.manifest) if self._named else facts

    def check(self, places: Mapping[SinkName, TablePlace]) -> Mapping[AppId, CheckpointId | None]:
        """Checks the tables. Returns where the savepoint's own line is in those that it shares with this start; writes nothing.

        Raises:
            RejectedError: What is public does not allow to go on from the savepoint.
        """
        self._tables = SavepointTables(self._home, self._pipeline.uuid, self.opened, places)
        if not self._tables.is_of_another_home:
            self._tables.refuse_lost_by_dropping()
        self._decided = self._tables.decide(keep=self._keep, again=not self._named, take=self._take)
        if self._take:
            self._tables.refuse_left_behind()
        return self._decided

    def close_origin(self, publishers: Publishers) -> None:
        """Closes the line of another home in those tables, once its rows are in them where the request says so.

        The line of this home is closed with all abandoned ones.

        Raises:
            ConflictError: It has published meanwhile: start again.
        """
        if self._tables.is_of_another_home:
            self._tables.close_origin(self._decided | self._taken(publishers), publishers)

    def _taken(self, publishers: Publishers) -> dict[AppId, CheckpointId]:
        """Where the lines are that the rows of the savepoint were published in now."""
        number = self.opened.manifest.checkpoint
        lacking = {
            sink: cut.app
            for sink, cut in self._tables.kept.items()
            if self._take and self._tables.takes(cut) and (self._decided[cut.app] or 0) < number
        }
        if lacking:
            self._publish(sorted(lacking), publishers)
        return dict.fromkeys(lacking.values(), number)

    def _publish(self, sinks: Sequence[SinkName], publishers: Publishers) -> None:
        """Publishes what the savepoint holds staged into the tables that it is staged for; idempotent, durable on return.

        It is published as the line that has staged it, under its app ids: each row once, also where the home of that line does the same.
        """
        store, manifest = CheckpointStore(self.opened.files), self.opened.manifest
        for sink in sinks:
            copies: dict[str, str] = {}
            for each in pending_actions(store, manifest, sink):
                adds = [line["add"] for line in store.read_actions(each)]
                copies |= {staged_path(manifest.sinks[sink].stage, add): unquote(add["path"]) for add in adds}
            self.opened.copy(open_files(manifest.sinks[sink].table), copies)
        planned = plan_publication(self.opened.files, manifest.checkpoint, sinks=sinks, policy=Publish.EXTERNAL)
        planned.require(publishers)
        replace(planned, turns=self._home).carry_out(publishers)

    def bring_in(self, attempt: AttemptDocument, round_document: RoundDocument, graph: Graph) -> AttemptDocument:
        """The attempt as it goes on: from the checkpoint that the savepoint has become."""
        along = self._tables.unpublished()
        for sink, rows in self._tables.left_behind(along).items():
            _LOG.warning("sink %s goes on without %d rows of the savepoint, which were staged and are not public", sink, rows)
        channels = local_path(self._home, channels_path(attempt.incarnation))
        own = {
            stage.name: self._tables.places[stage.sink.name].path
            if stage.sink and not stage.sink.merge
            else channels / stage.name
            for stage in graph.stages.values()
        }
        kept = frozenset(stage.name for stage in graph.stages.values() if stage.sink and stage.sink.name in self._tables.kept)
        staged_in = {name: path.as_uri() for name, path in own.items()}
        begins = Beginning(self._home, self._pipeline, attempt, round_document, staged_in, kept, self._remembering(), along)
        manifest = bring_in(self.opened, begins)
        return attempt.model_copy(update={"restored_from": manifest.checkpoint})

    def _remembering(self) -> frozenset[SinkName]:
        """The sinks whose deleted keys the incarnation has not inherited of one before it, which has more of them."""
        inherited = {} if self._tables.is_of_another_home else self._tables.kept
        return frozenset((self.opened.manifest.sinks.keys() & self._tables.places.keys()) - inherited.keys())


def savepoint_start(home: Files, pipeline: PipelineDocument, request: StartRequest, facts: HomeFacts) -> SavepointStart | None:
    """Opens and verifies the savepoint that a start begins with; returns None if the start goes on with what is in the home.

    Raises:
        RejectedError: There is none, or it cannot be gone on from. Nothing was written.
        CorruptDocumentError: A file of it is gone or was altered, by path. Nothing was written.
    """
    named = named_savepoint(request, facts)
    by = request if named else facts.begun_by if facts.head is None else None
    if by is None or by.restore is None:
        return None
    opened = open_savepoint(by.restore.savepoint)
    return SavepointStart(home, pipeline, opened, by, named=named is not None)
