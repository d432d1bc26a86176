"""Packing: combines many small staged files into few, before a checkpoint names them.

Only the actions of the manifest change. The files of the batches stay for the stage's consumers, and are deleted once none reads them.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from pyspark.sql import functions as F

from spark_jobs.background import run_watched
from spark_jobs.checkpoint.named_files import make_durable
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.errors import InterruptedRunError, SparkJobFailedError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_jvm import DeltaJvm, java_message
from spark_jobs.publication.labels import column_of
from spark_jobs.publication.staged_frame import staged_frame
from spark_jobs.runtime.spark.session import cancel_for_good, job_group, spark_failures
from spark_jobs.runtime.spark.spark_facts import partitioned
from spark_jobs.runtime.stages.stage import StageRun

_BIN = "bin"
Line = Mapping[str, Any]


def pack(
    stage: StageRun,
    lines: Sequence[Line],
    target_size_bytes: int,
    last: BatchId,
    meanwhile: Callable[[], object],
) -> list[Line]:
    """Packs staged files. Returns lines for the same rows in fewer files of about one size. The files are durable on return.

    Files that are large enough, or alone in their partition, are left as they are.

    Args:
        stage: Stage that owns the files.
        lines: ``{"add": …, "batch": …}`` for each staged file.
        target_size_bytes: Size that a file should have.
        last: Batch that the packed files belong to.
        meanwhile: Called repeatedly until the files are packed. Its errors are raised here and end Spark's job.

    Raises:
        SparkJobFailedError: Spark has not packed them. No manifest names its files.
        InterruptedRunError: The packed files and the staged files have different numbers of rows.
    """
    bins = bins_of(lines, target_size_bytes)
    small = [{**line, _BIN: number} for number, packed in enumerate(bins) for line in packed]
    if not small:
        return list(lines)
    try:
        adds = _written(stage, small, len(bins), last, meanwhile)
    except spark_failures() as error:
        raise SparkJobFailedError(
            f"The files of stage '{stage.stage.name}' could not be packed: {java_message(error)}",
            exists="The files of the batches are unchanged.",
            safe="No manifest names the packed files.",
            remedy="Take the checkpoint again; if the error persists, remove target_file_size from the sink.",
            stage=stage.stage.name,
        ) from error
    before, after = _rows(line["add"] for line in small), _rows(adds)
    if before != after:
        raise InterruptedRunError(
            f"Packing the files of stage '{stage.stage.name}' changed the number of rows from {before} to {after}.",
            safe="No row of this round is public. The files of the batches are unchanged.",
            remedy="Start again; if the error persists, remove target_file_size from the sink.",
            stage=stage.stage.name,
            expected=before,
            found=after,
        )
    adds = make_durable(stage.directory, adds)
    replaced = {line["add"]["path"] for line in small}
    kept = [line for line in lines if line["add"]["path"] not in replaced]
    return kept + [{"add": add, "batch": last} for add in adds]


def _written(
    stage: StageRun, small: Sequence[Line], bins: int, last: BatchId, meanwhile: Callable[[], object]
) -> list[dict[str, Any]]:
    """Writes the rows of small files, one file for each bin."""
    table, session = stage.table, stage.frame.sparkSession
    context, group = session.sparkContext, f"packing-{uuid4()}"
    number = F.col(column_of(_BIN, table.metadata))

    def write() -> list[dict[str, Any]]:
        packs = f"packs the files of stage '{stage.stage.name}' up to batch {last}"
        with job_group(context, group, packs), step(Step.PACK_FILES):
            staged = staged_frame(session, table.uri, table.metadata, table.protocol, small, label=_BIN)
            rows = partitioned(staged, bins, number.cast("int")).drop(number)
            # the publication checks the constraints that the table got since the rows were staged
            return DeltaJvm(session).write_files(rows, table.path, f"{stage.file_prefix}{last}-", lambda constraint: False)

    try:
        return run_watched(write, meanwhile)
    except BaseException:
        cancel_for_good(context, group)
        raise


def bins_of(lines: Iterable[Line], target_size_bytes: int) -> list[list[Line]]:
    """Returns the small files that become one each.

    They are of one partition, in the order of batches, and together up to the target size.
    """
    partitions: dict[bytes, list[Line]] = defaultdict(list)
    for line in lines:
        if line["add"]["size"] < target_size_bytes:
            partitions[canonical(line["add"]["partitionValues"])].append(line)
    found: list[list[Line]] = []
    for files in partitions.values():
        current: list[Line] = []
        size_bytes = 0
        for line in files:
            if current and size_bytes + line["add"]["size"] > target_size_bytes:
                found.append(current)
                current, size_bytes = [], 0
            current.append(line)
            size_bytes += line["add"]["size"]
        found.append(current)
    return [packed for packed in found if len(packed) > 1]


def _rows(adds: Iterable[Mapping[str, Any]]) -> int:
    return sum(int(json.loads(add["stats"])["numRecords"]) for add in adds)
