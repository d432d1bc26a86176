"""Flink's checkpoint semantics for Spark Structured Streaming and Delta Lake: the public API."""

import importlib
from typing import TYPE_CHECKING, Any

from spark_jobs.api.checkpoints import CheckpointSettings
from spark_jobs.api.feeds import FEED_DELETES, FEED_SEQUENCE
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.restarts import RestartStrategy
from spark_jobs.api.sink import DeltaSink, Hold
from spark_jobs.api.tolerance import Tolerate
from spark_jobs.protocol.errors import (
    ConflictError,
    CorruptDocumentError,
    DeadlineExceededError,
    IncompleteError,
    InterruptedRunError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
    StreamPipelineError,
)

if TYPE_CHECKING:
    from spark_jobs.publication.evidence import consistent_versions
    from spark_jobs.runtime.staged.staged_rows import read_staged

__version__ = "0.1.0"

__all__ = [
    "FEED_DELETES",
    "FEED_SEQUENCE",
    "CheckpointSettings",
    "ConflictError",
    "CorruptDocumentError",
    "DeadlineExceededError",
    "DeltaSink",
    "Hold",
    "IncompleteError",
    "InterruptedRunError",
    "OutcomeUnknownError",
    "Pipeline",
    "RejectedError",
    "RestartStrategy",
    "StorageError",
    "StreamPipelineError",
    "Tolerate",
    "consistent_versions",
    "read_staged",
]

_LAZY = {
    "consistent_versions": "spark_jobs.publication.evidence",
    "read_staged": "spark_jobs.runtime.staged.staged_rows",
}
"""The modules that are imported on first use. Declaring a pipeline needs neither Spark nor delta-rs."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
