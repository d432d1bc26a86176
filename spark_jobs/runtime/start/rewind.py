"""Decides whether a pipeline may go on from a savepoint into a table that has rows of it, and closes the line that has published them.

A *line* is an incarnation as the table of one sink sees it: the checkpoints that are published there under one app id.
"""

from collections import defaultdict
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from spark_jobs.checkpoint.savepoint_files import pending_rows
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import STAGED
from spark_jobs.protocol.documents import Manifest, SinkCut
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import AppId, CheckpointId, IncarnationId, PipelineUuid, SinkName, app_id
from spark_jobs.publication.delta_rs import OpenTable, open_table
from spark_jobs.publication.evidence import before_closing
from spark_jobs.publication.pending import CLOSED, is_unfinished, refuse_changed
from spark_jobs.publication.publisher import SinkLine, close_incarnation
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.start.savepoint_import import OpenedSavepoint
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files

WITHOUT_THOSE_ROWS = (
    "Give the sinks other tables; or take those rows away (RESTORE TABLE … TO VERSION AS OF …) and start with the savepoint again and "
    "--on-rewind keep, which leaves the tables as they are."
)
"""The remedy for a table that has rows from after the savepoint."""


class SavepointTables:
    """The tables that a savepoint was taken with, as a start finds them that goes on from it.

    Args:
        home: The home that goes on from it.
        pipeline: Whose home it is.
        opened: The savepoint.
        places: The tables of the start's own sinks.
    """

    def __init__(
        self, home: Files, pipeline: PipelineUuid, opened: OpenedSavepoint, places: Mapping[SinkName, TablePlace]
    ) -> None:
        self._home, self._pipeline, self._opened, self.places = home, pipeline, opened, places
        self.is_of_another_home = opened.manifest.pipeline != pipeline
        self.kept: dict[SinkName, SinkCut] = {}
        """The sinks whose table is the very one that the savepoint was taken with; the others are forked."""
        for sink, cut in opened.manifest.sinks.items():
            if sink in places and places[sink].uri == cut.table:
                with suppress(NotFoundError):
                    if open_table(cut.table).facts.table_id == cut.table_id:
                        self.kept[sink] = cut

    def decide(self, *, keep: bool, again: bool, take: bool = False) -> dict[AppId, CheckpointId | None]:
        """Returns where the savepoint's own line is in each table that is kept, after every check; writes nothing.

        Args:
            keep: Whether rows that were published after the savepoint may stay.
            again: Whether an attempt before may have closed the savepoint's own line already.
            take: Whether rows that are staged and not public are published before that line is closed.

        Raises:
            RejectedError: Rows after the savepoint are public, and the request does not say what becomes of them; or rows before it are
                not public, and never would be.
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
                    safe="Nothing was changed.",
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
        """Returns the sinks whose unfinished rows go along, unless the savepoint's own line has made them public since.

        Each comes with the checkpoint that this line has made public by now, such as the last one of an earlier round. Rows up to it do
        not go along. The checkpoint is 0 if none is public, and if the table is not that of the line.
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
        """Returns whether the home can publish what another one has staged for a sink. What it has staged itself it publishes anyway."""
        return self.is_of_another_home and cut.merge is None

    def close_origin(self, decided: Mapping[AppId, CheckpointId | None], publishers: Publishers) -> None:
        """Closes the line that a savepoint of another home was taken of in the tables that are kept; idempotent, durable on return.

        Raises:
            ConflictError: It has published meanwhile: decide again.
        """
        for sink, cut in self.kept.items():
            if decided[cut.app] != CLOSED:
                line = SinkLine(sink, cut.table, cut.app, cut.publisher, cut.mode.has_keys)
                close_incarnation(self._home, line, decided[cut.app], publishers)

    def refuse_lost_by_dropping(self) -> None:
        """Refuses to leave a sink out that has rows which are staged and not public.

        Raises:
            RejectedError: One has, and the table that they are for is still there.
        """
        for sink in self._opened.manifest.sinks.keys() - self.places.keys():
            cut = self._opened.manifest.sinks[sink]
            with suppress(NotFoundError):
                table = open_table(cut.table)
                if table.facts.table_id == cut.table_id:
                    self._refuse_lost(sink, cut, _before_closing(table, cut.app))

    def left_behind(self, along: Container[SinkName] = ()) -> dict[SinkName, int]:
        """Returns how many rows that are not public the savepoint holds for each sink that is not kept, as far as its own table tells.

        They stay behind: they are in no table, and the start goes on after them.

        Args:
            along: Sinks whose rows go along; see :meth:`unpublished`.
        """
        found = {}
        for sink, cut in self._opened.manifest.sinks.items():
            before = None
            with suppress(StreamPipelineError):  # it need not be there any more
                table = open_table(cut.table)
                before = _before_closing(table, cut.app) if table.facts.table_id == cut.table_id else None
            if sink not in self.kept and sink not in along and (rows := self._pending_rows(sink, cut, before)):
                found[sink] = rows
        return found

    def refuse_left_behind(self) -> None:
        """Refuses to take rows that no table of this start is for.

        Raises:
            RejectedError: There are some.
        """
        behind = self.left_behind(self.unpublished())
        if behind:
            rows = ", ".join(f"{count} of sink {sink}" for sink, count in behind.items())
            raise RejectedError(
                f"The savepoint holds staged rows for tables that this start does not go on with: {rows}.",
                safe="Nothing was changed.",
                remedy="Give those sinks the tables that they had. Or leave --take-pending out, which leaves the rows behind.",
                rows=behind,
            )

    def refuse_changed(self) -> None:
        """Refuses tables that no longer fit the unfinished rows which go along into them.

        Raises:
            RejectedError: One was changed since those rows were staged.
        """
        for sink in self.unpublished().keys() & self.kept.keys():
            refuse_changed(open_table(self.kept[sink].table), sink, [self._opened.manifest])

    def _refuse_lost(self, sink: SinkName, cut: SinkCut, before: OpenTable | None) -> None:
        """Refuses to go on after rows that are staged and not public: no line that follows would publish them.

        Args:
            sink: One of the savepoint's sinks.
            cut: What it says of it.
            before: The sink's table while the savepoint's own line could publish; None: not known.
        """
        number = self._opened.manifest.checkpoint
        rows = self._pending_rows(sink, cut, before)
        if rows and is_unfinished(self._opened.manifest, sink):
            raise RejectedError(
                f"Sink {sink}: {rows} rows up to checkpoint {number} are staged and not public in table {cut.table}: only the end of their "
                "round would make them public. Going on without the sink would leave them out.",
                safe="Nothing was changed.",
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
                    "Where it is gone, add --take-pending, which publishes the copies, unless they are of a sink with keys."
                )
            else:
                publish = f"Publish them: spark-jobs publish --home {quote(self._home.url)} --checkpoint {number}."
            raise RejectedError(
                f"Sink {sink}: {rows} rows up to checkpoint {number} are staged and not public in table {cut.table}; going on after them "
                "would leave them out.",
                exists=f"The savepoint has a copy of their files, below {STAGED}/{cut.stage}.",
                safe="Nothing was changed.",
                remedy=f"{publish} Or give the sinks other tables.",
                sink=sink,
                table=cut.table,
                checkpoint=number,
                rows=rows,
            )

    def _pending_rows(self, sink: SinkName, cut: SinkCut, before: OpenTable | None) -> int:
        """Returns how many rows are not public in a sink's table; ``before`` as for :meth:`_refuse_lost`."""
        after = (before.transaction_version(cut.app) if before else None) or 0
        manifest = self._opened.manifest
        return 0 if after >= manifest.checkpoint else pending_rows(self._opened.files, manifest, sink, after)


def _before_closing(table: OpenTable, app: AppId) -> OpenTable | None:
    """Calls :func:`before_closing`; returns None if the table's log does not tell any more."""
    try:
        return before_closing(table, app)
    except NotFoundError:
        return None


@dataclass(frozen=True)
class _Since:
    """The publications into the table of a sink since a savepoint was taken.

    The table tells which lines have published, and up to which checkpoint; the home's manifests tell whether those had rows. Where a
    manifest is gone, or the table's log was cleaned, it is not known: then there may be rows.

    Args:
        home: The home that is to go on.
        table: Its table as it is.
        before: The table as it was when the savepoint's own line was closed; None: not known.
    """

    home: Files
    pipeline: PipelineUuid
    savepoint: Manifest
    sink: SinkName
    table: OpenTable
    before: OpenTable | None

    def has_rows(self, *, again: bool) -> str | None:
        """Returns what the table has of later checkpoints, in words; None if it has nothing of them.

        Args:
            again: Whether an attempt before may have closed the savepoint's own line already.
        """
        if self.before is None:
            return "may have rows of later checkpoints: what was public when their line was closed is not in its log any more"
        own = self.savepoint.sinks[self.sink].app
        if found := self._newest_adding(own, self.before.transaction_version(own), self.savepoint.checkpoint):
            return f"{found} of the same incarnation"
        if self.before is self.table:  # whoever goes on from a savepoint, or begins anew, closes its line before it publishes
            return None
        for app in self._others(self.before):
            reached = _before_closing(self.table, app)
            if reached is None:
                return "may have rows of this home: what was public when their line was closed is not in its log any more"
            if found := self._newest_adding(app, reached.transaction_version(app), None):
                return f"{found} of this home"
        return None if again or self._closed_here() else "may have rows of a start that has closed the savepoint's incarnation"

    def _others(self, before: OpenTable) -> list[AppId]:
        """Returns the home's lines, other than the savepoint's, of which the table has more than it had ``before``."""
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
        """Returns whether the home has begun an incarnation after the savepoint's, which has closed it."""
        return self.savepoint.incarnation in Attempts(self.home).incarnations()[:-1]

    def _newest_adding(self, app: AppId, reached: CheckpointId | None, after: CheckpointId | None) -> str | None:
        """Returns in words what the table has of a line's checkpoints after ``after``, or of all if that is None, up to ``reached``.

        A checkpoint is published into every sink, also into those that it has no rows for.
        """
        if reached is None or (after is not None and reached <= after):
            return None
        try:
            chain = CheckpointStore(self.home).chain(reached, after)
        except (NotFoundError, CorruptDocumentError, RejectedError):
            chain = []
        chain = [each for each in chain if each.origin is None]  # what a savepoint has become publishes nothing
        cuts = {each.checkpoint: cut for each in chain for cut in each.sinks.values() if cut.app == app}
        if not chain or len(cuts) < len(chain):  # gone, or another line's, under the same numbers
            return f"may have rows of checkpoints up to {reached}"
        newest = max((checkpoint for checkpoint, cut in cuts.items() if _adds(cut)), default=None)
        return None if newest is None else f"has rows of checkpoint {newest}"


def _adds(cut: SinkCut) -> bool:
    return cut.actions.files > 0 or cut.replace
