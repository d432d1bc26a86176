"""A checkpoint that is to be taken now."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from spark_jobs.protocol.documents import CheckpointKind
from spark_jobs.protocol.ids import RequestId
from spark_jobs.runtime.checkpoints.cut import Cut


@dataclass(frozen=True)
class Due:
    """A checkpoint that is to be taken now."""

    kind: CheckpointKind
    find_cut: Callable[[], Cut]
    """Says where each stage is cut."""
    request: RequestId | None = None
    """Who has asked for it, if anybody has."""
    deadline_s: float = math.inf
    """On the monotonic clock: a try that is not complete by then has failed. What follows its manifest has no deadline."""
    pause: Callable[[], object] = lambda: None
    """Called again and again while its files are kept and made durable. What it raises ends the try."""
    drained: bool = False
    """Whether everything that stages held back is flushed."""
