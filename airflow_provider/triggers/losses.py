"""The trigger that watches the losses of a pipeline, for DAGs that are scheduled on an asset."""

from typing import Any

from airflow_provider.facts import loss_facts
from airflow_provider.triggers.home_events import HomeEventTrigger
from airflow_provider.waits.new_losses import LossSearch
from spark_jobs.home.layout import position_of_loss
from spark_jobs.protocol.documents import RecordedLoss
from spark_jobs.protocol.ids import LossId, PipelineUuid
from spark_jobs.storage.files import Files


class LossTrigger(HomeEventTrigger[tuple[PipelineUuid, RecordedLoss]]):
    """Sends an event for each recorded loss that is not accepted. Only reads; never ends.

    Use it with an :class:`airflow.sdk.AssetWatcher`. The event has the ``home``, ``loss`` (its id in the ledger), ``source``, ``stage``,
    ``run``, ``rows_at_most`` (None if unknown) and, in words, ``lost``. A busy DAG sees several events as one run.

    The position is kept in the asset's state store, and a restarted triggerer continues after it. If a triggerer dies within seconds of
    an event, that event may be sent twice, but it is never lost. Without a stored position, all open losses are sent. Airflow below 3.3
    has no such store: each start of a triggerer then begins like the first one.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative path starts at the first root.
        conn_id: The connection, of type ``stream_pipeline``.
        poll_interval_s: The pause between two looks while the home changes.
        max_poll_interval_s: The pause after some time without a change; None: 3 s, and 30 s in an object store.

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
