"""The trigger that watches the losses of a pipeline, for DAGs that are scheduled on an asset."""

from typing import Any

from airflow_provider.facts import loss_facts
from airflow_provider.triggers.home_events import HomeEventTrigger
from airflow_provider.waits.checkpoints import Listing
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.home.layout import LossNames, position_of_loss
from spark_jobs.protocol.documents import RecordedLoss
from spark_jobs.protocol.ids import LossId, PipelineUuid, RoundNumber
from spark_jobs.storage.files import Files

LossPosition = tuple[RoundNumber, int]
"""The round of a loss, and its number in that round."""


class LossSearch:
    """Searches a home for losses that are not accepted. A search without new losses lists one directory.

    Args:
        files: The home.
        pipeline: The pipeline whose losses were found before; None: none were.
        seen: The newest loss that was found before.
    """

    def __init__(self, files: Files, pipeline: PipelineUuid | None, seen: LossPosition | None) -> None:
        self._files, self._pipeline, self._seen = files, pipeline, seen
        self._names: LossNames | None = None

    def find(self, listing: Listing) -> list[tuple[PipelineUuid, RecordedLoss]]:
        """Returns the open losses that were not found before, oldest first, each with its pipeline.

        Raises:
            StorageError: The home cannot be read.
        """
        ledger = LossLedger(self._files)
        names = ledger.names()
        if names == self._names:
            return []
        pipeline = Channel(self._files).pipeline()
        if pipeline is None:
            return []
        if pipeline.uuid != self._pipeline:  # a new home was made at the same place
            self._pipeline, self._seen = pipeline.uuid, None
        new = [loss for loss in names.open if self._seen is None or names.recorded[loss] > self._seen]
        found = [ledger.read(loss) for loss in new]
        self._names = names
        self._seen = max(names.recorded.values(), default=self._seen)
        return [(pipeline.uuid, loss) for loss in found]


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
