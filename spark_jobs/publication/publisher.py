"""Phase 2 of the two-phase commit: what complete checkpoints have staged becomes public, each row once.

Anyone may publish, any number of times, at once, from anywhere. Three things make that safe:

1. A Delta transaction carries ``SetTransaction(app id, k)`` and is conditional on the version that was read on the same handle.
2. Whatever goes wrong, the table itself is asked what it has; no memory of an earlier try is used.
3. All sinks are checked before anything is written to any of them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random_exponential

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.home import check_workspace
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import publication_lock_path
from spark_jobs.protocol.documents import Manifest, Publish, Publisher, SinkCut, SinkResult
from spark_jobs.protocol.errors import (
    BEGIN_ANEW,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import AppId, CheckpointId, SinkName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_rs import OpenTable, open_table, refuse_unsupported
from spark_jobs.publication.evidence import line_after, version_with
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
from spark_jobs.storage.files import Files, local_path

_TRIES = 12
_TURN_TIMEOUT_S = 600.0
WITHOUT_SPARK = Publishers()
"""Every sink that delta-rs can publish, and no other."""
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
    """Makes a complete checkpoint, and all before it in its incarnation, public in its sinks.

    Idempotent: what is public already is left alone and reported the same way, also where the pipeline has gone on and has discarded
    the checkpoint since: only its rows are not counted any more. Sinks are published one after the other, in topological order; after a
    crash in between the same call does the rest. Sinks that are behind come first: one whose table refuses holds the others.

    Args:
        files: The home.
        checkpoint: The checkpoint; by default the newest valid one.
        sinks: Only these; by default all.
        by_policy: Leave out what is not due: sinks with :attr:`Publish.EXTERNAL`, and sinks with :attr:`Publish.FINAL` unless the
            checkpoint is final or drained. What a sink lacks becomes public in one transaction. Without it, each checkpoint has one of its
            own; an external sink is published, and one that is published by round is refused unless the checkpoint ends its round.
        policy: Instead of the policy that the manifest records for each sink.
        publishers: Who makes the Delta transactions; by default sinks that need Spark are refused.

    Returns:
        Per chosen sink the Delta version in which the checkpoint's rows are public (None while they are staged only), and the
        rows that the checkpoint's round has added up to it.

    Raises:
        SparkRequiredError: A sink is published by Spark, and ``publishers`` has none. Nothing was written.
        RejectedError: No such checkpoint or sink, a table was changed since staging, its incarnation was closed, or the table has
            reached a checkpoint that is not on the chain. Nothing was written.
        CorruptDocumentError: A manifest or a file of actions was altered. Nothing was written.
        NotFoundError: A table, a staged file or a document is gone. Nothing was written.
        ConflictError: Others were faster every time.
        OutcomeUnknownError: The storage did not say what happened; repeat.
        StorageError: The storage fails; repeat.
    """
    planned = plan_publication(files, checkpoint, sinks=sinks, by_policy=by_policy, policy=policy)
    planned.require(publishers)
    return planned.carry_out(publishers)


@dataclass(frozen=True)
class Published:
    """What a publication by policy has come to.

    Args:
        results: As of :func:`publish`. A held sink has no version.
        held: By sink that has a hold what its table has refused. The others are public.
    """

    results: Mapping[SinkName, SinkResult]
    held: Mapping[SinkName, StreamPipelineError]


def publish_due(files: Files, checkpoint: CheckpointId, publishers: Publishers, *, holds: bool = True) -> Published:
    """Publishes a checkpoint by the policies of its sinks, as :func:`publish`; without tables that refuse, as long as their holds last.

    With ``holds=False`` no hold counts.
    """
    planned = plan_publication(files, checkpoint, by_policy=True, holds=holds)
    planned.require(publishers)
    results = planned.carry_out(publishers)
    return Published(results, planned.holding.refused)


@dataclass(frozen=True)
class Publication:
    """What a publication would do. All of it was checked, and nothing was written.

    Made by :func:`plan_publication`. Several can be planned before the first is carried out: then none is, if one is refused.
    """

    files: Files
    checkpoint: CheckpointId
    manifest: Manifest
    """The checkpoint's; where it was public and was discarded since, the head of its incarnation."""
    sinks: frozenset[SinkName]
    """Those that are asked for."""
    by_round: frozenset[SinkName]
    """Those of them that are published with a round as a whole."""
    plans: Mapping[SinkName, Sequence[PendingTransaction]]
    """By sink that is due what it lacks; none where everything is public."""
    holding: Holding
    """The tables that it goes on without."""
    together: bool = False
    """Whether all that a sink lacks becomes public in one transaction."""
    turns: Files | None = None
    """The home in which publications by Spark take turns; by default it is ``files``."""

    @property
    def was_discarded(self) -> bool:
        """Whether the checkpoint is not there any more: it was public, so that there is nothing to do."""
        return self.manifest.checkpoint != self.checkpoint

    @property
    def by_spark(self) -> list[SinkName]:
        """The sinks that lack something which only Spark can publish, or check."""
        return [sink for sink, plan in self.plans.items() if any(_needs_spark(transaction) for transaction in plan)]

    def require(self, publishers: Publishers) -> None:
        """Refuses publishers that cannot do all of it.

        Raises:
            SparkRequiredError: A sink is published by Spark, and there is none. Nothing was written.
        """
        for sink in self.by_spark:
            publishers.require(Publisher.SPARK, f"Sink {sink}")

    def check(self, publishers: Publishers) -> None:
        """Refuses rows that a table does not take, as far as that is seen before they are written.

        Raises:
            UnsupportedTableError: A table does not take rows of a checkpoint.
            SparkRequiredError: Only Spark can tell, and there is none.
        """
        for sink, plan in self.plans.items():
            with self.holding.of(sink):
                for transaction in plan:
                    cut = transaction.cut(sink)
                    _refuse_unkept(sink, transaction, cut.table, transaction.conditions, publishers)
                    if _replaces_own(transaction, cut):
                        _refuse_rows_of_others(sink, transaction, cut, publishers)

    def carry_out(self, publishers: Publishers = WITHOUT_SPARK) -> dict[SinkName, SinkResult]:
        """Does it; results, errors and idempotence are those of :func:`publish`."""
        store, manifest = CheckpointStore(self.files), self.manifest
        store.make_durable({m.checkpoint for plan in self.plans.values() for transaction in plan for m in transaction.manifests})
        self.check(publishers)
        for sink, plan in self.plans.items():
            if sink not in self.holding.refused:
                with self.holding.of(sink):
                    again = partial(prepare, store, manifest, sink, by_round=sink in self.by_round, together=self.together)
                    _publish_sink(manifest, sink, again, plan, publishers, self.turns or self.files)
        return {
            sink: _result(store, manifest, sink, self.checkpoint, held=sink in self.holding.refused)
            for sink in ordered_sinks(manifest)
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
) -> Publication:
    """Checks what :func:`publish` would do, with its arguments and its errors; writes nothing.

    With ``holds`` it goes on without tables that refuse, as long as their holds last.
    """
    store = CheckpointStore(files)
    try:
        manifest = chosen_manifest(store, checkpoint)
    except RejectedError:
        # Who has published it may ask again after its pipeline has gone on, and has discarded it.
        if checkpoint is None or (head := line_after(store, checkpoint)) is None:
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
            plans[sink] = _persist(partial(prepare, store, manifest, sink, by_round=sink in by_round, together=by_policy))
    return Publication(files, number, manifest, wanted, by_round, _behind_first(plans, manifest), holding, by_policy)


def published(files: Files, checkpoint: CheckpointId) -> dict[SinkName, SinkResult]:
    """What :func:`publish` would return, read back without publishing anything: also for an incarnation that was closed.

    Raises:
        RejectedError: There is no such checkpoint.
        CorruptDocumentError: Its manifest was altered.
        NotFoundError: A table is gone.
        StorageError: The storage fails; repeat.
    """
    store = CheckpointStore(files)
    manifest = chosen_manifest(store, checkpoint)
    return {sink: _result(store, manifest, sink, checkpoint) for sink in ordered_sinks(manifest)}


def never_public(manifest: Manifest, results: Mapping[SinkName, SinkResult]) -> RejectedError | None:
    """Returns why the run of a checkpoint of a closed incarnation has not succeeded: rows of it can never become public any more.

    Args:
        manifest: The checkpoint.
        results: Of :func:`published`.
    """
    lost = [sink for sink, cut in manifest.sinks.items() if cut.publish is not Publish.EXTERNAL and results[sink].version is None]
    if not lost:
        return None
    return RejectedError(
        f"Checkpoint {manifest.checkpoint} of run {manifest.run} was never published into {', '.join(lost)}, and never can be.",
        exists="A later start began a new incarnation, which closed this one.",
        safe="Nothing was changed.",
        remedy="Use the answer of the later run.",
        checkpoint=manifest.checkpoint,
        sinks=lost,
    )


@dataclass(frozen=True, order=True)
class SinkLine:
    """What one incarnation publishes into one sink."""

    sink: SinkName
    table: str
    app: AppId
    publisher: Publisher
    has_keys: bool = False
    """Whether the sink's rows are merged by keys: Spark may publish some of them, and delta-rs others."""


def close_incarnation(files: Files, line: SinkLine, decided_on: CheckpointId | None, publishers: Publishers) -> None:
    """Makes sure that no pending publication of an abandoned incarnation can ever land in one table.

    Idempotent, durable on return.

    Args:
        files: The home.
        line: What is closed.
        decided_on: The checkpoint that the table had reached when it was decided to abandon the incarnation.
        publishers: Who makes the Delta transaction.

    Raises:
        ConflictError: The table has reached another checkpoint meanwhile: decide again.
        NotFoundError: There is no table.
        UnsupportedTableError: The line's publisher cannot commit to the table.
        OutcomeUnknownError: Repeat.
        StorageError: The storage fails; repeat.
    """
    try:
        found = _close(files, line, decided_on, publishers, line.publisher)
    except UnsupportedTableError:  # the table may have become one that only Spark can commit to
        if line.publisher is Publisher.SPARK or open_table(line.table).obstacles(Publisher.SPARK):
            raise
        found = _close(files, line, decided_on, publishers, Publisher.SPARK)
    if found not in (decided_on, CLOSED):
        raise ConflictError(
            f"Table {line.table} has reached checkpoint {found}, not {decided_on}: the incarnation was published meanwhile.",
            safe="It was not closed.",
            remedy="Look at the home again and decide anew.",
            table=line.table,
            expected=decided_on,
            found=found,
        )


def _close(
    files: Files, line: SinkLine, decided_on: CheckpointId | None, publishers: Publishers, publisher: Publisher
) -> CheckpointId | None:
    """Closes a line unless its table has reached another checkpoint than it was decided on; returns which it had reached."""

    def close() -> CheckpointId | None:
        transaction = publishers.begin(publisher, line.table, line.app)
        reached = transaction.table.transaction_version(line.app)
        if reached == decided_on:
            refuse_unsupported(transaction.table, publisher)
            with step(Step.INCARNATION_CLOSE):
                _land(lambda: transaction.close(CLOSED, {"closed": line.app}), line.table, line.app, CLOSED)
        return reached

    with _alone(files, line.sink, takes_turns=publisher is Publisher.SPARK or line.has_keys):
        return _persist(close)


def _behind_first(
    plans: Mapping[SinkName, Sequence[PendingTransaction]], manifest: Manifest
) -> dict[SinkName, Sequence[PendingTransaction]]:
    """Returns the plans in the order in which they are carried out.

    The table that is behind comes first: while it refuses, no other gets further ahead of it. Of tables that are equally far, those with
    a hold come first: where others are ahead of such a table, it has refused.
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
    turns: Files,
) -> None:
    """Commits a plan; makes a new one whenever the table is not where the plan expects it. ``turns`` is the home of :func:`_alone`."""
    checked: Sequence[PendingTransaction] | None = plan

    def carry_out() -> None:
        nonlocal checked
        transactions, checked = checked, None
        if transactions is None:
            transactions = plan_again()
        if not transactions:
            return
        cut, by = manifest.sinks[sink], {transaction.publisher for transaction in transactions}
        with _alone(turns, sink, takes_turns=Publisher.SPARK in by or cut.mode.has_keys):
            for transaction in transactions:
                _commit(sink, transaction, publishers)
            table = _confirm(cut, sink, manifest.checkpoint)
            publishers.keep_deleted_keys_small(cut, table.transaction_version(cut.app))
        if Publisher.DELTA_RS in by:
            publishers.keep_log_short(table)

    _persist(carry_out, tries=_TRIES + len(plan))  # each transaction that somebody else makes costs at most one try


def _commit(sink: SinkName, pending: PendingTransaction, publishers: Publishers) -> None:
    manifest, cut = pending.manifest, pending.cut(sink)
    transaction = publishers.begin(pending.publisher, cut.table, cut.app)
    refuse_overtaken(sink, transaction.table.transaction_version(cut.app), pending.after)
    refuse_changed(transaction.table, sink, pending.manifests)
    if transaction.table.obstacles(pending.publisher, cut.mode):
        raise ConflictError(
            f"Somebody else has changed table {cut.table} since it was looked at: it is published by another publisher now.",
            safe="Nothing was committed.",
            remedy="Repeat: the table is looked at anew.",
            table=cut.table,
        )
    if pending.lines:
        _refuse_unkept(sink, pending, cut.table, conditions_now(cut, transaction.table), publishers)
    if _replaces_own(pending, cut):
        _refuse_rows_of_others(sink, pending, cut, publishers)
    info = {
        "pipeline": manifest.pipeline_name,
        "pipeline_uuid": manifest.pipeline,
        "incarnation": manifest.incarnation,
        "sink": sink,
        "checkpoint": manifest.checkpoint,
        "attempt": manifest.attempt,
        "round": manifest.round,
        "run": manifest.run,
    }
    version = manifest.checkpoint

    def land() -> None:
        # Again, as late as possible: a VACUUM may have run since everything was checked.
        refuse_missing(cut, sink, pending.after, [line["add"] for line in pending.lines])
        transaction.publish(cut, pending.lines, version, info, replace=pending.replace)

    with step(Step.PUBLISH_SINK):
        _land(land, cut.table, cut.app, version)


def _needs_spark(pending: PendingTransaction) -> bool:
    return pending.publisher is Publisher.SPARK or bool(pending.conditions)


def _replaces_own(pending: PendingTransaction, cut: SinkCut) -> bool:
    """Returns whether a transaction may replace only rows that the pipeline published before it was begun anew: rows of others stay.

    Later transactions of a complete result replace all rows of the table, whoever has written them.
    """
    return pending.replace and cut.replaces_own and pending.after is None


def _refuse_rows_of_others(sink: SinkName, pending: PendingTransaction, cut: SinkCut, publishers: Publishers) -> None:
    files = publishers.rows_by_file(pending.publisher, cut.table)
    refuse_rows_of_others(open_table(cut.table), pending.manifest.pipeline, sink, cut.mode, cut.stage, files)


def _refuse_unkept(
    sink: SinkName, pending: PendingTransaction, table: str, conditions: Mapping[str, str], publishers: Publishers
) -> None:
    """Refuses rows that do not keep what the table asks of its rows since they were staged.

    Raises:
        UnsupportedTableError: Names the constraint, and how many rows break it.
        SparkRequiredError: Only Spark can tell, and there is none.
    """
    if not conditions:
        return
    publishers.require(Publisher.SPARK, f"A new constraint of sink {sink} ({', '.join(conditions)})")
    broken = {name: rows for name, rows in publishers.count_breaking(table, pending.lines, conditions).items() if rows}
    if broken:
        counts = ", ".join(f"{rows} rows break {name} ({conditions[name]})" for name, rows in broken.items())
        raise UnsupportedTableError(
            f"Sink {sink}: table {table} was changed, and rows of checkpoint {pending.manifest.checkpoint} do not fit it any "
            f"more: {counts}.",
            exists="The rows stay staged.",
            safe="Nothing was written to any table.",
            remedy=f"Drop the constraint (ALTER TABLE … DROP CONSTRAINT) and publish again; or {BEGIN_ANEW}.",
            sink=sink,
            table=table,
            checkpoint=pending.manifest.checkpoint,
            broken=broken,
        )


def _confirm(cut: SinkCut, sink: SinkName, checkpoint: CheckpointId) -> OpenTable:
    """Opens the table and checks that what was committed is in its log.

    A writer whose log store is no compare-and-swap may have replaced it.
    """
    table = open_table(cut.table)
    reached = table.transaction_version(cut.app)
    if reached is None or reached < checkpoint:
        raise ConflictError(
            f"Sink {sink}: another writer has replaced the commit that made checkpoint {checkpoint} public.",
            exists=f"Table {cut.table} has reached checkpoint {reached}.",
            safe="No row is doubled when it is published again.",
            remedy="Keep other Spark applications from writing to the table at the same time: on a disk all of them; in S3 those with "
            "Delta's default log store.",
            sink=sink,
            table=cut.table,
            checkpoint=checkpoint,
            found=reached,
        )
    return table


@contextmanager
def _alone(files: Files, sink: SinkName, *, takes_turns: bool) -> Iterator[None]:
    """Lets one process at a time publish into a sink that Spark may publish into.

    Spark's log on a local file system is no compare-and-swap between processes.
    """
    if not takes_turns:
        yield
        return
    check_workspace(files)  # an empty place under its path would be a turn of its own
    patient = Retrying(
        retry=retry_if_exception_type(BlockingIOError),
        stop=stop_after_delay(_TURN_TIMEOUT_S),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        reraise=True,
    )
    with ExitStack() as stack:
        try:
            patient(lambda: stack.enter_context(holding(local_path(files, publication_lock_path(sink)), str(os.getpid()))))
        except BlockingIOError as error:
            raise ConflictError(
                f"Sink {sink} has been published by another process for {_TURN_TIMEOUT_S:.0f} s.",
                safe="This one has written nothing.",
                remedy="Look at that process, then repeat.",
                sink=sink,
            ) from error
        yield


def _land(commit: Callable[[], None], table: str, app: AppId, version: CheckpointId) -> None:
    """Runs ``commit``; an error after which the table has the version all the same is none."""
    try:
        commit()
    except (OutcomeUnknownError, StorageError):
        if open_table(table).transaction_version(app) != version:
            raise


def _persist(call: Callable[[], T], tries: int = _TRIES) -> T:
    """Repeats ``call``, which looks at the table anew each time, while others are faster or the answer is lost."""
    return Retrying(
        retry=retry_if_exception_type((ConflictError, OutcomeUnknownError)),
        stop=stop_after_attempt(tries),
        wait=wait_random_exponential(multiplier=0.02, max=1),
        reraise=True,
    )(call)


def _result(
    store: CheckpointStore, manifest: Manifest, sink: SinkName, checkpoint: CheckpointId, *, held: bool = False
) -> SinkResult:
    """What ``checkpoint`` has left in a sink; ``manifest`` is its own, or a later one of its incarnation. A held table is not read."""
    cut, rows, oldest = manifest.sinks[sink], 0, None
    for oldest in _round(store, checkpoint):
        rows += oldest.sinks[sink].actions.rows if sink in oldest.sinks else 0
        rows += sum(each.actions.rows for each in oldest.brought.get(sink, ()))
    if oldest and sink in oldest.sinks and oldest.parent is not None and store.kept(oldest.parent) is None:
        rows += sum(each.actions.rows for each in oldest.sinks[sink].carried if each.round in (None, oldest.round))
    version = None if held else version_with(cut, checkpoint)
    return SinkResult(table=cut.table, checkpoint=checkpoint, version=version, rows=rows)


def _round(store: CheckpointStore, checkpoint: CheckpointId) -> Iterator[Manifest]:
    """The checkpoints of a checkpoint's round up to it, newest first, as far back as they still exist."""
    try:
        ancestry = store.ancestry(checkpoint)
        newest = next(ancestry)
        yield from takewhile(lambda m: m.round == newest.round, chain([newest], ancestry))
    except NotFoundError:
        return  # deleted once it was public and superseded
