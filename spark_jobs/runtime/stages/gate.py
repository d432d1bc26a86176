"""A gate that holds a stage between two batches, or rejects its next batch."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_S = 0.05


class TurnedAwayError(Exception):
    """A batch was rejected because its stage must stop. The stage handles it, and it is never shown."""


class Gate:
    """The gate that every batch of a stage passes before it does anything.

    A batch inside is never disturbed, because Spark cancels the jobs of a stopped query, and can bring the whole query down with them. A
    batch that waits outside is planned and has not begun. Spark plans a batch only after it has committed the one before.

    Args:
        room: Returns True if there is room for another batch. Called repeatedly while one waits.
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
        """Enters as soon as the gate is open and there is room.

        Args:
            staged: True if the batch has its version already, and consumers may have read it. It must be committed, so it is not held.

        Raises:
            TurnedAwayError: The stage must stop.
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
        """Lets no other batch in. A batch inside goes on."""
        with self._changed:
            self._closed = True

    def open(self) -> None:
        """Lets batches in again."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def turn_away(self) -> None:
        """Rejects the waiting batch and all later ones, which ends their query."""
        with self._changed:
            self._turning_away = True
            self._changed.notify_all()

    def admit(self) -> None:
        """Stops rejecting batches, for the next query."""
        with self._changed:
            self._turning_away = False

    def make_room(self) -> None:
        """Stops holding batches for lack of room, because the consumers have ended or run only afterwards."""
        with self._changed:
            self._room = lambda: True
            self._changed.notify_all()

    def is_closed(self) -> bool:
        """Returns True if batches are held."""
        return self._closed

    def is_waiting(self) -> bool:
        """Returns True if a batch waits outside. The one before it is committed."""
        return self._waiting

    def is_empty(self) -> bool:
        """Returns True if no batch is inside."""
        return not self._inside

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Waits for the batch inside. Returns True if it has come out."""
        with self._changed:
            return self._changed.wait_for(self.is_empty, timeout_s)
