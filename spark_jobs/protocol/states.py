"""Where things are that take their time."""

from enum import StrEnum


class StopState(StrEnum):
    """Where a stop is."""

    REQUESTED = "requested"
    """Somebody wants it."""
    ACKNOWLEDGED = "acknowledged"
    """It is the one stop of this attempt."""
    QUIESCED = "quiesced"
    """No source is read any more, and every row that was read has passed all stages."""
    DRAINED = "drained"
    """What windows, joins and timers held back is flushed, through all stages."""
    CHECKPOINTED = "checkpointed"
    """The checkpoint is complete."""
    SAVED = "saved"
    """The savepoint is: a copy of the checkpoint that is the user's own."""
    PUBLISHED = "published"
    """Each sink's policy is satisfied."""
    STOPPED = "stopped"
    """Whoever asked has the answer, and the attempt ends."""
    REJECTED = "rejected"
    """Another stop was first."""
    FAILED = "failed"
    """It has no checkpoint; the pipeline runs on."""
    INCOMPLETE = "incomplete"
    """It has a checkpoint, and the next attempt rolls forward."""
