"""The guards of the product, and how to switch each of them off. Without a guard, some schedule breaks a promise.

Guards that model a rule of the design have the name of the model in brackets. Three guards of the model are missing here. *adopt* is a
promise of the storage: a create that finds its own bytes has succeeded. *sweepcut* is part of *sweepafter*. For *relist*, no schedule was
found that breaks a promise: an attempt that takes a deleted number meets the next guard, its deleted work directory, or a missing file of
actions. Guards that seldom matter have tests of their own in tests/unit: an attempt closes nothing of a higher one, stops if another
attempt has begun unseen, and counts only once it has begun.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spark_jobs.checkpoint import retention
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import BatchId, CheckpointId
from spark_jobs.publication import delta_rs, holds, pending, publisher, transactions
from spark_jobs.runtime import application, running_pipeline
from spark_jobs.runtime.checkpoints import blocked_publication, checkpoint_try, cut, publishing, subsume
from spark_jobs.runtime.checkpoints.blocked_publication import Retries
from spark_jobs.runtime.checkpoints.checkpoint_try import CheckpointTry
from spark_jobs.runtime.checkpoints.publishing import Publishing
from spark_jobs.runtime.checkpoints.sweep import NamedByCheckpoints, sweep
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.running_pipeline import RunningPipeline
from spark_jobs.runtime.staged.private_log import StagedAmount
from spark_jobs.runtime.start import attempt, restore, work_directory
from spark_jobs.runtime.state import pinning
from tests.simulation.promises import SimulatedHold
from tests.simulation.schedules import HOLD, Plan, no_chaos
from tests.simulation.stages import Site
from tests.simulation.world import Chaos

_RUNS_ON, _LONG, _LONG_ROUNDS = Plan(), Plan(rows=30), Plan(bounded=True, rows=30)
_LONG_PUBLIC = Plan(bounded=True, rows=30, every_checkpoint=True)
_NONE = replace(no_chaos(), odds=0.4, elsewhere=0.0)


def _stopped_at(*at: str) -> Callable[[], Chaos]:
    return lambda: replace(_NONE, freezes=4, at=at, frozen_steps=(1_000, 4_000))


def _held_up_at(*at: str) -> Callable[[], Chaos]:
    return lambda: replace(_NONE, stalls=20, at=at)


def _quiet() -> Chaos:
    return replace(_NONE)


def _killed_while_restoring() -> Chaos:
    """Returns chaos in which most kills hit an attempt while it restores."""
    return replace(_NONE, kills=8, odds=0.5, elsewhere=0.001, at=("link stages/", "create restored.json"))


def _late_or_killed_before_it_has_a_checkpoint() -> Chaos:
    """Returns chaos in which attempts complete a checkpoint late, while the next attempt still restores and is killed or stopped."""
    at = ("create manifests/", "link stages/")
    return replace(_NONE, kills=6, freezes=6, at=at, odds=0.3, elsewhere=0.001, frozen_steps=(500, 4_000))


_AT_STATE, _AT_COMMIT = _stopped_at("list state"), _stopped_at("commit ")


@dataclass(frozen=True)
class Guard:
    """A mechanism of the product that keeps a promise.

    Args:
        name: The rule that it enforces, in a few words.
        switch_off: Replaces the mechanism by code without the guard.
        plan: The schedules in which the guard matters.
        chaos: The faults with which it matters.
        hint: A seed that shows the broken promise. It is tried first, because that is fast.
    """

    name: str
    switch_off: Callable[[Site, pytest.MonkeyPatch], None]
    plan: Plan = _RUNS_ON
    chaos: Callable[[], Chaos] = Chaos
    hint: int = 0

    def __str__(self) -> str:
        return self.name


def _only_the_newest(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = pending.pending_manifests

    def newest(store: CheckpointStore, manifest: Manifest, *rest: Any) -> list[Manifest]:
        return real(store, manifest, *rest)[-1:]

    patch.setattr(pending, "pending_manifests", newest)


def _nothing_is_carried(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint_try, "carried", lambda *_: ())


def _carried_files_go(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = retention._named_files

    def named(manifest: Manifest) -> Iterator[str]:
        carried = {each.actions.path for cut in manifest.sinks.values() for each in cut.carried}
        return (path for path in real(manifest) if path not in carried)

    patch.setattr(retention, "_named_files", named)


def _what_was_named_before_goes(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "_tells_alone", lambda *_: False)
    patch.setattr(checkpoint_try, "named_before", lambda *_: ())


def _skip_taken_numbers(site: Site, patch: pytest.MonkeyPatch) -> None:
    def following(store: CheckpointStore, parent: CheckpointId) -> CheckpointId:
        return CheckpointId(max(store.taken(), default=0) + 1)

    patch.setattr(CheckpointStore, "next_id", following)


def _always_a_new_first_number(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointStore, "first_id", lambda store, incarnation: CheckpointId(max(store.taken(), default=0) + 1))


def _sweep_before_the_manifest(site: Site, patch: pytest.MonkeyPatch) -> None:
    real_take, real_complete = CheckpointTry.take, CheckpointTry._complete
    running: dict[int, Sequence[Any]] = {}

    def take(effort: CheckpointTry, stages: Sequence[Any]) -> Manifest:
        running[id(effort)] = stages
        return real_take(effort, stages)

    def complete(effort: CheckpointTry, store: CheckpointStore, manifest: Manifest) -> None:
        stages = running[id(effort)]
        known = effort.parent or manifest
        for stage in stages:
            named = NamedByCheckpoints(store, known, stage.stage, stage.log.oldest())
            sweep(stage, manifest.stages[stage.stage.name].batch, named)
        real_complete(effort, store, manifest)

    patch.setattr(CheckpointTry, "take", take)
    patch.setattr(CheckpointTry, "_complete", complete)


def _forget_who_else_names_it(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = retention.discard

    def discard(home: Any, checkpoints: Any) -> list[str]:
        gone = list(checkpoints)
        for stage in home.names("state") if gone else ():
            for place in home.names(f"state/{stage}"):
                if int(place.split("-")[0]) in gone:
                    home.delete(f"state/{stage}/{place}")
        return real(home, gone)

    patch.setattr(subsume, "discard", discard)


def _unsettled_tries_go(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = retention._settled
    patch.setattr(retention, "_settled", lambda home, head, corrupt: real(home, CheckpointId(head + 1_000), ()))


def _what_is_not_public_goes(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "_is_public", lambda manifest, sink, published: True)


def _any_work_directory(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = work_directory.why_not_in_place
    patch.setattr(work_directory, "why_not_in_place", lambda home, previous, head, boot: real(home, previous, None, boot))


def _any_host(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = work_directory.why_not_in_place
    patch.setattr(
        work_directory, "why_not_in_place", lambda home, previous, head, boot: real(home, previous, head, previous.boot)
    )


def _half_built(site: Site, patch: pytest.MonkeyPatch) -> None:
    for module in (attempt, work_directory):
        patch.setattr(module, "is_half_built", lambda work: False)
    patch.setattr(work_directory, "is_whole", lambda work, head: True)
    patch.setattr(work_directory, "_lost", lambda work, head: None)  # this check would find most of them, too,
    patch.setattr(attempt, "heal_in_place", lambda *_, **__: None)  # and so would this one


def _nothing_is_healed(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempt, "heal_in_place", lambda *_, **__: None)


def _what_is_staged_goes_back_with_the_state(site: Site, patch: pytest.MonkeyPatch) -> None:
    """Gives every stage the private log of the older checkpoint, too: its later batches are staged again."""
    real = restore._CheckpointChain.rebuild_log

    def rebuild_log(chain: restore._CheckpointChain, work: Any, name: Any, depth: int) -> None:
        real(restore._CheckpointChain(chain._home, chain.back(depth)), work, name, 0)

    patch.setattr(restore._CheckpointChain, "rebuild_log", rebuild_log)


def _what_the_parent_names_is_not_looked_at(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint_try, "pin", lambda *arguments, **_: pinning.pin(*arguments))


def _nothing_is_closed(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(application, "close_abandoned", lambda *_: None)


def _head_stays_private(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(application.Application, "_publish_head", lambda *_: None)


def _every_refusal_ends_it(site: Site, patch: pytest.MonkeyPatch) -> None:
    for module in (blocked_publication, publishing, running_pipeline):
        patch.setattr(module, "may_heal", lambda error: False)


def _every_refusal_ends_a_start(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blocked_publication, "may_heal", lambda error: False)


def _it_is_never_tried_again(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retries, "is_due", lambda retries, now_s: False)


def _who_is_behind_does_not_come_first(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publisher, "_behind_first", lambda plans, manifest: plans)


def _all_wait_for_a_table_with_a_hold(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(holds.Holding, "_waits", lambda holding, sink: True)


def _a_hold_lasts_for_ever(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(holds.Holding, "_waits", lambda holding, sink: False)


def _a_hold_takes_any_amount(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(holds, "_fits", lambda *_: True)


def _the_others_go_on(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = Publishing._try_again

    def go_on(publishing: Publishing, newest: Manifest) -> None:
        real(publishing, newest)
        publishing._follow(newest)

    patch.setattr(Publishing, "_try_again", go_on)


def _what_all_show_goes(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Publishing, "shown", None)


def _what_is_being_published_goes(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = RoundRun.subsume

    def subsume(run: RoundRun, stages: Any, manifest: Manifest, _: Any, **options: Any) -> None:
        real(run, stages, manifest, dict.fromkeys(manifest.sinks, manifest.checkpoint), **options)

    patch.setattr(RoundRun, "subsume", subsume)


def _the_end_waits_for_no_publication(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningPipeline, "publish", lambda pipeline, manifest, **_: None)


def _fenced_goes_on(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempts, "check_live", lambda attempts, number: None)


def _two_handles(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = transactions.DeltaRsTransaction.publish

    def publish(transaction: transactions.DeltaRsTransaction, *arguments: Any, **options: Any) -> None:
        transaction.table = delta_rs.open_table(transaction.table.facts.uri)
        real(transaction, *arguments, **options)

    patch.setattr(transactions.DeltaRsTransaction, "publish", publish)


def _producers_first(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = cut._consistent
    patch.setattr(cut, "_consistent", lambda stages, *rest: real(stages[::-1], *rest))


def _consumers_are_not_waited_for(site: Site, patch: pytest.MonkeyPatch) -> None:
    def consistent(stages: Sequence[cut.Cuttable], *_: Any) -> dict[Any, BatchId]:
        return {stage.name: stage.committed() for stage in reversed(stages)}

    patch.setattr(cut, "_consistent", consistent)


def _who_has_rows_in_flight_is_not_named(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = CheckpointTry._read_logs

    def read_logs(effort: CheckpointTry, *arguments: Any) -> dict[Any, Any]:
        return {name: replace(logged, in_flight=StagedAmount()) for name, logged in real(effort, *arguments).items()}

    patch.setattr(CheckpointTry, "_read_logs", read_logs)


def _in_flight_files_go(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(subsume, "in_flight_from", lambda manifests, stage: None)


_PUBLISHED_BY_OTHERS, _PUBLISHED_LATE = Plan(external=True), Plan(external=True, published_late=True)
_REWINDS, _REFUSES = Plan(rewinds=True), Plan(refuses=True)
_HELD = Plan(refuses=True, rows=30, hold=HOLD)
_HELD_SHORT = replace(_HELD, hold=SimulatedHold(1_000.0, size_bytes=20))
_TWICE_DAMAGED = Plan(twice_damaged=True, rows=30)
_UNALIGNED = Plan(unaligned=True)
_SLOW = Plan(rows=50, slow=True)
_SLOW_ROUNDS = Plan(bounded=True, every_checkpoint=True, slow=True)
GUARDS = [
    Guard("publication walks the parent chain from the table's version [chain]", _only_the_newest, _PUBLISHED_LATE, _quiet),
    Guard("the child of k is k + 1 [dense]", _skip_taken_numbers, hint=208),
    Guard("an incarnation has one first checkpoint [dense]", _always_a_new_first_number, hint=2),
    Guard("an attempt sweeps only after a manifest that it created [sweepafter]", _sweep_before_the_manifest, hint=6),
    Guard("a checkpoint goes without what others name [gcnames]", _forget_who_else_names_it, hint=0),
    Guard("what a failed try keeps stays until its number is settled [failkeep]", _unsettled_tries_go, _LONG, _AT_STATE, hint=1),
    Guard(
        "what is not public is not discarded",
        _what_is_not_public_goes,
        replace(_LONG, external=True, published_late=True),
        _quiet,
    ),
    Guard(
        "in place only where the head was cut [lineage]",
        _any_work_directory,
        _RUNS_ON,
        _late_or_killed_before_it_has_a_checkpoint,
        hint=323,
    ),
    Guard("in place only on the host that has not gone down", _any_host, hint=4),
    Guard(
        "nothing is continued where a restore has not come to its end", _half_built, _RUNS_ON, _killed_while_restoring, hint=10
    ),
    Guard("nothing is continued in a work directory that is damaged", _nothing_is_healed, Plan(damaged=True), _quiet, hint=22),
    Guard("what is computed again is not staged again", _what_is_staged_goes_back_with_the_state, _TWICE_DAMAGED, _quiet, hint=3),
    Guard(
        "no checkpoint names a damaged file of its parent",
        _what_the_parent_names_is_not_looked_at,
        _TWICE_DAMAGED,
        _quiet,
        hint=0,
    ),
    Guard("a rewind closes what it abandons", _nothing_is_closed, replace(_REWINDS, external=True), _AT_COMMIT, hint=1),
    Guard("what is complete is public before anything runs", _head_stays_private, hint=0),
    Guard("a table that refuses ends no pipeline", _every_refusal_ends_it, _REFUSES, _quiet),
    Guard("a table that refuses ends no start", _every_refusal_ends_a_start, _REFUSES, _quiet, hint=1),
    Guard("a blocked publication is tried again", _it_is_never_tried_again, replace(_REFUSES, rows=50), _quiet),
    Guard("the table that is behind is published first", _who_is_behind_does_not_come_first, _REFUSES, _quiet, hint=5),
    Guard("a table that refuses holds the others", _the_others_go_on, replace(_REFUSES, rows=50), _quiet),
    Guard("a hold lets the other tables go on", _all_wait_for_a_table_with_a_hold, _HELD, _quiet, hint=20),
    Guard("a hold ends", _a_hold_lasts_for_ever, _HELD, _quiet, hint=0),
    Guard("a hold ends where too much waits", _a_hold_takes_any_amount, _HELD_SHORT, _quiet, hint=6),
    Guard("what a held table lacks is not discarded", _what_is_not_public_goes, _HELD, _quiet, hint=2),
    Guard("a held table gets all that it lacks", _only_the_newest, _HELD, _quiet),
    Guard("the checkpoint that all tables show stays", _what_all_show_goes, _SLOW, _quiet),
    Guard("what is being published stays", _what_is_being_published_goes, _SLOW, _quiet, hint=5),
    Guard("the last checkpoint is public at the end", _the_end_waits_for_no_publication, _SLOW_ROUNDS, _quiet, hint=14),
    Guard("a fenced attempt stops [fencehead]", _fenced_goes_on, hint=2),
    Guard("the version is read and committed on one handle", _two_handles, _PUBLISHED_BY_OTHERS, hint=17),
    Guard(
        "consumers are cut before producers",
        _producers_first,
        _UNALIGNED,
        _held_up_at("list stages/again/checkpoint/commits"),
        hint=7,
    ),
    Guard(
        "a cut waits until producers have committed",
        _consumers_are_not_waited_for,
        _UNALIGNED,
        _held_up_at("write commits/"),
        hint=0,
    ),
    Guard("who has rows in flight before it is named", _who_has_rows_in_flight_is_not_named, _UNALIGNED, _quiet),
    Guard("a checkpoint carries what a round has staged before it", _nothing_is_carried, _LONG_ROUNDS, _quiet, hint=0),
    Guard("what a checkpoint carries stays", _carried_files_go, _LONG_ROUNDS, _quiet, hint=0),
    Guard("what discarded checkpoints have named stays", _what_was_named_before_goes, _LONG_PUBLIC, _quiet, hint=10),
    Guard("files in flight stay", _in_flight_files_go, replace(_LONG, unaligned=True, between=True), hint=5),
]
