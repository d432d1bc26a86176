"""The run id of a task: the same in every try, and different for any two tasks."""

from typing import Any, Protocol
from urllib.parse import quote, unquote

from spark_jobs.protocol.ids import RunId

_PREFIX = "airflow/"


class TaskIdentity(Protocol):
    """The names of a task instance, which are the same in every try."""

    @property
    def dag_id(self) -> str: ...

    @property
    def run_id(self) -> str: ...

    @property
    def task_id(self) -> str: ...

    @property
    def map_index(self) -> Any: ...


def run_id_of(task: TaskIdentity, *, task_id: str | None = None) -> RunId:
    """Returns the run id of a task instance.

    Args:
        task: The task instance.
        task_id: The id of another task of the same DAG run, to return its run id instead. That task may not be mapped.
    """
    index = task.map_index if task_id is None else -1
    parts = [task.dag_id, task.run_id, task_id or task.task_id, *([] if index is None or index < 0 else [str(index)])]
    return RunId(_PREFIX + "/".join(quote(part, safe=":+") for part in parts))


def dag_of(run: RunId) -> str | None:
    """Returns the DAG of a run; None if the run does not belong to a task."""
    dag_id, _, rest = run.removeprefix(_PREFIX).partition("/")
    return unquote(dag_id) if run.startswith(_PREFIX) and rest else None
