"""Begins with a savepoint, step by step: opens it, decides about its tables, and imports it into the home."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote

from spark_jobs.api.graph import Graph
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import export, read_savepoint
from spark_jobs.checkpoint.savepoint_files import pending_actions, staged_path
from spark_jobs.home.layout import changed_code_path, channels_path
from spark_jobs.protocol.documents import (
    AttemptDocument,
    OnRewind,
    PipelineDocument,
    Publish,
    RestoreFrom,
    RoundDocument,
)
from spark_jobs.protocol.ids import AppId, CheckpointId, SinkName, StageName
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.publication.publisher import plan_publication
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.start.decision import (
    BeginFromSavepoint,
    BeginIncarnation,
    Decision,
    HomeFacts,
    goes_on_from,
    without_stages,
)
from spark_jobs.runtime.start.rewind import SavepointTables
from spark_jobs.runtime.start.savepoint_import import Beginning, OpenedSavepoint, bring_in, open_savepoint
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import table_files, uri_of

_LOG = logging.getLogger(__name__)


class SavepointStart:
    """A start with a savepoint, made by :func:`savepoint_start`. Call its methods in this order; a later attempt may repeat them.

    Args:
        home: The home.
        pipeline: Pipeline of the home.
        opened: The savepoint, or the home's own checkpoint of which it will be taken.
        keep: True if rows that were published after it stay.
        take: True if its staged rows are published first.
        again: True if an earlier attempt has begun with it without reaching a checkpoint.
        restore: The savepoint, if the request does not name it.
        refreshed: Stages that start over, as if the savepoint did not have them.
    """

    def __init__(
        self,
        home: Files,
        pipeline: PipelineDocument,
        opened: OpenedSavepoint,
        *,
        keep: bool = False,
        take: bool = False,
        again: bool = False,
        restore: RestoreFrom | None = None,
        refreshed: Collection[StageName] = (),
    ) -> None:
        self._home, self._pipeline, self._refreshed = home, pipeline, refreshed
        self._opened = self._without_refreshed(opened)
        self._keep, self._take, self._again, self._restore = keep, take, again, restore
        self._tables = SavepointTables(home, pipeline.uuid, self._opened, {})
        self._decided: dict[AppId, CheckpointId | None] = {}

    def _without_refreshed(self, opened: OpenedSavepoint) -> OpenedSavepoint:
        return replace(opened, manifest=without_stages(opened.manifest, self._refreshed))

    def check(self, places: Mapping[SinkName, TablePlace]) -> Mapping[AppId, CheckpointId | None]:
        """Checks the tables. Returns the newest public checkpoint, by app id, in those that the savepoint shares with this start.

        Writes nothing.

        Raises:
            RejectedError: The public rows do not allow a start from the savepoint.
        """
        self._tables = SavepointTables(self._home, self._pipeline.uuid, self._opened, places)
        if not self._tables.is_of_another_home:
            self._tables.refuse_lost_by_dropping()
        self._decided = self._tables.decide(keep=self._keep, again=self._again, take=self._take)
        if self._take:
            self._tables.refuse_left_behind()
        self._tables.refuse_changed()
        return self._decided

    def take_own(self, check: Callable[[], object]) -> RestoreFrom | None:
        """Takes the savepoint of the home's own checkpoint, if it begins with one. Durable on return, idempotent.

        Args:
            check: Called before each file is copied. Its exceptions are raised.

        Returns:
            The savepoint, if the request does not name it.
        """
        if self._opened.savepoint is not None:
            return self._restore
        number = self._opened.manifest.checkpoint
        place = self._home.below(changed_code_path(number))
        export(self._home, number, place, request=None, check=check)
        self._opened = self._without_refreshed(open_savepoint(place.url))
        why = f"{', '.join(sorted(self._refreshed))} start over" if self._refreshed else "the code has changed"
        _LOG.info("%s: the start begins with savepoint %s of checkpoint %d", why, place.url, number)
        return RestoreFrom(savepoint=place.url)

    def close_origin(self, publishers: Publishers) -> None:
        """Closes the incarnation of another home in the shared tables, after publishing its rows if the request says so.

        An incarnation of this home is closed with all abandoned ones.

        Raises:
            ConflictError: The incarnation has published in the meantime. Start again.
        """
        if self._tables.is_of_another_home:
            self._tables.close_origin(self._decided | self._taken(publishers), publishers)

    def _taken(self, publishers: Publishers) -> dict[AppId, CheckpointId]:
        """Publishes the savepoint's staged rows, if the request says so. Returns the newest public checkpoint by app id."""
        number = self._opened.manifest.checkpoint
        lacking = {
            sink: cut.app
            for sink, cut in self._tables.kept.items()
            if self._take and self._tables.takes(cut) and (self._decided[cut.app] or 0) < number
        }
        if lacking:
            self._publish(sorted(lacking), publishers)
        return dict.fromkeys(lacking.values(), number)

    def _publish(self, sinks: Sequence[SinkName], publishers: Publishers) -> None:
        """Publishes the savepoint's staged rows into their tables. Idempotent, durable on return.

        They are published under the app ids of the incarnation that staged them: each row once, even if its home does the same.
        """
        store, manifest = CheckpointStore(self._opened.files), self._opened.manifest
        for sink in sinks:
            copies: dict[str, str] = {}
            for each in pending_actions(store, manifest, sink):
                adds = [line["add"] for line in store.read_actions(each)]
                copies |= {staged_path(manifest.sinks[sink].stage, add): unquote(add["path"]) for add in adds}
            self._opened.copy(table_files(manifest.sinks[sink].table), copies)
        planned = plan_publication(self._opened.files, manifest.checkpoint, sinks=sinks, policy=Publish.EXTERNAL)
        planned.require(publishers)
        planned.carry_out(publishers)

    def bring_in(self, attempt: AttemptDocument, round_document: RoundDocument, graph: Graph) -> AttemptDocument:
        """Makes the savepoint a checkpoint of the home. Returns the attempt, which goes on from that checkpoint."""
        along = self._tables.unpublished()
        for sink, rows in self._tables.left_behind(along).items():
            _LOG.warning("sink %s goes on without %d staged, unpublished rows of the savepoint", sink, rows)
        channels = uri_of(self._home.below(channels_path(attempt.incarnation)))
        staged_in = {
            stage.name: self._tables.places[stage.sink.name].uri
            if stage.sink and not stage.sink.merge
            else f"{channels}/{stage.name}"
            for stage in graph.stages.values()
        }
        kept = frozenset(stage.name for stage in graph.stages.values() if stage.sink and stage.sink.name in self._tables.kept)
        begins = Beginning(self._home, self._pipeline, attempt, round_document, staged_in, kept, self._remembering(), along)
        manifest = bring_in(self._opened, begins)
        return attempt.model_copy(update={"restored_from": manifest.checkpoint})

    def _remembering(self) -> frozenset[SinkName]:
        """Returns the sinks whose deleted keys come from the savepoint. Others inherit those of an earlier incarnation, which has more."""
        inherited = {} if self._tables.is_of_another_home else self._tables.kept
        return frozenset((self._opened.manifest.sinks.keys() & self._tables.places.keys()) - inherited.keys())


def savepoint_start(
    home: Files, pipeline: PipelineDocument, request: StartRequest, facts: HomeFacts, decision: Decision, *, verified: bool = True
) -> SavepointStart | None:
    """Opens and verifies the savepoint of a start. Returns None if the start goes on with the home's own state.

    Args:
        home: The home.
        pipeline: Pipeline of the home.
        request: Start request.
        facts: Facts from :func:`~spark_jobs.runtime.start.facts.look_at_savepoint`.
        decision: Decision of the start.
        verified: True compares every file of the savepoint with its hash.

    Raises:
        CorruptDocumentError: A file is missing or was altered. The error names its path. Nothing was written.
    """
    if isinstance(decision, BeginIncarnation) and not isinstance(decision, BeginFromSavepoint):
        return None
    if isinstance(decision, BeginFromSavepoint) and decision.checkpoint is not None:
        manifest = goes_on_from(decision, facts)
        assert manifest is not None
        return SavepointStart(home, pipeline, OpenedSavepoint(home, None, manifest), refreshed=decision.refreshed)
    again = facts.begun_with is not None
    by = facts.begun_by if again else request
    if by is None or by.restore is None or (facts.savepoint is None and not again):
        return None
    place = open_place(by.restore.savepoint)
    opened = open_savepoint(place.url) if verified else OpenedSavepoint(place, *read_savepoint(place))
    keep, take = by.on_rewind is OnRewind.KEEP, by.restore.take_pending
    refreshed = facts.newest.refreshed if again else ()
    restore = by.restore if again else None
    return SavepointStart(home, pipeline, opened, keep=keep, take=take, again=again, restore=restore, refreshed=refreshed)
