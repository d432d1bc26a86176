"""Closes abandoned incarnations, so that they cannot publish any more."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import AttemptDocument, Manifest, OnRewind, SinkMode
from spark_jobs.protocol.errors import ConflictError, NotFoundError, RejectedError
from spark_jobs.protocol.ids import AppId, CheckpointId, IncarnationId, PipelineUuid, SinkName, app_id
from spark_jobs.publication.delta_rs import choose_publisher, open_table
from spark_jobs.publication.ownership import own_prefixes, refuse_rows_of_others, rows_of_others
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import SinkIncarnation, close_incarnation
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.start.rewind import WITHOUT_THOSE_ROWS
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tombstones import Tombstones
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class _OpenIncarnation:
    """An abandoned incarnation that could still publish into one sink."""

    incarnation: IncarnationId
    in_sink: SinkIncarnation
    reached: CheckpointId | None


def close_abandoned(
    home: Files,
    pipeline: PipelineUuid,
    live: AttemptDocument,
    sinks: Mapping[SinkName, tuple[str, SinkMode]],
    publishers: Publishers,
    tombstones: Tombstones,
    decided: Mapping[AppId, CheckpointId | None] | None = None,
) -> None:
    """Closes every incarnation that ``live`` has abandoned, in every table that it could still publish into. Idempotent.

    Their published deletes stay: ``live`` inherits them.

    Args:
        home: The home.
        pipeline: Pipeline of the home.
        live: The live attempt.
        sinks: Tables and modes of the sinks of this start. Those of earlier manifests are closed, too.
        publishers: Publishers of this process.
        tombstones: Deleted keys of the live incarnation.
        decided: For an incarnation that begins with a savepoint: the expected newest public checkpoint of each app id. Other
            app ids may have any.

    Raises:
        RejectedError: Rows were published after the decision to abandon an incarnation, and the start refuses that.
    """
    for found in _open_incarnations(home, pipeline, live, sinks):
        newest = _last_published(found, tombstones)
        tombstones.inherit(newest.in_sink, newest.incarnation, newest.reached)
        others = [each for each in found if each is not newest]
        for each in [*others, newest]:  # a later attempt cannot find the last checkpoint of a closed incarnation
            if decided is not None:
                expected = decided.get(each.in_sink.app, each.reached)
            else:
                expected = None if live.on_rewind is OnRewind.REFUSE else each.reached
            _close(each, expected, publishers, fresh=decided is None)


def check_replacement(
    pipeline: PipelineUuid, stages: Iterable[Stage], places: Mapping[SinkName, TablePlace], publishers: Publishers
) -> None:
    """Refuses a start whose first publication would remove rows of others. Writes nothing.

    Args:
        pipeline: Pipeline that starts.
        stages: All its stages.
        places: Places of the sinks' tables.
        publishers: Publishers, which list the files of a table.

    Raises:
        UnsupportedTableError: A table has such rows. The error names it and their number.
    """
    for stage in stages:
        if stage.sink is None:
            continue
        uri, mode = places[stage.sink.name].uri, stage.sink.mode
        with suppress(NotFoundError):
            table = open_table(uri)
            files = publishers.rows_by_file(choose_publisher(table, SinkMode.COMPLETE), uri)
            refuse_rows_of_others(table, pipeline, stage.sink.name, mode, stage.name, files)


def check_new_stages(
    pipeline: PipelineUuid, stages: Iterable[Stage], places: Mapping[SinkName, TablePlace], publishers: Publishers
) -> None:
    """Refuses new stages that would add rows again that the pipeline has published into their sinks. Writes nothing.

    Args:
        pipeline: Pipeline that starts.
        stages: Stages that start without state and read their sources from the beginning.
        places: Places of the sinks' tables.
        publishers: Publishers, which list the files of a table.

    Raises:
        RejectedError: A table has such rows. The error names it and their number.
    """
    for stage in stages:
        if stage.sink is None or stage.sink.mode is not SinkMode.APPEND:
            continue
        uri = places[stage.sink.name].uri
        with suppress(NotFoundError):
            table = open_table(uri)
            files = publishers.rows_by_file(choose_publisher(table, SinkMode.COMPLETE), uri)
            own = sum(files.values()) - rows_of_others(
                table.commits(), files, pipeline, own_prefixes(table, pipeline, stage.name)
            )
            if own:
                raise RejectedError(
                    f"Stage '{stage.name}' is new and would read its sources from the beginning. Table {uri} has {own} rows "
                    "that this pipeline published before, which could then be there twice.",
                    remedy='Let the stage begin after the rows read before (begin="now"). Or give its sink another table. Or take the '
                    "rows away first (DELETE FROM).",
                    stage=stage.name,
                    table=uri,
                    rows=own,
                )


def _last_published(incarnations: Sequence[_OpenIncarnation], tombstones: Tombstones) -> _OpenIncarnation:
    """Returns the incarnation with the present deleted keys of the table: the one that has published into it last.

    An incarnation publishes only after the earlier ones are closed. Until then it has the keys that it has inherited.
    """
    published = [each for each in incarnations if each.reached is not None]
    known = [each for each in incarnations if tombstones.remembered_by(each.incarnation, each.in_sink.sink)]
    return (published or known or incarnations)[-1]


def _open_incarnations(
    home: Files, pipeline: PipelineUuid, live: AttemptDocument, sinks: Mapping[SinkName, tuple[str, SinkMode]]
) -> list[list[_OpenIncarnation]]:
    """Returns the open incarnations by sink and table, oldest first.

    Missing tables are left out: a table that is created later has another id.
    """
    if not live.abandons:
        return []
    manifests = CheckpointStore(home).manifests()
    found: dict[tuple[SinkName, str], list[_OpenIncarnation]] = {}
    for incarnation in live.abandons:
        for in_sink in sorted(_in_sinks(incarnation, manifests, pipeline, sinks)):
            with suppress(NotFoundError):
                reached = open_table(in_sink.table).transaction_version(in_sink.app)
                if reached != CLOSED:
                    found.setdefault((in_sink.sink, in_sink.table), []).append(_OpenIncarnation(incarnation, in_sink, reached))
    return [found[which] for which in sorted(found)]


def _in_sinks(
    incarnation: IncarnationId,
    manifests: Sequence[Manifest],
    pipeline: PipelineUuid,
    sinks: Mapping[SinkName, tuple[str, SinkMode]],
) -> Iterable[SinkIncarnation]:
    """Returns an incarnation in each sink that it may have published into."""
    found = {
        (sink, cut.table): SinkIncarnation(sink, cut.table, cut.app, cut.publisher, cut.mode.has_keys)
        for manifest in manifests
        if manifest.incarnation == incarnation
        for sink, cut in manifest.sinks.items()
    }
    for sink, (table, mode) in sinks.items():
        with suppress(NotFoundError):
            app = app_id(pipeline, incarnation, sink)
            publisher = choose_publisher(open_table(table), mode)
            found.setdefault((sink, table), SinkIncarnation(sink, table, app, publisher, mode.has_keys))
    return found.values()


def _close(abandoned: _OpenIncarnation, expected: CheckpointId | None, publishers: Publishers, *, fresh: bool) -> None:
    in_sink, reached = abandoned.in_sink, abandoned.reached
    try:
        close_incarnation(in_sink, expected, publishers)
    except ConflictError as error:
        start_again = "Start again with --fresh --on-rewind keep (the published rows stay) or replace (they are removed)."
        raise RejectedError(
            f"Table {in_sink.table} has reached checkpoint {reached} of an earlier incarnation, published after this start was decided.",
            safe="Nothing was staged.",
            remedy=start_again if fresh else WITHOUT_THOSE_ROWS,
            table=in_sink.table,
            found=reached,
        ) from error
