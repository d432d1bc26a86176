"""The guards of stops and drains, and how to switch each of them off; see :mod:`tests.simulation.guards`.

One guard seldom matters and has a test of its own in tests/unit: after a failed drain, the stages do not go on.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_jobs.checkpoint import savepoint
from spark_jobs.checkpoint.savepoint_files import PARTS
from spark_jobs.control.request_table import RequestEvent, rejected_after
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.runtime import running_pipeline
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.checkpoints.stopping import Stop
from spark_jobs.runtime.open_requests import OpenRequests
from spark_jobs.runtime.running_pipeline import RunningPipeline
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.files import Files
from tests.simulation.guards import Guard
from tests.simulation.schedules import Ask, Plan
from tests.simulation.stages import Site
from tests.simulation.stop_schedules import DRAIN, ROWS, STOP, chaos_of_stops
from tests.simulation.world import Chaos

_DRAINS = Plan(rows=ROWS, windows=True, stops=(DRAIN,))
_LONG_DRAINS = replace(_DRAINS, rows=40)
_STOPS = Plan(rows=ROWS, windows=True, stops=(STOP, STOP, STOP))
_REFUSED = replace(_STOPS, refuses=True)
_SAVING = Plan(rows=ROWS, windows=True, stops=(STOP, Ask(Wanted.SAVEPOINT)))
_NONE = replace(chaos_of_stops(), kills=0, freezes=0, stalls=0, faults=0, reboots=0, odds=0.4, elsewhere=0.0)


def _killed_at(*at: str) -> Callable[[], Chaos]:
    return lambda: replace(_NONE, kills=3, at=at, odds=0.5)


def _killed_late() -> Chaos:
    """Returns chaos in which a checkpoint comes before the batch that moves the watermark to the end, and a kill after the checkpoint."""
    batches = ("create stages/again/checkpoint/offsets/", "create stages/copied/checkpoint/offsets/")
    return replace(_NONE, stalls=20, kills=2, reboots=2, at=(*batches, "create history/"))


def _stopped_and_killed_in_an_export() -> Chaos:
    at = ("create savepoint.json", "delete ")
    return replace(_NONE, freezes=3, kills=2, at=at, frozen_steps=(500, 4_000))


def _no_mark(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(running_pipeline, "begin_drain", lambda work, request: None)


def _nobody_rolls_forward(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenRequests, "roll_forward", lambda requests, head, request: None)


def _all_stops_win(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = Stop.__init__

    def begin(stop: Stop, asked: Sequence[CheckpointRequest], *rest: Any) -> None:
        real(stop, asked, *rest)
        stop._others, stop._asked = [], list(asked)

    patch.setattr(Stop, "__init__", begin)


def _drains_go_on_from_the_checkpoint(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningPipeline, "_take_over_stops", lambda pipeline: None)


def _stops_are_answered_at_once(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = RunningPipeline.complete

    def complete(pipeline: RunningPipeline, order: Any) -> Any:
        return None if order.find_cut == pipeline._where_they_begin else real(pipeline, order)

    patch.setattr(RunningPipeline, "complete", complete)


def _a_fenced_attempt_answers(site: Site, patch: pytest.MonkeyPatch) -> None:
    def reject(requests: RequestedCheckpoints, event: RequestEvent, asked: Sequence[CheckpointRequest], error: Any) -> None:
        requests._answer(requests._failure(request, error) for request in rejected_after(event, asked))

    patch.setattr(RequestedCheckpoints, "reject", reject)


def _what_fails_is_told(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningPipeline, "_find_out", lambda pipeline: None)
    patch.setattr(RunningPipeline, "_unknown", lambda pipeline, request, error: error)


def _an_export_begins_anew(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = savepoint.copy_files

    def copy_all(target: Files, needed: Any, check: Any) -> Any:
        for part in set(PARTS) & set(target.names("")):
            target.delete(part)
        return real(target, needed, check)

    patch.setattr(savepoint, "copy_files", copy_all)


def _answered_before_it_is_public(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningPipeline, "publish", lambda pipeline, manifest, **_: None)


def _nobody_is_told_that_it_is_blocked(site: Site, patch: pytest.MonkeyPatch) -> None:
    real = RequestedCheckpoints.__init__

    def begin(requests: RequestedCheckpoints, *arguments: Any, **options: Any) -> None:
        real(requests, *arguments, **options | {"blocked": lambda: None})

    patch.setattr(RequestedCheckpoints, "__init__", begin)


def _nothing_is_let_go(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StageRun, "release", lambda stage: None)


_IN_A_DRAIN = "create stages/again/checkpoint/offsets/"
_GIVING_UP = replace(_NONE, freezes=3, faults=12, at=("create history/", "create answers/stop"), frozen_steps=(500, 4_000))
_ROUNDS = Plan(bounded=True, rows=ROWS, windows=True, stops=(Ask(Wanted.SAVEPOINT),))
STOP_GUARDS = [
    Guard("a round lets go what an attempt before had no time for", _nothing_is_let_go, _ROUNDS, _killed_late, hint=377),
    Guard("a work directory says that its stages are being drained", _no_mark, _LONG_DRAINS, _killed_at(_IN_A_DRAIN), hint=30),
    Guard(
        "a stop that did not finish is rolled forward",
        _nobody_rolls_forward,
        _DRAINS,
        _killed_at("create answers/stop"),
        hint=26,
    ),
    Guard("of two stops one wins", _all_stops_win, _STOPS, lambda: replace(_NONE), hint=4),
    Guard(
        "a drain is asked for again where rows are read again",
        _drains_go_on_from_the_checkpoint,
        _DRAINS,
        chaos_of_stops,
        hint=23,
    ),
    Guard(
        "an attempt that takes over stops takes the next number first",
        _stops_are_answered_at_once,
        _DRAINS,
        chaos_of_stops,
        hint=159,
    ),
    Guard("a fenced attempt turns no stop down", _a_fenced_attempt_answers, _STOPS, lambda: replace(_GIVING_UP), hint=7),
    Guard(
        "a stop whose checkpoint is there has not failed",
        _what_fails_is_told,
        _STOPS,
        lambda: replace(_NONE, faults=30),
        hint=176,
    ),
    Guard(
        "whoever makes a savepoint leaves what is right",
        _an_export_begins_anew,
        _SAVING,
        _stopped_and_killed_in_an_export,
        hint=381,
    ),
    Guard("a stop is public before it is answered", _answered_before_it_is_public, _STOPS, lambda: replace(_NONE)),
    Guard(
        "a stop says that its publication is blocked",
        _nobody_is_told_that_it_is_blocked,
        _REFUSED,
        lambda: replace(_NONE),
        hint=0,
    ),
]
