"""Threads, locks and clocks of a world. They wait in the world's time, so that other actors run in between."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import TypeVar, cast

from tests.simulation.world import Actor, World

T = TypeVar("T")


class SimulatedThread:
    """Replaces :class:`threading.Thread`: an actor of the process that starts it."""

    def __init__(self, world: World, *, target: Callable[[], None], name: str, daemon: bool = True) -> None:
        self._world, self._target, self._name = world, target, name
        self._actor: Actor | None = None

    def start(self) -> None:
        current = self._world.current
        assert current is not None
        self._actor = self._world.spawn(current.process, self._name, self._target)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done

    def interrupt(self) -> None:
        """Ends the thread at its next turn, wherever it waits."""
        if self._actor is not None:
            self._actor.interrupted = True
            self._actor.wakes_at_s = 0.0

    def join(self) -> None:
        self._world.until(lambda: not self.is_alive())


class SimulatedFuture:
    """Replaces :class:`concurrent.futures.Future`. The work runs in an actor of its own."""

    def __init__(self, world: World, work: Callable[[], None]) -> None:
        self._work, self._error = work, cast(Exception | None, None)
        self._thread = SimulatedThread(world, target=self._run, name="background")
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def exception(self) -> Exception | None:
        self._thread.join()
        return self._error

    def result(self) -> None:
        if (error := self.exception()) is not None:
            raise error

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - a thread's edge: raised where the result is asked for
            self._error = error


class SimulatedEvent:
    """Replaces :class:`threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world, self._set = world, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._world.until(self.is_set, timeout)


class SimulatedLock:
    """Replaces :class:`threading.Lock`."""

    def __init__(self, world: World) -> None:
        self._world, self._held = world, False

    def __enter__(self) -> None:
        self._world.until(lambda: not self._held)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class SimulatedCondition:
    """Replaces :class:`threading.Condition`. No other actor runs while one holds the lock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def wait(self, timeout: float) -> None:
        self._world.sleep(timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        return self._world.until(predicate, timeout)

    def notify_all(self) -> None: ...


def threading_in(world: World) -> SimpleNamespace:
    """Returns a replacement for the module ``threading``."""
    return SimpleNamespace(
        Thread=lambda **options: SimulatedThread(world, **options),
        Event=lambda: SimulatedEvent(world),
        Condition=lambda: SimulatedCondition(world),
    )


def time_in(world: World) -> SimpleNamespace:
    """Returns a replacement for the module ``time``."""
    return SimpleNamespace(time=lambda: world.clock_s, monotonic=lambda: world.clock_s, sleep=world.sleep)


def datetime_in(world: World) -> SimpleNamespace:
    """Returns a replacement for the class ``datetime``, for modules that make the time a part of a path."""
    return SimpleNamespace(now=lambda zone: datetime.fromtimestamp(world.clock_s, zone))


@contextmanager
def holding(world: World, name: str, refusal: Callable[[], Exception]) -> Iterator[None]:
    """Holds a lock of the process's host until the context closes or the process dies.

    Args:
        world: The world.
        name: The lock.
        refusal: Makes the error that is raised if another process holds the lock.
    """
    current = world.current
    assert current is not None
    held = current.process.host.locks
    if name in held:
        raise refusal()
    held[name] = current.process.name
    try:
        yield
    finally:
        del held[name]
