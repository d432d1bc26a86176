"""A checkpoint that is to be taken now."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from spark_jobs.protocol.documents import CheckpointKind
from spark_jobs.protocol.ids import RequestId
from spark_jobs.runtime.cut import Cut


@dataclass(frozen=True)
class Due:
    """A checkpoint that is to be taken now."""

    kind: CheckpointKind
    find_cut: Callable[[], Cut]
    """Says where each stage is cut."""
    request: RequestId | None = None
    """Who has asked for it, if anybody has."""
    deadline_s: float = math.inf
    """On the monotonic clock: a try that is not complete by then has failed."""
    drained: bool = False
    """Whether everything that stages held back is flushed."""
