"""Pending publications: the checkpoints that a sink's table lacks, and the check that they still fit the table."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from shlex import quote
from typing import Any

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint_files import staged_in
from spark_jobs.protocol.documents import CarriedActions, Manifest, Publish, Publisher, SinkCut, SinkMode
from spark_jobs.protocol.errors import (
    BEGIN_ANEW,
    ConflictError,
    CorruptDocumentError,
    InvalidParameterError,
    NotFoundError,
    RejectedError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AppId, CheckpointId, SinkName, app_id
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.table_shape import TableShape, distinct
from spark_jobs.publication.delta_rs import OpenTable, open_table, publisher_now, refuse_lossy
from spark_jobs.publication.fitting import conditions_of, misfits_of
from spark_jobs.publication.staged_files import missing_files
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
CLOSED = CheckpointId(2**63 - 1)
"""The version of the app id of an abandoned incarnation. It cannot publish any more."""


@dataclass(frozen=True)
class PendingTransaction:
    """One Delta transaction that is not made yet.

    Args:
        publisher: Publisher for the present state of the table.
        after: Checkpoint that the table must have reached.
        manifests: Checkpoints that it makes public, oldest first.
        lines: Files of these checkpoints, ``{"add": …, "batch": …}``.
        replace: True if the present rows of the table are removed.
        conditions: Conditions of the present table that the rows must be checked for first.
    """

    publisher: Publisher
    after: CheckpointId | None
    manifests: tuple[Manifest, ...]
    lines: tuple[dict[str, Any], ...]
    replace: bool
    conditions: Mapping[str, str]

    @property
    def manifest(self) -> Manifest:
        """Returns the checkpoint whose number the transaction has."""
        return self.manifests[-1]

    def cut(self, sink: SinkName) -> SinkCut:
        """Returns that checkpoint's cut of the sink, with the table's shapes for all rows of the transaction."""
        shapes = distinct(shape for m in self.manifests for shape in m.sinks[sink].staged_for)
        return self.manifest.sinks[sink].model_copy(update={"staged_for": shapes})

    def mode(self, sink: SinkName) -> SinkMode:
        """Returns the mode that the transaction has to be possible in. A replacement by an append removes files like a complete result."""
        mode = self.manifest.sinks[sink].mode
        return SinkMode.COMPLETE if self.replace and mode is SinkMode.APPEND else mode


def conditions_now(cut: SinkCut, table: OpenTable) -> dict[str, str]:
    """Returns the new conditions of the table that staged rows must be checked for before they become public.

    A MERGE checks them itself.
    """
    return {} if cut.merge else conditions_of(cut.staged_for, table.facts.shape)


@dataclass(frozen=True)
class WaitingRows:
    """The staged rows of checkpoints that a sink's table lacks."""

    lines: tuple[dict[str, Any], ...] = ()
    """The files with the rows, ``{"add": …, "batch": …}``."""
    replace: bool = False
    """True if they replace the present rows of the table."""
    shapes: tuple[TableShape, ...] = ()
    """The shapes of the table that they were staged for."""


def waiting_rows(store: CheckpointStore, manifest: Manifest, sink: SinkName, table: OpenTable) -> WaitingRows:
    """Returns the rows that publishing a checkpoint would make public in a sink's table.

    Raises:
        RejectedError: The checkpoint cannot be published.
        CorruptDocumentError: A manifest or a file of actions was altered.
        NotFoundError: A document is missing.
    """
    if sink not in manifest.sinks:  # its stage begins with the rows that a savepoint has brought
        brought = manifest.brought.get(sink, ())
        return WaitingRows(
            lines=tuple(line for each in brought for line in store.read_actions(each)),
            replace=any(each.replace for each in brought),
            shapes=distinct(shape for each in brought for shape in each.staged_for),
        )
    reached = table.transaction_version(manifest.sinks[sink].app)
    pending = pending_manifests(store, manifest, sink, reached)
    if not pending:
        return WaitingRows()
    lines, counting = _lines(store, pending, sink, reached), _counting(pending, sink)
    return WaitingRows(
        lines=tuple(line for m in counting for line in lines[m.checkpoint]),
        replace=_replaces(counting, pending, sink, reached),
        shapes=distinct(shape for m in counting for shape in m.sinks[sink].staged_for),
    )


def _replaces(counting: Sequence[Manifest], pending: Sequence[Manifest], sink: SinkName, reached: CheckpointId | None) -> bool:
    """Returns True if the rows of checkpoints replace the present ones of a table, also those that the oldest pending one carries.

    Args:
        counting: The checkpoints.
        pending: All checkpoints that the table lacks.
        sink: The sink.
        reached: Version of the sink's app id in the table.
    """
    oldest = counting[0]
    carries = oldest is pending[0] and any(each.replace for each in _carried(oldest.sinks[sink], reached))
    return oldest.sinks[sink].replace or carries


def chosen_manifest(store: CheckpointStore, checkpoint: CheckpointId | None) -> Manifest:
    """Returns the manifest of ``checkpoint``, by default the head.

    Raises:
        RejectedError: There is no such checkpoint.
        CorruptDocumentError: The manifest cannot be used.
    """
    try:
        manifest = store.head() if checkpoint is None else store.manifest(checkpoint)
    except NotFoundError as error:
        raise _not_there(store, checkpoint) from error
    if manifest is None:
        raise RejectedError(
            f"The home {store.home} has no complete checkpoint.",
            remedy=f"Run the pipeline to its end first. To see its state: spark-jobs status --home {quote(store.home)}",
        )
    return manifest


def _not_there(store: CheckpointStore, checkpoint: CheckpointId | None) -> RejectedError:
    """Returns the error for a checkpoint that does not exist, or does not exist any more."""
    kept = store.taken()
    was_there = checkpoint is not None and bool(kept) and checkpoint < kept[-1]
    return RejectedError(
        f"There is no complete checkpoint {checkpoint} in {store.home}{' any more' if was_there else ''}.",
        exists=f"It has {', '.join(map(str, kept)) or 'none'}."
        + (" Older ones are deleted when no table and no request needs them." if was_there else ""),
        remedy=f"Leave the number out for the newest, or choose an existing one: spark-jobs checkpoints --home {quote(store.home)}",
        checkpoint=checkpoint,
    )


def ordered_sinks(manifest: Manifest) -> list[SinkName]:
    """Returns the sinks, each after those upstream of it. A document does not keep the order of its fields."""
    stages = manifest.graph.get("stages", {})
    sorter = TopologicalSorter({name: sorted(stage["inputs"].values()) for name, stage in sorted(stages.items())})
    position = {name: index for index, name in enumerate(sorter.static_order())}
    return sorted(manifest.sinks, key=lambda sink: (position.get(manifest.sinks[sink].stage, len(position)), sink))


def sink_cut(manifest: Manifest, sink: SinkName) -> SinkCut:
    """Returns the cut of ``sink`` in ``manifest``.

    Raises:
        InvalidParameterError: The manifest has no such sink.
    """
    if sink not in manifest.sinks:
        raise InvalidParameterError(
            f"Pipeline {manifest.pipeline_name} has no sink {sink} in checkpoint {manifest.checkpoint}.",
            exists=f"It has {', '.join(manifest.sinks) or 'none'}.",
            remedy="Correct the sink's name, or choose a checkpoint that has it.",
            sink=sink,
            checkpoint=manifest.checkpoint,
        )
    return manifest.sinks[sink]


def pending_manifests(store: CheckpointStore, manifest: Manifest, sink: SinkName, reached: CheckpointId | None) -> list[Manifest]:
    """Returns the checkpoints up to ``manifest`` whose rows the sink's table lacks, oldest first.

    Args:
        store: The home's checkpoints.
        manifest: Last checkpoint to publish.
        sink: One of its sinks.
        reached: Version of the sink's app id in the table.

    Raises:
        RejectedError: ``reached`` is neither before nor after ``manifest`` on one chain, the incarnation was closed, or the table has
            lost published checkpoints.
        CorruptDocumentError: A manifest in between cannot be used.
        NotFoundError: A manifest in between is missing, and no later one carries its rows.
    """
    if reached == CLOSED:
        raise RejectedError(
            f"Sink {sink}: incarnation {manifest.incarnation} was closed; checkpoint {manifest.checkpoint} stays unpublished.",
            exists="A later start began a new incarnation.",
            remedy="Publish a checkpoint of the newest incarnation.",
            sink=sink,
            checkpoint=manifest.checkpoint,
            incarnation=manifest.incarnation,
        )
    if reached is not None and reached > manifest.checkpoint:
        _refuse_missing_manifest(store, manifest.checkpoint, sink, reached)
        _check_chain(store, manifest, sink, reached)
        return []
    known = manifest.sinks[sink].known_published if sink in manifest.sinks else None
    if known is not None and known > (reached or 0):
        raise RejectedError(
            f"Sink {sink}: the table has reached checkpoint {reached}, but had {known} when checkpoint {manifest.checkpoint} was taken.",
            safe="Nothing was written: publishing again would double rows.",
            remedy=f"The table's log was replaced. Restore it, or {BEGIN_ANEW}.",
            sink=sink,
            expected=known,
            found=reached,
        )
    return [m for m in _chain(store, manifest, sink, reached) if sink in m.sinks]


def _check_chain(store: CheckpointStore, manifest: Manifest, sink: SinkName, reached: CheckpointId) -> None:
    """Refuses a table that has reached a checkpoint that is not after ``manifest``.

    If a checkpoint between the two is missing, a sink that is published by round is not refused.
    """
    try:
        store.chain(reached, down_to=manifest.checkpoint)
    except NotFoundError:
        if not manifest.is_published_by_round(sink):
            raise


def _chain(store: CheckpointStore, manifest: Manifest, sink: SinkName, reached: CheckpointId | None) -> list[Manifest]:
    """Returns the checkpoints after ``reached`` up to ``manifest``, oldest first. The first one may be later if it carries earlier ones."""
    unusable = (NotFoundError, CorruptDocumentError)
    try:
        return store.chain(manifest.checkpoint, down_to=reached)
    except unusable:
        kept: list[Manifest] = []
        with suppress(*unusable):
            for ancestor in store.ancestry(manifest):
                kept.insert(0, ancestor)
        if kept and kept[0].is_published_by_round(sink):
            return kept
        raise


def _lines(
    store: CheckpointStore, pending: Sequence[Manifest], sink: SinkName, reached: CheckpointId | None
) -> dict[CheckpointId, list[dict[str, Any]]]:
    """Returns the files that each checkpoint makes public. The first one includes the files that it carries."""
    found = {m.checkpoint: store.read_actions(m.sinks[sink]) for m in pending}
    first = pending[0]
    carried = [line for each in _carried(first.sinks[sink], reached) for line in store.read_actions(each)]
    found[first.checkpoint] = carried + found[first.checkpoint]
    return found


def _carried(cut: SinkCut, reached: CheckpointId | None) -> list[CarriedActions]:
    """Returns the carried files of a sink cut that a table lacks after ``reached``.

    Raises:
        RejectedError: The table has a part of a file of actions: a checkpoint was published while it was being merged with others.
    """
    found = [each for each in cut.carried if each.last > (reached or 0)]
    if found and found[0].first <= (reached or 0):
        raise RejectedError(
            f"Table {cut.table} has reached checkpoint {reached}, in the middle of the files of checkpoints {found[0].first} to "
            f"{found[0].last}.",
            exists="A checkpoint of a round that was not at its end was published.",
            safe="Nothing was written: rows would be public twice.",
            remedy="Start from the beginning: --fresh --on-rewind replace.",
            table=cut.table,
            found=reached,
        )
    return found


def refuse_unknown(store: CheckpointStore, newest: CheckpointId | None, sink: SinkName, table: str, app: AppId) -> None:
    """Refuses to continue a checkpoint if the table has reached a later one whose manifest is missing or damaged.

    The next checkpoint would have the number of a missing one. Then the table would seem to have its rows.

    Args:
        store: The home's checkpoints.
        newest: Checkpoint to continue; None for the beginning of an incarnation.
        sink: The sink.
        table: URI of its table, which may be missing.
        app: App id of the sink.

    Raises:
        RejectedError: The home does not have the later checkpoint.
        CorruptDocumentError: The manifest of the later checkpoint was altered.
    """
    with suppress(NotFoundError):
        reached = open_table(table).transaction_version(app)
        if reached is not None and (newest or 0) < reached < CLOSED:
            _refuse_missing_manifest(store, newest, sink, reached)
            store.kept(reached)


def refuse_missing_table(checkpoint: CheckpointId, sink: SinkName, table: str) -> None:
    """Refuses to continue a checkpoint without one of its tables. A start would create it without the rows that were public.

    Raises:
        NotFoundError: The table is missing.
    """
    try:
        open_table(table)
    except NotFoundError as error:
        raise NotFoundError(
            f"Sink {sink}: table {table} is missing, and checkpoint {checkpoint} publishes into it.",
            safe="No table was created.",
            remedy="Put the table back: mount its directory, or restore a backup. To compute all tables again: --full-refresh-all "
            "(fresh=True, on_rewind='replace').",
            sink=sink,
            table=table,
            checkpoint=checkpoint,
        ) from error


def _refuse_missing_manifest(
    store: CheckpointStore, checkpoint: CheckpointId | None, sink: SinkName, reached: CheckpointId
) -> None:
    if reached not in store.taken():
        raise RejectedError(
            f"Sink {sink}: the table has reached checkpoint {reached} of this incarnation, but the home does not have it.",
            remedy="Use the home that published it. See 'a checkpoint that is not on the chain' in docs/troubleshooting.md.",
            sink=sink,
            checkpoint=checkpoint,
            not_on_chain=reached,
        )


def is_unfinished(manifest: Manifest, sink: SinkName) -> bool:
    """Returns True if a checkpoint has rows for a sink that only the end of a round publishes. A start from it publishes them."""
    return manifest.is_published_by_round(sink) and not manifest.ends_round


def is_due(manifest: Manifest, policy: Publish) -> bool:
    """Returns True if a driver that completes a checkpoint publishes it in a sink with this policy."""
    return policy is Publish.EVERY_CHECKPOINT or (policy is Publish.FINAL and manifest.ends_round)


def prepare(
    store: CheckpointStore, manifest: Manifest, sink: SinkName, *, by_round: bool, together: bool = False, alone: bool = False
) -> list[PendingTransaction]:
    """Returns the checked transactions for one sink. Nothing is written.

    A transaction checks its staged files right before its commit. They are checked here, too, if something else is written or read before.

    Args:
        store: The home's checkpoints.
        manifest: Last checkpoint to publish.
        sink: One of its sinks.
        by_round: True if the rows of a round become public together.
        together: True if everything that the sink lacks becomes public in one transaction.
        alone: True if no other sink is published with this one.

    Raises:
        RejectedError: The table is not the one that the files were staged for, or its checkpoint is not on the chain.
        CorruptDocumentError: A manifest or a file of actions was altered.
        NotFoundError: The table, a staged file or a document is missing.
        ConflictError: Another process published in the meantime. Prepare again.
    """
    cut = sink_cut(manifest, sink)
    table = open_table(cut.table)
    reached = table.transaction_version(cut.app)
    pending = pending_manifests(store, manifest, sink, reached)
    if not pending:
        return []
    if by_round and not manifest.ends_round:
        raise RejectedError(
            f"Sink {sink} is published only with final checkpoints. Checkpoint {manifest.checkpoint} is {manifest.checkpoint_kind.value}.",
            safe="Nothing was written. All rows stay staged.",
            remedy="Run the pipeline on: the rows become public when the round has ended or is drained.",
            sink=sink,
            checkpoint=manifest.checkpoint,
        )
    refuse_changed(table, sink, pending)
    lines = _lines(store, pending, sink, reached)
    adds = [line["add"] for some in lines.values() for line in some]
    publisher = publisher_now(table, cut.publisher, cut.mode)
    if publisher is Publisher.DELTA_RS:
        for add in adds:
            refuse_lossy(cut.table, add)
    transactions, found, newest = list[PendingTransaction](), reached, reached
    for group in alike(pending, sink) if together else _groups(pending, sink, by_round=by_round):
        counting = _counting(group, sink)
        added = tuple(line for m in counting for line in lines[m.checkpoint])
        replaces = _replaces(counting, pending, sink, found)
        unchecked = {name: each for m in counting for name, each in conditions_now(m.sinks[sink], table).items()}
        pending_now = PendingTransaction(publisher, newest, tuple(group), added, replaces, unchecked if added else {})
        transactions.append(_by_spark_if_needed(pending_now, sink, table))
        newest = group[-1].checkpoint
    if not alone or len(transactions) > 1 or any(transaction.conditions for transaction in transactions):
        refuse_missing(cut, sink, reached, adds)
    return transactions


def _by_spark_if_needed(pending: PendingTransaction, sink: SinkName, table: OpenTable) -> PendingTransaction:
    """Returns the transaction with Spark as its publisher if delta-rs leaves this merge or this replacement to Spark."""
    cut = pending.cut(sink)
    if pending.publisher is Publisher.SPARK:
        return pending
    if cut.merge is None:
        return replace(pending, publisher=publisher_now(table, pending.publisher, pending.mode(sink)))
    from spark_jobs.publication.delta_rs_merge import why_spark  # pyarrow: only where it is needed

    reasons = why_spark(cut, table, pending.lines, replace=pending.replace)
    if not reasons:
        return pending
    _LOG.info("sink %s: Spark merges checkpoint %s: %s", sink, pending.manifest.checkpoint, "; ".join(reasons))
    return replace(pending, publisher=Publisher.SPARK)


def _groups(pending: list[Manifest], sink: SinkName, *, by_round: bool) -> list[list[Manifest]]:
    """Returns the checkpoints of each transaction. A checkpoint whose rows a later one replaces has no transaction of its own.

    If others publish the sink, each round whose last checkpoint is on the chain has one transaction.
    """
    if by_round and pending[-1].sinks[sink].publish is Publish.FINAL:
        return [pending]
    if by_round:
        groups = list[list[Manifest]]()
        for manifest in pending:
            if not groups or groups[-1][-1].ends_round:
                groups.append([])
            groups[-1].append(manifest)
        oldest = _counting(pending, sink)[0]
        taken = next(number for number, group in enumerate(groups, start=1) if oldest in group)
        return [[each for group in groups[:taken] for each in group], *groups[taken:]]
    counting = _counting(pending, sink)
    superseded = pending[: len(pending) - len(counting)]
    return [[*superseded, counting[0]], *([m] for m in counting[1:])]


def alike(pending: Sequence[Manifest], sink: SinkName) -> list[list[Manifest]]:
    """Returns the checkpoints in as few transactions as possible: successive ones with the same rule share one."""
    groups = list[list[Manifest]]()
    for manifest in pending:
        if not groups or _rule(groups[-1][-1].sinks[sink]) != _rule(manifest.sinks[sink]):
            groups.append([])
        groups[-1].append(manifest)
    return groups


def _rule(cut: SinkCut) -> tuple[SinkMode, MergeCut | None]:
    return cut.mode, cut.merge and cut.merge.model_copy(update={"tombstones_version": 0})


def _counting(pending: Sequence[Manifest], sink: SinkName) -> Sequence[Manifest]:
    """Returns the checkpoints from the last one that replaces the table's rows, or all if none does."""
    return pending[max((index for index, m in enumerate(pending) if m.sinks[sink].replace), default=0) :]


def refuse_changed(table: OpenTable, sink: SinkName, pending: Sequence[Manifest]) -> None:
    """Refuses a table that the pending files do not fit any more.

    Raises:
        UnsupportedTableError: The table has changed. The error names the differences.
        RejectedError: The files belong to another app id.
    """
    facts, cuts = table.facts, [m.sinks[sink] for m in pending]
    for publisher, mode in {(cut.publisher, cut.mode) for cut in cuts}:
        publisher_now(table, publisher, mode)
    replaces = any(
        cut.replace or (cut.merge and cut.mode.removes_rows) or any(each.replace for each in cut.carried) for cut in cuts
    )
    if replaces and not table.allows_replacement():
        raise UnsupportedTableError(
            f"Sink {sink}: the rows of table {facts.uri} are to be replaced, but it has delta.appendOnly.",
            safe="Nothing was written to any table.",
            remedy="Remove the property, or start with --fresh --on-rewind keep.",
            sink=sink,
            table=facts.uri,
        )
    for manifest, cut in zip(pending, cuts, strict=True):
        if cut.app != app_id(manifest.pipeline, manifest.incarnation, sink):
            raise UnsupportedTableError(
                f"Sink {sink}: checkpoint {manifest.checkpoint} names an app id that is not that of its incarnation.",
                exists="The rows stay staged.",
                safe="Nothing was written to any table.",
                remedy=f"Restore the manifest from a copy, or {BEGIN_ANEW}.",
                sink=sink,
                checkpoint=manifest.checkpoint,
                expected=app_id(manifest.pipeline, manifest.incarnation, sink),
                found=cut.app,
            )
        if cut.table_id != facts.table_id:
            problems = ["is another table (it was created again, and has another id)"]
        else:
            problems = misfits_of(cut.staged_for, facts.shape, cut.merge.compared if cut.merge else None)
        if problems:
            raise UnsupportedTableError(
                f"Sink {sink}: table {facts.uri} was changed, and rows of checkpoint {manifest.checkpoint} do not fit it any more: "
                f"it {'; it '.join(problems)}.",
                exists="The rows stay staged.",
                safe="Nothing was written to any table.",
                remedy=f"Change the table back and publish again; or {BEGIN_ANEW}.",
                sink=sink,
                table=facts.uri,
                checkpoint=manifest.checkpoint,
                problems=problems,
            )


def refuse_overtaken(sink: SinkName, reached: CheckpointId | None, expected: CheckpointId | None) -> None:
    """Refuses a publication if another process was faster.

    Args:
        sink: The sink.
        reached: Version of the sink's app id in the table.
        expected: Version that the publication expects.

    Raises:
        ConflictError: They differ.
    """
    if reached != expected:
        raise ConflictError(
            f"Sink {sink}: another process has published up to checkpoint {reached}.",
            safe="Nothing was written.",
            remedy="Repeat: rows that are public already are left alone.",
            sink=sink,
        )


def refuse_missing(cut: SinkCut, sink: SinkName, reached: CheckpointId | None, adds: Sequence[Mapping[str, Any]]) -> None:
    """Refuses staged files that are missing.

    Args:
        cut: Cut that the files are staged for.
        sink: Sink of the cut.
        reached: Checkpoint that the table had reached when it was read.
        adds: Delta's ``add`` actions.

    Raises:
        NotFoundError: Files are missing. The error names the first ones.
        ConflictError: Another process published in the meantime.
    """
    missing = missing_files(staged_in(cut), adds)
    if not missing:
        return
    # files that became public in between may have been compacted and vacuumed since
    refuse_overtaken(sink, open_table(cut.table).transaction_version(cut.app), reached)
    raise NotFoundError(
        f"Sink {sink}: {len(missing)} staged files of table {cut.table} are missing or truncated. The first is {missing[0]}.",
        safe="None of their rows was published.",
        remedy=f"A VACUUM has probably deleted them. Their rows must be computed again: {BEGIN_ANEW}.",
        sink=sink,
        table=cut.table,
        missing=missing[:10],
        count=len(missing),
    )


def pending_lines(files: Files, sink: SinkName, checkpoint: CheckpointId | None = None) -> list[dict[str, Any]]:
    """Returns the files that publishing a checkpoint would make public in ``sink``, oldest first; empty if it is public.

    Args:
        files: Files of the home.
        sink: One of the checkpoint's sinks.
        checkpoint: Number of the checkpoint; by default the newest valid one.

    Returns:
        ``{"add": …, "batch": …}`` for each file; the paths are URL-encoded, and relative to the directory of
        :func:`~spark_jobs.checkpoint.savepoint_files.staged_in`.

    Raises:
        RejectedError: There is no such checkpoint or sink, or it cannot be published.
        CorruptDocumentError: A manifest or a file of actions was altered.
        NotFoundError: The table or a document is missing.
    """
    store = CheckpointStore(files)
    manifest = chosen_manifest(store, checkpoint)
    cut = sink_cut(manifest, sink)
    return list(waiting_rows(store, manifest, sink, open_table(cut.table)).lines)
