"""Finds losses that a pipeline has recorded since the last search."""

from airflow_provider.waits.looking import Listing
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.home.layout import LossNames
from spark_jobs.protocol.documents import RecordedLoss
from spark_jobs.protocol.ids import PipelineUuid, RoundNumber
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
        new = [loss for loss, position in names.recorded.items() if self._seen is None or position > self._seen]
        found = [ledger.read(loss) for loss in new if loss not in names.accepted | names.undone]
        self._names = names
        self._seen = max(names.recorded.values(), default=self._seen)
        return [(pipeline.uuid, loss) for loss in found]
