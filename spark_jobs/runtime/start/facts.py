"""Reads a home's past: all facts that :func:`~spark_jobs.runtime.start.decision.decide` needs. Does not need Spark.

The number of reads does not depend on the age of the home: the newest documents name the earlier ones that are needed.
"""

from dataclasses import replace
from functools import cache, partial

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import read_savepoint
from spark_jobs.control.channel import Channel
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import AttemptNames
from spark_jobs.protocol.documents import AttemptDocument, CheckpointKind, Manifest, RoundDocument, StartResponse
from spark_jobs.protocol.ids import CheckpointId, RunId, SinkName, StageName
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.publication.evidence import version_with
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.start.decision import HomeFacts, named_savepoint, without_stages
from spark_jobs.storage.files import Files, side_by_side
from spark_jobs.storage.open import open_place


def read_facts(home: Files) -> HomeFacts:
    """Reads a home, which may be empty. Writes nothing.

    Raises:
        CorruptDocumentError: A document of an attempt, a request or a round is torn or altered.
        NotFoundError: The request of an attempt is missing.
        StorageError: The storage fails.
    """
    channel, store = Channel(home), CheckpointStore(home)
    answer_of = cache(channel.answer)
    (names, newest), latest, head = side_by_side(home, [partial(_newest_attempt, channel), Rounds(home).latest, store.head])
    if newest is None or (head is not None and head.incarnation != newest.incarnation):
        head = None
    restored, request = side_by_side(
        home, [partial(_restored, store, newest, head), lambda: begun_by(channel, newest) if newest else None]
    )
    return HomeFacts(
        newest_attempt=newest,
        latest_round=latest,
        answer_of=answer_of,
        final_of=lambda run: _final_of(channel, store, run, answer_of(run)),
        published=lambda: newest_public(store),
        head=head,
        begun_by=request,
        staging=latest is not None
        and newest is not None
        and ((head is not None and head.round == latest.round) or _has_staged(home, newest, latest, restored)),
        failed_backfill=newest is not None and latest is not None and _is_failed_backfill(home, newest, latest, head),
        restored=restored,
        begun=frozenset(names.begun),
        claimed=max(names.claimed, default=None),
    )


def _newest_attempt(channel: Channel) -> tuple[AttemptNames, AttemptDocument | None]:
    """Returns the names of all attempts, and the newest one that has begun."""
    names = channel.attempts.names()
    return names, channel.attempts.read(names.begun[-1]) if names.begun else None


def look_at_savepoint(request: StartRequest, facts: HomeFacts) -> HomeFacts:
    """Returns the facts with the manifest of the savepoint that a start begins with. Reads no other file of it.

    Raises:
        RejectedError: The named savepoint does not exist.
        CorruptDocumentError: Its manifest is torn or altered.
    """
    named = named_savepoint(request, facts)
    if named is not None:
        return replace(facts, savepoint=read_savepoint(open_place(named.savepoint))[1])
    begun_by = facts.begun_by
    if facts.head is None and not request.fresh and begun_by is not None and begun_by.restore is not None:
        manifest = read_savepoint(open_place(begun_by.restore.savepoint))[1]
        return replace(facts, begun_with=without_stages(manifest, facts.newest.refreshed))
    return facts


def begun_by(channel: Channel, attempt: AttemptDocument) -> StartRequest:
    """Returns the request that began the incarnation of an attempt, with the savepoint that the incarnation begins with."""
    found = channel.request(attempt.begun_by or attempt.request)
    if attempt.restore is None:
        return found
    return found.model_copy(update={"restore": attempt.restore, "on_rewind": attempt.on_rewind})


def newest_public(store: CheckpointStore) -> dict[SinkName, CheckpointId]:
    """Returns the newest checkpoint of any incarnation that each sink has made public; sinks without one are left out.

    Raises:
        NotFoundError: The table of a sink is missing.
    """
    found: dict[SinkName, CheckpointId] = {}
    for manifest in store.manifests():  # ascending
        for sink, cut in manifest.sinks.items():
            if version_with(cut, manifest.checkpoint) is not None:
                found[sink] = manifest.checkpoint
    return found


def _restored(store: CheckpointStore, newest: AttemptDocument | None, head: Manifest | None) -> Manifest | None:
    """Returns the checkpoint that the newest attempt went on from, or None, also if it cannot be used any more."""
    if newest is None or newest.restored_from is None:
        return None
    if head is not None and head.checkpoint == newest.restored_from:
        return head
    return store.usable(newest.restored_from)


def _final_of(channel: Channel, store: CheckpointStore, run: RunId, given: StartResponse | None) -> Manifest | None:
    """Returns the final checkpoint of the round that a run has had an attempt at, or None.

    The run's answer names it. If the run was never answered although others have ended its round, all later checkpoints are read.
    """
    if given is not None and given.checkpoint is not None:
        found = store.usable(given.checkpoint)
        return found if found and found.checkpoint_kind is CheckpointKind.FINAL else None
    own = channel.newest_attempt(run)
    for number in reversed(store.taken()) if own else ():
        manifest = store.usable(number)
        if own is None or (manifest and manifest.round < own.round):
            break
        if manifest and manifest.round == own.round and manifest.checkpoint_kind is CheckpointKind.FINAL:
            return manifest
    return None


def _is_failed_backfill(home: Files, attempt: AttemptDocument, latest: RoundDocument, head: Manifest | None) -> bool:
    """Returns True if the latest round was begun to backfill losses, and has staged no batch after the checkpoint before it."""
    if not latest.for_backfill or head is None or head.round >= latest.round:
        return False
    work = home.below(attempt.work_directory.path)
    before = {stage: cut.batch for stage, cut in head.stages.items()}
    stages = [StageName(stage) for stage in latest.graph.get("stages", {})]
    return all(PrivateLog(work, log_directory(stage), "").latest() - 1 <= before.get(stage, NO_BATCH) for stage in stages)


def _has_staged(home: Files, attempt: AttemptDocument, latest: RoundDocument, restored: Manifest | None) -> bool:
    """Returns True if a batch of the latest round was planned. Then its pins and parameters cannot change any more."""
    work = home.below(attempt.work_directory.path)
    before = {} if restored is None else {stage: cut.batch for stage, cut in restored.stages.items()}
    return any(
        SparkLog(work, checkpoint_directory(StageName(stage))).last_offsets() > before.get(StageName(stage), NO_BATCH)
        for stage in latest.graph.get("stages", {})
    )
