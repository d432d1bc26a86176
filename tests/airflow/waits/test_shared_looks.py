"""Waits in one event loop share their looks, and look less often while no document changes."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider.waits.shared_looks import Looking, Pace, looks, to_the_beat

FAST = Pace(0.001, 0.01)
SOON_S = 10.0


class Home:
    """A fake home that counts looks."""

    def __init__(self, *seen: Any) -> None:
        self.seen, self.count = list(seen), 0

    def look(self) -> Any:
        found = self.seen[min(self.count, len(self.seen) - 1)]
        self.count += 1
        if isinstance(found, Exception):
            raise found
        return found


async def first(home: Home, wanted: Callable[[Any], bool], key: str = "home") -> Any:
    async with aclosing(looks(Looking("file:///homes/flights", key, home.look, FAST))) as found:
        async for look in found:
            if wanted(look):
                return look
    raise AssertionError("the looks have ended")


def soon(work: Any) -> Any:
    async def run() -> Any:
        return await asyncio.wait_for(work(), SOON_S)

    return asyncio.run(run())


def test_all_waits_with_the_same_look_see_every_result() -> None:
    home = Home(*range(20))

    async def work() -> list[Any]:
        return await asyncio.gather(*(first(home, lambda look: look >= 19) for _ in range(50)))

    assert soon(work) == [19] * 50
    assert home.count == 20


def test_waits_with_different_looks_do_not_share_them() -> None:
    homes = [Home(number) for number in range(3)]

    async def work() -> list[Any]:
        return await asyncio.gather(*(first(home, lambda look: True, f"home {home.seen}") for home in homes))

    assert soon(work) == [0, 1, 2]


@pytest.mark.parametrize("lasting", [True, False])
def test_a_later_wait_begins_with_the_last_result_unless_it_may_be_outdated(*, lasting: bool) -> None:
    """A look that is under way does not count, because it may have begun before the second wait."""
    under_way, goes_on, count = threading.Event(), threading.Event(), 0

    def look() -> int:
        nonlocal count
        count += 1
        number = count
        if number == 2:
            under_way.set()
            goes_on.wait(SOON_S)
        return number

    looking = Looking("file:///homes/flights", "state", look, FAST, lasting=lasting)

    async def first_look() -> int:
        async with aclosing(looks(looking)) as found:
            return await anext(found)

    async def work() -> int:
        async def stays() -> None:
            async with aclosing(looks(looking)) as found:
                async for _ in found:
                    pass

        before = asyncio.create_task(stays())
        await asyncio.to_thread(under_way.wait, SOON_S)
        late = asyncio.create_task(first_look())
        await asyncio.sleep(0.05)
        goes_on.set()
        try:
            return await late
        finally:
            before.cancel()

    assert soon(work) == (1 if lasting else 3)


def test_a_wait_with_a_shorter_pause_is_not_slowed_down_by_an_earlier_wait() -> None:
    home, slow = Home(*range(20)), Pace(60.0, 60.0)

    async def one(pace: Pace, wanted: int) -> int:
        async with aclosing(looks(Looking("file:///homes/flights", "home", home.look, pace))) as found:
            async for look in found:
                if look >= wanted:
                    return int(look)
        raise AssertionError("the looks have ended")

    async def work() -> int:
        patient = asyncio.create_task(one(slow, 19))
        await asyncio.sleep(0.01)
        seen = await one(FAST, 10)
        patient.cancel()
        return seen

    assert soon(work) >= 10


def test_waits_that_began_at_different_times_look_together() -> None:
    """Separate looks would cost twice as much."""
    pace, at = Pace(0.8, 0.8), list[float]()

    async def one(number: int) -> None:
        await asyncio.sleep(0.01 * number)
        seen = 0

        def look() -> int:
            at.append(time.monotonic())
            return len(at)

        async with aclosing(looks(Looking("file:///homes/flights", number, look, pace, lambda before, now: True))) as found:
            async for _ in found:
                seen += 1
                if seen == 2:
                    return

    async def work() -> None:
        await asyncio.gather(*(one(number) for number in range(30)))

    soon(work)
    seconds = sorted(at)[30:]
    alone = [after - before for before, after in pairwise(seconds) if after - before > 0.005]
    assert len(alone) < 15
    assert min(seconds) - min(at) >= pace.longest_s * 14 / 16


@pytest.mark.parametrize("pause_s", [3.0, 30.0])
def test_a_look_begins_shortly_before_the_end_of_its_pause(pause_s: float) -> None:
    """The rest of the pause is for handing the result to the task."""

    async def begin() -> float:
        return to_the_beat(pause_s)

    assert pause_s * 14 / 16 - 0.01 <= asyncio.run(begin()) <= pause_s * 15 / 16


def test_no_look_is_made_after_the_last_wait_has_ended() -> None:
    home = Home(1)

    async def work() -> int:
        await first(home, lambda look: True)
        count = home.count
        await asyncio.sleep(20 * FAST.longest_s)
        return home.count - count

    assert soon(work) == 0


def test_an_error_reaches_every_wait_and_the_next_iteration_looks_again() -> None:
    home = Home(OSError("away"), 1)

    async def one() -> str:
        try:
            return str(await first(home, lambda look: True))
        except OSError as error:
            return f"{error}, then {await first(home, lambda look: True)}"

    async def work() -> list[str]:
        return [*await asyncio.gather(one(), one())]

    assert soon(work) == ["away, then 1"] * 2


@pytest.mark.parametrize(
    ("pace", "changes", "pauses"),
    [
        (Pace(2.0, 5.0), [False] * 4, [3.0, 4.5, 5.0, 5.0]),
        (Pace(2.0, 5.0), [False, False, True, False], [3.0, 4.5, 2.0, 3.0]),
        (Pace(2.0, 1.0), [False, False], [2.0, 2.0]),
    ],
)
def test_the_pause_grows_while_nothing_changes(pace: Pace, changes: list[bool], pauses: list[float]) -> None:
    found, pause_s = [], pace.shortest_s
    for changed in changes:
        pause_s = pace.after(pause_s, changed=changed)
        found.append(pause_s)
    assert found == pauses
