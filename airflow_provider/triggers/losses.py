"""The trigger that watches what a pipeline leaves out of its sources, for DAGs that are scheduled on an asset."""

from typing import Any

from airflow_provider.facts import loss_facts
from airflow_provider.triggers.home_events import HomeEventTrigger
from airflow_provider.waits.new_losses import LossSearch
from spark_jobs.home.layout import position_of_loss
from spark_jobs.protocol.documents import RecordedLoss
from spark_jobs.protocol.ids import LossId, PipelineUuid
from spark_jobs.storage.files import Files


class LossTrigger(HomeEventTrigger[tuple[PipelineUuid, RecordedLoss]]):
    """Sends an event for each loss that a pipeline records and that nobody has accepted. Only reads; never ends.

    For an :class:`airflow.sdk.AssetWatcher`. The event has the ``home``, ``loss``, its id in the ledger, ``source``, ``stage``, ``run``,
    ``rows_at_most`` (None where nothing tells) and, in words, ``lost``. Events coalesce: a DAG that was busy sees several as one run.

    What was sent is kept in the asset's state store: a triggerer that is started anew goes on after it. One that dies within seconds
    of an event may send that event twice, never not at all. Where nothing is kept yet, all open losses are sent; Airflow below 3.3
    keeps nothing, so that each start of a triggerer sends them.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative one starts at the first root.
        conn_id: The connection, of type ``stream_pipeline``.
        poll_interval_s: Between two looks at the home, while it changes.
        max_poll_interval_s: The same, once it has not changed for a while; None: 3 s, and 30 s in an object store.

    Raises:
        ValueError: ``poll_interval_s`` is not above 0.
    """

    what = "losses"
    key = "stream_pipeline_losses"

    def search(self, files: Files, kept: dict[str, Any] | None) -> LossSearch:
        """See :meth:`HomeEventTrigger.search`."""
        if kept is None:
            return LossSearch(files, None, None)
        return LossSearch(files, PipelineUuid(str(kept["pipeline"])), position_of_loss(LossId(str(kept["loss"]))))

    def payload(self, found: tuple[PipelineUuid, RecordedLoss]) -> dict[str, Any]:
        """See :meth:`HomeEventTrigger.payload`."""
        _, recorded = found
        return loss_facts(recorded.loss) | {"run": recorded.run}

    def position(self, found: tuple[PipelineUuid, RecordedLoss]) -> dict[str, Any]:
        """See :meth:`HomeEventTrigger.position`."""
        pipeline, recorded = found
        return {"pipeline": pipeline, "loss": recorded.loss.id}
