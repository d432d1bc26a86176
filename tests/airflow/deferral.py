"""Runs a task as Airflow does, deferral included, without Airflow: the trigger here, what follows it in a new operator."""

import asyncio
import copy
import json
from importlib import import_module
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.version_compat import TaskDeferred


def carry_out(task: BaseOperator, context: Context) -> Any:
    """What the task returns in the end."""
    step: Any = task.execute
    arguments: dict[str, Any] = {}
    while True:
        try:
            return step(context=context, **arguments)
        except TaskDeferred as deferred:
            event = asyncio.run(first_event(restarted(deferred.trigger, settle_s=0.0)))
            given = {"event": event.payload, **(deferred.kwargs or {})}
            step, arguments = copy.copy(task).resume_execution, {"next_method": deferred.method_name, "next_kwargs": given}


def restarted(trigger: BaseTrigger, **changes: Any) -> BaseTrigger:
    """The trigger as another process makes it from what Airflow's database has of it."""
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    made: BaseTrigger = getattr(import_module(module), name)(**(json.loads(json.dumps(arguments)) | changes))
    return made


async def first_event(trigger: BaseTrigger) -> TriggerEvent:
    """What the trigger waits for."""
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger has ended without an event")
