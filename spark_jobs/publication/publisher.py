"""Phase 2 of the two-phase commit: the staged rows of complete checkpoints become public, each row once.

Several processes may publish at the same time, from any host, any number of times. Three rules make that safe:

1. A Delta transaction has ``SetTransaction(app id, k)`` and is conditional on the version that was read on the same handle.
2. After every failure the table itself is read again. Nothing is remembered of an earlier try.
3. All sinks are checked before anything is written to any of them.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random_exponential

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.liveness import holding
from spark_jobs.protocol.delta_log import DELTA_LOG, PUBLICATION_LOCK
from spark_jobs.protocol.documents import Manifest, Publish, Publisher, SinkCut, SinkMode, SinkResult
from spark_jobs.protocol.errors import (
    BEGIN_ANEW,
    ConflictError,
    CorruptDocumentError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AppId, CheckpointId, SinkName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.completeness import complete_until_of
from spark_jobs.publication.delta_rs import OpenTable, open_table, refuse_unsupported
from spark_jobs.publication.evidence import head_after_public, version_with
from spark_jobs.publication.holds import Holding
from spark_jobs.publication.ownership import refuse_rows_of_others
from spark_jobs.publication.pending import (
    CLOSED,
    PendingTransaction,
    chosen_manifest,
    conditions_now,
    is_due,
    ordered_sinks,
    prepare,
    refuse_changed,
    refuse_missing,
    refuse_overtaken,
    sink_cut,
)
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import table_files

_TRIES = 12
_LOG = logging.getLogger(__name__)
_TURN_TIMEOUT_S = 600.0
WITHOUT_SPARK = Publishers()
"""The publishers without Spark: they publish every sink that delta-rs can publish, and refuse all others."""
T = TypeVar("T")


def publish(
    files: Files,
    checkpoint: CheckpointId | None = None,
    *,
    sinks: Iterable[SinkName] | None = None,
    by_policy: bool = False,
    policy: Publish | None = None,
    publishers: Publishers = WITHOUT_SPARK,
) -> dict[SinkName, SinkResult]:
    """Makes a complete checkpoint, and all earlier ones of its incarnation, public in its sinks.

    Idempotent: rows that are public stay as they are, and the result is the same. If the checkpoint was discarded since, the result counts
    no rows. Sinks are published one after the other: those that are behind come first, the others in topological order. After a crash in
    between, the same call publishes the rest. A table that refuses its rows holds the others.

    Args:
        files: Files of the home.
        checkpoint: Number of the checkpoint; by default the newest valid one.
        sinks: Sinks to publish; by default all.
        by_policy: True leaves out sinks that are not due: those with :attr:`Publish.EXTERNAL`, and those with :attr:`Publish.FINAL` unless
            the checkpoint is final or drained. Everything that a sink lacks becomes public in one transaction. False gives each checkpoint
            its own transaction, and publishes external sinks; a sink that is published by round is refused unless the checkpoint ends it.
        policy: Overrides the policy that the manifest records for each sink.
        publishers: Publishers of this process; by default sinks that need Spark are refused.

    Returns:
        The result by sink: the Delta version in which the checkpoint's rows are public (None while they are only staged), and the rows that
        the checkpoint's round has added up to it.

    Raises:
        SparkRequiredError: Spark publishes a sink, but ``publishers`` has none. Nothing was written.
        RejectedError: There is no such checkpoint or sink, a table was changed since staging, its incarnation was closed, or the table has
            reached a checkpoint that is not on the chain. Nothing was written.
        CorruptDocumentError: A manifest or a file of actions was altered. Nothing was written.
        NotFoundError: A table, a staged file or a document is missing. Nothing was written.
        ConflictError: Other processes were faster in every try.
        OutcomeUnknownError: The storage did not confirm the commit. Repeat.
        StorageError: The storage fails. Repeat.
    """
    planned = plan_publication(files, checkpoint, sinks=sinks, by_policy=by_policy, policy=policy, at_once=True)
    planned.require(publishers)
    planned.carry_out(publishers)
    return planned.results()


def publish_due(
    files: Files,
    checkpoint: CheckpointId,
    publishers: Publishers,
    *,
    sinks: Iterable[SinkName] | None = None,
    holds: bool = False,
) -> "Publication":
    """Publishes a checkpoint by the policies of its sinks, like :func:`publish`. Returns the publication, carried out.

    With ``holds``, it leaves out tables that refuse their rows while their holds last.
    """
    planned = plan_publication(files, checkpoint, sinks=sinks, by_policy=True, holds=holds, at_once=True)
    planned.require(publishers)
    planned.carry_out(publishers)
    return planned


@dataclass(frozen=True)
class Publication:
    """The checked plan of a publication. Nothing is written yet.

    :func:`plan_publication` makes it. Plan several before you carry out the first: if one is refused, none is carried out.
    """

    files: Files
    checkpoint: CheckpointId
    manifest: Manifest
    """The manifest of the checkpoint. If it was public and was discarded since: the head of its incarnation."""
    sinks: frozenset[SinkName]
    """The requested sinks."""
    by_round: frozenset[SinkName]
    """The sinks among them that are published by round."""
    plans: Mapping[SinkName, Sequence[PendingTransaction]]
    """The missing transactions of each due sink; empty if everything is public."""
    holding: Holding
    """The tables that the publication leaves out."""
    together: bool = False
    """True if everything that a sink lacks becomes public in one transaction."""

    @property
    def was_discarded(self) -> bool:
        """Returns True if the checkpoint was public and does not exist any more. There is nothing to do."""
        return self.manifest.checkpoint != self.checkpoint

    @property
    def by_spark(self) -> list[SinkName]:
        """Returns the sinks with transactions that only Spark can publish or check."""
        return [sink for sink, plan in self.plans.items() if any(_needs_spark(transaction) for transaction in plan)]

    def require(self, publishers: Publishers) -> None:
        """Refuses publishers that cannot carry out the whole plan.

        Raises:
            SparkRequiredError: Spark publishes a sink, but there is none. Nothing was written.
        """
        for sink in self.by_spark:
            publishers.require(Publisher.SPARK, f"Sink {sink}")

    def check(self, publishers: Publishers) -> None:
        """Refuses rows that a table does not accept, as far as this can be checked before writing.

        Raises:
            UnsupportedTableError: A table does not accept rows of a checkpoint.
            SparkRequiredError: Only Spark can check, but there is none.
        """
        for sink, plan in self.plans.items():
            with self.holding.of(sink):
                for transaction in plan:
                    cut = transaction.cut(sink)
                    _refuse_broken_constraints(sink, transaction, cut.table, transaction.conditions, publishers)
                    if _replaces_own(transaction, cut):
                        _refuse_rows_of_others(sink, transaction, cut, publishers)

    @property
    def held(self) -> Mapping[SinkName, StreamPipelineError]:
        """Returns the errors of tables with a hold that have refused their rows, by sink."""
        return self.holding.refused

    def carry_out(self, publishers: Publishers = WITHOUT_SPARK) -> None:
        """Carries out the plan. Errors and idempotence are those of :func:`publish`."""
        store, manifest = CheckpointStore(self.files), self.manifest
        store.make_durable({m.checkpoint for plan in self.plans.values() for transaction in plan for m in transaction.manifests})
        self.check(publishers)
        changed: list[tuple[SinkName, OpenTable]] = []
        for sink, plan in self.plans.items():
            if sink not in self.held:
                with self.holding.of(sink):
                    plan_again = partial(prepare, store, manifest, sink, by_round=sink in self.by_round, together=self.together)
                    changed += [(sink, table) for table in _publish_sink(manifest, sink, plan_again, plan, publishers)]
        for sink, table in changed:  # after all publications, so that none waits for this
            _keep_deleted_keys(manifest.sinks[sink], table, publishers)
            publishers.keep_log_short(table)

    def results(self) -> dict[SinkName, SinkResult]:
        """Returns the results of :func:`publish`, after the plan was carried out. A held sink has no version. Reads all tables."""
        store = CheckpointStore(self.files)
        return {
            sink: _result(store, self.manifest, sink, self.checkpoint, held=sink in self.held)
            for sink in ordered_sinks(self.manifest)
            if sink in self.sinks
        }


def plan_publication(
    files: Files,
    checkpoint: CheckpointId | None = None,
    *,
    sinks: Iterable[SinkName] | None = None,
    by_policy: bool = False,
    policy: Publish | None = None,
    holds: bool = False,
    at_once: bool = False,
) -> Publication:
    """Returns the checked plan of :func:`publish`, with its arguments and its errors. Writes nothing.

    With ``holds``, the plan leaves out tables that refuse their rows while their holds last. With ``at_once``, the plan is carried out
    before anything else is written, so that the staged files of a single sink are only looked at right before their commit.
    """
    store = CheckpointStore(files)
    try:
        manifest = chosen_manifest(store, checkpoint)
    except RejectedError:
        # A process may publish a checkpoint twice, and the pipeline may have discarded it in between.
        if checkpoint is None or (head := head_after_public(store, checkpoint)) is None:
            raise
        manifest = head
    wanted = frozenset(manifest.sinks if sinks is None else sinks)
    policies = {sink: policy or sink_cut(manifest, sink).publish for sink in sorted(wanted)}
    due = [sink for sink in ordered_sinks(manifest) if sink in wanted and (not by_policy or is_due(manifest, policies[sink]))]
    by_round = frozenset(
        sink for sink in wanted if (manifest.is_published_by_round(sink) if policy is None else policy is Publish.FINAL)
    )
    number = manifest.checkpoint if checkpoint is None else checkpoint
    lacking = due if manifest.checkpoint == number else []
    plans, holding = dict[SinkName, Sequence[PendingTransaction]](), Holding(store, manifest, holds)
    for sink in lacking:
        with holding.of(sink):
            planning = partial(
                prepare, store, manifest, sink, by_round=sink in by_round, together=by_policy, alone=at_once and len(lacking) == 1
            )
            plans[sink] = _retry(planning)
    return Publication(files, number, manifest, wanted, by_round, _behind_first(plans, manifest), holding, by_policy)


def published(files: Files, checkpoint: CheckpointId) -> dict[SinkName, SinkResult]:
    """Returns the results of :func:`publish` without publishing anything, also for a closed incarnation.

    Raises:
        RejectedError: There is no such checkpoint.
        CorruptDocumentError: Its manifest was altered.
        NotFoundError: A table is missing.
        StorageError: The storage fails. Repeat.
    """
    store = CheckpointStore(files)
    manifest = chosen_manifest(store, checkpoint)
    return {sink: _result(store, manifest, sink, checkpoint) for sink in ordered_sinks(manifest)}


def never_public(manifest: Manifest, results: Mapping[SinkName, SinkResult]) -> RejectedError | None:
    """Returns the error of a run whose rows can never become public, because its incarnation is closed; otherwise None.

    Args:
        manifest: Manifest of the run's checkpoint.
        results: Results of :func:`published`.
    """
    lost = [sink for sink, cut in manifest.sinks.items() if cut.publish is not Publish.EXTERNAL and results[sink].version is None]
    if not lost:
        return None
    return RejectedError(
        f"Checkpoint {manifest.checkpoint} of run {manifest.run} was never published into {', '.join(lost)}, and never can be.",
        exists="A later start began a new incarnation, which closed this one.",
        remedy="Use the result of the later run.",
        checkpoint=manifest.checkpoint,
        sinks=lost,
    )


@dataclass(frozen=True, order=True)
class SinkIncarnation:
    """One incarnation of a pipeline in one of its sinks."""

    sink: SinkName
    table: str
    app: AppId
    publisher: Publisher
    has_keys: bool = False
    """True if the sink's rows are merged by keys. Then Spark may publish some transactions, and delta-rs others."""


def close_incarnation(abandoned: SinkIncarnation, decided_on: CheckpointId | None, publishers: Publishers) -> None:
    """Closes an abandoned incarnation in one table: none of its pending publications can succeed any more.

    Idempotent, durable on return.

    Args:
        abandoned: The incarnation in the sink.
        decided_on: Checkpoint that the table had reached when the incarnation was abandoned.
        publishers: Publishers of this process.

    Raises:
        ConflictError: The table has reached another checkpoint in the meantime. Decide again.
        NotFoundError: There is no table.
        UnsupportedTableError: The incarnation's publisher cannot commit to the table.
        OutcomeUnknownError: The incarnation may be closed. Repeat.
        StorageError: The storage fails. Repeat.
    """
    try:
        found = _close(abandoned, decided_on, publishers, abandoned.publisher)
    except UnsupportedTableError:  # only Spark may be able to commit to the changed table
        if abandoned.publisher is Publisher.SPARK or open_table(abandoned.table).obstacles(Publisher.SPARK):
            raise
        found = _close(abandoned, decided_on, publishers, Publisher.SPARK)
    if found not in (decided_on, CLOSED):
        raise ConflictError(
            f"Table {abandoned.table} has reached checkpoint {found}, not {decided_on}: the incarnation was published in the meantime.",
            safe="The incarnation was not closed.",
            remedy="Read the home again and decide again.",
            table=abandoned.table,
            expected=decided_on,
            found=found,
        )


def _close(
    abandoned: SinkIncarnation, decided_on: CheckpointId | None, publishers: Publishers, publisher: Publisher
) -> CheckpointId | None:
    """Closes an incarnation in one table, unless the table has reached another checkpoint than ``decided_on``. Returns the reached one."""

    def close() -> CheckpointId | None:
        transaction = publishers.begin(publisher, abandoned.table, abandoned.app)
        reached = transaction.table.transaction_version(abandoned.app)
        if reached == decided_on:
            refuse_unsupported(transaction.table, publisher, SinkMode.APPEND)
            with step(Step.INCARNATION_CLOSE):
                _commit_or_confirm(
                    lambda: transaction.close(CLOSED, {"closed": abandoned.app}), abandoned.table, abandoned.app, CLOSED
                )
        return reached

    with _table_lock(abandoned.table, is_needed=publisher is Publisher.SPARK or abandoned.has_keys):
        return _retry(close)


def _behind_first(
    plans: Mapping[SinkName, Sequence[PendingTransaction]], manifest: Manifest
) -> dict[SinkName, Sequence[PendingTransaction]]:
    """Returns the plans in the order in which they are carried out.

    The table that is behind comes first: while it refuses, no other table gets further ahead. Of tables that are equally far, those with a
    hold come first.
    """

    def key(sink: SinkName) -> tuple[int, bool]:
        return (plans[sink][0].after or 0) if plans[sink] else 0, manifest.sinks[sink].hold is None

    return {sink: plans[sink] for sink in sorted(plans, key=key)}


def _publish_sink(
    manifest: Manifest,
    sink: SinkName,
    plan_again: Callable[[], Sequence[PendingTransaction]],
    plan: Sequence[PendingTransaction],
    publishers: Publishers,
) -> Sequence[OpenTable]:
    """Commits a plan. Plans again whenever the table is not in the expected state. Returns the table if it was changed."""
    checked: Sequence[PendingTransaction] | None = plan

    def carry_out() -> Sequence[OpenTable]:
        nonlocal checked
        transactions, checked = checked, None
        if transactions is None:
            transactions = plan_again()
        if not transactions:
            return ()
        cut, by = manifest.sinks[sink], {transaction.publisher for transaction in transactions}
        with _table_lock(cut.table, is_needed=Publisher.SPARK in by or cut.mode.has_keys):
            for transaction in transactions:
                _commit(sink, transaction, publishers)
            return (_confirm(cut, sink, manifest.checkpoint),)

    return _retry(carry_out, tries=_TRIES + len(plan))  # a transaction of another process costs at most one try


def _keep_deleted_keys(cut: SinkCut, table: OpenTable, publishers: Publishers) -> None:
    """Folds the deleted keys of a sink while no other process publishes into the table.

    A failure is only logged: the next publication tries again.
    """
    if cut.merge is None or cut.merge.tombstones is None:
        return
    try:
        with _table_lock(cut.table, is_needed=True):
            publishers.keep_deleted_keys(cut, table.transaction_version(cut.app))
    except ConflictError as error:
        _LOG.warning("the deleted keys of table %s are not folded: %s", cut.table, error)


def _commit(sink: SinkName, pending: PendingTransaction, publishers: Publishers) -> None:
    manifest, cut = pending.manifest, pending.cut(sink)
    transaction = publishers.begin(pending.publisher, cut.table, cut.app)
    refuse_overtaken(sink, transaction.table.transaction_version(cut.app), pending.after)
    refuse_changed(transaction.table, sink, pending.manifests)
    if transaction.table.obstacles(pending.publisher, pending.mode(sink)):
        raise ConflictError(
            f"Another writer has changed table {cut.table} since it was read: another publisher publishes into it now.",
            safe="Nothing was committed.",
            remedy="Repeat: the table is read again.",
            table=cut.table,
        )
    if pending.lines:
        _refuse_broken_constraints(sink, pending, cut.table, conditions_now(cut, transaction.table), publishers)
    if _replaces_own(pending, cut):
        _refuse_rows_of_others(sink, pending, cut, publishers)
    info: dict[str, Any] = {
        "pipeline": manifest.pipeline_name,
        "pipeline_uuid": manifest.pipeline,
        "incarnation": manifest.incarnation,
        "sink": sink,
        "checkpoint": manifest.checkpoint,
        "attempt": manifest.attempt,
        "round": manifest.round,
        "run": manifest.run,
    }
    if manifest.losses:
        info["losses"] = [loss.id for loss in manifest.losses]
    complete_until = complete_until_of(manifest, sink)
    if complete_until is not None:
        info["complete_until"] = complete_until.isoformat()
    version = manifest.checkpoint

    def commit() -> None:
        # Checked again as late as possible: a VACUUM may have run since the first check.
        refuse_missing(cut, sink, pending.after, [line["add"] for line in pending.lines])
        transaction.publish(cut, pending.lines, version, info, replace=pending.replace)

    with step(Step.PUBLISH_SINK):
        _commit_or_confirm(commit, cut.table, cut.app, version)


def _needs_spark(pending: PendingTransaction) -> bool:
    return pending.publisher is Publisher.SPARK or bool(pending.conditions)


def _replaces_own(pending: PendingTransaction, cut: SinkCut) -> bool:
    """Returns True if a transaction must only replace rows that the pipeline published before its fresh start.

    Later transactions of a complete result replace all rows of the table, also those of others.
    """
    return pending.replace and cut.replaces_own and pending.after is None


def _refuse_rows_of_others(sink: SinkName, pending: PendingTransaction, cut: SinkCut, publishers: Publishers) -> None:
    files = publishers.rows_by_file(pending.publisher, cut.table)
    refuse_rows_of_others(open_table(cut.table), pending.manifest.pipeline, sink, cut.mode, cut.stage, files)


def _refuse_broken_constraints(
    sink: SinkName, pending: PendingTransaction, table: str, conditions: Mapping[str, str], publishers: Publishers
) -> None:
    """Refuses rows that break a constraint that the table got after they were staged.

    Raises:
        UnsupportedTableError: Rows break a constraint. The error names it and their number.
        SparkRequiredError: Only Spark can check, but there is none.
    """
    if not conditions:
        return
    publishers.require(Publisher.SPARK, f"A constraint of sink {sink} ({', '.join(conditions)})")
    broken = {name: rows for name, rows in publishers.count_breaking(table, pending.lines, conditions).items() if rows}
    if broken:
        counts = ", ".join(f"{rows} rows break {name} ({conditions[name]})" for name, rows in broken.items())
        raise UnsupportedTableError(
            f"Sink {sink}: rows of checkpoint {pending.manifest.checkpoint} violate constraints of table {table}: {counts}.",
            exists="The rows stay staged.",
            safe="Nothing was written to any table.",
            remedy=f"Drop the constraint (ALTER TABLE … DROP CONSTRAINT) and publish again; or {BEGIN_ANEW}.",
            sink=sink,
            table=table,
            checkpoint=pending.manifest.checkpoint,
            broken=broken,
        )


def _confirm(cut: SinkCut, sink: SinkName, checkpoint: CheckpointId) -> OpenTable:
    """Opens the table and checks that the commit is in its log.

    A writer whose log store has no compare-and-swap may have replaced the commit.
    """
    table = open_table(cut.table)
    reached = table.transaction_version(cut.app)
    if reached is None or reached < checkpoint:
        raise ConflictError(
            f"Sink {sink}: another writer has replaced the commit that made checkpoint {checkpoint} public.",
            exists=f"Table {cut.table} has reached checkpoint {reached}.",
            safe="Publishing again does not double rows.",
            remedy="Do not let other Spark applications write to the table at the same time: on a disk none of them, in S3 none with "
            "Delta's default log store.",
            sink=sink,
            table=cut.table,
            checkpoint=checkpoint,
            found=reached,
        )
    return table


@contextmanager
def _table_lock(table: str, *, is_needed: bool) -> Iterator[None]:
    """Lets only one process at a time publish into a table on a disk. Does nothing if the lock is not needed.

    It is needed if Spark may publish into the table, because Spark's log on a file system has no compare-and-swap between processes. The
    lock is in the directory of the table's log, so publishers of all homes find it. A commit to a table in a store is a conditional write
    and needs no lock.
    """
    log = table_files(table).local(DELTA_LOG) if is_needed else None
    if log is None or not log.is_dir():  # the commit reports a table that is gone
        yield
        return
    patient = Retrying(
        retry=retry_if_exception_type(BlockingIOError),
        stop=stop_after_delay(_TURN_TIMEOUT_S),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        reraise=True,
    )
    with ExitStack() as stack:
        try:
            patient(lambda: stack.enter_context(holding(log / PUBLICATION_LOCK, str(os.getpid()))))
        except BlockingIOError as error:
            raise ConflictError(
                f"Another process has been publishing into {table} for {_TURN_TIMEOUT_S:.0f} s.",
                remedy="Check that process, then repeat.",
                table=table,
            ) from error
        yield


def _commit_or_confirm(commit: Callable[[], None], table: str, app: AppId, version: CheckpointId) -> None:
    """Runs ``commit``. Ignores an error if the table has the app id's new version afterwards."""
    try:
        commit()
    except (OutcomeUnknownError, StorageError):
        if open_table(table).transaction_version(app) != version:
            raise


def _retry(call: Callable[[], T], tries: int = _TRIES) -> T:
    """Repeats ``call`` while other processes are faster or the answer is lost. Each call reads the table again."""
    return Retrying(
        retry=retry_if_exception_type((ConflictError, OutcomeUnknownError)),
        stop=stop_after_attempt(tries),
        wait=wait_random_exponential(multiplier=0.02, max=1),
        reraise=True,
    )(call)


def _result(
    store: CheckpointStore, manifest: Manifest, sink: SinkName, checkpoint: CheckpointId, *, held: bool = False
) -> SinkResult:
    """Returns the result of ``checkpoint`` in a sink. The result of a held table has no version.

    ``manifest`` is the manifest of the checkpoint, or a later one of its incarnation.
    """
    cut, rows, oldest = manifest.sinks[sink], 0, None
    for oldest in _checkpoints_of_round(store, manifest, checkpoint):
        rows += oldest.sinks[sink].actions.rows if sink in oldest.sinks else 0
        rows += sum(each.actions.rows for each in oldest.brought.get(sink, ()))
    if oldest and sink in oldest.sinks and oldest.parent is not None and store.usable(oldest.parent) is None:
        rows += sum(each.actions.rows for each in oldest.sinks[sink].carried if each.round in (None, oldest.round))
    version = None if held else version_with(cut, checkpoint)
    return SinkResult(table=cut.table, checkpoint=checkpoint, version=version, rows=rows)


def _checkpoints_of_round(store: CheckpointStore, manifest: Manifest, checkpoint: CheckpointId) -> Iterator[Manifest]:
    """Yields the checkpoints of a round up to ``checkpoint``, newest first, as far back as they can be used."""
    try:
        newest = manifest if manifest.checkpoint == checkpoint else store.manifest(checkpoint)
        yield from takewhile(lambda m: m.round == newest.round, store.ancestry(newest))
    except (NotFoundError, CorruptDocumentError):
        return  # a manifest was deleted after its checkpoint was public and superseded, or was damaged
