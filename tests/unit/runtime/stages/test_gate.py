"""Batches at a stage's gate."""

from collections.abc import Callable
from threading import Event, Thread

import pytest

from spark_jobs.runtime.stages.gate import Gate, TurnedAwayError

SOON_S = 5.0


class Batch:
    """A batch in its own thread."""

    def __init__(self, gate: Gate, *, staged: bool = False) -> None:
        self._gate, self._staged = gate, staged
        self.inside, self.may_end = Event(), Event()
        self.turned_away = False
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._gate.batch(staged=self._staged):
                self.inside.set()
                self.may_end.wait(SOON_S)
        except TurnedAwayError:
            self.turned_away = True

    def ended(self) -> bool:
        self.may_end.set()
        self.thread.join(SOON_S)
        return not self.thread.is_alive()


def becomes(condition: Callable[[], bool]) -> bool:
    ticks = Event()
    return any(condition() or ticks.wait(0.01) for _ in range(500))


def test_an_open_gate_lets_a_batch_in() -> None:
    batch = Batch(Gate())
    assert batch.inside.wait(SOON_S)
    assert batch.ended()


def test_a_closed_gate_holds_a_batch_until_it_is_opened() -> None:
    gate = Gate()
    gate.close()
    batch = Batch(gate)
    assert becomes(gate.is_waiting)
    assert not batch.inside.is_set()
    gate.open()
    assert batch.inside.wait(SOON_S)
    assert batch.ended()


def test_closing_the_gate_does_not_affect_the_batch_inside() -> None:
    gate = Gate()
    batch = Batch(gate)
    assert batch.inside.wait(SOON_S)
    gate.close()
    assert not gate.is_empty()
    assert batch.ended()
    assert gate.is_empty()


def test_a_batch_that_consumers_may_have_read_is_not_held() -> None:
    gate = Gate()
    gate.close()
    batch = Batch(gate, staged=True)
    assert batch.inside.wait(SOON_S)
    assert batch.ended()


def test_a_batch_waits_for_room() -> None:
    room = Event()
    gate = Gate(room.is_set)
    batch = Batch(gate)
    assert becomes(gate.is_waiting)
    room.set()
    assert batch.inside.wait(SOON_S)
    assert batch.ended()


def test_no_batch_waits_for_room_after_the_gate_has_made_room() -> None:
    gate = Gate(lambda: False)
    waiting = Batch(gate)
    assert becomes(gate.is_waiting)
    gate.make_room()
    assert waiting.inside.wait(SOON_S)
    assert waiting.ended()
    gate.close()
    held = Batch(gate)
    assert becomes(gate.is_waiting)
    assert not held.inside.is_set()
    gate.open()
    assert held.ended()


def test_waiting_and_new_batches_are_turned_away_until_the_next_query() -> None:
    gate = Gate()
    gate.close()
    waiting = Batch(gate)
    assert becomes(gate.is_waiting)
    gate.turn_away()
    later = Batch(gate)
    assert waiting.ended()
    assert later.ended()
    assert waiting.turned_away
    assert later.turned_away
    gate.admit()
    gate.open()
    with gate.batch():
        assert not gate.is_empty()


def test_a_caller_that_turns_batches_away_can_wait_for_the_batch_inside() -> None:
    gate = Gate()
    batch = Batch(gate)
    assert batch.inside.wait(SOON_S)
    gate.turn_away()
    assert not gate.wait_until_empty(0.05)
    assert batch.ended()
    assert gate.wait_until_empty(SOON_S)


def test_a_batch_that_fails_leaves_the_gate_empty() -> None:
    gate = Gate()
    with pytest.raises(KeyError), gate.batch():
        raise KeyError
    assert gate.is_empty()
