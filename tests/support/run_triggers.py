"""Triggers that wait for a run."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.orders import StartOrder
from airflow_provider.triggers.run import RunTrigger
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.ids import RunId
from tests.airflow.conftest import Homes
from tests.airflow.deferral import first_event

SOON_S = 20.0


@pytest.fixture
def hook() -> StreamPipelineHook:
    return StreamPipelineHook()


def trigger(homes: Homes, **changes: Any) -> RunTrigger:
    arguments: dict[str, Any] = {
        "home": f"file://{homes.path()}",
        "request": "start-1",
        "attempt": 1,
        "owner": 1,
        "deadline_at": None,
        "timeout_s": None,
        "poll_interval_s": 0.02,
        "max_poll_interval_s": 0.1,
        "cancel_on_kill": True,
        "settle_s": 0.0,
    }
    return RunTrigger(**(arguments | changes))


def started(hook: StreamPipelineHook, entry: str = "waits", run: str = "r") -> None:
    """Starts a driver that is owned by a task."""
    request, _ = hook.submit("flights", StartOrder(entry=f"/pipelines/{entry}.py", run=RunId(run)))
    AttemptLease(hook.files("flights"), request.attempt).take("a task")


def event_of(waiting: RunTrigger, meanwhile: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Returns the trigger's event. ``meanwhile`` runs while the trigger waits."""

    async def work() -> dict[str, Any]:
        event = asyncio.create_task(first_event(waiting))
        await asyncio.to_thread(meanwhile)
        found: dict[str, Any] = (await asyncio.wait_for(event, SOON_S)).payload
        return found

    return asyncio.run(work())
