"""What a home says about its past: all that :func:`~spark_jobs.runtime.start.decision.decide` needs. Needs no Spark."""

from collections.abc import Sequence

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import AttemptDocument, Manifest, RoundDocument
from spark_jobs.protocol.ids import CheckpointId, SinkName, StageName
from spark_jobs.publication.evidence import version_with
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.start.decision import HomeFacts, final_manifests
from spark_jobs.storage.files import Files


def read_facts(home: Files) -> HomeFacts:
    """Reads a home, which may be empty; writes nothing.

    Raises:
        CorruptDocumentError: A document of an attempt, a request or a round is torn or altered.
        NotFoundError: The table of a sink is gone, or the request of an attempt.
        StorageError: The storage fails.
    """
    channel, store = Channel(home), CheckpointStore(home)
    attempts = channel.attempts.begun()
    newest = attempts[-1] if attempts else None
    beginning = next((attempt for attempt in attempts if newest and attempt.incarnation == newest.incarnation), None)
    manifests = store.manifests()
    latest = Rounds(home).latest()
    own = [manifest for manifest in manifests if newest and manifest.incarnation == newest.incarnation]
    return HomeFacts(
        attempts=attempts,
        latest_round=latest,
        manifests=final_manifests(manifests),
        published=lambda: newest_public(manifests),
        head=own[-1] if own else None,
        begun_by=channel.request(beginning.request) if beginning else None,
        staging=latest is not None
        and newest is not None
        and (any(manifest.round == latest.round for manifest in own) or _has_staged(home, newest, latest)),
    )


def newest_public(manifests: Sequence[Manifest]) -> dict[SinkName, CheckpointId]:
    """The newest checkpoint of any incarnation that each sink has made public; sinks without one are left out."""
    found: dict[SinkName, CheckpointId] = {}
    for manifest in manifests:  # ascending
        for sink, cut in manifest.sinks.items():
            if version_with(cut, manifest.checkpoint) is not None:
                found[sink] = manifest.checkpoint
    return found


def _has_staged(home: Files, attempt: AttemptDocument, latest: RoundDocument) -> bool:
    """Whether a batch of the latest round was planned: then its pins and parameters can no longer change."""
    work = home.below(attempt.work_directory.path)
    parent = None if attempt.restored_from is None else CheckpointStore(home).manifest(attempt.restored_from)
    before = {} if parent is None else {stage: cut.batch for stage, cut in parent.stages.items()}
    return any(
        SparkLog(work, checkpoint_directory(StageName(stage))).last_offsets() > before.get(StageName(stage), NO_BATCH)
        for stage in latest.graph.get("stages", {})
    )
