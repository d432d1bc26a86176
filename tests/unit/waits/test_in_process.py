"""Waits in a worker, and the storage failures that they tolerate."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from spark_jobs.protocol.errors import InterruptedRunError, StorageError
from spark_jobs.storage.open import open_place
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.in_process import patient_look, wait_here
from spark_jobs.waits.limits import WaitLimits
from spark_jobs.waits.patience import Patience
from tests.support.away import away
from tests.support.left_behind import land_left_behind

LOG = logging.getLogger(__name__)


@dataclass
class AnyWait(HomeWait[Any, Any]):
    """A wait whose looks and decisions a test gives."""

    look_once: Callable[[], Any]
    decide: Callable[[Any], Any]
    hear_of_home: Callable[[], object] = lambda: None

    @property
    def key(self) -> str:
        return "any"

    def look(self) -> Any:
        return self.look_once()

    def judge(self, look: Any, now_s: float) -> Any:
        return self.decide(look)

    def too_late(self, look: Any, timeout_s: float | None) -> None:
        return None

    def home_is_back(self, now_s: float) -> None:
        self.hear_of_home()


def test_an_unavailable_storage_is_read_again() -> None:
    patience, look = Patience(None), away(lambda: 7)
    assert [patient_look(look, patience, LOG), patient_look(look, patience, LOG)] == [None, 7]


def test_a_storage_that_does_not_respond_is_tolerated_as_long_as_one_that_fails() -> None:
    back = threading.Event()
    with pytest.raises(StorageError, match="does not answer"):
        patient_look(lambda: back.wait(30.0), Patience(None, WaitLimits(storage_s=0.2)), LOG)
    back.set()
    land_left_behind()


def test_a_storage_that_does_not_respond_does_not_delay_a_killed_task() -> None:
    back = threading.Event()

    def killed() -> None:
        raise InterruptedRunError("The task was killed.")

    with pytest.raises(InterruptedRunError):
        patient_look(lambda: back.wait(30.0), Patience(None), LOG, killed)
    back.set()
    land_left_behind()


def test_home_is_back_is_called_before_the_result_of_the_next_look_is_used() -> None:
    heard: list[str] = []

    def judge(look: int) -> int | None:
        heard.append("a look")
        return look if heard.count("a look") == 3 else None

    wait = AnyWait(open_place("/home"), away(lambda: 7, [1]), judge, lambda: heard.append("it is back"))
    found = wait_here(wait, end_s=None, timeout_s=None, log=LOG, pause=lambda: heard.append("a pause"))
    assert found == 7
    assert heard == ["a look", "a pause", "a pause", "it is back", "a look", "a pause", "a look"]


def test_a_task_that_is_killed_during_a_look_does_not_use_its_result() -> None:
    looked: list[int] = []

    def look() -> list[int]:
        looked.append(1)
        return looked

    def judge(found: object) -> None:
        raise AssertionError("The look was judged.")

    def check() -> None:
        if looked:
            raise InterruptedRunError("The task was killed.")

    wait = AnyWait(open_place("/home"), look, judge)
    with pytest.raises(InterruptedRunError):
        wait_here(wait, end_s=None, timeout_s=None, log=LOG, pause=lambda: None, check=check)
