"""Rounds of a pipeline of random cases. Each round is interrupted at random before its end.

After each round every table has the rows of DuckDB's answer. During a round, a table that becomes public at the end has the rows of the
round before, or already those of this one.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from signal import SIGKILL
from threading import Event, Lock, Thread
from typing import Any

import pytest

from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.errors import RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import InputName, RoundNumber
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.runtime.stages.gate import Gate
from tests.support import random_pipelines
from tests.support.drivers import Doomed, drivers_on
from tests.support.kafka_broker import KafkaBroker
from tests.support.keyed_changes import Row
from tests.support.random_inputs import ROUNDS, Case, Input, Kind
from tests.support.random_pipelines import DRAWN, Tables, answer, draw_cases, pipeline_of
from tests.support.run_site import RunSite
from tests.support.running import lose
from tests.support.systems import Crashed, FaultSystem

_HELD_WITHIN_S, _WHOLE_WITHIN_S = 5.0, 120.0
_POINTS, _OPERATIONS = 30, 600
"""Lower bounds for the points and operations of an attempt that completes, for each case."""


class What(StrEnum):
    """The cause that ends an attempt before its round has ended."""

    DEATH = "dies at a durable step"
    FAULT = "the storage fails"
    STOP = "is stopped between two batches"
    HIDDEN = "a file is away that it needs"


@dataclass(frozen=True)
class Interruption:
    """The events during one attempt and before the next one.

    Args:
        what: The cause that ends the attempt.
        share: The moment, as a share of the work of an undisturbed attempt.
        work_is_lost: True if the work directory is deleted afterwards.
        more_arrives: True if the first rows of the next round arrive afterwards.
    """

    what: What
    share: float
    work_is_lost: bool
    more_arrives: bool

    def __str__(self) -> str:
        after = ["the work directory is lost"] * self.work_is_lost + ["rows of the next round arrive"] * self.more_arrives
        return f"{self.what} at {self.share:.2f}" + "".join(f", then {each}" for each in after)


@dataclass(frozen=True)
class Plan:
    """Some cases, and the interruptions of their pipeline's rounds. The seed decides all of it.

    Args:
        seed: The seed of all random choices.
        count: The number of cases.
        tables: The number of tables of changes in each case, under keys of their own.
        part: The number of the plan: each has other cases of the seed, and other interruptions.
        topics: True if sources may be Kafka topics.
        live: True if the sources have no end.
    """

    seed: int
    count: int
    tables: int
    part: int = 0
    topics: bool = False
    live: bool = False
    cases: list[Case] = field(init=False, repr=False)
    interruptions: list[list[Interruption]] = field(init=False, repr=False)
    drains: bool = field(init=False, repr=False)
    interval: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        draw = Random(f"rounds {self.seed}")
        object.__setattr__(self, "cases", draw_cases(**self.arguments))
        for _ in range(self.part + 1):
            object.__setattr__(self, "interruptions", [_interruptions(draw) for _ in range(ROUNDS)])
            object.__setattr__(self, "drains", draw.random() < 0.5 and not self.live)
            object.__setattr__(self, "interval", draw.choice(("1 hour", "2 seconds")))
        if self.live:  # otherwise nothing would become public
            object.__setattr__(self, "interval", "1 second")

    @property
    def arguments(self) -> dict[str, Any]:
        drawn = {"seed": self.seed, "count": self.count, "tables": self.tables, "part": self.part}
        return drawn | {"topics": self.topics, "live": self.live}

    def __str__(self) -> str:
        rounds = "\n".join(f"  round {number}: {'; '.join(map(str, each))}" for number, each in enumerate(self.interruptions))
        return f"{self!r}, a checkpoint every {self.interval}{', drained' * self.drains}\n{rounds}"


def _interruptions(draw: Random) -> list[Interruption]:
    whats = [What.DEATH, What.DEATH, What.DEATH, What.FAULT, What.STOP]
    found = [
        Interruption(draw.choice(whats), draw.random(), draw.random() < 0.3, draw.random() < 0.6)
        for _ in range(draw.choice((0, 1, 1, 2, 2)))
    ]
    if found and draw.random() < 0.4:
        found.append(Interruption(What.HIDDEN, draw.random(), False, False))
    return found


class Observer:
    """Counts the points that an attempt passes."""

    def __init__(self) -> None:
        self.points = 0
        self._lock = Lock()

    def before(self, step: Step) -> None:
        self._pass(step, before=True)

    def after(self, step: Step) -> None:
        self._pass(step, before=False)

    def _pass(self, step: Step, *, before: bool) -> None:
        with self._lock:
            self.points += 1


class Dying(Observer):
    """Lets the attempt die at a point. Nothing later is durable."""

    def __init__(self, point: int) -> None:
        super().__init__()
        self._point = point

    def _pass(self, step: Step, *, before: bool) -> None:
        if self.points > self._point:
            raise Crashed(f"{'before' if before else 'after'} {step.value}")
        super()._pass(step, before=before)


class Stopping(Observer):
    """Asks for a stop in the middle of a batch, and lets the batch go on once the stop is under way."""

    def __init__(self, batch: int, stop: Callable[[], object]) -> None:
        super().__init__()
        self._left, self._stop = batch, stop

    def _pass(self, step: Step, *, before: bool) -> None:
        super()._pass(step, before=before)
        with self._lock:
            self._left -= step is Step.STAGE_VERSION and before
            now = self._left == -1
            self._left -= now
        if now:
            self._stop()


class RandomRounds:
    """Runs a plan.

    Args:
        plan: The plan.
        root: The directory of inputs, tables and home.
        broker: The broker of topics.
        bucket: The store of tables and home, if they are not in ``root``. The work directories stay there.
    """

    def __init__(self, plan: Plan, root: Path, broker: KafkaBroker | None = None, bucket: str | None = None) -> None:
        self.plan, self.root = plan, root
        (root / "inputs").mkdir()
        self.inputs = {case.name: Input(case, root / "inputs" / case.name, broker) for case in plan.cases}
        self._pipeline = partial(pipeline_of, plan.cases, servers=broker.servers if broker else "", live=plan.live)
        self.site = RunSite(root, root / "inputs", bucket=bucket)
        self.tables = Tables(self.site.warehouse)
        self.happened: list[str] = []
        self._ahead = [{case.name: list(case.rounds[number]) for case in plan.cases} for number in range(ROUNDS)]
        self._earlier: dict[str, Counter[Row]] = {case.name: Counter() for case in plan.cases}
        self._expected = dict(self._earlier)
        self._points, self._operations = _POINTS * len(plan.cases), _OPERATIONS * len(plan.cases)
        self._runs = count()

    def run(self) -> None:
        for number in range(ROUNDS):
            self._round(number)
        self.tables.close()

    def attempt(self, number: int, run: str, on_end: OnEnd, interruption: Interruption | None) -> bool | None:
        """Runs until the end of the round, or until the interruption.

        Returns:
            True if the run has ended the round, False if it was stopped, None if it did not end.
        """
        what, observer = interruption.what if interruption else None, self._observer(interruption)
        fault = FaultSystem(self._share_of(interruption, self._operations) if what is What.FAULT else None)
        with ExitStack() as stack:
            if interruption and what is What.HIDDEN:
                stack.enter_context(self._hidden(interruption.share))
            stack.enter_context(observed_by(observer))
            try:
                response = self.site.run(run, system=fault, on_end=on_end)
            except Crashed:
                assert what is What.DEATH
                return None
            except StreamPipelineError as error:
                if what in (None, What.STOP) or (isinstance(error, RejectedError) and what is not What.HIDDEN):
                    raise
                return None
        self._points, self._operations = max(self._points, observer.points), max(self._operations, fault.operations)
        return response.ends_round

    def _round(self, number: int) -> None:
        last = number == ROUNDS - 1
        drained = self.plan.drains and last
        self._begin(number)
        self.site = replace(self.site, pipeline=self._pipeline(number, self.plan.interval))
        self._expect(number, drained)
        run = f"run {next(self._runs)}"
        for interruption in [*self.plan.interruptions[number], None]:
            if interruption and interruption.what is What.HIDDEN and not self._is_pinned(number):
                continue  # the round would begin without the file
            self.happened.append(f"round {number}, {run}: {interruption or 'to its end'}")
            try:
                ends_round = self.attempt(number, run, OnEnd.DRAIN if drained else OnEnd.SUSPEND, interruption)
            except StreamPipelineError as error:
                raise AssertionError(self._told("The run has failed.")) from error
            if ends_round:
                break
            if ends_round is False:
                run = f"run {next(self._runs)}"
            assert interruption is not None, self._told("The run has not ended its round.")
            self._assert_unchanged_or_whole()
            if interruption.work_is_lost and (self.site.home / "work").exists():
                lose(self.site.home / "work")
            if interruption.more_arrives and not last and self._is_pinned(number):
                self._deliver(number + 1, at_most=1)
        self._assert_whole()
        self._earlier = dict(self._expected)

    def _begin(self, number: int) -> None:
        """Delivers what arrives before a round begins."""
        self._deliver(number)

    def _expect(self, number: int, drained: bool) -> None:
        for case in self.plan.cases:
            self._expected[case.name] = answer(case, self.inputs[case.name], number, drained=drained)

    def _is_pinned(self, number: int) -> bool:
        """Returns True if the ends of all inputs are recorded, so that new rows belong to the next round."""
        rounds = Rounds(self.site.files())
        return all(rounds.pinned(RoundNumber(number + 1), InputName(f"{case.name}_rows")) for case in self.plan.cases)

    def _observer(self, interruption: Interruption | None) -> Observer:
        match interruption.what if interruption else None:
            case What.DEATH:
                return Dying(self._share_of(interruption, self._points))
            case What.STOP:
                return Stopping(self._share_of(interruption, len(self.plan.cases)), self._stop)
        return Observer()

    def _share_of(self, interruption: Interruption | None, whole: int) -> int:
        return int(interruption.share * whole) if interruption else 0

    def _stop(self) -> None:
        """Asks for a stop, and waits until the first stage is held."""
        held, close = Event(), Gate.close

        def closes(gate: Gate) -> None:
            close(gate)
            held.set()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Gate, "close", closes)
            CheckpointRequests(self.site.files()).ask(request_id(wanted=Wanted.STOP))
            held.wait(_HELD_WITHIN_S)

    @contextmanager
    def _hidden(self, share: float) -> Iterator[None]:
        """Takes one file of the inputs away while the context is open."""
        found = [path for given in self.inputs.values() for path in given.files()]
        if not found:
            yield
            return
        path, away = found[int(share * len(found))], self.root / "away"
        path.rename(away)
        try:
            yield
        finally:
            away.rename(path)

    def _deliver(self, number: int, at_most: int | None = None) -> None:
        for name, deliveries in self._ahead[number].items():
            for delivery in deliveries[:at_most]:
                self.inputs[name].deliver(delivery)
            del deliveries[:at_most]

    def _assert_unchanged_or_whole(self) -> None:
        for case in self.plan.cases:
            if not case.publish_early:
                found = self.tables.rows(case)
                if found != self._earlier[case.name]:
                    self._assert_same(case, found)

    def _assert_whole(self) -> None:
        for case in self.plan.cases:
            self._assert_same(case, self.tables.rows(case))

    def _assert_same(self, case: Case, found: Counter[Row]) -> None:
        expected = self._expected[case.name]
        if found != expected:
            extra, missing = found - expected, expected - found
            pytest.fail(self._told(f"{case}\n{extra.total()} rows too many: {extra}\n{missing.total()} missing: {missing}"))

    def _told(self, what: str) -> str:
        return "\n".join([str(self.plan), "happened:", *(f"  {each}" for each in self.happened), what])


class LiveRounds(RandomRounds):
    """Runs a plan with inputs that have no end. A round ends with a stop, once every table is the answer.

    Some rows are there when an attempt starts; the others arrive while it runs.
    """

    def attempt(self, number: int, run: str, on_end: OnEnd, interruption: Interruption | None) -> bool | None:
        ended = Future[bool | None]()
        attempt = partial(super().attempt, number, run, OnEnd.DRAIN, interruption)
        thread = Thread(target=_into, args=(ended, attempt))
        thread.start()
        self._deliver(number)
        self._expect(number, drained=False)
        stop, deadline_s = request_id(wanted=Wanted.STOP), time.monotonic() + _WHOLE_WITHIN_S
        while thread.is_alive():
            if self._is_whole() or time.monotonic() > deadline_s:
                with suppress(RejectedError, Crashed):  # it has not begun, or has ended
                    answer = CheckpointRequests(self.site.files()).ask(stop)
                    # A stop that comes before the attempt begins is too late for the stop of the last attempt.
                    if answer is not None and answer.error is not None:
                        stop = request_id(wanted=Wanted.STOP)
            thread.join(0.3)
        died = ended.result() is None
        return None if died else self._is_whole() or interruption is None

    def _begin(self, number: int) -> None:
        self._deliver(number, at_most=1)

    def _is_pinned(self, number: int) -> bool:
        return False  # nothing has an end: a file that is away before it was found is not missed

    def _is_whole(self) -> bool:
        return all(self.tables.rows(case) == self._expected[case.name] for case in self.plan.cases)

    def _assert_unchanged_or_whole(self) -> None:
        for case in self.plan.cases:
            if case.kind is Kind.APPEND:
                extra = self.tables.rows(case) - self._expected[case.name]
                assert not extra, self._told(f"{case} has rows too many: {extra}")


def _into(result: "Future[bool | None]", run: Callable[[], bool | None]) -> None:
    try:
        result.set_result(run())
    except BaseException as error:  # noqa: BLE001 - raised where the result is read
        result.set_exception(error)


_KILLED_AT = (
    *(Step.INPUT_PIN, Step.TABLE_CREATE, Step.STAGE_FILES, Step.STAGE_VERSION, Step.PLAN_BATCH, Step.PERSIST_STATE),
    *(Step.CHANNEL_CREATE, Step.ACTIONS_CREATE, Step.MANIFEST_CREATE, Step.BURY_KEYS, Step.PUBLISH_SINK, Step.RESPONSE_CREATE),
)


class KilledRounds(RandomRounds):
    """Runs the same plan with real drivers. Every interruption is a SIGKILL."""

    def attempt(self, number: int, run: str, on_end: OnEnd, interruption: Interruption | None) -> bool | None:
        drawn = {"cases": self.plan.arguments, "round": number, "interval": self.plan.interval}
        doom = None
        if interruption:
            place = int(interruption.share * 8 * len(_KILLED_AT))
            step, turn = _KILLED_AT[place // 8], place % 8
            once = step in (Step.MANIFEST_CREATE, Step.RESPONSE_CREATE)
            doom = Doomed("killed", step, before=turn % 2 == 0, occurrence=1 if once else 1 + turn)
            self.happened.append(f"  {doom}")
        with pytest.MonkeyPatch.context() as patch, drivers_on(self.site, random_pipelines.__file__) as drivers:
            patch.setenv(DRAWN, json.dumps(drawn))
            found = drivers.run(f"--on-end={on_end.value}", run=run, doom=doom)
            assert found.code == 0 or (doom and found.code == -SIGKILL), self._told(f"{found}")
            drivers.wait_gone()
        return True if found.code == 0 else None
