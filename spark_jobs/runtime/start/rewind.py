"""Decides whether a pipeline may go on from a savepoint into a table with later rows, and closes the incarnation that has published them.

An incarnation publishes its checkpoints into the table of a sink under an app id of its own.
"""

from collections import defaultdict
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint_files import pending_rows
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import STAGED
from spark_jobs.protocol.documents import Manifest, SinkCut
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import AppId, CheckpointId, IncarnationId, PipelineUuid, SinkName, app_id
from spark_jobs.publication.delta_rs import OpenTable, open_table
from spark_jobs.publication.evidence import before_closing
from spark_jobs.publication.pending import CLOSED, is_unfinished, refuse_changed
from spark_jobs.publication.publisher import SinkIncarnation, close_incarnation
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.start.savepoint_import import OpenedSavepoint
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files

WITHOUT_THOSE_ROWS = (
    "Give the sinks other tables; or remove those rows (RESTORE TABLE … TO VERSION AS OF …) and start with the savepoint again and "
    "--on-rewind keep, which leaves the tables unchanged."
)
"""The remedy for a table with rows after the savepoint."""


class SavepointTables:
    """The tables of a savepoint in a start that goes on from it.

    Args:
        home: The home that goes on.
        pipeline: Pipeline of the home.
        opened: The savepoint.
        places: Tables of the start's own sinks.
    """

    def __init__(
        self, home: Files, pipeline: PipelineUuid, opened: OpenedSavepoint, places: Mapping[SinkName, TablePlace]
    ) -> None:
        self._home, self._pipeline, self._opened, self.places = home, pipeline, opened, places
        self.is_of_another_home = opened.manifest.pipeline != pipeline
        self.kept: dict[SinkName, SinkCut] = {}
        """The sinks that keep the table of the savepoint. All others are forked."""
        for sink, cut in opened.manifest.sinks.items():
            if sink in places and places[sink].uri == cut.table:
                with suppress(NotFoundError):
                    if open_table(cut.table).facts.table_id == cut.table_id:
                        self.kept[sink] = cut

    def decide(self, *, keep: bool, again: bool, take: bool = False) -> dict[AppId, CheckpointId | None]:
        """Returns the newest public checkpoint of the savepoint's own incarnation in each kept table, after all checks.

        Writes nothing.

        Args:
            keep: True if rows that were published after the savepoint may stay.
            again: True if an earlier attempt may have closed the savepoint's own incarnation already.
            take: True if staged, unpublished rows are published before that incarnation is closed.

        Raises:
            RejectedError: Rows after the savepoint are public, and the request does not allow them; or staged rows before it would never
                become public.
        """
        manifest, decided = self._opened.manifest, dict[AppId, CheckpointId | None]()
        for sink, cut in self.kept.items():
            table = open_table(cut.table)
            before = _before_closing(table, cut.app)
            later = None if keep else _Since(self._home, self._pipeline, manifest, sink, table, before).has_rows(again=again)
            if later is not None:
                raise RejectedError(
                    f"Sink {sink}: table {cut.table} {later}; the savepoint was taken at checkpoint "
                    f"{manifest.checkpoint}, and they would be computed again.",
                    remedy=WITHOUT_THOSE_ROWS,
                    sink=sink,
                    table=cut.table,
                    checkpoint=manifest.checkpoint,
                )
            if not is_unfinished(manifest, sink) and not (take and self.takes(cut) and before is table):
                self._refuse_lost(sink, cut, before)
            decided[cut.app] = table.transaction_version(cut.app)
        return decided

    def unpublished(self) -> dict[SinkName, CheckpointId]:
        """Returns the sinks whose unfinished rows are carried over, unless the savepoint's own incarnation has published them since.

        Each has the newest checkpoint that this incarnation has published, such as the last one of an earlier round. Rows up to it are not
        carried over. The checkpoint is 0 if none is public, and if the table is not that of the incarnation.
        """
        found = dict[SinkName, CheckpointId]()
        for sink, cut in self._opened.manifest.sinks.items():
            if sink in self.places and is_unfinished(self._opened.manifest, sink):
                before = _before_closing(open_table(cut.table), cut.app) if sink in self.kept else None
                reached = CheckpointId((before.transaction_version(cut.app) if before else None) or 0)
                if sink not in self.kept or (before and reached < self._opened.manifest.checkpoint):
                    found[sink] = reached
        return found

    def takes(self, cut: SinkCut) -> bool:
        """Returns True if the home can publish rows that another home has staged for a sink. It publishes its own rows anyway."""
        return self.is_of_another_home and cut.merge is None

    def close_origin(self, decided: Mapping[AppId, CheckpointId | None], publishers: Publishers) -> None:
        """Closes the incarnation of a savepoint of another home in the kept tables. Idempotent, durable on return.

        Raises:
            ConflictError: The incarnation has published in the meantime. Decide again.
        """
        for sink, cut in self.kept.items():
            if decided[cut.app] != CLOSED:
                abandoned = SinkIncarnation(sink, cut.table, cut.app, cut.publisher, cut.mode.has_keys)
                close_incarnation(abandoned, decided[cut.app], publishers)

    def refuse_lost_by_dropping(self) -> None:
        """Refuses to drop a sink with staged, unpublished rows.

        Raises:
            RejectedError: A sink has such rows, and their table still exists.
        """
        for sink in self._opened.manifest.sinks.keys() - self.places.keys():
            cut = self._opened.manifest.sinks[sink]
            with suppress(NotFoundError):
                table = open_table(cut.table)
                if table.facts.table_id == cut.table_id:
                    self._refuse_lost(sink, cut, _before_closing(table, cut.app))

    def left_behind(self, along: Container[SinkName] = ()) -> dict[SinkName, int]:
        """Returns for each sink that is not kept the number of rows in the savepoint that are not public in the sink's own table.

        These rows are left behind: they are in no table, and the start goes on after them.

        Args:
            along: Sinks whose rows are carried over; see :meth:`unpublished`.
        """
        found = {}
        for sink, cut in self._opened.manifest.sinks.items():
            before = None
            with suppress(StreamPipelineError):  # the table may not exist any more
                table = open_table(cut.table)
                before = _before_closing(table, cut.app) if table.facts.table_id == cut.table_id else None
            if sink not in self.kept and sink not in along and (rows := self._pending_rows(sink, cut, before)):
                found[sink] = rows
        return found

    def refuse_left_behind(self) -> None:
        """Refuses to publish rows for tables that this start does not have.

        Raises:
            RejectedError: There are such rows.
        """
        behind = self.left_behind(self.unpublished())
        if behind:
            rows = ", ".join(f"{count} of sink {sink}" for sink, count in behind.items())
            raise RejectedError(
                f"The savepoint holds staged rows for tables that this start does not go on with: {rows}.",
                remedy="Give those sinks their earlier tables. Or leave --take-pending out, which leaves the rows behind.",
                rows=behind,
            )

    def refuse_changed(self) -> None:
        """Refuses tables that no longer fit the unfinished rows that are carried over into them.

        Raises:
            RejectedError: A table was changed since those rows were staged.
        """
        for sink in self.unpublished().keys() & self.kept.keys():
            refuse_changed(open_table(self.kept[sink].table), sink, [self._opened.manifest])

    def _refuse_lost(self, sink: SinkName, cut: SinkCut, before: OpenTable | None) -> None:
        """Refuses to go on after staged, unpublished rows: no later incarnation would publish them.

        Args:
            sink: Sink of the savepoint.
            cut: Cut of the sink.
            before: Table of the sink while the savepoint's own incarnation could publish; None if it is not known.
        """
        number = self._opened.manifest.checkpoint
        rows = self._pending_rows(sink, cut, before)
        if rows and is_unfinished(self._opened.manifest, sink):
            raise RejectedError(
                f"Sink {sink}: {rows} rows up to checkpoint {number} are staged and not public in table {cut.table}: only the end of their "
                "round would make them public. Going on without the sink would leave them out.",
                remedy=f"Keep stage '{cut.stage}' until the round has ended, then leave it out.",
                sink=sink,
                table=cut.table,
                checkpoint=number,
                rows=rows,
            )
        if rows:
            if self.is_of_another_home:
                publish = (
                    f"Publish them in the home that the savepoint was taken in: spark-jobs publish --home HOME --checkpoint {number}. "
                    "If that home is gone, add --take-pending, which publishes the copies, unless they are of a sink with keys."
                )
            else:
                publish = f"Publish them: spark-jobs publish --home {quote(self._home.url)} --checkpoint {number}."
            raise RejectedError(
                f"Sink {sink}: {rows} rows up to checkpoint {number} are staged and not public in table {cut.table}; going on after them "
                "would leave them out.",
                exists=f"The savepoint has a copy of their files, below {STAGED}/{cut.stage}.",
                remedy=f"{publish} Or give the sinks other tables.",
                sink=sink,
                table=cut.table,
                checkpoint=number,
                rows=rows,
            )

    def _pending_rows(self, sink: SinkName, cut: SinkCut, before: OpenTable | None) -> int:
        """Returns the number of unpublished rows for a sink's table. ``before`` is as in :meth:`_refuse_lost`."""
        after = (before.transaction_version(cut.app) if before else None) or 0
        manifest = self._opened.manifest
        return 0 if after >= manifest.checkpoint else pending_rows(self._opened.files, manifest, sink, after)


def _before_closing(table: OpenTable, app: AppId) -> OpenTable | None:
    """Calls :func:`before_closing`. Returns None if the table's log does not reach back that far."""
    try:
        return before_closing(table, app)
    except NotFoundError:
        return None


@dataclass(frozen=True)
class _Since:
    """The publications into a sink's table since a savepoint was taken.

    The table has the app ids of the incarnations that have published, with their checkpoints. The home's manifests show whether those
    checkpoints had rows. If a manifest is missing, or the table's log was cleaned, there may be rows.

    Args:
        home: The home that goes on.
        table: Its present table.
        before: The table when the savepoint's own incarnation was closed; None if it is not known.
    """

    home: Files
    pipeline: PipelineUuid
    savepoint: Manifest
    sink: SinkName
    table: OpenTable
    before: OpenTable | None

    def has_rows(self, *, again: bool) -> str | None:
        """Returns a description of later checkpoints' rows in the table, or None if it has none.

        Args:
            again: True if an earlier attempt may have closed the savepoint's own incarnation already.
        """
        if self.before is None:
            return "may have rows of later checkpoints: its log does not reach back to the closing of their incarnation"
        own = self.savepoint.sinks[self.sink].app
        if found := self._newest_adding(own, self.before.transaction_version(own), self.savepoint.checkpoint):
            return f"{found} of the same incarnation"
        if self.before is self.table:  # a start from a savepoint and a fresh start close the incarnation before they publish
            return None
        for app in self._others(self.before):
            reached = _before_closing(self.table, app)
            if reached is None:
                return "may have rows of this home: its log does not reach back to the closing of their incarnation"
            if found := self._newest_adding(app, reached.transaction_version(app), None):
                return f"{found} of this home"
        return None if again or self._closed_here() else "may have rows of a start that has closed the savepoint's incarnation"

    def _others(self, before: OpenTable) -> list[AppId]:
        """Returns the app ids of the home's other incarnations that have published into the table since ``before``."""
        names: defaultdict[IncarnationId, set[SinkName]] = defaultdict(set)
        for each in Rounds(self.home).all():
            names[each.incarnation] |= {
                stage["sink"]["name"] for stage in each.graph.get("stages", {}).values() if stage.get("sink")
            }
        found = [
            app_id(self.pipeline, incarnation, name)
            for incarnation in Attempts(self.home).incarnations()
            for name in sorted(names[incarnation] | {self.sink})
        ]
        own = self.savepoint.sinks[self.sink].app
        return [app for app in found if app != own and self.table.transaction_version(app) != before.transaction_version(app)]

    def _closed_here(self) -> bool:
        """Returns True if the home has begun an incarnation after the savepoint's, which has closed it."""
        return self.savepoint.incarnation in Attempts(self.home).incarnations()[:-1]

    def _newest_adding(self, app: AppId, reached: CheckpointId | None, after: CheckpointId | None) -> str | None:
        """Returns a description of an app id's rows after ``after`` (None: from the beginning) up to ``reached``.

        A checkpoint is published into every sink, even without rows for it.
        """
        if reached is None or (after is not None and reached <= after):
            return None
        try:
            chain = CheckpointStore(self.home).chain(reached, after)
        except (NotFoundError, CorruptDocumentError, RejectedError):
            chain = []
        chain = [each for each in chain if each.origin is None]  # an imported savepoint publishes nothing
        cuts = {each.checkpoint: cut for each in chain for cut in each.sinks.values() if cut.app == app}
        if not chain or len(cuts) < len(chain):  # missing, or of another incarnation with the same numbers
            return f"may have rows of checkpoints up to {reached}"
        newest = max((checkpoint for checkpoint, cut in cuts.items() if _adds(cut)), default=None)
        return None if newest is None else f"has rows of checkpoint {newest}"


def _adds(cut: SinkCut) -> bool:
    return cut.actions.files > 0 or cut.replace
