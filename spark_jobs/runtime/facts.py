"""What a home says about its past: all that :func:`~spark_jobs.runtime.decision.decide` needs. Needs no Spark."""

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.rounds import Rounds
from spark_jobs.publication.evidence import published_checkpoints
from spark_jobs.runtime.decision import HomeFacts, final_manifests
from spark_jobs.storage.files import Files


def read_facts(home: Files) -> HomeFacts:
    """Reads a home, which may be empty; writes nothing.

    Raises:
        CorruptDocumentError: A document of an attempt, a request or a round is torn or altered.
        NotFoundError: The table of a sink is gone, or the request of an attempt.
        StorageError: The storage fails.
    """
    channel, store = Channel(home), CheckpointStore(home)
    attempts = [channel.attempts.read(number) for number in channel.attempts.numbers()]
    beginning = next((attempt for attempt in attempts if attempt.incarnation == attempts[-1].incarnation), None)
    manifests = final_manifests([store.manifest(k) for k in store.ids()])
    newest = manifests[max(manifests)] if manifests else None
    return HomeFacts(
        attempts=attempts,
        latest_round=Rounds(home).latest(),
        manifests=manifests,
        published=published_checkpoints(newest) if newest else {},
        begun_by=channel.request(beginning.request) if beginning else None,
    )
