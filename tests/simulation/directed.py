"""Schedules that say what happens: which driver stops or dies, before or after which operation. Chance decides only the rest."""

import sys
from contextlib import suppress

from tests.simulation.schedules import Plan, Schedule, no_chaos
from tests.simulation.world import DoesNotEndError, Host, Process

_STEPS_MAX = 8_000


class DirectedSchedule(Schedule):
    """A schedule without other faults than those of :meth:`direct`.

    Args:
        seed: Decides the order of everything else.
        plan: The subject.
    """

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan, no_chaos())

    def direct(self) -> None:
        """Starts drivers, and stops, wakes or kills them."""
        raise NotImplementedError

    def start(self, host: int) -> Process:
        """Starts a driver on a host, which is given by its index."""
        return self._start(self.hosts[host]).process

    def until(self, process: Process, operation: str) -> None:
        """Lets the world run until a process has done an operation, or one that contains this text."""
        self.world.run(lambda: self._has_done(process, operation), _STEPS_MAX)

    def stop(self, process: Process, *, before: str, after: str) -> None:
        """Lets the world run until a process is about to do an operation, and stops it there.

        Few schedules may not come to that point: then nothing is stopped.

        Args:
            process: The process.
            before: The operation.
            after: An operation that the process must have done, or a part of one.
        """

        def is_there() -> bool:
            is_next = any(actor.process is process and actor.pending == before for actor in self.world.actors)
            return is_next and self._has_done(process, after)

        with suppress(DoesNotEndError):
            self.world.run(is_there, _STEPS_MAX)
            process.frozen_until = sys.maxsize

    def wake(self, process: Process) -> None:
        """Lets a stopped process go on to its end, for a while at most."""
        process.frozen_until = 0
        with suppress(DoesNotEndError):
            self.world.run(lambda: all(actor.process is not process for actor in self.world.actors), 2_000)

    def _act(self) -> None:
        self.world.spawn(Process("test", Host("elsewhere"), mortal=False), "input", self._deliver)
        self.direct()
        self._finish()
        self._check_end()

    def _has_done(self, process: Process, operation: str) -> bool:
        return any(line.startswith(f"{process.name}/") and operation in line for line in self.world.trace)
