"""A round with many checkpoints. One stage waits to the end for the stage that it reads, and the home stays small all the time."""

from collections import Counter
from itertools import cycle

import pytest

from spark_jobs.home.layout import CHECKPOINTS, MANIFESTS, STATE, WORK
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.ids import RunId
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.inputs.bounds import Bound
from tests.simulation.promises import HOME
from tests.simulation.schedules import Plan, Schedule
from tests.simulation.stages import Query
from tests.simulation.storage import Watcher
from tests.simulation.world import Chaos, Process

ROWS = 400
"""The number of batches of the stage for which the other one waits."""
QUIET = Chaos(kills=0, freezes=0, stalls=0, faults=0, reboots=0)


class LongRound(Schedule, Watcher):
    """A round whose rows all exist from the beginning.

    Args:
        publish: When its rows become public. None: early in the first table, at the end in the second one.
        killed_after: The number of checkpoints after which a driver is killed and the next one begins on another host. None: one driver.
    """

    def __init__(self, publish: Publish | None, killed_after: int | None = None) -> None:
        plan = Plan(bounded=True, rows=ROWS, early=publish is None, external=publish is Publish.EXTERNAL)
        super().__init__(1, plan, QUIET)
        self._policy, self._killed_after = publish, killed_after
        self.site.input.rows = ROWS
        self.promises.also.append(self)
        self.waited = 0
        """The number of checkpoints that were complete before the second stage had a batch."""
        self.most: Counter[str] = Counter()
        """For each kind of file: the largest number that existed when a checkpoint was completed."""

    def created(self, path: str, data: bytes) -> None:
        """Counts files at each new manifest."""
        if path.startswith(f"{HOME}/{MANIFESTS}/"):
            self.most |= self._there()
            begun = self.home.names(WORK)
            self.waited += not any(self.home.names(f"{WORK}/{each}/stages/again/checkpoint/commits") for each in begun)

    def _there(self) -> Counter[str]:
        files = self.home
        found = Counter({MANIFESTS: len(files.names(MANIFESTS))})
        found[STATE] = max((len(files.names(f"{STATE}/{stage}")) for stage in files.names(STATE)), default=0)
        found[CHECKPOINTS] = sum(name.endswith(".channel") for name in files.names(CHECKPOINTS))
        return found

    def _act(self) -> None:
        for host in cycle(self.hosts):
            actor = self.world.spawn(Process("driver", host, mortal=True), "main", self._drive)
            last = self.promises.counts["completed"] + (self._killed_after or ROWS)
            self.world.run(lambda: actor.done or self.promises.counts["completed"] >= last, 400_000)  # noqa: B023
            if actor.done:
                break
            self.world.kill(actor.process)
        self._check_end()

    def _drive(self) -> None:
        self._launch(StartOptions(run=RunId("long"), publish=self._policy))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(query: Query, bound: Bound, begin: tuple[int, int], end: tuple[int, int]) -> tuple[int, int]:
        return begin[0] + 1, -1

    monkeypatch.setattr(Query, "_some", some)


@pytest.mark.parametrize("killed_after", [None, 7], ids=["one driver", "driver after driver"])
@pytest.mark.parametrize(
    "publish",
    [Publish.EVERY_CHECKPOINT, Publish.FINAL, None, Publish.EXTERNAL],
    ids=["early", "at the end", "both", "by somebody else"],
)
def test_old_checkpoints_are_deleted_while_a_stage_waits_for_another(publish: Publish | None, killed_after: int | None) -> None:
    schedule = LongRound(publish, killed_after)
    outcome = schedule.run()
    assert outcome.counts["completed"] > schedule.waited > 10
    killed = int(killed_after is not None)  # before it could discard
    following = 2 * (publish in (Publish.EVERY_CHECKPOINT, None))  # one that is being published, and one that all tables show
    assert schedule.most[MANIFESTS] <= 3 + following + killed, "the newest one, its parent, and the one that goes next"
    assert schedule.most[STATE] <= 4 + following + killed
    assert schedule.most[CHECKPOINTS] <= 2 * (3 + following + killed)
