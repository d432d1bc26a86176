"""Waits in a worker, and the storage failures that they tolerate."""

import logging
import threading

import pytest

from spark_jobs.protocol.errors import InterruptedRunError, StorageError
from spark_jobs.waits.in_process import look_until, patient_look
from spark_jobs.waits.patience import Patience
from tests.support.away import away
from tests.support.left_behind import land_left_behind

LOG = logging.getLogger(__name__)


def test_a_storage_that_is_away_is_worth_another_look() -> None:
    patience, look = Patience(None), away(lambda: 7)
    assert [patient_look(look, patience, LOG), patient_look(look, patience, LOG)] == [None, 7]


def test_a_storage_that_does_not_answer_is_borne_no_longer_than_one_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.waits.patience.LOOK_PATIENCE_S", 0.2)
    back = threading.Event()
    with pytest.raises(StorageError, match="does not answer"):
        patient_look(lambda: back.wait(30.0), Patience(None), LOG)
    back.set()
    land_left_behind()


def test_a_storage_that_does_not_answer_keeps_no_task_that_was_killed() -> None:
    back = threading.Event()

    def killed() -> None:
        raise InterruptedRunError("The task was killed.")

    with pytest.raises(InterruptedRunError):
        patient_look(lambda: back.wait(30.0), Patience(None), LOG, killed)
    back.set()
    land_left_behind()


def test_a_wait_is_told_that_its_home_is_back_before_it_judges_the_next_look() -> None:
    heard: list[str] = []

    def judge(look: int) -> int | None:
        heard.append("a look")
        return look if heard.count("a look") == 3 else None

    found = look_until(
        away(lambda: 7, [1]),
        judge,
        patience=Patience(None),
        log=LOG,
        pause=lambda: heard.append("a pause"),
        home_is_back=lambda: heard.append("it is back"),
    )
    assert found == 7
    assert heard == ["a look", "a pause", "a pause", "it is back", "a look", "a pause", "a look"]


def test_a_task_that_is_killed_during_a_look_judges_nothing() -> None:
    looked: list[int] = []

    def look() -> list[int]:
        looked.append(1)
        return looked

    def judge(found: list[int]) -> None:
        raise AssertionError("The look was judged.")

    def check() -> None:
        if looked:
            raise InterruptedRunError("The task was killed.")

    with pytest.raises(InterruptedRunError):
        look_until(look, judge, patience=Patience(None), log=LOG, pause=lambda: None, check=check)
