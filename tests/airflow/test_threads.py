"""A storage that hangs holds the threads of looks, and nothing else of the triggerer."""

import asyncio
from contextvars import ContextVar
from threading import Event, current_thread

import pytest

from airflow_provider.waits import threads
from airflow_provider.waits.threads import in_thread

SOON_S = 10.0


def test_looks_that_hang_leave_the_event_loop_its_own_threads() -> None:
    """With more of them than there are threads for looks: the loop's own ask for the addresses of hosts."""
    go_on = Event()

    async def work() -> str:
        hung = [asyncio.ensure_future(in_thread(go_on.wait)) for _ in range(threads._THREADS_MAX + 10)]
        await asyncio.sleep(0.1)
        try:
            return await asyncio.wait_for(asyncio.to_thread(lambda: "the loop's own"), SOON_S)
        finally:
            go_on.set()
            await asyncio.gather(*hung)

    assert asyncio.run(work()) == "the loop's own"


def test_looks_that_hang_leave_others_theirs() -> None:
    """As many as the event loop itself has threads for on the largest host."""
    go_on = Event()

    async def work() -> str:
        hung = [asyncio.ensure_future(in_thread(go_on.wait)) for _ in range(32)]
        try:
            return await asyncio.wait_for(in_thread(lambda: current_thread().name), SOON_S)
        finally:
            go_on.set()
            await asyncio.gather(*hung)

    assert asyncio.run(work()).startswith("stream-pipeline-look")


def test_a_look_knows_for_whom_it_is() -> None:
    """The task whose log its lines belong to."""
    whose: ContextVar[str] = ContextVar("whose")

    async def work() -> str:
        whose.set("this task")
        return await in_thread(whose.get)

    assert asyncio.run(work()) == "this task"


def test_what_a_look_raises_reaches_who_waits_for_it() -> None:
    def fail() -> None:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        asyncio.run(in_thread(fail))
