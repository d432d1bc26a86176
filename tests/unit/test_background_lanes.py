"""A storage that hangs holds a few threads for looks, and no others of the triggerer."""

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable
from contextvars import ContextVar
from threading import Event, Semaphore, Thread, current_thread
from typing import Any

import pytest

from spark_jobs.background import AT_WORK, HELPERS_MAX, LANE_THREADS_MAX, Lanes

SOON_S = 10.0
A_WHILE_S = 0.3
run_in_lane = Lanes(slow_s=0.02).run
run_in_patient_lane = Lanes(slow_s=2 * SOON_S).run
HUNG, BESIDE, ELSEWHERE = "file:///away/flights", "file:///away/orders", "file:///data/homes/orders"


class Hanging:
    """A look that hangs until ``go_on`` is set."""

    def __init__(self) -> None:
        self.go_on, self.begun = Event(), Semaphore(0)

    def __call__(self) -> None:
        self.begun.release()
        self.go_on.wait()

    def fill(self) -> None:
        """Returns once the maximum number of looks hangs."""
        assert all(self.begun.acquire(timeout=SOON_S) for _ in range(LANE_THREADS_MAX))


def while_others_hang(work: Awaitable[Any], *, given_up: bool = False, limit_s: float = SOON_S) -> Any:
    """Returns the result of ``work`` while more looks of another home hang than may run. ``given_up`` ends their waits first."""
    hanging = Hanging()

    async def run() -> Any:
        hung = [asyncio.ensure_future(run_in_lane(HUNG, hanging)) for _ in range(LANE_THREADS_MAX + 10)]
        try:
            await asyncio.to_thread(hanging.fill)
            for each in hung if given_up else ():
                each.cancel()
            return await asyncio.wait_for(work, limit_s)
        finally:
            hanging.go_on.set()
            await asyncio.gather(*hung, return_exceptions=True)

    return asyncio.run(run())


def test_looks_that_hang_do_not_use_the_threads_of_the_event_loop() -> None:
    """The event loop uses its threads to look up host names, for every trigger of Airflow."""
    assert while_others_hang(asyncio.to_thread(lambda: "the loop's own")) == "the loop's own"


def test_looks_that_hang_do_not_use_the_threads_of_homes_elsewhere() -> None:
    assert while_others_hang(run_in_lane(ELSEWHERE, lambda: current_thread().name)) == AT_WORK


def test_looks_that_hang_do_not_delay_a_cancel_of_the_same_home() -> None:
    assert while_others_hang(run_in_lane(HUNG, lambda: "cancelled", urgent=True)) == "cancelled"


def test_homes_elsewhere_and_cancels_have_threads_however_many_directories_hang() -> None:
    hanging, directories = Hanging(), HELPERS_MAX // (LANE_THREADS_MAX - 1) + 8

    async def run() -> list[str]:
        hung = [
            asyncio.ensure_future(run_in_lane(f"file:///away/{directory}/flights", hanging))
            for directory in range(directories)
            for _ in range(LANE_THREADS_MAX)
        ]
        try:
            for _ in range(directories + HELPERS_MAX):
                assert await asyncio.to_thread(hanging.begun.acquire, timeout=SOON_S)
            looks = [
                run_in_lane(ELSEWHERE, lambda: "seen"),
                run_in_lane("file:///away/0/orders", lambda: "cancelled", urgent=True),
            ]
            return await asyncio.wait_for(asyncio.gather(*looks), SOON_S)
        finally:
            hanging.go_on.set()
            await asyncio.gather(*hung)

    assert asyncio.run(run()) == ["seen", "cancelled"]


@pytest.mark.parametrize("given_up", [False, True])
def test_a_hanging_look_keeps_its_place_after_its_wait_has_ended(*, given_up: bool) -> None:
    """Otherwise each try of each task would hold one more thread."""
    with pytest.raises(TimeoutError):
        while_others_hang(run_in_lane(BESIDE, lambda: "seen"), given_up=given_up, limit_s=A_WHILE_S)


def test_neighbouring_homes_are_read_again_once_their_storage_is_back() -> None:
    async def run() -> str:
        hanging = Hanging()
        hung = [asyncio.ensure_future(run_in_lane(HUNG, hanging)) for _ in range(LANE_THREADS_MAX)]
        await asyncio.to_thread(hanging.fill)
        look = asyncio.ensure_future(run_in_lane(BESIDE, lambda: "seen"))
        await asyncio.sleep(A_WHILE_S)
        assert not look.done()
        hanging.go_on.set()
        await asyncio.gather(*hung)
        return await asyncio.wait_for(look, SOON_S)

    assert asyncio.run(run()) == "seen"


def test_looks_that_are_due_together_share_a_thread() -> None:
    """A thread for each look would cost more than the looks."""

    async def run() -> set[Thread]:
        all_are_due = Event()

        def look() -> Thread:
            all_are_due.wait(SOON_S)
            return current_thread()

        looks = [asyncio.ensure_future(run_in_patient_lane(BESIDE, look)) for _ in range(100)]
        await asyncio.sleep(0)
        all_are_due.set()
        return set(await asyncio.gather(*looks))

    assert len(asyncio.run(run())) == 1


def test_a_look_that_hangs_delays_looks_at_neighbouring_homes_only_for_a_moment() -> None:
    """Results of earlier looks are not delayed, and later looks still run."""

    async def run() -> list[str]:
        go_on = Event()
        looks = [asyncio.ensure_future(run_in_lane(BESIDE, look)) for look in (lambda: "before", go_on.wait, lambda: "after")]
        try:
            return [str(await asyncio.wait_for(looks[number], SOON_S)) for number in (0, 2)]
        finally:
            go_on.set()
            await looks[1]

    assert asyncio.run(run()) == ["before", "after"]


def test_cancels_wait_for_no_other_cancel() -> None:
    async def run() -> str:
        go_on = Event()
        hangs = asyncio.ensure_future(run_in_patient_lane(HUNG, go_on.wait, urgent=True))
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(run_in_patient_lane(BESIDE, lambda: "cancelled", urgent=True), SOON_S)
        finally:
            go_on.set()
            await hangs

    assert asyncio.run(run()) == "cancelled"


def test_a_look_whose_wait_has_ended_does_not_begin() -> None:
    began = Event()

    async def run() -> None:
        go_on = Event()
        first = asyncio.ensure_future(run_in_patient_lane(BESIDE, go_on.wait))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(run_in_patient_lane(BESIDE, began.set))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await first
        await run_in_patient_lane(BESIDE, lambda: None)

    asyncio.run(run())
    assert not began.is_set()


def test_a_look_runs_in_the_context_of_its_task() -> None:
    """The log of a look belongs to this task."""
    whose: ContextVar[str] = ContextVar("whose")

    async def work() -> str:
        whose.set("this task")
        return await run_in_lane(ELSEWHERE, whose.get)

    assert asyncio.run(work()) == "this task"


def test_the_exception_of_a_look_reaches_its_caller() -> None:
    def fail() -> None:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        asyncio.run(run_in_lane(ELSEWHERE, fail))


def test_any_exception_of_a_look_ends_its_own_wait_and_no_other() -> None:
    """A future does not accept StopIteration."""

    async def run() -> list[Any]:
        looks = [run_in_lane(BESIDE, next, iter(())), run_in_lane(BESIDE, lambda: "seen")]
        return await asyncio.wait_for(asyncio.gather(*looks, return_exceptions=True), SOON_S)

    failed, seen = asyncio.run(run())
    assert (type(failed), seen) == (RuntimeError, "seen")


def test_a_look_that_ends_later_does_not_keep_a_closed_event_loop_in_memory() -> None:
    hanging = Hanging()

    async def run() -> "weakref.ref[asyncio.AbstractEventLoop]":
        look = asyncio.ensure_future(run_in_lane(HUNG, hanging))
        await asyncio.to_thread(hanging.begun.acquire)
        look.cancel()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(run())
    hanging.go_on.set()
    end_s = time.monotonic() + SOON_S
    while gc.collect() + 1 and loop() is not None and time.monotonic() < end_s:
        time.sleep(0.01)
    assert loop() is None
