"""One schedule: drivers, publishers and clients of a pipeline, the faults that hit them, and a last attempt that runs to the end."""

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import PurePath
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import CheckpointSettings, DeltaSink, Hold, Pipeline, RestartStrategy, Tolerate
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.documents import BlockedPublication, OnRewind, Publish, StartResponse
from spark_jobs.protocol.errors import AccessDeniedError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId, RunId
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.launch import launch
from spark_jobs.runtime.spark.spark_log import checkpoint_directory
from tests.simulation.delta_tables import Tables
from tests.simulation.promises import HOME, Promises, SimulatedHold
from tests.simulation.seams import simulated
from tests.simulation.stages import NO_SPARK, Site
from tests.simulation.storage import Disk
from tests.simulation.world import Actor, Chaos, Host, Process, Violation, World

WAREHOUSE = "/simulated/tables"
SINKS = ("copied", "again")
Guard = Callable[[Site, pytest.MonkeyPatch], AbstractContextManager[None] | None]


class Params(BaseModel):
    warehouse: str


@dataclass(frozen=True)
class Ask:
    """A request that a client repeats in the same words.

    Args:
        wanted: The kind of the request.
        drain: True for a stop that drains.
    """

    wanted: Wanted
    drain: bool = False


HOLD = SimulatedHold(8.0)


@dataclass(frozen=True)
class Plan:
    """The subject of a schedule.

    Args:
        bounded: The pipeline runs in rounds that end. Otherwise it runs on.
        unaligned: Checkpoints do not wait for alignment.
        switches: Checkpoints wait for the default time. Otherwise they wait as long as it takes.
        external: An external process publishes.
        every_checkpoint: Every checkpoint is published, also within a round that ends.
        early: Every checkpoint is published in the first table. The second table gets its rows at the end of the round.
        between: Another stage, without a table, lies between the two that have one.
        rewinds: Some starts are fresh.
        published_late: The external process publishes at the end of the schedule.
        rows: The number of rows that come in.
        windows: Every stage holds rows back until the watermark has passed them.
        refuses: A table refuses commits for a while.
        slow: A publication takes longer than the interval of checkpoints.
        hold: The limits up to which the other table does not wait for a table that refuses.
        damaged: One driver runs at a time. After each driver, a digit changes in a file from which the newest checkpoint was cut.
        twice_damaged: As ``damaged``, but the file is one of the newest checkpoint's state, and all its copies change.
        stops: The requests of several clients that run at once.
        poison: Rows that the last stage cannot process. It leaves out the files that contain them.
    """

    bounded: bool = False
    unaligned: bool = False
    external: bool = False
    between: bool = False
    rewinds: bool = False
    published_late: bool = False
    rows: int = 8
    windows: bool = False
    every_checkpoint: bool = False
    early: bool = False
    damaged: bool = False
    twice_damaged: bool = False
    refuses: bool = False
    slow: bool = False
    hold: SimulatedHold | None = None
    switches: bool = False
    stops: tuple[Ask, ...] = ()
    poison: frozenset[int] = frozenset()

    @staticmethod
    def drawn(random: Random) -> "Plan":
        bounded, unaligned, external, between, rewinds = (random.random() < 0.4 for _ in range(5))
        public = random.choice(("at the end", "early", "every checkpoint")) if bounded and not external else "by default"
        return Plan(
            bounded and not external,
            unaligned,
            external and not bounded,
            between,
            rewinds,
            every_checkpoint=public == "every checkpoint",
            early=public == "early",
            damaged=random.random() < 0.3,
            refuses=random.random() < 0.3,
            slow=random.random() < 0.5,
            hold=random.choice((None, None, HOLD, SimulatedHold(1_000.0, size_bytes=20))),
            switches=random.random() < 0.5 and not unaligned,
        )


@cache
def pipeline_of(plan: Plan) -> Pipeline:
    """Returns a pipeline that copies rows from table to table."""
    alignment: dict[str, Any] = {} if plan.switches else {"unaligned": True} if plan.unaligned else {"aligned_timeout": "never"}
    found = Pipeline(
        "simulated",
        params=Params,
        checkpoint=CheckpointSettings(interval="1 second", tolerable_failures=3, **alignment),
        restart=RestartStrategy.fixed_delay(attempts=5, delay="200 milliseconds"),
        on_end="suspend" if plan.bounded else "drain",
    )

    @found.source(bounded=plan.bounded)
    def events(spark: SparkSession, params: Params) -> DataFrame:
        raise NotImplementedError

    early: dict[str, Any] = {"publish": "every_checkpoint"} if plan.early else {}
    hold = Hold(time=f"{plan.hold.time_s * 1_000:.0f} milliseconds", size=plan.hold.size_bytes) if plan.hold else None

    @found.stage(sink=DeltaSink("{warehouse}/copied", hold=hold, **early))
    def copied(events: DataFrame) -> DataFrame:
        return events

    if plan.between:

        @found.stage()
        def passed(copied: DataFrame) -> DataFrame:
            return copied

    tolerate = Tolerate(rows="1000 per hour", after=2) if plan.poison else None
    inputs = {"before": "passed" if plan.between else "copied"}

    @found.stage(sink=DeltaSink("{warehouse}/again", hold=hold), inputs=inputs, tolerate=tolerate)
    def again(before: DataFrame) -> DataFrame:
        return before

    return found


@dataclass
class Outcome:
    """The end of a schedule."""

    trace: list[str]
    counts: Counter[str]
    errors: Counter[str] = field(default_factory=Counter)


class Schedule:
    """The actors of one schedule.

    Args:
        seed: Decides the whole schedule.
        plan: The subject. By default the seed decides it.
        chaos: The faults that may occur.
    """

    def __init__(self, seed: int, plan: Plan | None = None, chaos: Chaos | None = None) -> None:
        self.world = World(seed, chaos or Chaos())
        self.plan = plan or self.drawn(self.world.random)
        disk = Disk(self.world)
        self.site = Site(self.world, disk, Tables(disk), windows=self.plan.windows)
        self.site.tables.slow = self.plan.slow
        self.site.poison = self.plan.poison
        self.promises = Promises(self.site)
        self.promises.hold = self.plan.hold
        self.site.also_blocked = self._check_hold
        self.home = self.site.files(HOME)
        self.hosts = [Host("one"), Host("two")]
        self.errors: Counter[str] = Counter()
        self.refusals: list[str] = []
        """The errors with which drivers have ended, and their remedies."""
        self.answers: dict[str, CheckpointResponse] = {}
        self._started = 0
        self._fresh = 0
        self._public, self._public_at = False, (-1, -1)
        for sink in SINKS:
            self.site.tables.make(f"{WAREHOUSE}/{sink}")
        self.world.each_step.append(self.promises.check)

    @staticmethod
    def drawn(random: Random) -> Plan:
        """Returns the plan for a schedule without a given plan."""
        return Plan.drawn(random)

    def run(self, guard: Guard | None = None) -> Outcome:
        """Runs to the end.

        Args:
            guard: Switches a guard of the product off.

        Raises:
            Violation: A promise was broken.
        """
        with simulated(self.site) as patch, (guard(self.site, patch) if guard else None) or nullcontext():
            try:
                self._act()
            finally:
                self.world.end()
        return Outcome(self.world.trace, self.promises.counts, self.errors)

    def _act(self) -> None:
        test = Process("test", Host("elsewhere"), mortal=False)
        self.world.spawn(test, "input", self._deliver)
        supervisors = [
            self.world.spawn(test, f"supervisor-{n}", self._supervise)
            for n in ((1,) if self.plan.damaged or self.plan.twice_damaged else (1, 2))
        ]
        askers = self._askers(test)
        owners = [self.world.spawn(test, "owner", self._refuse)] if self.plan.refuses else []
        if self.plan.external and not self.plan.published_late:
            askers += [self.world.spawn(test, f"publisher-{n}", self._publish_now_and_then) for n in (1, 2)]
        self.world.run(lambda: all(actor.done for actor in supervisors), 60_000)
        self.world.calm()
        self.world.run(lambda: all(actor.done for actor in owners), 60_000)
        if self.plan.refuses and not self._refusal_ends_drivers():
            self.world.spawn(test, "owner", self._refuse_the_last_rows)
        self._finish()
        self.world.run(lambda: all(actor.done for actor in askers), 60_000)
        self._check_end()

    def _askers(self, test: Process) -> list[Actor]:
        return [self.world.spawn(test, "asker", self._ask)]

    def _deliver(self) -> None:
        while self.site.input.rows < self.plan.rows:
            self.site.input.rows += 1
            self.world.sleep(self.world.random.uniform(0.0, 3.0))

    def _check_hold(self, blocked: BlockedPublication) -> None:
        """Checks that a table does not wait for another table whose hold lasts.

        The check needs a process that no fault of the storage has hit: that could have blocked the publication, too.
        """
        current, tables = self.world.current, self.site.tables
        if current is None or current.process in self.world.failed:
            return
        refused, refused_s = tables.refused.get(current.process, ("", 0.0))
        newest = self.promises.manifests[max(self.promises.manifests)]
        if not refused or not self.promises.hold_lasts(refused, refused_s, newest.number):
            return
        for sink, path in newest.tables.items():
            has_refused_itself = (current.process, path) in tables.still_refusing
            if path != refused and not has_refused_itself and sink in blocked.waiting:
                self.promises.break_promise(f"{path} waits for {refused}, whose hold lasts")

    def _refuse_the_last_rows(self) -> None:
        """Lets a table refuse commits until no more rows come."""
        self.site.tables.refusing = f"{WAREHOUSE}/{self.world.random.choice(SINKS)}"
        self.world.until(lambda: self.site.input.rows >= self.plan.rows)
        self.world.sleep(self.world.random.uniform(10.0, 60.0))
        self.site.tables.refusing = None

    def _refuse(self) -> None:
        """Lets a random table refuse commits for a while, three times."""
        random, tables = self.world.random, self.site.tables
        for _ in range(3):
            self.world.sleep(random.uniform(0.0, 8.0))
            tables.refusing = f"{WAREHOUSE}/{random.choice(SINKS)}"
            self.world.sleep(random.uniform(2.0, 20.0))
            tables.refusing = None

    def _refusal_ends_drivers(self) -> bool:
        """Returns True if a driver ends when a table refuses: at a final checkpoint, at a stop, or when a rewind closes its incarnation."""
        return self.plan.bounded or self.plan.rewinds or bool(self.plan.stops)

    def _supervise(self) -> None:
        for _ in range(3):
            actor = self._start(self.world.random.choice(self.hosts))
            self.world.until(lambda actor=actor: actor.done, self.world.random.uniform(2.0, 30.0))  # type: ignore[misc]
            if self.plan.damaged or self.plan.twice_damaged:
                self.world.kill(actor.process)
                self.promises.counts["damaged"] += (damage_twice if self.plan.twice_damaged else damage)(
                    self.site, self.world.random
                )
            self.world.sleep(self.world.random.uniform(0.0, 2.0))

    def _start(self, host: Host) -> Actor:
        self._started += 1
        process = Process(f"driver-{self._started}", host, mortal=True)
        return self.world.spawn(process, "main", self._drive)

    def _drive(self) -> None:
        random, options = (
            self.world.random,
            StartOptions(run=RunId(f"round-{self.site.input.rows}" if self.plan.bounded else "live")),
        )
        policy = Publish.EXTERNAL if self.plan.external else Publish.EVERY_CHECKPOINT if self.plan.every_checkpoint else None
        if self.plan.rewinds and random.random() < 0.3 and self._fresh < 2:
            self._fresh += 1
            rewind = random.choice((OnRewind.REFUSE, OnRewind.REPLACE))
            options = StartOptions(run=RunId(f"fresh-{self._fresh}"), fresh=True, on_rewind=rewind)
        options = StartOptions(run=options.run, publish=policy, fresh=options.fresh, on_rewind=options.on_rewind)
        self._launch(options)

    def _launch(self, options: StartOptions) -> None:
        try:
            answer = launch(pipeline_of(self.plan), self.home, {"warehouse": WAREHOUSE}, options, lambda: NO_SPARK)
            self.errors["none"] += 1
            self._has_succeeded(answer)
        except StreamPipelineError as error:
            self.errors[type(error).__name__] += 1
            self.world.trace.append(f"{type(error).__name__}: {error.failed}")
            self.refusals.append(f"{type(error).__name__}: {error.failed} {error.remedy}")
            if isinstance(error, AccessDeniedError) and not self._refusal_ends_drivers():
                self.promises.break_promise(f"a table that refuses ends a pipeline: {error}")

    def _has_succeeded(self, answer: StartResponse) -> None:
        """Checks a driver that ends with success. Subclasses override it."""

    def _publish_now_and_then(self) -> None:
        for _ in range(12):
            self.world.sleep(self.world.random.uniform(0.0, 6.0))
            process = Process("publisher", self.world.random.choice(self.hosts), mortal=True)
            actor = self.world.spawn(process, "main", self._publish)
            self.world.until(lambda actor=actor: actor.done, 30.0)  # type: ignore[misc]

    def _publish(self) -> None:
        try:
            publish(self.home)
        except StreamPipelineError as error:
            self.errors[f"publisher: {type(error).__name__}"] += 1

    def _ask(self) -> None:
        for number in range(4):
            request = request_id(str(number))
            for _ in range(20):
                self.world.sleep(self.world.random.uniform(0.0, 2.0))
                self._ask_once(request)

    def _ask_once(self, request: RequestId, *, drain: bool = False) -> CheckpointResponse | None:
        try:
            answer = CheckpointRequests(self.home).ask(request, drain=drain)
        except StreamPipelineError:
            return None
        if answer is not None and self.answers.setdefault(request, answer) != answer:
            raise Violation(f"{request} was answered twice: {self.answers[request]} and {answer}")
        return answer

    def _finish(self) -> None:
        """Starts attempts without faults until the rows are public. After a refusal, the next attempt follows its remedy."""
        for number in range(8):
            if self.plan.bounded:
                self.world.run(lambda: not self._at_work(), 60_000)
            self._started += 1
            process = Process(f"last-{self._started}", Host(f"last-{self._started}"), mortal=False)
            refused = number > 0 and self.plan.rewinds and bool(self.refusals) and "--fresh" in self.refusals[-1]
            actor = self.world.spawn(process, "main", partial(self._launch, self._last_options(refused)))
            self.world.run(lambda actor=actor: actor.done or self._is_public(), 60_000)  # type: ignore[misc]
            if self._is_public():
                return self._cancel(actor)
        raise Violation(f"no attempt comes to the end: {self.errors}, {self.refusals[-1:]}")

    def _last_options(self, fresh: bool) -> StartOptions:
        policy = Publish.EXTERNAL if self.plan.external else None
        run = RunId(f"last-{self._started}" if self.plan.bounded or fresh else "live")
        return StartOptions(run=run, publish=policy, fresh=fresh, on_rewind=OnRewind.REPLACE if fresh else OnRewind.REFUSE)

    def _cancel(self, actor: Actor) -> None:
        """Ends the last attempt, and every other driver that still runs."""
        stop = Process("operator", Host("elsewhere"), mortal=False)
        self.world.spawn(stop, "cancel", lambda: self._cancel_newest(actor))
        self.world.run(lambda: actor.done, 60_000)
        # an idle attempt looks for a higher one only at its next checkpoint
        last = self.world.steps + 3_000
        self.world.run(lambda: not self._at_work() or self.world.steps >= last, 60_000)
        for process in {other.process: None for other in self.world.actors if other.process.mortal}:
            self.world.kill(process)

    def _left_out(self) -> frozenset[int]:
        return self.promises.manifests[max(self.promises.manifests)].left_out

    def _at_work(self) -> bool:
        """Returns True if a driver runs."""
        return any(actor.process.name.startswith(("driver", "last")) for actor in self.world.actors)

    def _cancel_newest(self, actor: Actor) -> None:
        while not actor.done:
            live = Channel(self.home).attempts.latest()
            if live is not None:
                owners = AttemptLease(self.home, live.attempt)
                owners.cancel(owners.take("test").owner, "the schedule is over")
            self.world.sleep(1.0)

    def _is_public(self) -> bool:
        """Returns True if every row is public. The result is computed again only after a write."""
        written = (self.site.disk.changes, self.site.input.rows)
        if self._public_at != written:
            self._public_at, self._public = written, self._look_whether_public()
        return self._public

    def _look_whether_public(self) -> bool:
        """Returns True if the incarnation of the highest attempt shows all rows.

        With an external publisher, the newest checkpoint must hold them.
        """
        newest = self.promises.manifests.get(max(self.promises.manifests, default=0))
        begun = self.promises.incarnations
        if self.site.input.rows < self.plan.rows or newest is None or newest.incarnation != begun[max(begun)]:
            return False
        if self.plan.external:
            rows = [len(self.promises.held(newest, sink)) for sink in SINKS]
        else:
            tables = [self.site.tables.by_path[f"{WAREHOUSE}/{sink}"] for sink in SINKS]
            rows = [len(self.promises.rows(table)) for table in tables if self.promises.shows(table, newest.incarnation)]
        return rows == [self.plan.rows, self.plan.rows - len(newest.left_out)]

    def _check_end(self) -> None:
        self.site.tables.refusing = None
        if self.plan.external:
            try:
                publish(self.home)
            except StreamPipelineError as error:
                raise Violation(f"the newest checkpoint cannot be published: {error}") from error
        self.promises.check()
        for sink in SINKS:
            rows = sorted(self.promises.rows(self.site.tables.by_path[f"{WAREHOUSE}/{sink}"]))
            left_out = self._left_out() if sink == "again" else []
            if sorted([*rows, *left_out]) != list(range(self.plan.rows)):
                raise Violation(f"table {sink} has {rows} of {self.plan.rows} rows")


def no_chaos() -> Chaos:
    """Returns no faults at all: the schedule says what happens."""
    return Chaos(kills=0, freezes=0, stalls=0, faults=0, reboots=0)


def poisoned(seed: int) -> "Schedule":
    """Returns a schedule in which the last stage cannot process some rows."""
    random = Random(seed)
    drawn = Plan.drawn(random)
    poison = frozenset(random.sample(range(drawn.rows), random.randint(1, 3)))
    return Schedule(seed, replace(drawn, bounded=False, between=False, every_checkpoint=False, early=False, poison=poison))


def _newest_manifests(site: Site) -> list[dict[str, Any]]:
    """Returns the bodies of the existing manifests, newest first."""
    manifests = [path for path in site.disk.below(f"{HOME}/manifests") if path.endswith(".json")]
    ordered = sorted(manifests, key=lambda path: int(PurePath(path).stem), reverse=True)
    return [json.loads(site.disk.get(path) or b"")["body"] for path in ordered]


def damage_twice(site: Site, random: Random) -> bool:
    """Changes all copies of a state file of the newest checkpoint that its parent does not need. Returns False if there is none.

    The file is the entry of a batch in the commit log: here it has the rows that a stage holds back. The parent stays intact, because a
    state can only be computed again from an older checkpoint that is.
    """
    manifests = _newest_manifests(site)[:2]
    if len(manifests) < 2 or manifests[1]["checkpoint"] != manifests[0]["parent"]:
        return False
    newest, parent = manifests[0], manifests[1]["stages"]
    if any(f"damaged: {HOME}/{file['stored']}" in site.world.trace for cut in parent.values() for file in cut["files"]):
        return False
    files = {
        f"/{checkpoint_directory(stage)}/{file['path']}": f"{HOME}/{file['stored']}"
        for stage, cut in newest["stages"].items()
        for file in cut["files"]
        if file["path"] == f"commits/{cut['batch']}" and stage in parent and parent[stage]["batch"] < cut["batch"]
    }
    if not files:
        return False
    named, stored = random.choice(sorted(files.items()))
    for path in (stored, *(path for path in site.disk.below(f"{HOME}/work") if path.endswith(named))):
        if data := site.disk.get(path):
            site.disk.put(path, data[:-1] + b" ")
            site.world.trace.append(f"damaged: {path}")
    return True


def damage(site: Site, random: Random) -> bool:
    """Changes a digit of an offset in a work directory, in a copy of a file that the newest checkpoint names. False if there is none."""
    manifests = _newest_manifests(site)
    if not manifests:
        return False
    newest = manifests[0]
    kept = {
        f"/{checkpoint_directory(stage)}/{file['path']}": site.disk.get(f"{HOME}/{file['stored']}")
        for stage, cut in newest["stages"].items()
        for file in cut["files"]
        if file["path"].startswith("offsets/")
    }
    work = site.disk.below(f"{HOME}/work")
    copies = [path for path in work for named, data in kept.items() if path.endswith(named) and site.disk.get(path) == data]
    if copies:
        path = random.choice(copies)
        data = bytearray(site.disk.get(path) or b"")
        *_, last = re.finditer(rb"reservoirVersion\D*\d+", data)
        data[last.end() - 1] ^= 1
        site.disk.put(path, bytes(data))
        site.world.trace.append(f"damaged: {path}")
    return bool(copies)


def repeatable(schedule: Schedule, arguments: str) -> Outcome:
    """Runs a schedule, and adds to a violation how to repeat it.

    Args:
        schedule: The schedule.
        arguments: The arguments of the command that repeats it.

    Raises:
        Violation: A promise was broken. The message says how to repeat the schedule.
    """
    try:
        return schedule.run()
    except Violation as violation:
        raise Violation(f"{violation}\nrepeat with: python -m tests.simulation {arguments}") from violation
