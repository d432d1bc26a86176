"""A schedule in which clients request checkpoints, savepoints, stops and drains, with faults of the drivers.

The stages hold rows back, as windows do, so that it matters whether a stop drains. Several clients repeat their requests until they get an
answer; some clients share a request. Between two starts a work directory may be lost.
"""

import json
from random import Random

from spark_jobs.control.checkpoint_requests import request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import OnRewind, Publish, StartResponse
from spark_jobs.protocol.ids import RunId
from spark_jobs.protocol.start_requests import StartOptions
from tests.simulation.promises import HOME
from tests.simulation.schedules import SINKS, WAREHOUSE, Ask, Plan, Schedule
from tests.simulation.stop_promises import StopPromises
from tests.simulation.windows import HELD
from tests.simulation.world import Actor, Chaos, Host, Process, Violation

ROWS = 14
_CHECKPOINT, _SAVEPOINT = Ask(Wanted.CHECKPOINT), Ask(Wanted.SAVEPOINT)
STOP, DRAIN = Ask(Wanted.STOP), Ask(Wanted.STOP, drain=True)
AT_STOPS = (
    *(
        "create checkpoints/",
        "create manifests/",
        "commit ",
        "create attempts/",
        "create responses/",
        "create answers/",
        "create draining.json",
        "delete ",
    ),
    *(
        "create stages/",
        "write commits/",
        "create savepoint.json",
        "create exporting.json",
        "list requests",
        "create restored.json",
    ),
)


def chaos_of_stops() -> Chaos:
    """Returns the faults of a schedule that does not choose its own."""
    return Chaos(at=AT_STOPS, odds=0.04)


class StopSchedule(Schedule):
    """The actors of a schedule with stops; see :class:`~tests.simulation.schedules.Schedule`."""

    def __init__(self, seed: int, plan: Plan | None = None, chaos: Chaos | None = None) -> None:
        super().__init__(seed, plan, chaos or chaos_of_stops())
        self.stops = StopPromises(self.site, self.promises)
        self._runs: list[RunId] = []

    @staticmethod
    def drawn(random: Random) -> Plan:
        unaligned, external, between, bounded = (random.random() < 0.4 for _ in range(4))
        others = random.choice(((_CHECKPOINT, _SAVEPOINT, STOP, STOP), (_SAVEPOINT, STOP, DRAIN, DRAIN)))
        stops = [random.choice(others) for _ in range(4)]
        return Plan(bounded and not external, unaligned, external, between, rows=ROWS, windows=True, stops=tuple(stops))

    def _askers(self, test: Process) -> list[Actor]:
        return [self.world.spawn(test, f"asker-{number}", self._ask) for number in (1, 2, 3)]

    def _ask(self) -> None:
        random = self.world.random
        for _ in range(2):
            number = random.randrange(len(self.plan.stops))
            ask = self.plan.stops[number]
            self.world.sleep(random.uniform(0.0, 10.0))
            for _ in range(12):
                if self._ask_once(request_id(str(number), ask.wanted), drain=ask.drain) and random.random() < 0.7:
                    break
                self.world.sleep(random.uniform(0.0, 3.0))

    def _start(self, host: Host) -> Actor:
        if self.world.random.random() < 0.15 and not self._at_work():
            self._lose_work()
        return super()._start(host)

    def _lose_work(self) -> None:
        """Removes the work directory, as if its host were gone."""
        newest = max(self.promises.attempts, default=None)
        if newest is not None:
            attempt = json.loads(self.site.disk.get(f"{HOME}/attempts/{newest}.json") or b"")["body"]
            self.world.trace.append("the work directory is lost")
            self.site.disk.remove(f"{HOME}/{attempt['work_directory']['path']}")

    def _drive(self) -> None:
        """Starts a new run, or retries an earlier one."""
        random = self.world.random
        retried = bool(self._runs) and random.random() < 0.4
        run = random.choice(self._runs) if retried else RunId(f"live-{len(self._runs)}")
        if not retried:
            self._runs.append(run)
        self._launch(self._options(run))

    def _last_options(self, fresh: bool) -> StartOptions:
        return self._options(RunId(f"last-{self._started}"))

    def _options(self, run: RunId) -> StartOptions:
        return StartOptions(run=run, publish=Publish.EXTERNAL if self.plan.external else None, on_rewind=OnRewind.REFUSE)

    def _has_succeeded(self, answer: StartResponse) -> None:
        if answer.error is not None:
            return  # another driver has answered the same request, and this one returns the existing answer
        every = (
            kept for line in self.promises.known.values() for kept in line
        )  # the checkpoint may be gone: some drivers wake late
        ends = [kept for kept in every if kept.number == answer.checkpoint and kept.kind in ("stop", "final")]
        if not any(kept.kind == "final" or kept.request in self.stops.answers for kept in ends):
            raise Violation(f"run {answer.run} has ended with success, and checkpoint {answer.checkpoint} has stopped nothing")

    def _is_public(self) -> bool:
        """Returns True if all expected rows are public and all requests are answered. After a drain, only the drain needs an answer."""
        newest = self.promises.manifests.get(max(self.promises.manifests, default=0))
        if newest is None:
            return False
        if newest.drained:
            return newest.request in self.stops.answers and (self.plan.external or self.promises.is_public(newest))
        if self.stops.open() or self.site.input.rows < self.plan.rows:
            return False
        if self.plan.external:
            return [len(self.promises.held(newest, sink)) for sink in SINKS] == self._expected()
        return [len(self._shown(sink)) for sink in SINKS] == self._expected()

    def _expected(self) -> list[int]:
        """Returns the number of rows that each table of an undisturbed pipeline shows at the end."""
        newest = self.promises.manifests[max(self.promises.manifests)]
        if newest.drained:
            return [newest.read] * len(SINKS)
        return [self.plan.rows - HELD, self.plan.rows - HELD * len(newest.held)]

    def _shown(self, sink: str) -> list[int]:
        return sorted(self.promises.rows(self.site.tables.by_path[f"{WAREHOUSE}/{sink}"]))

    def _finish(self) -> None:
        self.world.run(lambda: not any("/asker-" in actor.name for actor in self.world.actors), 60_000)
        super()._finish()
        newest = self.promises.manifests[max(self.promises.manifests)]
        if newest.drained:
            self._check_finished()

    def _check_finished(self) -> None:
        """Checks that a drained pipeline does not go on by itself."""
        before, self.refusals = max(self.promises.manifests), []
        self._started += 1
        last = self.world.spawn(
            Process("refused", Host("last"), mortal=False), "main", lambda: self._launch(self._last_options(False))
        )
        self.world.run(lambda: last.done, 60_000)
        if max(self.promises.manifests) != before or not any("was drained by" in refusal for refusal in self.refusals):
            raise Violation(f"a pipeline that was drained goes on: {self.refusals}")

    def _check_end(self) -> None:
        if self.plan.external:
            self._publish()
        self.promises.check()
        found, expected = [self._shown(sink) for sink in SINKS], self._expected()
        if found != [list(range(count)) for count in expected]:
            raise Violation(f"the tables have {found}, and an undisturbed pipeline {expected}")
        if unfinished := self.stops.stops.keys() - self.stops.answers.keys():
            raise Violation(f"{unfinished} have stopped the pipeline, and are not answered")
