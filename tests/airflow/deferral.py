"""Runs a task and its deferrals without Airflow: triggers run in this process, and new operators resume the task."""

import asyncio
import copy
import json
from importlib import import_module
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.version_compat import TaskDeferred
from spark_jobs.waits.limits import LIMITS


def carry_out(task: BaseOperator, context: Context) -> Any:
    """Runs the task to its end and returns its result. Its triggers have the time limits of the task."""
    step: Any = task.execute
    arguments: dict[str, Any] = {}
    while True:
        try:
            return step(context=context, **arguments)
        except TaskDeferred as deferred:
            trigger: Any = restarted(deferred.trigger, settle_s=0.0)
            trigger.wait_limits = getattr(task, "wait_limits", LIMITS)
            event = asyncio.run(first_event(trigger))
            given = {"event": event.payload, **(deferred.kwargs or {})}
            step, arguments = copy.copy(task).resume_execution, {"next_method": deferred.method_name, "next_kwargs": given}


def restarted(trigger: BaseTrigger, **changes: Any) -> BaseTrigger:
    """Returns the trigger as another process creates it from its row in Airflow's database."""
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    made: BaseTrigger = getattr(import_module(module), name)(**(json.loads(json.dumps(arguments)) | changes))
    return made


async def first_event(trigger: BaseTrigger) -> TriggerEvent:
    """Returns the first event of the trigger."""
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger has ended without an event")
