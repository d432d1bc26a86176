"""Holds a stage between two batches, or turns it away from the next one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_S = 0.05


class TurnedAwayError(Exception):
    """A batch was not begun, because its stage is to stop. Handled by the stage, never shown."""


class Gate:
    """Every batch of a stage goes through it, before the batch does anything.

    A batch that has gone in is never disturbed: Spark cancels the jobs of a query that is stopped, and can take the whole query down
    with them. A batch that waits outside is planned and has begun nothing; Spark plans a batch only after it has committed the one
    before.

    Args:
        room: Whether there is room for another batch; asked again and again while one waits.
    """

    def __init__(self, room: Callable[[], bool] = lambda: True) -> None:
        self._room = room
        self._changed = threading.Condition()
        self._closed = False
        self._turning_away = False
        self._waiting = False
        self._inside = False

    @contextmanager
    def batch(self, *, staged: bool = False) -> Iterator[None]:
        """Goes in, as soon as the gate is open and there is room.

        Args:
            staged: The batch has its version already, and consumers may have read it: it has to be committed, so nothing holds it.

        Raises:
            TurnedAwayError: The stage is to stop.
        """
        with self._changed:
            self._waiting = not staged
            self._changed.notify_all()
            while not staged and not self._turning_away and (self._closed or not self._room()):
                self._changed.wait(_LOOK_S)
            self._waiting = False
            if self._turning_away:
                raise TurnedAwayError
            self._inside = True
        try:
            yield
        finally:
            with self._changed:
                self._inside = False
                self._changed.notify_all()

    def close(self) -> None:
        """Lets no other batch in; one that is in goes on."""
        with self._changed:
            self._closed = True

    def open(self) -> None:
        """Lets batches in again."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def turn_away(self) -> None:
        """Makes the batch that waits, and every other one that comes, end its query."""
        with self._changed:
            self._turning_away = True
            self._changed.notify_all()

    def admit(self) -> None:
        """Stops turning batches away, for the next query."""
        with self._changed:
            self._turning_away = False

    def make_room(self) -> None:
        """Stops holding batches for want of room: what would make some has ended, or runs only afterwards."""
        with self._changed:
            self._room = lambda: True
            self._changed.notify_all()

    def is_closed(self) -> bool:
        """Returns whether batches are held."""
        return self._closed

    def is_waiting(self) -> bool:
        """Returns whether a batch waits outside: the one before it is committed."""
        return self._waiting

    def is_empty(self) -> bool:
        """Returns whether no batch is in."""
        return not self._inside

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Waits for the batch that is in. Returns whether it has come out."""
        with self._changed:
            return self._changed.wait_for(self.is_empty, timeout_s)
