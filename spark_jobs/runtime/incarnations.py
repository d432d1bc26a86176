"""Closing abandoned incarnations: nothing of them can be published any more (design, section 10)."""

from collections.abc import Mapping

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import AttemptDocument, OnRewind
from spark_jobs.protocol.errors import ConflictError, NotFoundError, RejectedError
from spark_jobs.protocol.ids import AppId, CheckpointId, PipelineUuid, SinkName, app_id
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import close_incarnation
from spark_jobs.storage.files import Files


def close_abandoned(home: Files, pipeline: PipelineUuid, live: AttemptDocument, tables: Mapping[SinkName, str]) -> None:
    """Closes every incarnation but that of ``live`` in every table it could still publish into; idempotent.

    Args:
        home: The home.
        pipeline: Whose home it is.
        live: The live attempt.
        tables: The sinks' tables as this start names them; those of earlier manifests are closed too.

    Raises:
        RejectedError: Something was published after it was decided to abandon it, and the start said to refuse that.
    """
    for table, app in sorted(_app_ids(home, pipeline, live, tables)):
        try:
            reached = open_table(table).transaction_version(app)
        except NotFoundError:
            continue  # no table, so nothing can be published into it: a table made later has another id
        if reached != CLOSED:
            _close(table, app, reached, live)


def _app_ids(
    home: Files, pipeline: PipelineUuid, live: AttemptDocument, tables: Mapping[SinkName, str]
) -> set[tuple[str, AppId]]:
    attempts, store = Attempts(home), CheckpointStore(home)
    abandoned = {attempts.read(number).incarnation for number in attempts.numbers()} - {live.incarnation}
    declared = {(table, app_id(pipeline, incarnation, sink)) for incarnation in abandoned for sink, table in tables.items()}
    manifests = (store.manifest(number) for number in store.ids())
    return declared | {(cut.table, cut.app) for m in manifests if m.incarnation in abandoned for cut in m.sinks.values()}


def _close(table: str, app: AppId, reached: CheckpointId | None, live: AttemptDocument) -> None:
    try:
        close_incarnation(table, app, None if live.on_rewind is OnRewind.REFUSE else reached)
    except ConflictError as error:
        raise RejectedError(
            f"Table {table} has reached checkpoint {reached} of an earlier incarnation, published after this start was decided.",
            safe="Nothing was staged.",
            remedy="Start again with --fresh --on-rewind keep (the published rows stay) or replace (they go).",
            table=table,
            found=reached,
        ) from error
