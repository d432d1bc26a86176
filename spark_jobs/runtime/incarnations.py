"""Closing abandoned incarnations: nothing of them can be published any more (design, section 10)."""

from collections.abc import Mapping
from contextlib import suppress

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import AttemptDocument, OnRewind, SinkMode
from spark_jobs.protocol.errors import ConflictError, NotFoundError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, PipelineUuid, SinkName, app_id
from spark_jobs.publication.delta_rs import choose_publisher, open_table
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import SinkLine, close_incarnation
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.files import Files


def close_abandoned(
    home: Files,
    pipeline: PipelineUuid,
    live: AttemptDocument,
    sinks: Mapping[SinkName, tuple[str, SinkMode]],
    publishers: Publishers,
) -> None:
    """Closes every incarnation but that of ``live`` in every table it could still publish into; idempotent.

    Args:
        home: The home.
        pipeline: Whose home it is.
        live: The live attempt.
        sinks: The sinks' tables and modes as this start names them; those of earlier manifests are closed too.
        publishers: Who makes the Delta transactions.

    Raises:
        RejectedError: Something was published after it was decided to abandon it, and the start said to refuse that.
    """
    for line in _lines(home, pipeline, live, sinks):
        reached = open_table(line.table).transaction_version(line.app)
        if reached != CLOSED:
            _close(home, line, reached, live, publishers)


def _lines(
    home: Files, pipeline: PipelineUuid, live: AttemptDocument, sinks: Mapping[SinkName, tuple[str, SinkMode]]
) -> list[SinkLine]:
    """What the abandoned incarnations could publish; tables that are not there are left out: one made later has another id."""
    attempts, store = Attempts(home), CheckpointStore(home)
    abandoned = {attempts.read(number).incarnation for number in attempts.numbers()} - {live.incarnation}
    if not abandoned:
        return []
    found = {
        (cut.table, cut.app): SinkLine(sink, cut.table, cut.app, cut.publisher)
        for manifest in map(store.manifest, store.ids())
        if manifest.incarnation in abandoned
        for sink, cut in manifest.sinks.items()
    }
    for sink, (table, mode) in sinks.items():
        for incarnation in abandoned:
            app = app_id(pipeline, incarnation, sink)
            with suppress(NotFoundError):
                found.setdefault((table, app), SinkLine(sink, table, app, choose_publisher(open_table(table), mode)))
    return sorted(line for line in found.values() if _exists(line.table))


def _exists(table: str) -> bool:
    try:
        open_table(table)
    except NotFoundError:
        return False
    return True


def _close(home: Files, line: SinkLine, reached: CheckpointId | None, live: AttemptDocument, publishers: Publishers) -> None:
    try:
        close_incarnation(home, line, None if live.on_rewind is OnRewind.REFUSE else reached, publishers)
    except ConflictError as error:
        raise RejectedError(
            f"Table {line.table} has reached checkpoint {reached} of an earlier incarnation, published after this start was decided.",
            safe="Nothing was staged.",
            remedy="Start again with --fresh --on-rewind keep (the published rows stay) or replace (they go).",
            table=line.table,
            found=reached,
        ) from error
