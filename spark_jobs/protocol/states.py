"""The states of long-running activities."""

from enum import StrEnum


class StopState(StrEnum):
    """The state of a stop."""

    REQUESTED = "requested"
    """The stop was requested."""
    ACKNOWLEDGED = "acknowledged"
    """The attempt has accepted it as its only stop."""
    QUIESCED = "quiesced"
    """No source is read any more, and all rows that were read have passed all stages."""
    DRAINED = "drained"
    """Windows, joins and timers are flushed through all stages."""
    CHECKPOINTED = "checkpointed"
    """The checkpoint is complete."""
    SAVED = "saved"
    """The savepoint, the user's copy of the checkpoint, is complete."""
    PUBLISHED = "published"
    """The policy of each sink is satisfied."""
    STOPPED = "stopped"
    """The requester has the answer, and the attempt ends."""
    REJECTED = "rejected"
    """Another stop was first."""
    FAILED = "failed"
    """There is no checkpoint for it. The pipeline runs on."""
    INCOMPLETE = "incomplete"
    """The checkpoint is complete, a later step has failed, and the next attempt rolls forward."""
