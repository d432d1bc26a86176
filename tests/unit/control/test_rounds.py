"""Rounds and their pins: a document that exists is never changed."""

from pathlib import Path

import pytest

from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import OnEnd, PinnedInput
from spark_jobs.protocol.ids import InputName, RoundNumber
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.storage.local import LocalFiles
from tests.support.rounds import begun

NAME = InputName("departures")


def pinned(version: int) -> PinnedInput:
    return PinnedInput(input=NAME, pins=(DeltaPin(path="/t", table="id", version=version),))


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(LocalFiles(tmp_path))


def test_a_round_that_has_begun_never_changes(rounds: Rounds) -> None:
    first = rounds.begin(begun(1, "a", OnEnd.SUSPEND))
    assert rounds.begin(begun(1, "b", OnEnd.DRAIN)) == first == rounds.read(RoundNumber(1))


def test_the_latest_round_is_the_highest_number(rounds: Rounds) -> None:
    assert rounds.latest() is None
    for number in (1, 2, 10):
        rounds.begin(begun(number))
    latest = rounds.latest()
    assert latest == begun(10).model_copy(update={"nonce": latest.nonce if latest else ""})


def test_a_pin_never_changes(rounds: Rounds) -> None:
    first = rounds.pin(RoundNumber(1), pinned(5))
    assert rounds.pin(RoundNumber(1), pinned(6)) == first == rounds.pinned(RoundNumber(1), NAME)


def test_each_round_has_pins_of_its_own(rounds: Rounds) -> None:
    rounds.pin(RoundNumber(1), pinned(5))
    assert rounds.pinned(RoundNumber(2), NAME) is None
