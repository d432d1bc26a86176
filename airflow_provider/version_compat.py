"""What differs between versions of Airflow. No other module looks at one.

Tested with 3.3.
"""

import asyncio
import os
from typing import Any

_MARKS = ("AIRFLOW_IS_K8S_EXECUTOR_POD", "AIRFLOW_IS_EXECUTOR_CONTAINER")
"""Set by an executor in the container that it starts for one task: by the KubernetesExecutor, and by those of other platforms (ECS, Batch,
Lambda). Airflow's own logging asks them the same way. ``[core] executor`` and a task's ``executor`` do not answer this: the first may be
another one inside a pod, and either may name what a test run of a DAG, in a process of its own, does not use."""


def container_of_one_task() -> str | None:
    """What says that this host ends with the task that runs on it; None where it goes on."""
    return next((mark for mark in _MARKS if os.environ.get(mark)), None)


_ASK_MAX_S = 20.0
"""A trigger that is killed has 30 s for all that it does (``[triggerer] on_kill_timeout``)."""
_ASK_AGAIN_S = 1.0


async def state_of(task: Any) -> str | None:
    """The state of a trigger's task instance in Airflow's database; None where it is gone.

    Raises:
        TimeoutError: Nobody can say: the API server or the database is away, or overloaded. It was asked again and again.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    index = -1 if task.map_index is None else task.map_index
    async with asyncio.timeout(_ASK_MAX_S):
        while True:
            try:
                found: dict[str, dict[str, str | None]] = await asyncio.to_thread(
                    RuntimeTaskInstance.get_task_states, task.dag_id, index, [task.task_id], run_ids=[task.run_id]
                )
            except (AirflowRuntimeError, OSError):
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                return found.get(task.run_id, {}).get(task.task_id if index < 0 else f"{task.task_id}_{index}")
