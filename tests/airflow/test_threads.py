"""A storage that hangs holds a few threads of looks, and nothing else of the triggerer."""

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from threading import Event, Semaphore, current_thread
from typing import Any

import pytest

from airflow_provider.waits.threads import LOOKS_AT_ONCE, in_thread

SOON_S = 10.0
HUNG, BESIDE, ELSEWHERE = "file:///away/flights", "file:///away/orders", "file:///data/homes/orders"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider.waits.threads.SLOW_S", 0.02)


def while_others_hang(work: Awaitable[Any], *, given_up: bool = False) -> Any:
    """What comes of it while more looks hang than homes that are beside each other may have, whose waits may have ended since."""
    go_on, begun = Event(), Semaphore(0)

    def hang() -> None:
        begun.release()
        go_on.wait()

    async def run() -> Any:
        hung = [asyncio.ensure_future(in_thread(HUNG, hang)) for _ in range(LOOKS_AT_ONCE + 10)]
        try:
            await asyncio.to_thread(lambda: [begun.acquire(timeout=SOON_S) for _ in range(LOOKS_AT_ONCE)])
            for each in hung if given_up else ():
                each.cancel()
            return await asyncio.wait_for(work, SOON_S)
        finally:
            go_on.set()
            await asyncio.gather(*hung, return_exceptions=True)

    return asyncio.run(run())


def test_looks_that_hang_leave_the_event_loop_its_own_threads() -> None:
    """It looks up the addresses of hosts in them, for every trigger of Airflow."""
    assert while_others_hang(asyncio.to_thread(lambda: "the loop's own")) == "the loop's own"


def test_looks_that_hang_leave_homes_elsewhere_theirs() -> None:
    assert while_others_hang(in_thread(ELSEWHERE, lambda: current_thread().name)).startswith("stream-pipeline-look")


def test_looks_that_hang_keep_no_cancel_from_the_same_home() -> None:
    assert while_others_hang(in_thread(HUNG, lambda: "cancelled", urgent=True)) == "cancelled"


@pytest.mark.parametrize("given_up", [False, True])
def test_a_look_that_hangs_keeps_its_place_when_nobody_waits_for_it_any_more(
    monkeypatch: pytest.MonkeyPatch, *, given_up: bool
) -> None:
    """Else each try of each task would hold one more thread."""
    monkeypatch.setattr(f"{__name__}.SOON_S", 0.3)
    with pytest.raises(TimeoutError):
        while_others_hang(in_thread(BESIDE, lambda: "seen"), given_up=given_up)


def test_homes_beside_each_other_are_looked_at_again_once_their_storage_is_back() -> None:
    async def run() -> str:
        go_on = Event()
        hung = [asyncio.ensure_future(in_thread(HUNG, go_on.wait)) for _ in range(LOOKS_AT_ONCE)]
        look = asyncio.ensure_future(in_thread(BESIDE, lambda: "seen"))
        await asyncio.sleep(0.5)
        assert not look.done()
        go_on.set()
        await asyncio.gather(*hung)
        return await asyncio.wait_for(look, SOON_S)

    assert asyncio.run(run()) == "seen"


def test_looks_that_take_no_time_share_a_thread() -> None:
    """To hand each to a thread of its own costs more than they do."""

    async def run() -> set[str]:
        return set(await asyncio.gather(*(in_thread(BESIDE, lambda: current_thread().name) for _ in range(100))))

    assert len(asyncio.run(run())) == 1


def test_a_look_that_hangs_holds_up_those_beside_it_for_a_moment_only() -> None:
    """Neither what was seen before it, nor what is due after it."""

    async def run() -> list[str]:
        go_on = Event()
        looks = [asyncio.ensure_future(in_thread(BESIDE, look)) for look in (lambda: "before", go_on.wait, lambda: "after")]
        try:
            return [str(await asyncio.wait_for(looks[number], SOON_S)) for number in (0, 2)]
        finally:
            go_on.set()
            await looks[1]

    assert asyncio.run(run()) == ["before", "after"]


def test_a_look_that_nobody_waits_for_any_more_does_not_begin() -> None:
    began = Event()

    async def run() -> None:
        go_on = Event()
        first = asyncio.ensure_future(in_thread(BESIDE, go_on.wait))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(in_thread(BESIDE, began.set))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await first
        await in_thread(BESIDE, lambda: None)

    asyncio.run(run())
    assert not began.is_set()


def test_a_look_knows_for_whom_it_is() -> None:
    """The task whose log its lines belong to."""
    whose: ContextVar[str] = ContextVar("whose")

    async def work() -> str:
        whose.set("this task")
        return await in_thread(ELSEWHERE, whose.get)

    assert asyncio.run(work()) == "this task"


def test_what_a_look_raises_reaches_who_waits_for_it() -> None:
    def fail() -> None:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        asyncio.run(in_thread(ELSEWHERE, fail))
