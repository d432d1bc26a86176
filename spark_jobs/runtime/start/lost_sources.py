"""Predicts the losses that a start will find in its sources, for ``spark-jobs run --dry-run``, which builds no stages."""

from collections.abc import Collection, Iterator, Mapping
from typing import cast

from spark_jobs.api.graph import Graph
from spark_jobs.api.source import Source
from spark_jobs.checkpoint.bundles import StateReader
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import RoundDocument
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.losses import Loss, beyond
from spark_jobs.protocol.stage_cut import StageCut, StateFile
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.inputs.ended_source import is_ended
from spark_jobs.runtime.inputs.lost_errors import lost_before_read
from spark_jobs.runtime.inputs.source_kind import OwnLog, ReadSoFar
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.spark.plan import streaming_leaves
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.stages.planned import PlannedStage
from spark_jobs.runtime.start.source_identity import Sources
from spark_jobs.storage.files import Files


def predict_losses(
    home: Files,
    graph: Graph,
    planned: Mapping[StageName, PlannedStage],
    logs: Mapping[StageName, SparkLog],
    sources: Sources,
    goes_on: RoundDocument | None,
    left_out: Collection[InputName],
) -> list[Loss]:
    """Returns what a start would leave out of its sources.

    Args:
        home: The home.
        graph: The pipeline.
        planned: Its stages.
        logs: What Spark has logged of the stages that go on, where the start would go on.
        sources: The sources that these stages read on.
        goes_on: The round that goes on; None if a new round begins, whose ends are not pinned yet.
        left_out: Sources that are read without their lost rows.

    Raises:
        RejectedError: Another source has lost rows.
    """
    rounds = Rounds(home)
    recorded = rounds.losses(goes_on.round) if goes_on else ()
    losses = []
    for name, log in logs.items():
        for read in _read_so_far(graph, planned[name], name, log, sources, goes_on, rounds):
            loss = kind_of(read.leaf).lost(read, thorough=True)
            losses += beyond(loss, recorded) if loss is not None else []
    if refused := [loss for loss in losses if loss.input not in left_out]:
        raise lost_before_read(refused)
    return losses


def _read_so_far(
    graph: Graph,
    planned: PlannedStage,
    stage: StageName,
    log: SparkLog,
    sources: Sources,
    goes_on: RoundDocument | None,
    rounds: Rounds,
) -> Iterator[ReadSoFar]:
    """Yields the progress of a stage in the streams of its sources that it reads on."""
    last = log.last_commit()
    lines = log.offsets(last).sources if last != NO_BATCH else None
    leaves = streaming_leaves(planned.frame)
    if lines is not None and len(lines) != len(leaves):
        return
    for argument, frame in planned.inputs.items():
        node = graph.stages[stage].inputs[argument]
        if not isinstance(node, Source) or node.name not in sources:
            continue
        own = goes_on.begins_now.get(stage, {}) if goes_on else {}
        pinned = rounds.pinned(goes_on.round, node.name) if goes_on else None
        numbers = {leaf.identity: number for number, leaf in enumerate(leaves)}
        for position, (leaf, known) in enumerate(
            zip(streaming_leaves(frame), own.get(node.name, sources[node.name]), strict=False)
        ):
            number = numbers.get(leaf.identity)
            line = lines[number] if lines is not None and number is not None else NO_OFFSET
            if number is None or is_ended(line):
                continue
            pin = pinned.pins[position] if pinned and position < len(pinned.pins) else None
            own_log = OwnLog(log.files, f"{log.directory}/sources/{number}")
            yield ReadSoFar(node.name, position, stage, frame.sparkSession, leaf, line, known, pin, own_log)


def log_of_cut(home: Files, stage: StageName, cut: StageCut | None) -> SparkLog:
    """Returns what Spark has logged of a stage up to a checkpoint, without one nothing; it can only be read."""
    directory = checkpoint_directory(stage)
    stored = {f"{directory}/{file.path}": file for file in cut.files} if cut else {}
    return SparkLog(cast(Files, _Stored(home, stored)), directory)


class _Stored:
    """The files of a checkpoint under the names that they have in a work directory."""

    def __init__(self, home: Files, stored: Mapping[str, StateFile]) -> None:
        self._reader, self._stored = StateReader(home), stored

    def names(self, directory: str) -> list[str]:
        below = [path.removeprefix(f"{directory}/") for path in self._stored if path.startswith(f"{directory}/")]
        return sorted({path.partition("/")[0] for path in below})

    def read(self, path: str) -> bytes:
        if path not in self._stored:
            raise NotFoundError(f"{path} is in no checkpoint.", remedy="See the checkpoint: spark-jobs inspect.", path=path)
        return self._reader.read(self._stored[path])
