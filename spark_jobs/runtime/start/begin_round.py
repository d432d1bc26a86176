"""The round of an attempt: the interrupted one, one that takes its place, or a new one."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import position_of_loss
from spark_jobs.protocol.documents import AttemptDocument, Manifest, RoundDocument
from spark_jobs.protocol.ids import InputName, LossId
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.start.beginnings import behind_stages, without
from spark_jobs.runtime.start.decision import Continue, replaced_round
from spark_jobs.runtime.start.start_plan import StartPlan
from spark_jobs.storage.files import Files


def begin_round(
    home: Files, graph: Graph, parameters: BoundParameters, request: StartRequest, plan: StartPlan, attempt: AttemptDocument
) -> RoundDocument:
    """Returns the round of an attempt: the interrupted one, or a new one. Its document is durable on return.

    Args:
        home: The home.
        graph: The pipeline.
        parameters: Its parameters.
        request: The start request.
        plan: The plan of the start.
        attempt: The attempt, which has begun.
    """
    rounds, decision = Rounds(home), plan.decision
    if isinstance(decision, Continue):
        return decision.round
    interrupted = replaced_round(decision)
    if interrupted is not None:
        following = _in_place_of(interrupted, parameters, request, plan, attempt, rounds.losses(interrupted.round))
        # before the round begins, so that no round begins without pinned ends if this process dies
        _pin_same_ends(rounds, interrupted, following, graph.sources.keys() - plan.settled.renewed)
        return rounds.begin(following)
    LossLedger(home).record(attempt.round, attempt, plan.losses, request.accept_data_loss)
    return rounds.begin(_new(graph, parameters, request, plan, attempt))


def _new(
    graph: Graph, parameters: BoundParameters, request: StartRequest, plan: StartPlan, attempt: AttemptDocument
) -> RoundDocument:
    settled, state = plan.settled, plan.goes_on_from
    return RoundDocument(
        round=attempt.round,
        run=request.run,
        incarnation=attempt.incarnation,
        on_end=graph.on_end,
        publish=request.publish,
        parameters=parameters.public(),
        graph=graph.describe(),
        adopted=dict(plan.adopted),
        begins=behind_stages(state, graph) if state else {},
        begins_now=dict(plan.begins_now),
        sources=dict(settled.sources),
        new_sources=tuple(sorted(settled.renewed)),
        taken_anew=tuple(sorted(settled.renewed_inputs)),
        begun_at=datetime.now(UTC),
    )


def _in_place_of(
    interrupted: RoundDocument,
    parameters: BoundParameters,
    request: StartRequest,
    plan: StartPlan,
    attempt: AttemptDocument,
    recorded: Sequence[Loss],
) -> RoundDocument:
    """Returns the round that replaces an interrupted one, with its pipeline and its ``on_end``.

    Args:
        interrupted: The replaced round.
        parameters: Parameters of the pipeline.
        request: The start request.
        plan: The plan of the start.
        attempt: The attempt.
        recorded: The losses of the replaced round.
    """
    settled, head = plan.settled, plan.facts.head
    is_read = head is not None and head.round == interrupted.round
    new_before = () if is_read else interrupted.new_sources
    taken_before = interrupted.taken_anew if interrupted.run == request.run else ()
    losses = carried_losses(recorded, plan.goes_on_from, settled.renewed)
    older = [loss for loss in request.backfill if loss not in losses.carried]
    return interrupted.model_copy(
        update={
            "round": attempt.round,
            "run": request.run,
            "incarnation": attempt.incarnation,
            "begun_at": datetime.now(UTC),
            "parameters": parameters.public(),
            "sources": dict(settled.sources),
            "adopted": dict(plan.adopted),
            "begins_now": without(settled.renewed, interrupted.begins_now),
            "new_sources": tuple(sorted(settled.renewed.union(new_before))),
            "taken_anew": tuple(sorted(settled.renewed_inputs.union(taken_before))),
            "losses": (*losses.carried, *older),
            "undoes": losses.undone,
            "for_backfill": bool(request.backfill),
        }
    )


def _pin_same_ends(rounds: Rounds, interrupted: RoundDocument, following: RoundDocument, sources: Collection[InputName]) -> None:
    """Gives a round the pinned ends of the round that it replaces."""
    for source in sources:
        if pinned := rounds.pinned(interrupted.round, source):
            rounds.pin(following.round, pinned)


class RoundLosses(NamedTuple):
    """The losses of a replaced round."""

    carried: tuple[LossId, ...]
    """Those that also hold for the new round."""
    undone: tuple[LossId, ...]
    """The others: the new round reads their rows."""


def carried_losses(recorded: Sequence[Loss], before: Manifest | None, renewed: Collection[InputName]) -> RoundLosses:
    """Returns the losses of a replaced round, as the new one takes them.

    Args:
        recorded: All losses of the replaced round.
        before: The checkpoint from which the new round goes on. It contains the losses that it names, and those of earlier rounds.
        renewed: Sources that the new round reads from their beginning.
    """
    named = {*(loss.id for loss in before.losses), *before.backfilled} if before else set()
    ids = {loss.id: loss.input for loss in recorded if loss.id is not None}
    carried = tuple(
        loss
        for loss, source in ids.items()
        if before is not None and source not in renewed and (loss in named or position_of_loss(loss)[0] < before.round)
    )
    return RoundLosses(carried, tuple(loss for loss in ids if loss not in carried))
