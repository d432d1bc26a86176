"""The trigger that watches the published checkpoints of a pipeline, for DAGs that are scheduled on an asset."""

from typing import Any

from airflow_provider.triggers.home_events import HomeEventTrigger
from airflow_provider.waits.public_checkpoints import PublicationSearch, PublicCheckpoint
from spark_jobs.protocol.ids import CheckpointId, PipelineUuid
from spark_jobs.storage.files import Files


class PublicationTrigger(HomeEventTrigger[PublicCheckpoint]):
    """Sends an event for each checkpoint of a home that has become public in every table. Only reads; never ends.

    Use it with an :class:`airflow.sdk.AssetWatcher`. The event has the ``home``, the ``checkpoint``, and ``tables``: by sink its
    ``table``, a URI, and ``version``, the Delta version right after it became public. ``behind`` lists the sinks whose tables show less
    than the others, and ``exact`` is False while losses of the checkpoint are open. A busy DAG sees several events as one run. So a
    consumer asks the home what is public (:func:`spark_jobs.consistent_versions`).

    The position is kept in the asset's state store, and a restarted triggerer continues after it. If a triggerer dies within seconds of
    an event, that event may be sent twice, but it is never lost. Without a stored position, the newest public checkpoint is sent. Airflow
    below 3.3 has no such store: each start of a triggerer then begins like the first one.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative path starts at the first root.
        conn_id: The connection, of type ``stream_pipeline``.
        poll_interval_s: The pause between two looks while the home changes.
        max_poll_interval_s: The pause after some time without a change; None: 3 s, and 30 s in an object store.

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
        return {
            "checkpoint": found.checkpoint,
            "tables": tables,
            "behind": list(found.tables.behind),
            "exact": found.tables.exact,
        }

    def position(self, found: PublicCheckpoint) -> dict[str, Any]:
        """See :meth:`HomeEventTrigger.position`."""
        return {"pipeline": found.pipeline, "checkpoint": found.checkpoint}
