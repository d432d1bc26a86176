"""The rows that a savepoint holds staged, made public by a home that goes on from it: the one that staged them may be gone."""

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import unquote

from spark_jobs.checkpoint.savepoint_files import pending_actions, staged_path
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication.publisher import plan_publication
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.start.savepoint_import import OpenedSavepoint, copy_files
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_files


def take_pending(home: Files, opened: OpenedSavepoint, sinks: Iterable[SinkName], publishers: Publishers) -> None:
    """Publishes what a savepoint holds staged into the tables that it is staged for; idempotent, durable on return.

    It is published as the line that has staged it, under its app ids: each row once, also where the home of that line does the same.

    Args:
        home: The home that goes on.
        opened: The savepoint; it is only read.
        sinks: Of it, whose rows stay in the tables; none of upserts, whose staged rows are not in the table's directory.
        publishers: Who makes the Delta transactions.

    Raises:
        StreamPipelineError: As :func:`~spark_jobs.publication.publisher.publish`.
    """
    store, manifest = CheckpointStore(opened.files), opened.manifest
    wanted = sorted(sinks)
    for sink in wanted:
        copies: dict[str, str] = {}
        for each in pending_actions(store, manifest, sink):
            adds = [line["add"] for line in store.read_actions(each)]
            copies |= {staged_path(manifest.sinks[sink].stage, add): unquote(add["path"]) for add in adds}
        copy_files(opened, open_files(manifest.sinks[sink].table), copies)
    planned = plan_publication(opened.files, manifest.checkpoint, sinks=wanted, policy=Publish.EXTERNAL)
    planned.require(publishers)
    replace(planned, turns=home).carry_out(publishers)
