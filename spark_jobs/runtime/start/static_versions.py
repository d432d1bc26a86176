"""Decides which version of a static input an attempt reads.

Each attempt pins the versions that it reads. It keeps the pin of the earlier attempt in two cases:

1. All inputs of the pipeline end, and both attempts are in the same round: a round reads one version.
2. A batch that reads the input is planned and not committed. It may be staged already, and is run again: it must give the same rows.

Replayed batches read the version that they read before. In all other cases the attempt pins the newest version.
"""

import logging

from spark_jobs.api.graph import Graph
from spark_jobs.api.source import Refresh
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.protocol.documents import AttemptDocument, Manifest, PinnedInput
from spark_jobs.protocol.ids import InputName
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.stages.replay import is_behind
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


def keep_pinned_versions(graph: Graph, home: Files, attempt: AttemptDocument, parent: Manifest | None = None) -> None:
    """Pins the static inputs of an attempt that must keep the version of the earlier attempt. Others are pinned later.

    Durable on return. Call it before any stage is built. Idempotent.

    Args:
        graph: The pipeline.
        home: The home.
        attempt: The live attempt.
        parent: Checkpoint that the attempt goes on from. It has the versions of batches that are computed again.
    """
    work = home.below(attempt.work_directory.path)
    for static in graph.statics.values():
        if static.refresh is Refresh.UNPINNED:
            continue
        reading = [stage.name for stage in graph.stages.values() if static in stage.inputs.values()]
        if parent and static.name in parent.inputs and any(is_behind(work, name) for name in reading):
            pins_of_attempt(home, attempt.attempt).pin(PinnedInput(input=static.name, pins=parent.inputs[static.name]))
            continue
        planned = any(SparkLog(work, checkpoint_directory(name)).pending() for name in reading)
        if (planned or not graph.unbounded) and (kept := _pinned_before(home, attempt, static.name)):
            pins_of_attempt(home, attempt.attempt).pin(kept)
            _LOG.info("static input %s keeps the version of the earlier attempt", static.name)


def _pinned_before(home: Files, attempt: AttemptDocument, name: InputName) -> PinnedInput | None:
    """Returns the newest pin of an earlier attempt in the same round.

    An attempt that ended before it pinned anything has planned nothing.
    """
    attempts = Attempts(home)
    for number in reversed(attempts.numbers()):
        if number < attempt.attempt:
            if attempts.read(number).round != attempt.round:
                return None
            if pinned := pins_of_attempt(home, number).pinned(name):
                return pinned
    return None
