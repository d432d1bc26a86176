"""A world in which one thing happens at a time. It has actors, a clock, chance, and faults that hit processes.

Every storage operation of an actor is a point at which any other actor may run instead. The actor's process may be killed there, or stopped
for long (SIGSTOP) and woken late. One seed decides all of it: the same seed gives the same trace.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from greenlet import getcurrent, greenlet

TICK_S = 0.01
"""The time by which each step moves the clock."""


class Crashed(BaseException):
    """The actor's process was killed. Actions of the actor after this error have no effect."""


class Interrupted(BaseException):
    """The actor's work was cancelled, as Spark does when it stops a query."""


class Violation(AssertionError):
    """A promise does not hold."""


class DoesNotEndError(Violation):
    """An expected event has not happened within the allowed steps."""


@dataclass(eq=False)
class Host:
    """A machine. ``boot`` increases each time the machine goes down."""

    name: str
    boot: int = 1
    locks: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Process:
    """Actors that live and die together."""

    name: str
    host: Host
    mortal: bool
    alive: bool = True
    frozen_until: int = 0
    """The step until which the process is stopped."""


@dataclass(eq=False)
class Actor:
    """One thread of a process."""

    name: str
    process: Process
    greenlet: greenlet
    wakes_at_s: float = 0.0
    pending: str = "begin"
    """The operation that the actor does at its next turn."""
    interrupted: bool = False
    failure: BaseException | None = None

    @property
    def done(self) -> bool:
        return bool(self.greenlet.dead)


@dataclass
class Chaos:
    """The faults that may still hit the processes of a schedule.

    Args:
        kills: The number of processes that are killed.
        freezes: The number of processes that are stopped, and woken late.
        stalls: The number of times that a single thread is held up.
        faults: The number of storage operations that fail, or do not say whether they have happened.
        reboots: The number of hosts that go down, and lose files that were not made durable.
        at: The operations that are hit most often: their descriptions begin with one of these texts.
        odds: The probability of a fault at these operations.
        elsewhere: The probability at any other operation.
        frozen_steps: The shortest and the longest time for which a process is stopped.
    """

    kills: int = 4
    freezes: int = 4
    stalls: int = 6
    faults: int = 4
    reboots: int = 1
    at: tuple[str, ...] = ("create checkpoints/", "create manifests/", "commit ", "create attempts/", "delete ")
    odds: float = 0.08
    elsewhere: float = 0.002
    frozen_steps: tuple[int, int] = (20, 1_500)


class World:
    """One schedule.

    Args:
        seed: Decides the whole schedule.
        chaos: The faults that may occur.
    """

    def __init__(self, seed: int, chaos: Chaos) -> None:
        self.random = Random(seed)
        self.chaos = chaos
        self.clock_s = 0.0
        self.steps = 0
        self.trace: list[str] = []
        self.actors: list[Actor] = []
        self.on_reboot: list[Callable[[Host], None]] = []
        self.each_step: list[Callable[[], None]] = []
        self._hub = getcurrent()
        self._by_greenlet: dict[greenlet, Actor] = {}
        self._last: Actor | None = None
        self._stickiness = self.random.choice((0.0, 0.5, 0.9))
        self._calm = False
        self.failed = set[Process]()
        """The processes that a fault of the storage has hit."""

    @property
    def current(self) -> Actor | None:
        """The actor that runs now; None while the test itself runs."""
        return self._by_greenlet.get(getcurrent())

    def uuid4(self) -> UUID:
        """Replaces :func:`uuid.uuid4`: the seed decides the value."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Actor:
        """Starts an actor. It runs for the first time at its first turn."""

        def live() -> None:
            try:
                work()
            except (Crashed, Interrupted):
                pass
            except BaseException as error:  # noqa: BLE001 - an actor's edge: raised where the world runs
                actor.failure = error

        actor = Actor(f"{process.name}/{name}", process, greenlet(live, self._hub))
        self.actors.append(actor)
        self._by_greenlet[actor.greenlet] = actor
        return actor

    def pause(self, doing: str) -> None:
        """Waits before an operation for the actor's next turn. Other actors may run first.

        Raises:
            Crashed: The process was killed.
            Interrupted: The actor was interrupted.
        """
        actor = self._wait(doing)
        if actor is not None:
            self.trace.append(f"{actor.name}: {doing}")

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        actor = self.current
        if actor is not None:
            actor.wakes_at_s = self.clock_s + seconds
            self._wait("wake")

    def until(self, condition: Callable[[], bool], timeout_s: float | None = None, look_s: float = 0.05) -> bool:
        """Sleeps until the condition holds or the time is over. Returns True if the condition holds."""
        deadline_s = None if timeout_s is None else self.clock_s + timeout_s
        while not condition():
            if deadline_s is not None and self.clock_s >= deadline_s:
                return False
            self.sleep(look_s)
        return True

    def run(self, until: Callable[[], bool], steps_max: int) -> None:
        """Lets the actors act.

        Raises:
            DoesNotEndError: The condition does not hold after ``steps_max`` steps.
        """
        last = self.steps + steps_max
        while not until():
            if self.steps >= last:
                raise DoesNotEndError(f"it has not come about in {steps_max} steps; now: {[a.pending for a in self._ready(0)]}")
            self.steps += 1
            self.clock_s += TICK_S
            for each in self.each_step:
                each()
            actor = self._choose()
            if actor is not None and not self._strikes(actor):
                self._resume(actor)

    def calm(self) -> None:
        """Ends all faults, and wakes the processes that were stopped."""
        self._calm = True
        for actor in self.actors:
            actor.process.frozen_until = 0

    def fault(self, *kinds: str) -> str | None:
        """Returns one of ``kinds`` if this operation fails, and None in most cases."""
        actor = self.current
        if self._calm or actor is None or not actor.process.mortal or self.chaos.faults <= 0 or self.random.random() > 0.01:
            return None
        self.chaos.faults -= 1
        self.failed.add(actor.process)
        kind = self.random.choice(kinds)
        self.trace.append(f"{actor.name}: {kind}")
        return kind

    def kill(self, process: Process) -> None:
        """Kills a process, wherever its actors are."""
        if not process.alive:
            return
        process.alive = False
        self.trace.append(f"{process.name} is killed")
        for actor in self.actors:
            if actor.process is process:
                if not actor.greenlet:  # not started yet: the error would be raised at its parent
                    actor.greenlet.parent = getcurrent()
                with suppress(Crashed):
                    actor.greenlet.throw(Crashed())
        for actor in [actor for actor in self.actors if actor.done]:
            self._forget(actor)

    def end(self) -> None:
        """Ends every actor, so that nothing of this world remains."""
        for process in {actor.process: None for actor in self.actors}:
            self.kill(process)

    def _wait(self, doing: str) -> Actor | None:
        actor = self.current
        if actor is None:
            return None
        actor.pending = doing
        if actor.process.alive and not actor.interrupted:
            self._hub.switch()
        if not actor.process.alive:
            raise Crashed
        if actor.interrupted:
            raise Interrupted
        return actor

    def _forget(self, actor: Actor) -> None:
        self.actors.remove(actor)
        del self._by_greenlet[actor.greenlet]

    def _ready(self, now: float) -> list[Actor]:
        return [a for a in self.actors if not a.done and a.wakes_at_s <= now and a.process.frozen_until <= self.steps]

    def _choose(self) -> Actor | None:
        ready = self._ready(self.clock_s)
        if not ready:
            asleep = [a.wakes_at_s for a in self.actors if not a.done and a.process.frozen_until <= self.steps]
            self.clock_s = min(asleep, default=self.clock_s)
            return None
        if self._last in ready and self.random.random() < self._stickiness:
            return self._last
        return self.random.choice(ready)

    def _resume(self, actor: Actor) -> None:
        self._last = actor
        actor.greenlet.switch()
        if actor.done:
            self._forget(actor)
        if actor.failure is not None:
            raise actor.failure

    def _strikes(self, actor: Actor) -> bool:
        """Returns True if a fault hits the process of the actor whose turn it is."""
        if self._calm or not actor.process.mortal or actor.pending in ("begin", "wake"):
            return False
        chaos, process = self.chaos, actor.process
        if self.random.random() > (chaos.odds if actor.pending.startswith(chaos.at) else chaos.elsewhere):
            return False
        left = {"freezes": chaos.freezes, "stalls": chaos.stalls, "kills": chaos.kills, "reboots": chaos.reboots}
        possible = [what for what, count in left.items() if count > 0]
        if not possible:
            return False
        what = self.random.choice(possible)
        setattr(chaos, what, left[what] - 1)
        self.trace.append(f"{actor.name}: {what} before {actor.pending}")
        if what == "freezes":
            shortest, longest = chaos.frozen_steps
            process.frozen_until = self.steps + int(shortest * (longest / shortest) ** self.random.random())
        elif what == "stalls":
            actor.wakes_at_s = self.clock_s + self.random.uniform(0.2, 5.0)
        elif what == "kills":
            self.kill(process)
        else:
            self.reboot(process.host)
        return True

    def reboot(self, host: Host) -> None:
        """Takes a host down and starts it again."""
        self.trace.append(f"{host.name} goes down")
        for process in {a.process: None for a in self.actors if a.process.host is host and a.process.mortal}:
            self.kill(process)
        host.boot += 1
        for each in self.on_reboot:
            each(host)
