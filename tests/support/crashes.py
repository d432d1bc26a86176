"""Runs that lose power at a durable step.

The steps are not listed here: a clean run is watched, and every step that it passes becomes a point of a crash.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.storage.open import open_place
from tests.support.run_site import RunSite
from tests.support.systems import Crashed, CrashSystem

HOUSEKEEPING = frozenset({Step.SWEEP, Step.LOG_FOLD, Step.LOG_CHECKPOINT, Step.LOG_TRIM})
"""Steps of a small run after its manifest.

An attempt that finds the manifest answers at once, and leaves these steps to a later attempt.
"""
NOT_IN_A_SMALL_RUN = frozenset(
    {
        Step.LOSS_RECORD,
        Step.LOSS_ACCEPT,
        Step.LOSS_UNDO,
        Step.LOSS_BACKFILL,
        Step.LOSS_REOPEN,
        Step.TIDY_FILE,
        Step.TIDY_END,
        Step.KEEP_ANSWER,
        Step.FORGET,
        Step.OWNER_CREATE,
        Step.CANCEL_CREATE,
        Step.TABLE_ALTER,
        Step.LOG_WIDEN,
        Step.PACK_FILES,
        Step.DRAIN_BEGIN,
        Step.COMMIT_BATCH,
        Step.BURY_KEYS,
        Step.COMPACT_KEYS,
        Step.FOLD_KEYS,
        Step.TRIM_KEYS,
        Step.INHERIT_KEYS,
        Step.RESTORE_BEGIN,
        Step.RESCALE,
        Step.RESTORE_END,
        Step.DISCARD,
        Step.SAVEPOINT_BEGIN,
        Step.SAVEPOINT_FILES,
        Step.SAVEPOINT_CREATE,
        Step.SAVEPOINT_END,
        Step.SAVEPOINT_IMPORT,
        Step.SAVEPOINT_VOID,
        Step.SAVEPOINT_REMOVE,
    }
)
"""Steps that the small pipeline never passes."""
OF_EACH_TRY = frozenset({Step.PIN_STATE, Step.PERSIST_STATE, Step.ACTIONS_CREATE, Step.CHANNEL_CREATE})
"""Steps that each try at a checkpoint repeats from the first one, until a manifest exists."""


@dataclass(frozen=True)
class Point:
    """A point before or after the n-th time that a run passes a step."""

    step: Step
    occurrence: int
    before: bool

    def __str__(self) -> str:
        return f"{'before' if self.before else 'after'} {self.step.value} {self.occurrence}"

    @property
    def name(self) -> tuple[Step, bool]:
        return self.step, self.before


@dataclass
class Watched:
    """Records each point that a run passes, and crashes at the point that ``choose`` accepts."""

    choose: Callable[[Point], bool] = lambda point: False
    crash: Callable[[], object] = lambda: None
    points: list[Point] = field(default_factory=list)
    chosen: Point | None = None
    _times: Counter[Step] = field(default_factory=Counter)

    def before(self, step: Step) -> None:
        self._times[step] += 1
        self._pass(Point(step, self._times[step], True))

    def after(self, step: Step) -> None:
        self._pass(Point(step, self._times[step], False))

    def _pass(self, point: Point) -> None:
        if self.chosen is not None:
            raise Crashed(f"{point}, after the crash")
        self.points.append(point)
        if self.choose(point):
            self.chosen = point
            self.crash()
            raise Crashed(str(point))


def watched(run: Callable[[], object]) -> list[Point]:
    """Returns the points that an undisturbed run passes, in order."""
    observer = Watched()
    with observed_by(observer):
        run()
    return observer.points


def run_into(
    site: RunSite, choose: Callable[[Point], bool], run: str = "first", *, foreign: tuple[str, ...] = (), **options: Any
) -> Point | None:
    """Runs until the first point that ``choose`` accepts, and loses power there. Checks that the dead run changes nothing afterwards.

    Args:
        site: The site of the run.
        choose: Called at each point. Returns True to crash there.
        run: The run id.
        foreign: Patterns of other writers' files that are lost as well, see :class:`~tests.support.systems.CrashSystem`.
        options: Options of :meth:`~tests.support.run_site.RunSite.run`.

    Returns:
        The point. None if the run ended.
    """
    system = CrashSystem(site.directory, foreign=foreign)
    found: dict[str, dict[str, str]] = {}

    def crash() -> None:
        system.crash()
        found.update(_everything(site))

    observer = Watched(choose, crash)
    with observed_by(observer):
        try:
            site.run(run, system=system, **options)
        except Crashed:
            assert _everything(site) == found, f"a run went on after its crash {observer.chosen}"
    return observer.chosen


def contents(place: str | Path) -> dict[str, str]:
    """Returns the hash of every file of the product: not of Spark's checkpoints, locks, or the log for users."""
    there = open_place(str(place))
    here = there.local()
    paths = there.paths() if here is None else [os.path.relpath(path, here) for path in _files(here)]
    read = there.read if here is None else lambda path: (here / path).read_bytes()
    return {
        path: sha256(read(path)).hexdigest()
        for path in paths
        if "checkpoint" not in Path(path).parts and Path(path).suffix not in (".lock", ".log", ".crc")
    }


def _everything(site: RunSite) -> dict[str, dict[str, str]]:
    return {place: contents(place) for place in (str(site.directory), site.place)}


def _files(directory: Path) -> list[str]:
    return [os.path.join(above, name) for above, _, names in os.walk(directory) for name in names]


class InTurn:
    """Chooses the points of a chain of attempts, each of which goes on where the one before it crashed.

    Each attempt gets one point further: before a step, then after it, then before the next. One chain thus dies before and after every
    occurrence of every step up to the answer, and costs little more than one run.

    Args:
        steps: The steps of the crashes. They include the answer.
    """

    def __init__(self, steps: Collection[Step] = tuple(Step)) -> None:
        self._steps = steps
        self.chosen: list[Point] = []

    @property
    def last(self) -> Point | None:
        return self.chosen[-1] if self.chosen else None

    @property
    def answered(self) -> bool:
        return self.last is not None and self.last.step is Step.RESPONSE_CREATE and not self.last.before

    def choose(self, point: Point) -> bool:
        """Returns whether the attempt that passes ``point`` crashes there, for :func:`run_into`."""
        if point.step not in self._steps or point.occurrence <= self._repeated(point.step):
            return False
        undone = self.last.step if self.last is not None and self.last.before else None
        wanted = not point.before and point.step is undone if undone else point.before
        if wanted:
            self.chosen.append(point)
        return wanted

    def _repeated(self, step: Step) -> float:
        """Returns how often an attempt passes a step that an earlier attempt has also passed."""
        if self.last is None:
            return 0
        if step is Step.ATTEMPT_BEGIN:  # each attempt that starts from the beginning passes it
            return inf if (Step.ATTEMPT_BEGIN, False) in [point.name for point in self.chosen] else 0
        if step in (Step.REQUEST_CREATE, Step.ATTEMPT_CREATE):
            asking = self.last.step in (Step.PIPELINE_CREATE, Step.REQUEST_CREATE) or self.last.name == (
                Step.ATTEMPT_CREATE,
                True,
            )
            return 0 if asking else inf
        if step is Step.STAGE_FILES:  # files that no version names are written again
            return int(self.last.name == (Step.STAGE_FILES, False))
        if step in OF_EACH_TRY:
            return [point.name for point in self.chosen].count((step, False))
        return 0


class AtRandom:
    """Chooses one of the next points that a run passes, at random."""

    def __init__(self, chosen: Random, points_max: int) -> None:
        self._left = chosen.randrange(points_max)

    def __call__(self, point: Point) -> bool:
        self._left -= 1
        return self._left < 0
