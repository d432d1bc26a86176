"""How a worker bears with a storage that does not do what storages do."""

import logging
import threading

import pytest

from airflow_provider.waits.patient_look import patient_look
from airflow_provider.waits.waiting import Patience
from spark_jobs.protocol.errors import InterruptedRunError, StorageError
from tests.airflow.away import away
from tests.support.left_behind import land_left_behind

LOG = logging.getLogger(__name__)


def test_a_storage_that_is_away_is_worth_another_look() -> None:
    patience, look = Patience(None), away(lambda: 7)
    assert [patient_look(look, patience, LOG), patient_look(look, patience, LOG)] == [None, 7]


def test_a_storage_that_does_not_answer_is_borne_no_longer_than_one_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider.waits.waiting.LOOK_PATIENCE_S", 0.2)
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
