"""Triggers that watch a home for events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from airflow.triggers.base import TriggerEvent

from airflow_provider.triggers.home_events import HomeEventTrigger

SOON_S = 20.0
QUICK = {"poll_interval_s": 0.02, "max_poll_interval_s": 0.05}


class StateStore:
    """The state store of one asset."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return self.kept.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = value


async def next_event(events: AsyncIterator[TriggerEvent]) -> dict[str, Any]:
    payload: dict[str, Any] = (await asyncio.wait_for(anext(events), SOON_S)).payload
    return payload


def events_of(trigger: HomeEventTrigger[Any], *steps: Any) -> list[dict[str, Any]]:
    """Takes these steps while the trigger waits. Returns the event that follows each of them."""

    async def work() -> list[dict[str, Any]]:
        found = []
        async with aclosing(cast(Any, trigger.run())) as events:
            for step in steps:
                event = asyncio.create_task(next_event(events))
                await asyncio.to_thread(step)
                found.append(await event)
        return found

    return asyncio.run(work())
