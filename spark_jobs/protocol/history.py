"""The record of each try at a checkpoint, for people and plots. Nothing is decided by it."""

from datetime import datetime

from pydantic import BaseModel, Field

from spark_jobs.protocol.codec import Document, Part
from spark_jobs.protocol.documents import CheckpointKind, ErrorReport
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, StageName


class StepTime(Part):
    """The duration of one step of a checkpoint."""

    step: str
    duration_s: float


class CutFacts(BaseModel):
    """The facts about the cut of a try at a checkpoint."""

    checkpoint: CheckpointId
    aligned: bool | None = None
    """True if it waited until stages, except failing ones, had read the rows staged for them. None: the try failed before its cut, or
    nothing is recorded."""
    behind: tuple[StageName, ...] = ()
    """The stages that were failing at the cut or had unread rows in flight, and all stages downstream of them."""
    alignment_s: float = 0.0
    """Time that it waited for alignment, successfully or not."""
    in_flight_rows: int = 0
    """Rows in flight between two stages at the cut.

    The checkpoint names them without writing them again. Partly read versions count fully.
    """
    in_flight_bytes: int = 0
    new_state_files: int = 0
    """Files of Spark's checkpoints that this one has copied or linked."""
    new_state_bytes: int = 0
    reused_state_files: int = 0
    """Files of Spark's checkpoints that an earlier one had copied."""
    reused_state_bytes: int = 0
    finished: tuple[StageName, ...] = ()
    """Stages that had ended before the cut."""
    ended_inputs: dict[StageName, tuple[str, ...]] = Field(default_factory=dict)
    """Inputs that had ended, by stage that is still running."""
    violations: dict[StageName, dict[str, int]] = Field(default_factory=dict)
    """Rows since the round began that violate an expectation, by stage and expectation."""


class CheckpointHistory(CutFacts, Document):
    """``history/<k>-<try>.json``: the record of one try at checkpoint k."""

    kind = "checkpoint_history"
    checkpoint_kind: CheckpointKind
    attempt: AttemptNumber
    began_at: datetime
    steps: tuple[StepTime, ...]
    files: int
    size_bytes: int
    rows: int
    failure: ErrorReport | None = None
