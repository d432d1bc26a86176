"""Decides which version of a static input an attempt reads.

Each attempt pins the versions that it reads. It keeps the pin of the earlier attempt in two cases:

1. All inputs of the pipeline end, and both attempts are in the same round: a round reads one version.
2. A batch that reads the input is planned and not committed. It may be staged already, and is run again: it must give the same rows.

A start may take a replaced table as a new one. Its round is then replaced by one that begins at the newest checkpoint, so that both cases
end. Replayed batches read the version that they read before. In all other cases the attempt pins the newest version.
"""

import logging
from collections.abc import Collection
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.api.graph import Graph
from spark_jobs.api.source import Refresh
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.protocol.documents import AttemptDocument, Manifest, PinnedInput, RoundDocument
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import AttemptNumber, InputName, RoundNumber
from spark_jobs.runtime.inputs.inputs import static_frame
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.stages.replay import is_behind
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


def keep_pinned_versions(
    graph: Graph, home: Files, attempt: AttemptDocument, parent: Manifest | None = None
) -> frozenset[InputName]:
    """Pins the static inputs of an attempt that must keep the version of the earlier attempt. Others are pinned later.

    Durable on return. Call it before any stage is built. Idempotent.

    Returns the static inputs of stages whose staged batches are computed again.

    Args:
        graph: The pipeline.
        home: The home.
        attempt: The live attempt.
        parent: Checkpoint that the attempt goes on from. It has the versions of batches that are computed again.
    """
    work, replayed = home.below(attempt.work_directory.path), set()
    for static in graph.statics.values():
        if static.refresh is Refresh.UNPINNED:
            continue
        reading = [stage.name for stage in graph.stages.values() if static in stage.inputs.values()]
        if parent and static.name in parent.inputs and any(is_behind(work, name) for name in reading):
            pins_of_attempt(home, attempt.attempt).pin(PinnedInput(input=static.name, pins=parent.inputs[static.name]))
            replayed.add(static.name)
            continue
        planned = any(SparkLog(work, checkpoint_directory(name)).pending() for name in reading)
        if (planned or not graph.unbounded) and (kept := _newest_pin(home, attempt.round, static.name, before=attempt.attempt)):
            pins_of_attempt(home, attempt.attempt).pin(kept)
            _LOG.info("static input %s keeps the version of the earlier attempt", static.name)
    return frozenset(replayed)


def replaced_statics(
    graph: Graph, home: Files, interrupted: RoundDocument, session: SparkSession, params: Any, names: Collection[InputName]
) -> frozenset[InputName]:
    """Returns the static inputs whose table was replaced since the newest attempt of a round has pinned it. Writes nothing.

    Args:
        graph: The pipeline. Its inputs were checked.
        home: The home.
        interrupted: The round.
        session: Session of the driver.
        params: Parameters of the pipeline.
        names: The static inputs to look at.
    """
    found = set()
    for name in names:
        pinned = _newest_pin(home, interrupted.round, name)
        try:
            static_frame(graph.statics[name], session, params, pinned)
        except RejectedError:
            found.add(name)
    return frozenset(found)


def _newest_pin(
    home: Files, round_number: RoundNumber, name: InputName, *, before: AttemptNumber | None = None
) -> PinnedInput | None:
    """Returns the newest pin of an attempt in a round, or of the attempts before one.

    An attempt that ended before it pinned anything has planned nothing.
    """
    attempts = Attempts(home)
    for number in reversed(attempts.numbers()):
        if before is not None and number >= before:
            continue
        if attempts.read(number).round != round_number:
            return None
        if pinned := pins_of_attempt(home, number).pinned(name):
            return pinned
    return None
