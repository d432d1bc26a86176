"""Decides the result of a start request before Spark starts.

The decision follows from the home's documents alone. The module reads nothing: all facts are arguments.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_jobs.api.continuation import Fate, StageFate, fates, with_fate
from spark_jobs.home.layout import position_of_loss
from spark_jobs.protocol.documents import (
    AttemptDocument,
    CheckpointKind,
    Manifest,
    OnRewind,
    RestoreFrom,
    RoundDocument,
    StartResponse,
)
from spark_jobs.protocol.errors import BEGIN_ANEW, RejectedError, for_sources
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, IncarnationId, InputName, RoundNumber, RunId, SinkName, StageName
from spark_jobs.protocol.spark_versions import cannot_repartition, is_older
from spark_jobs.protocol.start_requests import StartRequest


@dataclass(frozen=True)
class Answer:
    """The run already has its checkpoint. The start only completes the publication."""

    manifest: Manifest


@dataclass(frozen=True)
class Continue:
    """The newest round was interrupted, and the start continues it."""

    round: RoundDocument
    parent: CheckpointId | None = None
    """The newest checkpoint of its incarnation, which may be of the round itself; None if there is none."""


@dataclass(frozen=True)
class Begin:
    """A new round begins."""

    round: RoundNumber
    parent: CheckpointId | None
    """The checkpoint that it continues; None at the beginning of an incarnation."""
    adopt_offsets: Mapping[InputName, str] = field(default_factory=dict)
    interrupted: RoundDocument | None = None
    """The round that it replaces, with the same ends; see :func:`replace_round`."""


@dataclass(frozen=True)
class BeginIncarnation:
    """A new round begins in a new incarnation, which continues no checkpoint of the home."""

    round: RoundNumber
    follows: IncarnationId | None
    on_rewind: OnRewind
    adopt_offsets: Mapping[InputName, str] = field(default_factory=dict)
    """The checkpoint directory of the Spark query that a source continues, by source."""
    interrupted: RoundDocument | None = None
    """The round that it replaces, with the same ends, if that has no checkpoint yet."""
    refreshed: frozenset[StageName] = frozenset()
    """The stages that start over by a full refresh."""


@dataclass(frozen=True)
class BeginFromSavepoint(BeginIncarnation):
    """A new round begins in a new incarnation with a savepoint.

    It is the savepoint in the request, unless one of the fields below is set.
    """

    checkpoint: CheckpointId | None = None
    """The checkpoint of the home of which the start first takes a savepoint, because the code has changed or tables are refreshed."""
    restore: RestoreFrom | None = None
    """The savepoint of an earlier attempt that has begun with it and has staged nothing."""


_BEGINNING_OPTIONS = ("fresh", "on_rewind", "adopt_offsets", "restore")
"""The fields of a request that say how an incarnation begins."""
StartDecision = Continue | Begin | BeginIncarnation
"""What a start does that runs."""
Decision = Answer | StartDecision


@dataclass(frozen=True)
class HomeFacts:
    """The past of a pipeline in its home's documents."""

    newest_attempt: AttemptDocument | None
    """The newest attempt that has begun."""
    latest_round: RoundDocument | None
    final_of: Callable[[RunId], Manifest | None]
    """Returns the final checkpoint of the round in which a run has had an attempt; None if there is none, or if it was deleted."""
    published: Callable[[], Mapping[SinkName, CheckpointId]]
    """Returns the newest public checkpoint of any incarnation by sink. It opens the tables, so it is only called before a recomputation."""
    answer_of: Callable[[RunId], StartResponse | None] = lambda run: None
    """Returns the newest answer of a run; None if there is none, or if it was deleted."""
    staging: bool = False
    """True if the latest round has planned a batch."""
    failed_backfill: bool = False
    """True if the latest round was begun to backfill losses, and has staged nothing."""
    head: Manifest | None = None
    """The newest checkpoint of the newest incarnation."""
    begun_by: StartRequest | None = None
    """The request that the newest incarnation was begun for."""
    restored: Manifest | None = None
    """The checkpoint that the newest attempt went on from."""
    begun: frozenset[AttemptNumber] = frozenset()
    """The attempts that have begun, as far back as they are kept."""
    claimed: AttemptNumber | None = None
    """The highest number that an attempt has claimed."""
    savepoint: Manifest | None = None
    """The manifest of the request's savepoint, if no attempt has begun with it yet."""
    begun_with: Manifest | None = None
    """The manifest of the savepoint that the newest incarnation began with, while it has no checkpoint."""

    @property
    def newest(self) -> AttemptDocument:
        """Returns the attempt that is continued. There must be one."""
        assert self.newest_attempt is not None
        return self.newest_attempt

    @property
    def incarnation(self) -> IncarnationId | None:
        """Returns the incarnation of the newest attempt."""
        return self.newest_attempt.incarnation if self.newest_attempt else None

    @property
    def final(self) -> Manifest | None:
        """Returns the final checkpoint of the latest round, or None."""
        is_final = self.head is not None and self.head.checkpoint_kind is CheckpointKind.FINAL
        return self.head if self.head and is_final and self.latest_round and self.head.round == self.latest_round.round else None

    @property
    def last_final(self) -> Manifest | None:
        """Returns the final checkpoint of the last round, or None. A backfill that has failed does not count as a round."""
        return self.head if self.failed_backfill else self.final


NO_PAST = HomeFacts(newest_attempt=None, latest_round=None, final_of=lambda run: None, published=dict)
"""The past of a place that is no home yet."""


def decide(
    request: StartRequest,
    facts: HomeFacts,
    parameters: Mapping[str, Any],
    graph: Mapping[str, Any],
    refreshed: frozenset[StageName] = frozenset(),
) -> Decision:
    """Returns the decision for a start request.

    Args:
        request: The request.
        facts: Past of the home.
        parameters: The pipeline's public parameters.
        graph: Description of its graph.
        refreshed: The stages that start over by the request's full refresh.

    Raises:
        RejectedError: The request does not fit the home: other parameters than those of the interrupted round or of a finished pipeline,
            another graph, a fresh start after published rows, a full refresh in the middle of a round, or offsets to adopt although the
            home has its own.
    """
    own = facts.final_of(request.run)
    if own is not None:
        return Answer(own)
    stop = facts.head if facts.head and facts.head.checkpoint_kind is CheckpointKind.STOP else None
    if stop is not None and stop.run == request.run:
        return Answer(stop)
    if request.backfill and (request.fresh or request.restore or request.adopt_offsets or request.full_refresh):
        raise _not_with_backfill()
    if request.fresh and request.full_refresh:
        raise RejectedError(
            "A start cannot have both fresh and full_refresh: a fresh start computes all tables again.",
            remedy="Leave one of them out.",
        )
    if facts.savepoint is not None:
        _check_savepoint(request, facts.savepoint)
        _check_change(request, facts.savepoint, "the savepoint", graph)
        return BeginFromSavepoint(_next_round(facts), facts.incarnation, request.on_rewind)
    if request.fresh and facts.newest_attempt and not _is_repeated(request, facts.begun_by):
        _check_rewind(request, facts)
        return BeginIncarnation(_next_round(facts), facts.incarnation, request.on_rewind, request.adopt_offsets)
    if facts.newest_attempt is None:
        return BeginIncarnation(RoundNumber(1), None, OnRewind.REFUSE, request.adopt_offsets, refreshed=refreshed)
    if stop is not None and stop.drained:
        raise _drained(stop)
    latest = facts.latest_round
    refreshed = _still_to_refresh(request, facts, stop, refreshed)
    if latest is None or latest.incarnation != facts.incarnation:
        # an attempt has begun the newest incarnation, and ended before its first round began
        earlier_offsets = facts.begun_by.adopt_offsets if facts.begun_by else {}
        if facts.begun_with is not None:
            _check_change(request, facts.begun_with, "the savepoint", graph)
        return Begin(facts.newest.round, None, request.adopt_offsets or earlier_offsets)
    if request.backfill:
        return _backfill(latest, facts, request, parameters, graph)
    final = facts.last_final
    if final is not None:
        _check_adoption(latest, request, {})
    if final is not None and final.drained:
        _check_tables(final, graph)
        _check_finished(latest, final, parameters)
        return Answer(final)
    if final is not None:
        return _begin_after(final, RoundNumber(latest.round + 1), facts, request, graph, refreshed)
    restoring = facts.head is None and facts.begun_by is not None and facts.begun_by.restore is not None
    may_be_replaced = not facts.staging and not restoring
    if refreshed and stop is not None:
        return _change(latest, stop, facts, request, parameters, graph, refreshed)
    if latest.graph != dict(graph):
        return (
            _begin_again(facts, request, graph) if may_be_replaced else _change(latest, stop, facts, request, parameters, graph)
        )
    found = Continue(latest, facts.head.checkpoint if facts.head else None)
    changed = latest.parameters != dict(parameters)
    try:
        if not _allows_replacement(request):
            check_parameters(latest, parameters)
        _check_ending(latest, request)
        _check_adoption(latest, request, {source: adopted.checkpoint for source, adopted in latest.adopted.items()})
    except RejectedError:
        if not may_be_replaced:
            raise
        return _begin_again(facts, request, graph)
    return replace_round(found, facts) if changed and request.accept_data_loss else found


def _backfill(
    latest: RoundDocument, facts: HomeFacts, request: StartRequest, parameters: Mapping[str, Any], graph: Mapping[str, Any]
) -> Continue | Begin:
    """Returns the decision for a start that backfills losses: after a completed round, a round with the same ends.

    Raises:
        RejectedError: The stages or the parameters have changed. Or a round was interrupted, and a loss is of an earlier one.
    """
    if latest.graph != dict(graph):
        raise RejectedError(
            "Losses cannot be backfilled by a start whose code has other stages, inputs or sinks: "
            f"{', '.join(_differences(latest.graph, graph))}.",
            exists=f"Round {latest.round} has the stages that have left the rows out.",
            remedy="Start the changed code without it first, and backfill the losses then. The function of a stage may differ.",
            round=latest.round,
        )
    if changed := _other_values(latest, parameters):
        raise RejectedError(
            f"Losses cannot be backfilled with other parameters than those of round {latest.round} ({', '.join(changed)}).",
            exists=f"Run {latest.run} has begun that round.",
            remedy=f"Start it again with its parameters {latest.parameters}.",
            round=latest.round,
            expected=latest.parameters,
            found=dict(parameters),
        )
    _check_ending(latest, request)
    older = [loss for loss in request.backfill if position_of_loss(loss)[0] != latest.round and loss not in latest.losses]
    final = facts.last_final if older else facts.final
    if final is not None:
        return Begin(RoundNumber(latest.round + 1), final.checkpoint, interrupted=latest)
    if older:
        raise RejectedError(
            f"Loss {older[0]} is of an earlier round, and round {latest.round} has not ended.",
            exists=f"The rows of round {latest.round} so far are staged.",
            remedy="Start the pipeline without it first, until the round has ended. Backfill the loss then.",
            round=latest.round,
            loss=older[0],
        )
    return Continue(latest, facts.head.checkpoint if facts.head else None)


def _not_with_backfill() -> RejectedError:
    return RejectedError(
        "Losses cannot be backfilled by a start that does not continue the home's newest checkpoint.",
        remedy="Leave out fresh, full_refresh, restore and adopt_offsets. Or leave out the losses.",
    )


def _allows_replacement(request: StartRequest) -> bool:
    """Returns True if the request allows to replace an interrupted round, which cannot finish, by one with other parameters."""
    return bool(request.new_sources or request.accept_data_loss)


def interrupted_round(decision: StartDecision) -> RoundDocument | None:
    """Returns the interrupted round that a start continues or replaces, or None."""
    return decision.round if isinstance(decision, Continue) else decision.interrupted


def replaced_round(decision: StartDecision) -> RoundDocument | None:
    """Returns the interrupted round that a start replaces, or None."""
    return None if isinstance(decision, Continue) else decision.interrupted


def inputs_to_renew(request: StartRequest, decision: StartDecision) -> frozenset[InputName]:
    """Returns the inputs that the request names as new ones. A run reads each of them as a new one only once."""
    interrupted = interrupted_round(decision)
    done = interrupted.taken_anew if interrupted is not None and interrupted.run == request.run else ()
    return frozenset(request.new_sources).difference(done)


def replace_round(decision: Decision, facts: HomeFacts) -> Begin | BeginIncarnation:
    """Returns the decision for a start whose interrupted round cannot go on: it begins a round with the same ends.

    A source of the interrupted round is a different one now, or has lost rows and the parameters differ. The new round begins at the newest
    checkpoint, because later batches have read the old source, or were computed with the old parameters.
    """
    if isinstance(decision, BeginIncarnation):
        return decision
    number = _next_round(facts)
    if isinstance(decision, Begin) and decision.parent is not None:
        return decision
    if facts.head is None and facts.begun_with is not None and facts.begun_by is not None:
        return _with_the_same_savepoint(number, facts)
    if facts.head is None:
        offsets = dict(decision.adopt_offsets) if isinstance(decision, Begin) else {}
        if isinstance(decision, Continue):
            offsets = {source: adopted.checkpoint for source, adopted in decision.round.adopted.items()}
        interrupted = decision.round if isinstance(decision, Continue) else None
        refreshed = frozenset(facts.newest.refreshed)
        return BeginIncarnation(number, facts.incarnation, facts.newest.on_rewind, offsets, interrupted, refreshed)
    return Begin(number, facts.head.checkpoint, interrupted=decision.round if isinstance(decision, Continue) else None)


def _drained(stop: Manifest) -> RejectedError:
    return RejectedError(
        f"The pipeline was drained by {stop.request}: its windows, joins and timers are flushed, which cannot be undone.",
        exists=f"Checkpoint {stop.checkpoint} and the savepoint of that request.",
        remedy=f"To go on after it, name its savepoint with --restore and add --allow-drained. Or {BEGIN_ANEW}.",
        checkpoint=stop.checkpoint,
        request=stop.request,
    )


def _begin_again(facts: HomeFacts, request: StartRequest, graph: Mapping[str, Any]) -> Begin | BeginIncarnation:
    """Returns the new round that replaces a different one without planned batches. So a mistyped path can be corrected."""
    newest, number, parent = facts.newest, _next_round(facts), facts.restored
    if parent is None:  # the work directory is not kept, because it may belong to tables that were named by mistake
        refreshed = frozenset(newest.refreshed)
        return BeginIncarnation(number, newest.incarnation, newest.on_rewind, request.adopt_offsets, refreshed=refreshed)
    if facts.latest_round is not None:
        _check_adoption(facts.latest_round, request, {})
    return _begin_after(parent, number, facts, request, graph)


def _begin_after(
    parent: Manifest,
    number: RoundNumber,
    facts: HomeFacts,
    request: StartRequest,
    graph: Mapping[str, Any],
    refreshed: frozenset[StageName] = frozenset(),
) -> Begin | BeginIncarnation:
    """Returns the round that continues a checkpoint of the home.

    Changed code, or a full refresh, begins an incarnation with a savepoint of it, so that older staged rows of a stage are not confused
    with new ones. A full refresh of all stages needs no savepoint.
    """
    if not refreshed and parent.graph == dict(graph):
        return Begin(number, parent.checkpoint)
    if refreshed and refreshed >= graph["stages"].keys():
        return BeginIncarnation(number, facts.incarnation, OnRewind.REPLACE, refreshed=refreshed)
    _check_change(request, without_stages(parent, refreshed), f"checkpoint {parent.checkpoint}", graph)
    return BeginFromSavepoint(number, facts.incarnation, OnRewind.REFUSE, checkpoint=parent.checkpoint, refreshed=refreshed)


def _with_the_same_savepoint(number: RoundNumber, facts: HomeFacts) -> BeginFromSavepoint:
    """Returns a new round that begins with the savepoint of the newest incarnation, which has no checkpoint yet."""
    assert facts.begun_by is not None
    return BeginFromSavepoint(
        number,
        facts.incarnation,
        facts.newest.on_rewind,
        restore=facts.begun_by.restore,
        refreshed=frozenset(facts.newest.refreshed),
    )


def without_stages(manifest: Manifest, names: Collection[StageName]) -> Manifest:
    """Returns a checkpoint as if it had been taken before some stages were added, with their sinks."""
    if not names:
        return manifest
    stages = {name: stage for name, stage in manifest.graph.get("stages", {}).items() if name not in names}
    changed = {
        "graph": manifest.graph | {"stages": stages},
        "stages": {name: cut for name, cut in manifest.stages.items() if name not in names},
        "sinks": {name: cut for name, cut in manifest.sinks.items() if cut.stage not in names},
    }
    brought = {sink: rows for sink, rows in manifest.brought.items() if _stage_of(manifest, sink) not in names}
    return manifest.model_copy(update=changed | {"brought": brought})


def _stage_of(manifest: Manifest, sink: SinkName) -> StageName | None:
    """Returns the stage of a sink, also in a checkpoint that has only staged rows of it."""
    stages = manifest.graph.get("stages", {}).items()
    return next((StageName(name) for name, stage in stages if (stage.get("sink") or {}).get("name") == sink), None)


def _still_to_refresh(
    request: StartRequest, facts: HomeFacts, stop: Manifest | None, refreshed: frozenset[StageName]
) -> frozenset[StageName]:
    """Returns the stages that a start must start over. There are none if the run, or the unfinished round, has already done so.

    Raises:
        RejectedError: The request cannot be carried out in this home now.
    """
    latest, final = facts.latest_round, facts.last_final
    begun = latest is not None and latest.incarnation == facts.incarnation
    unfinished = stop is None and (final is None or not begun)
    by = facts.begun_by
    if by is not None and (by.run, by.full_refresh) == (request.run, request.full_refresh):
        return frozenset()
    if not refreshed or (unfinished and refreshed <= frozenset(facts.newest.refreshed)):
        return frozenset()
    tables = ", ".join(request.full_refresh)
    if final is not None and final.drained and begun:
        raise RejectedError(
            f"A full refresh of {tables} cannot continue the other tables: run {final.run} has drained the pipeline.",
            exists=f"Checkpoint {final.checkpoint} has the results of that run.",
            remedy="Refresh all tables: --full-refresh-all (fresh=True, on_rewind='replace').",
            tables=list(request.full_refresh),
        )
    if unfinished:
        raise RejectedError(
            f"A full refresh of {tables} begins between two rounds, but "
            + (
                f"round {latest.round} of run {latest.run} was interrupted."
                if latest and begun
                else "an earlier start was interrupted."
            ),
            exists="Its rows so far are staged.",
            remedy="Finish that round first, by the same command without --full-refresh, or stop it. Then repeat. Or refresh all tables: "
            "--full-refresh-all (fresh=True, on_rewind='replace').",
            tables=list(request.full_refresh),
        )
    return refreshed


def _change(
    latest: RoundDocument,
    stop: Manifest | None,
    facts: HomeFacts,
    request: StartRequest,
    parameters: Mapping[str, Any],
    graph: Mapping[str, Any],
    refreshed: frozenset[StageName] = frozenset(),
) -> BeginIncarnation:
    """Returns the decision for changed code, or for a full refresh, if a round has begun and not ended.

    Raises:
        RejectedError: The round was interrupted. Only the code that has begun it can finish it.
    """
    begun_by = facts.begun_by
    if stop is None and facts.begun_with is not None and not facts.staging and begun_by and begun_by.restore:
        _check_change(request, facts.begun_with, "the savepoint", graph)
        return _with_the_same_savepoint(_next_round(facts), facts)
    if stop is None:
        raise _changed_midway(latest, facts, graph)
    changed = _changed_parameters(latest, parameters)
    if changed and not _allows_replacement(request):
        raise _other_parameters(latest, parameters, changed)
    _check_ending(latest, request)
    _check_adoption(latest, request, {})
    found = _begin_after(stop, _next_round(facts), facts, request, graph, refreshed)
    assert isinstance(found, BeginIncarnation)
    return found


def goes_on_from(decision: StartDecision, facts: HomeFacts) -> Manifest | None:
    """Returns the checkpoint whose state a start continues, or None."""
    if isinstance(decision, BeginFromSavepoint) and decision.checkpoint is None:
        return facts.begun_with if decision.restore else facts.savepoint
    if isinstance(decision, BeginIncarnation) and not isinstance(decision, BeginFromSavepoint):
        return None
    number = decision.checkpoint if isinstance(decision, BeginFromSavepoint) else decision.parent
    refreshed = decision.refreshed if isinstance(decision, BeginFromSavepoint) else ()
    kept = [manifest for manifest in (facts.head, facts.restored) if manifest is not None and manifest.checkpoint == number]
    return without_stages(kept[0], refreshed) if kept else facts.begun_with


def continued(decision: Decision, facts: HomeFacts) -> Manifest | None:
    """Returns the home's own checkpoint whose tables a start publishes into again, without stages that it computes again; or None."""
    kept = None if isinstance(decision, Answer) else goes_on_from(decision, facts)
    return None if kept is facts.begun_with or kept is facts.savepoint else kept


def check_spark(decision: StartDecision, request: StartRequest, facts: HomeFacts, minor: str, *, can_repartition: bool) -> None:
    """Refuses state that this Spark cannot continue.

    Args:
        decision: Decision of the start.
        request: Start request.
        facts: Past of the home.
        minor: Minor version of this Spark.
        can_repartition: True if this Spark can change the number of state partitions.

    Raises:
        RejectedError: A newer Spark has written the state, or this Spark cannot change the number of its partitions.
    """
    before = goes_on_from(decision, facts)
    if before is None:
        return
    if is_older(minor, before.spark):
        raise RejectedError(
            f"Checkpoint {before.checkpoint} was taken with Spark {before.spark}, but this is Spark {minor}: "
            "an older Spark cannot continue the state of a newer one.",
            exists="The checkpoint is intact, and its rows stay published.",
            remedy=f"Start with Spark {before.spark} or newer. Or go back to a savepoint that was taken with Spark {minor} or older "
            f"(--restore). Or {BEGIN_ANEW}.",
            checkpoint=before.checkpoint,
            expected=before.spark,
            found=minor,
        )
    asked = request.state_partitions
    own = not isinstance(decision, BeginFromSavepoint) or decision.checkpoint is not None
    known = facts.newest.state_partitions if own else None
    if asked not in (None, known) and not can_repartition:
        raise cannot_repartition(minor, asked)


def stage_fates(decision: Decision, facts: HomeFacts, graph: Mapping[str, Any]) -> tuple[StageFate, ...]:
    """Returns the fate of each stage; empty if nothing runs."""
    if isinstance(decision, Answer):
        return ()
    before = goes_on_from(decision, facts)
    if before is None:
        return fates(graph if isinstance(decision, Continue) else {}, graph)
    begins = isinstance(decision, BeginFromSavepoint) or before is facts.begun_with
    return fates(before.graph if begins else graph, graph)


def named_savepoint(request: StartRequest, facts: HomeFacts) -> RestoreFrom | None:
    """Returns the savepoint that a request wants to begin with, or None if it names none or has begun with it before."""
    return None if _is_repeated(request, facts.begun_by) else request.restore


def _is_repeated(request: StartRequest, begun_by: StartRequest | None) -> bool:
    """Returns True if the same run has requested the new incarnation before with the same options. Then it continues that one."""
    if begun_by is None or begun_by.run != request.run:
        return False
    return all(getattr(begun_by, option) == getattr(request, option) for option in _BEGINNING_OPTIONS) and (
        begun_by.fresh or bool(begun_by.restore)
    )


def _check_savepoint(request: StartRequest, savepoint: Manifest) -> None:
    if request.fresh or request.adopt_offsets or request.full_refresh or request.on_rewind is OnRewind.REPLACE:
        also = next(
            (option for option in ("fresh", "adopt_offsets", "full_refresh") if getattr(request, option)), "on_rewind=replace"
        )
        raise RejectedError(
            f"A start from a savepoint cannot have {also}: the savepoint contains the positions of its inputs and tables.",
            remedy="Leave it out. To remove rows that were published after the savepoint, use RESTORE TABLE … TO VERSION AS OF ….",
            savepoint=request.restore.savepoint if request.restore else None,
        )
    if savepoint.drained and not (request.restore and request.restore.allow_drained):
        raise RejectedError(
            f"The savepoint was taken after a drain ({savepoint.request}): its windows, joins and timers were flushed, and later rows "
            "of the same windows would give additional rows.",
            remedy="Use one without a drain. Or add --allow-drained (allow_drained=True): the watermark goes back to its earlier value.",
            savepoint=request.restore.savepoint if request.restore else None,
            request=savepoint.request,
        )


def _check_change(request: StartRequest, before: Manifest, what: str, graph: Mapping[str, Any]) -> None:
    """Refuses code that does not fit the state of a checkpoint.

    Raises:
        RejectedError: Stages do not fit. The error names them. Nothing was changed.
    """
    found = fates(before.graph, graph)
    impossible, dropped = with_fate(found, Fate.IMPOSSIBLE), with_fate(found, Fate.DROPPED)
    rename = "Rename a stage whose state does not fit: it starts empty, and the old one is dropped (--allow-dropped). Or run"
    if impossible or not with_fate(found, Fate.CONTINUES):
        raise RejectedError(
            f"Changed code cannot continue {what}: {'; '.join(map(str, impossible)) or 'the pipeline has none of its stages'}.",
            exists="Functions may change, and stages may be added or left out.",
            remedy=f"{rename if _leaves_some(found, graph) else 'Run'} the earlier code. Or {BEGIN_ANEW}.",
            stages=[each.stage for each in impossible],
        )
    if dropped and not request.allow_dropped:
        raise RejectedError(
            f"{what[0].upper()}{what[1:]} has state of stages that the pipeline no longer has: "
            f"{', '.join(each.stage for each in dropped)}.",
            remedy="Add --allow-dropped (allow_dropped=True) to leave it behind. Their tables stay unchanged.",
            stages=[each.stage for each in dropped],
        )


def _leaves_some(found: Sequence[StageFate], graph: Mapping[str, Any]) -> bool:
    """Returns True if a continued stage reads none of the unfit stages. A renamed stage is another input."""
    others = {each.stage for each in with_fate(found, Fate.IMPOSSIBLE)}
    for name, stage in graph["stages"].items():  # in topological order
        if others & set(stage.get("inputs", {}).values()):
            others.add(name)
    return any(each.stage not in others for each in with_fate(found, Fate.CONTINUES))


def _next_round(facts: HomeFacts) -> RoundNumber:
    newest, latest = facts.newest_attempt, facts.latest_round
    named = max(newest.round, newest.highest_round) if newest else 0
    return RoundNumber(max(named, latest.round if latest else 0) + 1)


def _check_rewind(request: StartRequest, facts: HomeFacts) -> None:
    public = facts.published() if request.on_rewind is OnRewind.REFUSE else {}
    if public:
        raise RejectedError(
            f"A fresh start would compute public rows again: {', '.join(f'{s} up to checkpoint {k}' for s, k in public.items())}.",
            remedy="Add --on-rewind keep (the published rows stay, the new ones are added) or --on-rewind replace (the first publication "
            "replaces them).",
            published=dict(public),
        )


def _changed_midway(latest: RoundDocument, facts: HomeFacts, graph: Mapping[str, Any]) -> RejectedError:
    restore = facts.begun_by.restore if facts.begun_by and (facts.head is None or facts.head.origin) else None
    back = f" Or go back to the savepoint that it began with (--restore {restore.savepoint})." if restore else ""
    return RejectedError(
        f"The pipeline is not the one that round {latest.round} was begun with: {', '.join(_differences(latest.graph, graph))} differ.",
        exists=f"The round was interrupted, and its rows so far are staged. After it, {'; '.join(map(str, fates(latest.graph, graph)))}.",
        remedy="Run the earlier code, and stop it (spark-jobs stop) or let it finish the round. Then run the changed code."
        f"{back} Or {BEGIN_ANEW}.",
        round=latest.round,
    )


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = []
    for section in sorted(before.keys() | after.keys()):
        old, new = before.get(section, {}), after.get(section, {})
        names += [f"{section}.{name}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return names


def _check_ending(latest: RoundDocument, request: StartRequest) -> None:
    """Refuses another ending than that of the round, because some of its stages may be drained already."""
    for name, begun, asked in (("on_end", latest.on_end, request.on_end), ("publish", latest.publish, request.publish)):
        if asked is not None and asked != begun:
            raise RejectedError(
                f"Round {latest.round} was begun with {name}={begun.value if begun else 'as declared'} and was interrupted; "
                f"it cannot go on with {name}={asked.value}.",
                exists="Its rows so far are staged.",
                remedy=f"Finish the round without {name}. The next round may differ.",
                round=latest.round,
                expected=begun,
                found=asked,
            )


def _check_adoption(latest: RoundDocument, request: StartRequest, allowed: Mapping[InputName, str]) -> None:
    """Refuses other offsets than those that the first round began with. The same request may be repeated."""
    if request.adopt_offsets and request.adopt_offsets != dict(allowed):
        raise RejectedError(
            f"Offsets of an old query can be adopted only if nothing has been read yet. The home is at round {latest.round}, "
            f"begun by run {latest.run}.",
            exists="The home has offsets of its own.",
            remedy=f"Leave --adopt-offsets out: the home has its own. Or give the pipeline an empty home, or {BEGIN_ANEW}.",
            round=latest.round,
            expected=dict(allowed),
            found=request.adopt_offsets,
        )


def _check_tables(final: Manifest, graph: Mapping[str, Any]) -> None:
    """Refuses code with other tables than those of a drained pipeline: nothing would be written into them."""
    before, now = _sinks(final.graph), _sinks(graph)
    changed = sorted(stage for stage in before.keys() | now.keys() if before.get(stage) != now.get(stage))
    if changed:
        differences = "; ".join(_table_difference(stage, before.get(stage), now.get(stage)) for stage in changed)
        raise RejectedError(
            f"The pipeline is finished, but its code has other tables than those that run {final.run} has filled: {differences}.",
            exists=f"Checkpoint {final.checkpoint} has the results of that run.",
            remedy=f"Give the new code another home, undo the change, or {BEGIN_ANEW}.",
            round=final.round,
            expected={stage: before.get(stage) for stage in changed},
            found={stage: now.get(stage) for stage in changed},
        )


def _sinks(graph: Mapping[str, Any]) -> dict[str, Any]:
    return {name: stage["sink"] for name, stage in graph.get("stages", {}).items() if stage.get("sink")}


def _table_difference(stage: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    if before is None or now is None:
        return f"stage {stage} has {'no table any more' if now is None else 'a table now'}"
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return f"stage {stage} has " + ", ".join(f"{name} {now.get(name)!r} (before {before.get(name)!r})" for name in names)


def _check_finished(latest: RoundDocument, final: Manifest, parameters: Mapping[str, Any]) -> None:
    """Refuses other parameters than those of the drained round. A parameter that only the newer code has does not count."""
    before, changed = latest.parameters, _changed_parameters(latest, parameters)
    if changed:
        raise RejectedError(
            f"The pipeline is finished: run {final.run} has drained it with other parameters ({', '.join(changed)}).",
            exists=f"Checkpoint {final.checkpoint} has the results of that run.",
            remedy=f"Give it another home, or {BEGIN_ANEW}. To continue a pipeline later, let it suspend at the end of "
            "its inputs (on_end).",
            round=latest.round,
            expected={name: before[name] for name in changed},
            found={name: parameters[name] for name in changed},
        )


def check_parameters(latest: RoundDocument, parameters: Mapping[str, Any]) -> None:
    """Refuses other parameters than those of an interrupted round.

    Raises:
        RejectedError: The parameters differ.
    """
    if changed := _other_values(latest, parameters):
        raise _other_parameters(latest, parameters, changed)


def _other_values(latest: RoundDocument, parameters: Mapping[str, Any]) -> list[str]:
    """Returns the parameters that differ, with those that only one of both has."""
    names = latest.parameters.keys() | parameters.keys()
    return sorted(name for name in names if latest.parameters.get(name) != parameters.get(name))


def _changed_parameters(latest: RoundDocument, parameters: Mapping[str, Any]) -> list[str]:
    """Returns the parameters with another value. A parameter that only the newer or only the earlier code has does not count."""
    before = latest.parameters
    return sorted(name for name in before.keys() & parameters.keys() if before[name] != parameters[name])


def _other_parameters(latest: RoundDocument, parameters: Mapping[str, Any], changed: Sequence[str]) -> RejectedError:
    sources, statics = latest.graph.get("sources", {}), latest.graph.get("statics", {})
    return RejectedError(
        f"Round {latest.round} was begun by run {latest.run} with other parameters ({', '.join(changed)}) and was interrupted.",
        exists="Its rows so far are staged.",
        remedy=f"Finish it first: start again with its parameters {latest.parameters}. If yours name another source or static table, "
        f"continue with that one: {for_sources('--new-source', [*sources, *statics])}. If the input of the round is lost, continue with "
        f"the rest of it: {for_sources('--accept-data-loss', sources)}. Or {BEGIN_ANEW}.",
        round=latest.round,
        expected=latest.parameters,
        found=dict(parameters),
    )
