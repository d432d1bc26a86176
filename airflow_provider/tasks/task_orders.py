"""Builds the order of a task from its rendered arguments."""

from typing import TYPE_CHECKING

from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.orders import StartOrder, checkpoint_overrides, choice, count, is_true, mapping, names
from airflow_provider.spark_conf import checked_conf
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish, RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import RunId

if TYPE_CHECKING:
    from airflow_provider.operators.stream_pipeline import StreamPipelineOperator

RESTORE_FIELDS = (
    *("restore", "allow_drained", "allow_dropped", "take_pending"),
    *("state_partitions", "new_sources", "accept_data_loss"),
)
"""The arguments that say from which state a task starts."""
LATEST = "latest"
"""The value of ``restore`` for the newest checkpoint of the home, as without ``restore``."""


def order_of(task: "StreamPipelineOperator", run: RunId) -> StartOrder:
    """Returns the order of a task, checked as far as the Airflow side can. Reads and writes nothing.

    Raises:
        RejectedError: Or a subclass: an argument is invalid, would show a secret, or names a place outside the roots.
    """
    refuse_hidden_arguments(task)
    return StartOrder(
        entry=task.entry,
        run=run,
        parameters=mapping("parameters", task.parameters),
        on_end=choice("on_end", task.on_end, OnEnd),
        publish=choice("publish", task.publish, Publish),
        fresh=task.fresh,
        restore=_restore_from(task),
        allow_dropped=is_true(task.allow_dropped),
        state_partitions=count("state_partitions", task.state_partitions),
        new_sources=names("new_sources", task.new_sources),
        accept_data_loss=names("accept_data_loss", task.accept_data_loss),
        on_rewind=choice("on_rewind", task.on_rewind, OnRewind) or OnRewind.REFUSE,
        checkpoint=checkpoint_overrides("checkpoint= of the task", task.checkpoint),
        conf=checked_conf(task, task.written_conf, task.conf),
        secrets=task.secrets or {},
    )


def _restore_from(task: "StreamPipelineOperator") -> RestoreFrom | None:
    allowed = {name: is_true(getattr(task, name)) for name in ("allow_drained", "take_pending")}
    if task.restore and task.restore != LATEST:
        return RestoreFrom(savepoint=task.hook.savepoint_files(task.restore).url, **allowed)
    for name in (name for name, said in allowed.items() if said):
        raise InvalidParameterError(
            f"{name} needs a savepoint, but restore names none.",
            safe="Nothing was started.",
            remedy=f"Name the savepoint in restore=, or leave {name} out.",
        )
    return None
