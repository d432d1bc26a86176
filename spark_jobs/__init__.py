"""Flink's checkpoint semantics for Spark Structured Streaming and Delta Lake: the one public door."""

from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.sink import DeltaSink
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

__version__ = "0.1.0"

__all__ = [
    "ConflictError",
    "CorruptDocumentError",
    "DeadlineExceededError",
    "DeltaSink",
    "IncompleteError",
    "InterruptedRunError",
    "OutcomeUnknownError",
    "Pipeline",
    "RejectedError",
    "StorageError",
    "StreamPipelineError",
]
