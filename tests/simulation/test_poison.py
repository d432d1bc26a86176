"""Rows that a stage cannot process. With any faults, the rows of an input are those that were processed and those in the ledger."""

from collections import Counter
from typing import Any

import pytest

from spark_jobs.protocol.losses import PassedOver
from spark_jobs.runtime.round_run import RoundRun
from spark_jobs.runtime.stages.passing_over import PassingOver
from tests.simulation.directed import DirectedSchedule
from tests.simulation.schedules import Guard, Outcome, Plan, poisoned, repeatable
from tests.simulation.stages import Site
from tests.simulation.world import Violation
from tests.support.seeds import seed

__all__ = ["seed"]
EVERY_CHANGE = 24
EVERY_NIGHT = 10_000
EVENTS = ("kills before", "freezes before", "undone.json")
OVERTAKEN = range(6)
"""Seeds of schedules in which a driver is overtaken. Each guard must be needed in some of them."""


class Overtaken(DirectedSchedule):
    """A driver is stopped before it completes its second checkpoint. Another one begins from the first checkpoint, and is stopped as well.

    The other driver computes the same batches again, and records a loss of one of them. Then the first driver completes its checkpoint, in
    which a loss may be named that the other one has undone. So the other driver is fenced, and the next one goes on from that checkpoint.
    """

    def direct(self) -> None:
        older = self.start(0)
        self.stop(older, before="create manifests/2.json", after="create manifests/1.json")
        newer = self.start(1)
        self.stop(newer, before="create manifests/2.json", after="create losses/")
        self.wake(older)
        self.wake(newer)


class Forgotten(DirectedSchedule):
    """A driver is killed after it has recorded a loss, and so are later ones, until the first attempt's document is deleted.

    All of them continue in the same work directory, and none completes a checkpoint.
    """

    def direct(self) -> None:
        self._killed(after="create losses/1-1.json")
        self._killed(after="begun.json")  # the simulation keeps two starts, not a hundred
        self._killed(after="create manifests/1.json")

    def _killed(self, *, after: str) -> None:
        """Starts a driver, and kills it after an operation."""
        process = self.start(0)
        self.until(process, after)
        self.world.kill(process)


class Moved(DirectedSchedule):
    """A driver dies after it has recorded a loss, before it completes another checkpoint. The next one starts on another host.

    It computes the batch again in a work directory of its own, and dies before it completes a checkpoint. The last one continues there.
    """

    def direct(self) -> None:
        first = self.start(0)
        self.until(first, "create manifests/1.json")
        self.until(first, "create losses/")
        self.world.kill(first)
        second = self.start(1)
        self.stop(second, before="create manifests/2.json", after="write commits/")
        self.world.kill(second)
        self.until(self.start(1), "create manifests/2.json")


def run_moved(guard: Guard | None = None) -> None:
    for number in range(3):
        Moved(number, Plan(poison=frozenset({1}))).run(guard)


def run_overtaken(guard: Guard | None = None) -> None:
    for number in OVERTAKEN:
        Overtaken(number, Plan(poison=frozenset({2, 4}))).run(guard)


def run(number: int) -> Outcome:
    """Runs a schedule.

    Raises:
        Violation: A promise was broken. The message says how to repeat the schedule.
    """
    return repeatable(poisoned(number), f"--poisoned {number}")


def test_each_row_is_in_the_table_or_in_the_ledger_under_all_faults() -> None:
    happened: Counter[str] = Counter()
    for number in range(EVERY_CHANGE):
        outcome = run(number)
        happened += outcome.counts + outcome.errors
        for line in outcome.trace:
            happened.update(event for event in EVENTS if event in line)
    assert {*EVENTS, "rows are left out", "FencedError", "discarded"} <= happened.keys()


@pytest.mark.nightly
def test_each_row_is_in_the_table_or_in_the_ledger_in_thousands_of_schedules(seed: int) -> None:
    for number in range(seed, seed + EVERY_NIGHT):
        run(number)


def test_a_ledger_with_a_wrong_number_of_rows_breaks_the_promise() -> None:
    def one_row_less(site: Site, patch: pytest.MonkeyPatch) -> None:
        lost = PassingOver._loss

        def loss(passing: PassingOver, *planned: Any, **options: Any) -> PassedOver:
            found = lost(passing, *planned, **options)
            return found.model_copy(update={"rows": found.rows - 1})

        patch.setattr(PassingOver, "_loss", loss)

    with pytest.raises(Violation, match="rows in the ledger"):
        run_overtaken(one_row_less)


def test_losses_that_a_fenced_driver_records_are_undone() -> None:
    def any_attempt(site: Site, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(RoundRun, "_is_of_this_work_directory", lambda run, loss: True)

    run_overtaken()
    with pytest.raises(Violation, match="in the ledger"):
        run_overtaken(any_attempt)


def test_a_loss_of_another_work_directory_is_undone_before_its_stage_reads_the_rows() -> None:
    real = RoundRun._is_of_this_work_directory

    def the_second_attempt_keeps_it(site: Site, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(RoundRun, "_is_of_this_work_directory", lambda run, loss: run.attempt.attempt == 2 or real(run, loss))

    run_moved()
    with pytest.raises(Violation, match="are lost"):
        run_moved(the_second_attempt_keeps_it)


def test_a_loss_of_an_attempt_whose_document_was_deleted_is_not_undone_in_its_work_directory() -> None:
    trace = Forgotten(3, Plan(poison=frozenset({0}), rows=4)).run().trace
    deleted = next(at for at, line in enumerate(trace) if "delete attempts/1.json" in line)
    completed = next(at for at, line in enumerate(trace) if "create manifests/1.json" in line)
    assert deleted < completed
    assert not any("losses/1-1.undone.json" in line for line in trace[:completed])


def test_rows_that_the_checkpoint_has_left_out_are_left_out_again_although_their_loss_was_undone() -> None:
    def it_is_not(site: Site, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(RoundRun, "_leave_out_again", lambda run, stages: set())

    run_overtaken()
    with pytest.raises(Violation, match="are lost"):
        run_overtaken(it_is_not)
