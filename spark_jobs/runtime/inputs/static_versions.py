"""Which versions of its static inputs an attempt of a pipeline with an unbounded input reads.

Each attempt pins the newest ones. But a batch that was planned and not committed may be staged already, and is done again: it has to come
to the same rows. So where a stage that reads a static input has such a batch, the version that it was planned with stays.
"""

import logging
from collections.abc import Iterator

from spark_jobs.api.graph import Graph
from spark_jobs.api.source import Refresh
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.pins import Pins, pins_of_attempt, pins_of_round
from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


def keep_planned_versions(graph: Graph, home: Files, attempt: AttemptDocument) -> None:
    """Pins for an attempt the static inputs that a batch in its work directory was planned with; the others are left to be pinned.

    Durable on return; to be called before any stage is built. Idempotent.
    """
    work = home.below(attempt.work_directory.path)
    for static in graph.statics.values():
        if static.refresh is Refresh.UNPINNED:
            continue
        reading = [stage.name for stage in graph.stages.values() if static in stage.inputs.values()]
        planned = [name for name in reading if SparkLog(work, checkpoint_directory(name)).pending()]
        if planned:
            _keep(home, attempt, static.name, planned)


def _keep(home: Files, attempt: AttemptDocument, name: InputName, planned: list[StageName]) -> None:
    found = (pins.pinned(name) for pins in _earlier(home, attempt))
    kept = next((pinned for pinned in found if pinned is not None), None)
    if kept is None:  # nothing was pinned, so nothing was staged
        return
    pins_of_attempt(home, attempt.attempt).pin(kept)
    _LOG.info(
        "static input %s stays at the version of the attempt before: a batch of %s was planned with it and is done again",
        name, ", ".join(planned),
    )  # fmt: skip


def _earlier(home: Files, attempt: AttemptDocument) -> Iterator[Pins]:
    """Where the pin may be that a planned batch was planned with, the newest first.

    An attempt that ended before it pinned anything has planned nothing either. One of an older version of this package has pinned for the
    whole round.
    """
    attempts = Attempts(home)
    for number in reversed(attempts.numbers()):
        if number < attempt.attempt and attempts.read(number).work_directory.id == attempt.work_directory.id:
            yield pins_of_attempt(home, number)
    yield pins_of_round(home, attempt.round)
