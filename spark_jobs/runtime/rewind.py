"""Whether a pipeline may go on from a savepoint into a table that has rows of it, and the end of the line that has published them."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from spark_jobs.checkpoint.savepoint_files import pending_manifests
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import Manifest, SinkCut
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, RejectedError
from spark_jobs.protocol.ids import AppId, CheckpointId, PipelineUuid, SinkName
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.evidence import version_with
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import SinkLine, close_incarnation
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.savepoint_import import OpenedSavepoint
from spark_jobs.runtime.table_places import TablePlace
from spark_jobs.storage.files import Files


def kept_sinks(opened: OpenedSavepoint, places: Mapping[SinkName, TablePlace]) -> dict[SinkName, SinkCut]:
    """The sinks whose table is the very one that the savepoint was taken with; the others are forked."""
    found = {}
    for sink, cut in opened.manifest.sinks.items():
        if sink in places and places[sink].path.as_uri() == cut.table:
            with suppress(NotFoundError):
                if open_table(cut.table).facts.table_id == cut.table_id:
                    found[sink] = cut
    return found


def decide_on(
    home: Files, pipeline: PipelineUuid, opened: OpenedSavepoint, kept: Mapping[SinkName, SinkCut], *, keep: bool, again: bool
) -> dict[AppId, CheckpointId | None]:
    """Where the savepoint's own line is in each table that is kept, after every check; writes nothing.

    Args:
        home: The home that goes on from it.
        pipeline: Whose home it is.
        opened: The savepoint.
        kept: As :func:`kept_sinks` has found them.
        keep: Whether rows that were published after the savepoint may stay.
        again: Whether an attempt before may have closed the savepoint's own line already.

    Raises:
        RejectedError: Rows after the savepoint are public, and nobody says what becomes of them; or rows before it are not, and never
            would be.
    """
    decided: dict[AppId, CheckpointId | None] = {}
    for sink, cut in kept.items():
        reached = open_table(cut.table).transaction_version(cut.app)
        later = _public_after(home, opened, sink, cut, reached)
        if later is None and reached == CLOSED and not again and opened.manifest.pipeline != pipeline:
            later = "whoever has closed its incarnation"
        if later is not None and not keep:
            raise RejectedError(
                f"Sink {sink}: table {cut.table} has rows of {later}; the savepoint was taken at checkpoint "
                f"{opened.manifest.checkpoint}, and they would be computed again.",
                safe="Nothing was changed.",
                remedy="Give the sinks other tables; or take those rows away (RESTORE TABLE … TO VERSION AS OF …) and add "
                "--on-rewind keep, which leaves the tables as they are.",
                sink=sink,
                table=cut.table,
                checkpoint=opened.manifest.checkpoint,
            )
        _refuse_lost(opened, sink, cut, reached)
        decided[cut.app] = reached
    return decided


def close_origin(
    home: Files,
    kept: Mapping[SinkName, SinkCut],
    decided: Mapping[AppId, CheckpointId | None],
    publishers: Publishers,
) -> None:
    """Closes the line that a savepoint of another home was taken of in the tables that are kept; idempotent, durable on return.

    Raises:
        ConflictError: It has published meanwhile: decide again.
    """
    for sink, cut in kept.items():
        if decided[cut.app] != CLOSED:
            close_incarnation(home, SinkLine(sink, cut.table, cut.app, cut.publisher), decided[cut.app], publishers)


def refuse_lost_by_dropping(opened: OpenedSavepoint, sinks: Iterable[SinkName]) -> None:
    """Refuses to leave a sink behind that has rows which are staged and not public.

    Raises:
        RejectedError: One has, and the table that they are for is still there.
    """
    for sink in sinks:
        cut = opened.manifest.sinks[sink]
        with suppress(NotFoundError):
            table = open_table(cut.table)
            if table.facts.table_id == cut.table_id:
                _refuse_lost(opened, sink, cut, table.transaction_version(cut.app))


def _public_after(home: Files, opened: OpenedSavepoint, sink: SinkName, cut: SinkCut, reached: CheckpointId | None) -> str | None:
    """What has published into a table after the savepoint, in words; None where nothing is known to have."""
    number = opened.manifest.checkpoint
    if reached is not None and number < reached < CLOSED:
        newest = _newest_adding(home, opened.manifest, sink, reached)
        return None if newest is None else f"checkpoint {newest} of the same incarnation"
    for later in CheckpointStore(home).manifests():
        own = later.sinks.get(sink)
        same = own is not None and own.table == cut.table and own.table_id == cut.table_id
        after = later.checkpoint > number if later.pipeline == opened.manifest.pipeline else True
        if own and same and after and _adds(own) and version_with(own, later.checkpoint) is not None:
            return f"checkpoint {later.checkpoint} of this home"
    return None


def _newest_adding(home: Files, savepoint: Manifest, sink: SinkName, reached: CheckpointId) -> CheckpointId | None:
    """The newest checkpoint of the savepoint's line after it, up to ``reached``, that changes the sink's table; None where none does.

    A checkpoint is published into every sink, also into those that it has no rows for. Where the home does not have all of those
    checkpoints, nobody knows what they had: it is ``reached`` itself.
    """
    try:
        chain = CheckpointStore(home).chain(reached, savepoint.checkpoint)
    except (NotFoundError, CorruptDocumentError, RejectedError):
        return reached
    if any((each.pipeline, each.incarnation) != (savepoint.pipeline, savepoint.incarnation) for each in chain):
        return reached  # another home's, under the same numbers
    return max((each.checkpoint for each in chain if sink not in each.sinks or _adds(each.sinks[sink])), default=None)


def _adds(cut: SinkCut) -> bool:
    return cut.actions.files > 0 or cut.replace


def _refuse_lost(opened: OpenedSavepoint, sink: SinkName, cut: SinkCut, reached: CheckpointId | None) -> None:
    """Refuses to go on after rows that are staged and not public: no line that follows would publish them."""
    number = opened.manifest.checkpoint
    if (reached is not None and number <= reached < CLOSED) or version_with(cut, number) is not None:
        return
    after = 0 if reached in (None, CLOSED) else reached
    pending = [
        each for each in pending_manifests(CheckpointStore(opened.files), opened.manifest) if each.checkpoint > (after or 0)
    ]
    rows = sum(each.sinks[sink].actions.rows for each in pending if sink in each.sinks)
    if rows:
        raise RejectedError(
            f"Sink {sink}: {rows} rows up to checkpoint {number} are staged and not public in table {cut.table}; going on after them "
            "would leave them out.",
            safe="Nothing was changed.",
            remedy=f"Publish them in the home that the savepoint was taken in: spark-jobs publish --checkpoint {number}. Or give the sinks "
            "other tables.",
            sink=sink,
            table=cut.table,
            checkpoint=number,
            rows=rows,
        )
