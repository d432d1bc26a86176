"""The trigger that watches what a running pipeline makes public, for DAGs that are scheduled on an asset."""

from typing import Any

from airflow_provider.triggers.home_events import HomeEventTrigger
from airflow_provider.waits.public_checkpoints import PublicationSearch, PublicCheckpoint
from spark_jobs.protocol.ids import CheckpointId, PipelineUuid
from spark_jobs.storage.files import Files


class PublicationTrigger(HomeEventTrigger[PublicCheckpoint]):
    """Sends an event for each checkpoint of a home that has become public in every table. Only reads; never ends.

    For an :class:`airflow.sdk.AssetWatcher`. The event has the ``home``, the ``checkpoint``, and ``tables``: by sink its ``table``, a
    URI, and ``version``, the Delta version right after it became public. Under ``behind`` it has the sinks whose tables show less than the
    others. Events coalesce: a DAG that was busy sees several as one run,
    so that consumers ask the home what is public (:func:`spark_jobs.consistent_versions`).

    What was sent is kept in the asset's state store: a triggerer that is started anew goes on after it. One that dies within seconds
    of an event may send that event twice, never not at all. Where nothing is kept yet, the newest public checkpoint is sent; Airflow below
    3.3 keeps nothing, so that each start of a triggerer sends it.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative one starts at the first root.
        conn_id: The connection, of type ``stream_pipeline``.
        poll_interval_s: Between two looks at the home, while it changes.
        max_poll_interval_s: The same, once it has not changed for a while; None: 3 s, and 30 s in an object store.

    Raises:
        ValueError: ``poll_interval_s`` is not above 0.
    """

    what = "public checkpoints"
    key = "stream_pipeline"

    def search(self, files: Files, kept: dict[str, Any] | None) -> PublicationSearch:
        """See :meth:`HomeEventTrigger.search`."""
        if kept is None:
            return PublicationSearch(files, None, None)
        return PublicationSearch(files, PipelineUuid(str(kept["pipeline"])), CheckpointId(int(kept["checkpoint"])))

    def payload(self, found: PublicCheckpoint) -> dict[str, Any]:
        """See :meth:`HomeEventTrigger.payload`."""
        tables = {str(sink): {"table": table, "version": version} for sink, (table, version) in found.tables.items()}
        return {"checkpoint": found.checkpoint, "tables": tables, "behind": list(found.tables.behind)}

    def position(self, found: PublicCheckpoint) -> dict[str, Any]:
        """See :meth:`HomeEventTrigger.position`."""
        return {"pipeline": found.pipeline, "checkpoint": found.checkpoint}
