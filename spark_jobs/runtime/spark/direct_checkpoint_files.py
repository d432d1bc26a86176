"""Lets Spark write the checkpoint files of queries into S3 without renames, by ``DirectCheckpointFiles.java``."""

from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.publication.java_sources import JavaSourceError, load_java
from spark_jobs.runtime.spark.session import CHECKPOINT_FILES, spark_checkpoint_files

DIRECT = "sparkjobs.DirectCheckpointFiles"
_CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Spark's setting for a second file for each checkpoint file. A store has checksums of its own, and a checkpoint has hashes."""


def write_directly(session: SparkSession, url: str) -> None:
    """Sets how the queries of a session write checkpoints below a URL. Does nothing for places that are not in S3.

    A class that the user has set stays.

    Args:
        session: A session of the stages.
        url: The place of the checkpoints.

    Raises:
        MissingRequirementError: The class cannot be compiled here.
    """
    if urlsplit(url).scheme != "s3" or session.conf.get(CHECKPOINT_FILES) != spark_checkpoint_files(session):
        return
    try:
        load_java(session, DIRECT, "spark_jobs.runtime.spark", for_executors=True)
    except JavaSourceError as error:
        raise MissingRequirementError(
            f"The class with which Spark writes checkpoints into S3 cannot be compiled: {error}",
            safe="Nothing was staged.",
            remedy=f"Set {CHECKPOINT_FILES}={spark_checkpoint_files(session)}, with which a batch costs more requests, and report this.",
        ) from error
    session.conf.set(CHECKPOINT_FILES, DIRECT)
    session.conf.set(_CHECKSUMS, "false")
