"""A world in which one thing happens at a time: actors, a clock, chance, and what befalls processes.

Every storage operation of an actor is a point at which any other may go on instead, its process may be killed, or stopped for long
(SIGSTOP) and woken late. All of it is drawn from one seed: the same seed gives the same trace.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from greenlet import getcurrent, greenlet

TICK_S = 0.01
"""How much the clock moves on with each step."""


class Crashed(BaseException):
    """The process is no more. Raised where one of its actors was; nothing that it does afterwards has an effect."""


class Interrupted(BaseException):
    """What the actor was doing was cancelled, as Spark does with a query that is stopped."""


class Violation(AssertionError):
    """A promise does not hold."""


class DoesNotEndError(Violation):
    """What should have happened has not, after so many steps."""


@dataclass(eq=False)
class Host:
    """A machine. ``boot`` is another one after each time that it went down."""

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
    """Stopped until that step."""


@dataclass(eq=False)
class Actor:
    """One thread of a process."""

    name: str
    process: Process
    greenlet: greenlet
    wakes_at_s: float = 0.0
    pending: str = "begin"
    """What it does when it goes on."""
    interrupted: bool = False
    failure: BaseException | None = None

    @property
    def done(self) -> bool:
        return bool(self.greenlet.dead)


@dataclass
class Chaos:
    """How much may still befall the processes of a schedule.

    Args:
        kills: So many are killed.
        freezes: So many are stopped, and woken late.
        stalls: So many times one of their threads alone is held up.
        faults: So many storage operations fail, or do not say whether they have happened.
        reboots: So many hosts go down, and lose what was not made durable.
        at: Where they are struck more often than elsewhere: what an operation there says of itself begins like this.
        odds: How often there.
        elsewhere: How often at any other operation.
        frozen_steps: The shortest and the longest time that one is stopped.
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
        seed: Decides everything.
        chaos: What may befall.
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

    @property
    def current(self) -> Actor | None:
        """The actor that runs; None while the test itself does."""
        return self._by_greenlet.get(getcurrent())

    def uuid4(self) -> UUID:
        """As :func:`uuid.uuid4`, from the seed."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Actor:
        """Begins an actor; it first runs when it is its turn."""

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
        """The point before an operation. Whoever is chosen goes on; this actor, if it is, at once.

        Raises:
            Crashed: The process was killed.
            Interrupted: The actor was.
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
        """Sleeps until the condition holds; whether it does."""
        deadline_s = None if timeout_s is None else self.clock_s + timeout_s
        while not condition():
            if deadline_s is not None and self.clock_s >= deadline_s:
                return False
            self.sleep(look_s)
        return True

    def run(self, until: Callable[[], bool], steps_max: int) -> None:
        """Lets the actors act.

        Raises:
            DoesNotEndError: It was not so after so many steps.
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
        """From now on nothing befalls anybody; who was stopped is woken."""
        self._calm = True
        for actor in self.actors:
            actor.process.frozen_until = 0

    def fault(self, *kinds: str) -> str | None:
        """One of ``kinds`` if this operation is to fail; None in most cases."""
        actor = self.current
        if self._calm or actor is None or not actor.process.mortal or self.chaos.faults <= 0 or self.random.random() > 0.01:
            return None
        self.chaos.faults -= 1
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
                if not actor.greenlet:  # it has not begun: what is thrown comes out at its parent
                    actor.greenlet.parent = getcurrent()
                with suppress(Crashed):
                    actor.greenlet.throw(Crashed())
        for actor in [actor for actor in self.actors if actor.done]:
            self._forget(actor)

    def end(self) -> None:
        """Ends every actor, so that nothing of this world is left."""
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
        """Whether something befalls the process of the actor whose turn it is."""
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
        """A host goes down and comes back."""
        self.trace.append(f"{host.name} goes down")
        for process in {a.process: None for a in self.actors if a.process.host is host and a.process.mortal}:
            self.kill(process)
        host.boot += 1
        for each in self.on_reboot:
            each(host)
