"""Lets streams of a stage begin again, with the present state of the stage.

A replaced source is read from its beginning. A stream that has lost rows goes on after the loss.

Spark goes on after the last batch's offsets, with one line per stream. A stream without a line begins as if it had had no rows. So the
stage gets batches that read nothing and leave out the line: two, because Spark also reads the batch before the last one. Spark's other
records of the stream, its files or the beginnings of its topics, are deleted. A stream that goes on after a loss then gets a batch that
reads nothing and has the line at which it goes on.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pydantic import TypeAdapter

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import BatchId, InputName, RoundNumber, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.spark.spark_log import NO_BATCH, OffsetEntry
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_BATCHES = 2
_BEGINS = "begins.json"
_KNOWN: TypeAdapter[KnownSource] = TypeAdapter(KnownSource)
Beginnings = Mapping[str, Mapping[int, KnownSource]]
"""The new beginnings, by source and number of its stream."""
Rebuild = Callable[[StageRun], StageRun]


def begin_anew(stage: StageRun, sources: Collection[InputName], number: RoundNumber, rebuild: Rebuild) -> StageRun:
    """Makes a stage read some of its sources from their beginning. Idempotent within a work directory and a round.

    Args:
        stage: The stage, at the checkpoint that the round begins with; its query does not run.
        sources: Sources that were replaced.
        number: Number of the round.
        rebuild: Builds the stage again.

    Raises:
        InterruptedRunError: The stage's query failed.
    """
    log, files = stage.spark_log, stage.spark_log.files
    streams = [position for position, argument in enumerate(stage.arguments) if stage.stage.inputs[argument].name in sources]
    directory, done = log.directory.removesuffix("/checkpoint"), f"new-sources-{number}.json"
    if not streams:
        return stage
    if done not in files.names(directory):
        _LOG.info("stage %s reads %s from the beginning", stage.stage.name, ", ".join(sorted(sources)))
        _leave_lines_out(stage, streams)
        files.create(f"{directory}/{done}", canonical({"sources": sorted(sources)}) + b"\n")
    return rebuild(stage)


def begins_anew(work: Files, stage: StageName) -> Beginnings:
    """Returns the beginnings of streams that go on after a loss, while they have no line in Spark's offset log."""
    return _read(work, f"stages/{stage}")[0]


def begin_after(stage: StageRun, begins: Beginnings, rebuild: Rebuild) -> StageRun:
    """Makes streams of a stage go on after lost rows. :func:`end_beginning` completes it after a crash.

    Args:
        stage: The stage; its query does not run.
        begins: New beginnings of the streams.
        rebuild: Builds the stage again.

    Raises:
        InterruptedRunError: The stage's query failed.
    """
    directory = _directory(stage)
    earlier, _ = _read(stage.spark_log.files, directory)
    merged = {name: {**earlier.get(name, {}), **begins.get(name, {})} for name in {*earlier, *begins}}
    _write(stage.spark_log.files, directory, merged, [*begins])
    return end_beginning(stage, rebuild)


def end_beginning(stage: StageRun, rebuild: Rebuild) -> StageRun:
    """Completes :func:`begin_after` after a crash. Idempotent. Does nothing if it is complete.

    Raises:
        InterruptedRunError: The stage's query failed.
    """
    log, directory = stage.spark_log, _directory(stage)
    begins, unfinished = _read(log.files, directory)
    if not unfinished:
        return stage
    streams = {
        number: (stream.kind, begins[stream.read.name][stream.read.position])
        for number, stream in enumerate(stage.sources)
        if stream and stream.read.name in unfinished and stream.read.position in begins[stream.read.name]
    }
    _leave_lines_out(stage, streams)
    stage = rebuild(stage)
    if log.last_commit() != NO_BATCH:
        lines = {number: kind.first_line(known) for number, (kind, known) in streams.items()}
        run_with(stage, lines)
    _write(log.files, directory, begins, [])
    return rebuild(stage)


def _leave_lines_out(stage: StageRun, streams: Collection[int]) -> None:
    log = stage.spark_log
    end_planned(stage)
    while log.last_commit() != NO_BATCH and not all(_has_no_line(stage, streams, back) for back in range(_BATCHES)):
        run_with(stage, dict.fromkeys(streams, NO_OFFSET))
    for number in streams:
        log.files.delete(f"{log.directory}/sources/{number}")


def _has_no_line(stage: StageRun, streams: Collection[int], back: int) -> bool:
    batch = stage.spark_log.last_commit() - back
    if batch < 0:
        return True
    lines = stage.spark_log.offsets(BatchId(batch)).sources
    return all(lines[number] == NO_OFFSET for number in streams)


def end_planned(stage: StageRun) -> None:
    """Completes the planned batch of a stage if it is staged, or removes its plan: it is planned again later.

    Raises:
        InterruptedRunError: The stage's query failed.
    """
    log = stage.spark_log
    if log.pending():
        batch = log.last_offsets()
        if stage.log.read(batch) is None:
            log.unplan(batch)
        else:  # an earlier attempt has run it
            stage.run_planned()


def run_with(stage: StageRun, lines: Mapping[int, str]) -> None:
    """Runs a batch that reads nothing and changes the lines of some streams."""
    log = stage.spark_log
    last = log.last_commit()
    entry: OffsetEntry = log.offsets(last)
    changed = tuple(lines.get(number, line) for number, line in enumerate(entry.sources))
    log.plan(BatchId(last + 1), replace(entry, sources=changed).with_watermark(log.next_watermark_ms(last)))
    stage.run_planned()


def _directory(stage: StageRun) -> str:
    return stage.spark_log.directory.removesuffix("/checkpoint")


def _read(files: Files, directory: str) -> tuple[dict[str, dict[int, KnownSource]], list[str]]:
    """Returns the beginnings, and the sources in which the stage has not gone beyond them."""
    try:
        found = json.loads(files.read(f"{directory}/{_BEGINS}"))
    except NotFoundError:
        return {}, []
    begins = {
        name: {int(number): _KNOWN.validate_python(known) for number, known in streams.items()}
        for name, streams in found["begins"].items()
    }
    return begins, found["unfinished"]


def _write(files: Files, directory: str, begins: Beginnings, unfinished: Collection[str]) -> None:
    streams = {
        name: {str(number): _KNOWN.dump_python(known, mode="json") for number, known in found.items()}
        for name, found in begins.items()
    }
    files.replace(f"{directory}/{_BEGINS}", canonical({"begins": streams, "unfinished": sorted(unfinished)}) + b"\n")
    files.sync(f"{directory}/{_BEGINS}")
