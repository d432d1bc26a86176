"""What differs between versions of Airflow. No other module looks at one.

Tested with 3.3.
"""

import os

_MARKS = ("AIRFLOW_IS_K8S_EXECUTOR_POD", "AIRFLOW_IS_EXECUTOR_CONTAINER")
"""Set by an executor in the container that it starts for one task: by the KubernetesExecutor, and by those of other platforms (ECS, Batch,
Lambda). Airflow's own logging asks them the same way. ``[core] executor`` and a task's ``executor`` do not answer this: the first may be
another one inside a pod, and either may name what a test run of a DAG, in a process of its own, does not use."""


def container_of_one_task() -> str | None:
    """What says that this host ends with the task that runs on it; None where it goes on."""
    return next((mark for mark in _MARKS if os.environ.get(mark)), None)
