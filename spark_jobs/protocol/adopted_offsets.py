"""A part of the round document; see :mod:`spark_jobs.protocol.documents`."""

from spark_jobs.protocol.codec import Part
from spark_jobs.protocol.ids import BatchId


class AdoptedOffsets(Part):
    """Where an old Spark query stopped, and a source of ours goes on."""

    checkpoint: str
    """URL of the old query's checkpoint directory."""
    query: str
    """Spark's id of the old query; empty where it is not known."""
    batch: BatchId
    """Its last batch, which is committed."""
    offset: str
    """The source's line of that batch's entry in the old offset log."""
