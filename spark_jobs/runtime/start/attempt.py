"""Begins an attempt: chooses its incarnation, its work directory and its number of state partitions."""

import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import SparkSession

from spark_jobs import __version__
from spark_jobs.api.graph import Graph
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.liveness import works_elsewhere
from spark_jobs.home.layout import WORK, work_directories, work_path
from spark_jobs.protocol.documents import AttemptDocument, Manifest, PipelineDocument, RestoreFrom, WorkDirectory
from spark_jobs.protocol.errors import FencedError, InterruptedRunError
from spark_jobs.protocol.ids import AttemptNumber, RoundNumber, StageName, first_incarnation_id, new_incarnation_id
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.spark.spark_facts import SPARK_MINOR, SPARK_VERSION
from spark_jobs.runtime.start.decision import BeginFromSavepoint, BeginIncarnation, Continue, HomeFacts, StartDecision
from spark_jobs.runtime.start.heal import heal_in_place
from spark_jobs.runtime.start.restore import Restored, is_half_built, restore
from spark_jobs.runtime.start.work_directory import boot_id, why_rebuilt
from spark_jobs.runtime.state.rescale import rescale_stage
from spark_jobs.storage.files import Files, is_mounted

_LOG = logging.getLogger(__name__)


def check_first(home: Files, request: StartRequest, claimed: AttemptNumber | None) -> None:
    """Refuses to begin an attempt that has begun before.

    Args:
        home: The home.
        request: Start request.
        claimed: The highest number that an attempt has claimed.

    Raises:
        FencedError: The attempt is running elsewhere.
        InterruptedRunError: The attempt, or a later one, has ended.
    """
    if claimed is None or request.attempt > claimed:
        return
    live = Attempts(home).read(claimed)
    if live.attempt == request.attempt and works_elsewhere(home, live):
        raise FencedError(
            f"Attempt {live.attempt} is at work on {live.host}.",
            remedy="Do nothing: the other process does the work.",
            attempt=live.attempt,
            host=live.host,
            process=live.process,
        )
    raise InterruptedRunError(
        f"Attempt {request.attempt}, or a later one, was started before and did not finish.",
        safe="Its durable work is kept.",
        remedy="Request a new start, which continues from there.",
        attempt=request.attempt,
    )


def begin_attempt(
    home: Files,
    pipeline: PipelineDocument,
    graph: Graph,
    request: StartRequest,
    decision: StartDecision,
    facts: HomeFacts,
    new: WorkDirectory,
    *,
    restore: RestoreFrom | None = None,
    in_place: bool = True,
) -> AttemptDocument:
    """Claims the attempt of a request. Durable on return.

    Args:
        home: The home.
        pipeline: Pipeline of the home.
        graph: The pipeline's graph.
        request: Start request.
        decision: Decision for the request.
        facts: Past of the home.
        new: A new work directory, for an attempt that does not continue the earlier one.
        restore: Savepoint that a new incarnation begins with, if the request does not name that savepoint.
        in_place: True if the earlier attempt's work directory may be continued. Otherwise a new one is built from the checkpoint.

    Raises:
        FencedError: Another process has claimed the attempt, or a later attempt.
        ConflictError: Another attempt has begun since the decision.
    """
    host, boot, before = socket.gethostname(), boot_id(), facts.newest_attempt
    # if the incarnation has a checkpoint, the earlier ones are closed
    abandons = before.abandons if before and facts.head is None else ()
    partitions, refreshed = request.state_partitions, tuple[StageName, ...]()
    if isinstance(decision, BeginIncarnation):
        incarnation = new_incarnation_id() if before else first_incarnation_id(pipeline.uuid)
        work, restored = new, None
        begun_by, on_rewind = request.request, decision.on_rewind
        refreshed = tuple(sorted(decision.refreshed))
        abandons = (*abandons, before.incarnation) if before else ()
        if isinstance(decision, BeginFromSavepoint) and decision.checkpoint is not None:
            partitions = partitions or facts.newest.state_partitions
    else:
        previous = facts.newest
        incarnation, restored, restore = previous.incarnation, decision.parent, previous.restore
        begun_by, on_rewind = previous.begun_by or previous.request, previous.on_rewind
        refreshed = previous.refreshed
        partitions = partitions or previous.state_partitions
        work = _work_directory(home, graph, request, facts, new) if in_place else new
    attempt = AttemptDocument(
        attempt=request.attempt,
        request=request.request,
        run=request.run,
        round=decision.round.round if isinstance(decision, Continue) else decision.round,
        highest_round=RoundNumber(max(before.round, before.highest_round) if before else 0),
        incarnation=incarnation,
        begun_by=begun_by,
        abandons=abandons,
        on_rewind=on_rewind,
        restore=restore,
        refreshed=refreshed,
        restored_from=restored,
        work_directory=work,
        state_partitions=partitions,
        host=host,
        boot=boot,
        process=os.getpid(),
        started_at=datetime.now(UTC),
        versions={"spark_jobs": __version__, "pyspark": SPARK_VERSION, "python": platform.python_version()},
        checkpointing=graph.checkpointing,
        restart=graph.restart,
    )
    Attempts(home).begin(attempt, facts.begun)
    return attempt


def why_not_continued(home: Files, request: StartRequest, facts: HomeFacts) -> str | None:
    """Returns the reason why a start does not continue the earlier attempt's work directory, or None if it does.

    Does not look for damaged files: they are found when the attempt begins.
    """
    return why_rebuilt(home, request, facts, boot_id(), SPARK_MINOR)


def build_work_directory(
    home: Files,
    attempt: AttemptDocument,
    parent: Manifest | None,
    facts: HomeFacts,
    spark: SparkSession,
    copied: Callable[[Manifest], Mapping[StageName, Restored]],
) -> None:
    """Builds the attempt's work directory from the checkpoint that it goes on from, unless it continues an existing one.

    Args:
        home: The home.
        attempt: The attempt.
        parent: The checkpoint that it goes on from.
        facts: Past of the home.
        spark: A session.
        copied: Returns the state of the checkpoint that is in the directory already. Called if the directory must be built.

    Raises:
        RejectedError: The number of its state partitions cannot be changed.
        CorruptDocumentError: A file of the checkpoint is missing or was altered.
        StorageError: The home or the work directory does not answer, or is full. Can be repeated.
    """
    work = home.below(attempt.work_directory.path)
    if parent is None or (work.names("") and not is_half_built(work)):
        return
    already = copied(parent)
    local = local_copies(home, facts.newest_attempt, attempt.work_directory)
    rescale = None if attempt.state_partitions is None else partial(rescale_stage, spark, work, attempt.state_partitions)
    restore(home, parent, work, local, rescale, second_copy=attempt.second_copy, copied=already)


def local_copies(home: Files, before: AttemptDocument | None, own: WorkDirectory) -> list[Files]:
    """Returns the work directories on this host that may have files of the newest checkpoint, the best first.

    Args:
        home: The home.
        before: The newest attempt; None if the home begins with a savepoint.
        own: The work directory that is built, which is left out.
    """
    paths = [*([before.work_directory.path] if before else []), *map(work_path, work_directories(home.names(WORK)))]
    earlier = [home.below(path) for path in dict.fromkeys(paths) if path != own.path]
    return [files for files in earlier if is_mounted(files)]


def _work_directory(home: Files, graph: Graph, request: StartRequest, facts: HomeFacts, new: WorkDirectory) -> WorkDirectory:
    """Returns the verified work directory of the earlier attempt, or the new one if that cannot be continued."""
    previous, why = facts.newest.work_directory, why_not_continued(home, request, facts)
    if why is None:
        why = heal_in_place(
            home, home.below(previous.path), facts.head, graph.stages, second_copy=graph.checkpointing.second_copy
        )
    if why is None:
        return previous
    _LOG.info("work directory %s is not continued: %s", previous.id, why)
    return new
