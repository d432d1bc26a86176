"""A part of the round document; see :mod:`spark_jobs.protocol.documents`."""

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.ids import BatchId


class AdoptedOffsets(Part):
    """The position at which an old Spark query stopped and a source of the pipeline continues."""

    checkpoint: str
    """URL of the old query's checkpoint directory."""
    query: str
    """Spark's id of the old query; empty if it is not known."""
    batch: BatchId
    """The last committed batch of the old query."""
    offset: str
    """The source's line of that batch's entry in the old offset log."""
