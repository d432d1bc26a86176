"""Refuses lost rows of a round's sources, or leaves them out if the start or the source's declaration accepts that.

Each start compares the unread rows of the stages with the existing ones. Losses are recorded in the loss ledger before they are left out,
and are in every later checkpoint of the round. Only rows that are really gone are left out.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.errors import SourceGoesOnError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss, beyond, goes_on_without, said
from spark_jobs.runtime.inputs.lost_errors import lost_before_read
from spark_jobs.runtime.inputs.source_kind import ReadSoFar, SourceKind
from spark_jobs.runtime.spark.spark_log import SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.begin_anew import begin_after, end_beginning
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


def is_half_done(work: Files, stage: StageName) -> bool:
    """Returns True if a stage has staged a batch in a work directory that Spark has not committed.

    Spark runs it again for the state, and needs all its input.
    """
    log = SparkLog(work, checkpoint_directory(stage))
    return log.pending() and PrivateLog(work, log_directory(stage), "").read(log.last_offsets()) is not None


def leave_out_lost(
    stages: Sequence[StageRun],
    site: RoundSite,
    attempt: AttemptDocument,
    accepted: Collection[InputName],
    skipped: Collection[InputName],
    rebuild: Callable[[StageRun], StageRun],
) -> list[StageRun]:
    """Compares the unread rows of the stages with the existing ones. Returns the stages to go on with.

    Args:
        stages: All stages of the pipeline, without running queries.
        site: Site of the round.
        attempt: The attempt.
        accepted: Sources that are read without their lost rows, by an option of the start.
        skipped: Sources that are always read without their lost rows.
        rebuild: Builds a stage again.

    Raises:
        RejectedError: Another source has lost rows.
        InterruptedRunError: A stage's query failed.
    """
    stages = [end_beginning(stage, rebuild) for stage in stages]
    left_out = {*accepted, *skipped}
    found = {stage.stage.name: list(_lost(stage, left_out)) for stage in stages}
    losses = [loss for each in found.values() for _, _, loss in each]
    new = [left for loss in losses for left in beyond(loss, site.losses)]
    refused = [loss for loss in new if loss.input not in left_out]
    if refused:
        raise lost_before_read(refused)
    if new:
        new = list(LossLedger(site.rounds.files).record(site.round.round, attempt, new, accepted))
        site.losses.extend(new)
    for loss in new:
        _LOG.warning("%s", goes_on_without(loss))
    affected = {loss.stage for loss in new}
    return [_go_on(stage, found[stage.stage.name], rebuild, anew=stage.stage.name in affected) for stage in stages]


def check_lost(stage: StageRun, recorded: Sequence[Loss], *, thorough: bool) -> None:
    """Refuses a stage if a source has lost rows that the stage has not read.

    Args:
        stage: The stage, without a running query.
        recorded: Recorded losses.
        thorough: True checks each file, of which there may be a million.

    Raises:
        RejectedError: A source has lost more than is recorded.
    """
    names = _sources(stage) if thorough else frozenset[InputName]()
    new = [left for _, _, loss in _lost(stage, names) for left in beyond(loss, recorded)]
    if new:
        raise lost_before_read(new)


def check_skipped(stage: StageRun, recorded: Sequence[Loss], skipped: Collection[InputName]) -> None:
    """Requests new stages if a source in ``skipped`` has lost rows that a stage has not read.

    Args:
        stage: The stage, without a running query.
        recorded: Recorded losses.
        skipped: Sources that are read without their lost rows.

    Raises:
        SourceGoesOnError: A source has lost more than is recorded.
    """
    names = _sources(stage) & set(skipped)
    if not names:
        return
    found = [loss for _, _, loss in _lost(stage, names) if loss.input in names]
    new = [left for loss in found for left in beyond(loss, recorded)]
    if new:
        raise SourceGoesOnError(
            f"Source '{new[0].input}' has lost rows that stage '{stage.stage.name}' has not read: {said(new[0])}.",
            exists="All rows that the stages have read are staged or public.",
            safe="No further rows were read.",
            remedy='The source has on_gone="skip": run it again, and it continues without these rows.',
            sources=sorted({loss.input for loss in new}),
        )


def _sources(stage: StageRun) -> frozenset[InputName]:
    return frozenset(stream.read.name for stream in stage.sources if stream is not None)


def _go_on(
    stage: StageRun,
    found: Sequence[tuple[SourceKind, ReadSoFar, Loss]],
    rebuild: Callable[[StageRun], StageRun],
    *,
    anew: bool,
) -> StageRun:
    begins: dict[str, dict[int, KnownSource]] = defaultdict(dict)
    for kind, read, loss in found:
        known = kind.past(read, loss)
        if known is not None:
            begins[read.name][read.position] = known
    if begins:
        return begin_after(stage, begins, rebuild)
    return rebuild(stage) if anew else stage


def _lost(stage: StageRun, thoroughly: Collection[InputName]) -> Iterator[tuple[SourceKind, ReadSoFar, Loss]]:
    for stream in stage.read_up_to(stage.spark_log.last_commit()):
        loss = stream.kind.lost(stream.read, thorough=stream.read.name in thoroughly)
        if loss is not None:
            yield stream.kind, stream.read, loss
