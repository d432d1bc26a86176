"""A source of a stage has become another one: it is read from its beginning, and the state of the stage stays.

Spark goes on after the last batch's offsets, one line for each source. A source without a line is read from its beginning, as one that had
no row so far. The stage gets two batches that read nothing and leave the line out: two, because Spark also looks at the batch before the
last one. What Spark remembers of the old source beside the offsets, its files or where its topics began, is deleted.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.ids import BatchId, InputName, RoundNumber
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.stages.stage import StageRun

_LOG = logging.getLogger(__name__)
_BATCHES = 2


def begin_anew(
    stage: StageRun, sources: Collection[InputName], number: RoundNumber, rebuild: Callable[[StageRun], StageRun]
) -> StageRun:
    """Lets a stage read some of its sources from their beginning. Idempotent within a work directory and a round.

    Args:
        stage: The stage, at the checkpoint that the round begins with; its query does not run.
        sources: Those that are other ones now.
        number: The round.
        rebuild: Builds the stage as it goes on.

    Raises:
        InterruptedRunError: The stage's query failed.
    """
    log, files = stage.spark_log, stage.spark_log.files
    streams = [position for position, argument in enumerate(stage.arguments) if _name_of(stage, argument) in sources]
    directory, done = log.directory.removesuffix("/checkpoint"), f"new-sources-{number}.json"
    if not streams:
        return stage
    if done not in files.names(directory):
        _LOG.info("stage %s reads %s from the beginning", stage.stage.name, ", ".join(sorted(sources)))
        while log.pending():
            stage.run_planned()
        if log.last_commit() != NO_BATCH:
            for _ in range(_BATCHES):
                _run_without(stage, streams)
        for position in streams:
            files.delete(f"{log.directory}/sources/{position}")
        files.create(f"{directory}/{done}", canonical({"sources": sorted(sources)}) + b"\n")
    return rebuild(stage)


def _name_of(stage: StageRun, argument: str) -> str:
    return str(stage.stage.inputs[argument].name)


def _run_without(stage: StageRun, streams: Collection[int]) -> None:
    log = stage.spark_log
    last = log.last_commit()
    entry = log.offsets(last)
    lines = tuple(NO_OFFSET if position in streams else line for position, line in enumerate(entry.sources))
    log.plan(BatchId(last + 1), replace(entry, sources=lines).with_watermark(log.next_watermark_ms(last)))
    stage.run_planned()
