"""Drivers that are slow to send a heartbeat, or to end after a cancellation."""

import threading

import pytest

from airflow_provider.exceptions import PipelineRunError
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.errors import HomeInUseError, StorageFullError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber
from spark_jobs.waits.limits import WaitLimits
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out
from tests.airflow.flights import (
    TaskLog,
    a_driver_at_work,
    context,
    driver_has_started,
    once,
    operator,
    task_log,
    until,
)

__all__ = ["task_log"]


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_cancelled_driver_that_ended_without_an_answer_does_not_fail_the_next_try(
    homes: Homes, task_log: TaskLog, deferrable: bool
) -> None:
    """Spark did not stop in time, so the driver ended without an answer. The cancellation asked for this end, which is no failure."""
    hook = StreamPipelineHook()
    a_driver_at_work(homes, entry="hangs")
    owners = AttemptLease(hook.files("flights"), AttemptNumber(1))
    owner = owners.take("the try before").owner
    owners.cancel(owner, "its task was cleared")
    until((homes.path() / ".hangs").exists)
    assert carry_out(operator(deferrable=deferrable, wait_limits=WaitLimits(silence_s=0.5)), context())["attempt"] == 2
    assert "Attempt 1 of this task is at work" in task_log.text
    assert "Attempt 1 was cancelled by its previous owner" in task_log.text


def test_a_task_on_the_drivers_host_waits_for_a_driver_that_starts_slowly(
    homes: Homes,
) -> None:
    """The host is busy, or the pipeline has heavy imports. The triggerer would mistake the silence for the driver's end."""
    impatient = WaitLimits(silence_s=0.3, first_sign_s=0.1)

    def begins() -> None:
        threading.Event().wait(3.0)  # many times the allowed silence
        for name in (".begin", ".go"):
            (homes.path() / name).touch()

    begin = once(homes.starts, begins)
    assert carry_out(operator("slow", deferrable=True, wait_limits=impatient), context())["attempt"] == 1
    begin.join()
    assert len(homes.starts()) == 1


def test_a_task_that_is_killed_ends_its_driver_although_the_home_is_full(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, task_log: TaskLog
) -> None:
    def full(self: AttemptLease, owner: OwnerNumber, reason: str) -> None:
        raise StorageFullError("No space is left.")

    monkeypatch.setattr(AttemptLease, "cancel", full)
    task = operator("waits", deferrable=False)
    killer = once(driver_has_started, task.on_kill)
    with pytest.raises(PipelineRunError):
        carry_out(task, context())
    killer.join()
    assert "The cancel of attempt 1 could not be written into its home: No space is left." in task_log.text
    assert not StreamPipelineHook().is_at_work("flights")


@pytest.mark.parametrize("deferrable", [True, False])
def test_the_error_of_the_next_run_names_a_driver_that_does_not_end_after_its_answer(homes: Homes, deferrable: bool) -> None:
    """The next run's driver could not begin, and its task would wait until the earlier driver ends."""
    impatient = WaitLimits(driver_end_s=0.5, exit_s=0.1)
    carry_out(operator("lingers", deferrable=deferrable, wait_limits=impatient), context())
    with pytest.raises(PipelineRunError, match="does not end") as caught:
        carry_out(operator("answers", deferrable=deferrable, wait_limits=impatient), context("manual__2"))
    assert isinstance(caught.value.error, HomeInUseError)
    assert len(homes.starts()) == 1
