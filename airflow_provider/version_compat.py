"""The differences between the versions of Airflow, from 3.1 on. No other module depends on Airflow's version.

Each difference is found by a probe, such as an import or an attribute, and never by a version number. A feature that an older version
lacks is replaced here, or refused by name. ``docs/reference/versions.md`` has the table.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.context import OutletEventAccessor
from airflow.triggers.base import BaseTrigger

from spark_jobs.protocol.errors import MissingRequirementError

if TYPE_CHECKING:
    from airflow.sdk import RetryDecision, RetryPolicy, conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        ParamValidationError,
        TaskDeferred,
    )
    from airflow.sdk.plugins_manager import AirflowPlugin
else:
    try:
        from airflow.sdk import conf
        from airflow.sdk.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowNotFoundException,
            AirflowSensorTimeout,
            AirflowSkipException,
            AirflowTaskTimeout,
            ParamValidationError,
            TaskDeferred,
        )
        from airflow.sdk.plugins_manager import AirflowPlugin
    except ImportError:  # below 3.2
        from airflow.configuration import conf
        from airflow.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowNotFoundException,
            AirflowSensorTimeout,
            AirflowSkipException,
            AirflowTaskTimeout,
            ParamValidationError,
            TaskDeferred,
        )
        from airflow.plugins_manager import AirflowPlugin

    try:
        from airflow.sdk import RetryDecision, RetryPolicy
    except ImportError:  # below 3.3
        RetryDecision = None

        class RetryPolicy:
            """Replaces Airflow's class below 3.3. Creating an instance fails."""

            def __init__(self) -> None:
                raise MissingRequirementError(
                    f"Airflow {version('apache-airflow-core')} has no retry policies, and {type(self).__name__} needs them.",
                    remedy="Leave retry_policy out: a task of this provider fails at once on an error that a retry would meet again, "
                    "with or without the policy. Or use Airflow 3.3 or newer.",
                )


__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowPlugin",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "ParamValidationError",
    "RetryDecision",
    "RetryPolicy",
    "TaskDeferred",
    "conf",
]

HAS_PARTITION_EVENTS = hasattr(OutletEventAccessor, "add_partitions")
"""True if a task may choose the partitions of its asset events. Below 3.3 only a DAG run has a partition."""

HAS_RETRY_POLICIES = RetryDecision is not None
"""True if a task may have a retry policy. Below 3.3 the task itself fails at once if a retry would meet the same error."""

TRIGGERS_HEAR_KILLS = hasattr(BaseTrigger, "on_kill")
"""True if a triggerer calls a trigger's ``on_kill`` if its task was killed. Below 3.3 it only cancels the trigger, as it also does at its
own shutdown."""


async def after_cancel(finish: Coroutine[Any, Any, None]) -> None:
    """Finishes the last work of a cancelled trigger, however often the trigger is cancelled again.

    A triggerer of Airflow below 3.3 cancels a trigger again each second until it has ended.
    """
    work = asyncio.ensure_future(finish)
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(work)
    work.result()


def asset_store(trigger: Any) -> Any:
    """Returns the store of an asset for the state of its trigger; None below Airflow 3.3, which has no such store."""
    return getattr(trigger, "asset_state_store", None)


def check_partition_events(what: str) -> None:
    """Refuses a part of a DAG file that needs partitions of asset events.

    Raises:
        MissingRequirementError: This Airflow has none.
    """
    if not HAS_PARTITION_EVENTS:
        raise MissingRequirementError(
            f"In Airflow {version('apache-airflow-core')} a task cannot choose the partitions of its asset events, and {what} needs that.",
            remedy="Use Airflow 3.3 or newer, or schedule the DAG on a PublicationTrigger and read the watermark from the manifest.",
        )


def set_up_metrics() -> None:
    """Sets up Airflow's metrics as ``[metrics]`` says, in a process in which Airflow itself does not."""
    try:
        from airflow.sdk.observability import stats
        from airflow.sdk.observability.metrics import stats_utils
    except ImportError:  # below 3.2: the first metric sets them up
        return
    metrics: Any = stats
    factory_for: Any = stats_utils.get_stats_factory
    if hasattr(metrics, "initialize"):
        legacy = conf.getboolean("metrics", "legacy_names_on", fallback=True)
        metrics.initialize(factory=factory_for(), export_legacy_names=legacy)
    else:  # below 3.3
        metrics.Stats.initialize(factory=factory_for(metrics.Stats))


def emit_gauge(name: str, value: float, tags: dict[str, str]) -> None:
    """Emits a gauge by Airflow's metrics."""
    metrics: Any
    try:
        from airflow.sdk.observability import stats

        metrics = stats if hasattr(stats, "gauge") else stats.Stats  # the second: below 3.3
    except ImportError:  # below 3.2
        from airflow.stats import Stats

        metrics = Stats
    metrics.gauge(name, value, tags=tags)


_MARKS = ("AIRFLOW_IS_K8S_EXECUTOR_POD", "AIRFLOW_IS_EXECUTOR_CONTAINER")
"""Variables that an executor sets in a container that it starts for one task: the KubernetesExecutor, and the executors of other
platforms (ECS, Batch, Lambda). Airflow's logging reads the same variables. ``[core] executor`` and a task's ``executor`` do not help: the
executor inside a pod may differ, and a test run of a DAG in its own process uses neither."""


def container_of_one_task() -> str | None:
    """Returns the variable that says that this host ends with its task; None if the host lasts."""
    return next((mark for mark in _MARKS if os.environ.get(mark)), None)


@dataclass(frozen=True)
class TaskStates:
    """The states of task instances in Airflow's database, as a trigger asks for them.

    Args:
        ask: Returns the states by run and task; None: Airflow's own function.
        ask_max_s: How long the answer may take. A killed trigger has 30 s in all (``[triggerer] on_kill_timeout``).
        ask_again_s: The pause after a question that was not answered.
    """

    ask: Callable[..., Any] | None = None
    ask_max_s: float = 20.0
    ask_again_s: float = 1.0

    async def of(self, task: Any) -> str | None:
        """Returns the state of a trigger's task instance; None if it does not exist any more.

        Raises:
            TimeoutError: The API server or the database did not answer, although it was asked several times.
        """
        from airflow.sdk.exceptions import AirflowRuntimeError
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        # Below 3.2 Airflow asks on the trigger's own event loop, which asgiref's threads know and asyncio's do not.
        ask = sync_to_async(self.ask or RuntimeTaskInstance.get_task_states, thread_sensitive=False)
        index = -1 if task.map_index is None else task.map_index
        async with asyncio.timeout(self.ask_max_s):
            while True:
                try:
                    found: dict[str, dict[str, str | None]] = await ask(task.dag_id, index, [task.task_id], run_ids=[task.run_id])
                except (AirflowRuntimeError, OSError):
                    await asyncio.sleep(self.ask_again_s)
                else:
                    return found.get(task.run_id, {}).get(task.task_id if index < 0 else f"{task.task_id}_{index}")
