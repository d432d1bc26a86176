"""What is remembered of each try at a checkpoint. For people and plots: nothing is decided by it."""

from datetime import datetime

from pydantic import Field

from spark_jobs.protocol.codec import Document, Part
from spark_jobs.protocol.documents import CheckpointKind, ErrorReport
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, StageName


class StepTime(Part):
    """How long one step of a checkpoint took."""

    step: str
    duration_s: float


class CheckpointHistory(Document):
    """``history/<k>-<try>.json``: what happened to one try at checkpoint k."""

    kind = "checkpoint_history"
    checkpoint: CheckpointId
    checkpoint_kind: CheckpointKind
    attempt: AttemptNumber
    began_at: datetime
    steps: tuple[StepTime, ...]
    files: int
    size_bytes: int
    rows: int
    aligned: bool | None = None
    """Whether it waited until stages had read what lay before them, but for failing ones. None where the try has failed before its cut."""
    behind: tuple[StageName, ...] = ()
    """As in the manifest."""
    alignment_s: float = 0.0
    """How long it waited for that, with success or without."""
    in_flight_rows: int = 0
    """Rows between two stages at the cut: named by the checkpoint, never written again. A version that was read in part counts whole."""
    in_flight_bytes: int = 0
    new_state_files: int = 0
    """Files of Spark's own checkpoints that this one has copied, or linked,"""
    new_state_bytes: int = 0
    reused_state_files: int = 0
    """and those that an earlier one had copied."""
    reused_state_bytes: int = 0
    finished: tuple[StageName, ...] = ()
    """Stages that were at their end before the cut."""
    ended_inputs: dict[StageName, tuple[str, ...]] = Field(default_factory=dict)
    """By stage that runs on those of its inputs that had ended."""
    violations: dict[StageName, dict[str, int]] = Field(default_factory=dict)
    """By stage and expectation the rows that violate it since the round began."""
    failure: ErrorReport | None = None
