"""The sensor that waits for a checkpoint of a pipeline."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider.orders import checkpoint_number
from airflow_provider.sensors.pipeline_sensor import PipelineSensor
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.waits.checkpoints import CheckpointWait
from spark_jobs.storage.files import Files

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointSensor(PipelineSensor):
    """Waits for a checkpoint in a pipeline's home, whoever runs the pipeline. Only reads.

    A checkpoint makes rows durable. Whether they are already public depends on the sinks' policies.
    Returns as XCom the value of :func:`airflow_provider.facts.checkpoint_facts`.

    Args:
        run: Only a checkpoint of this run counts. Templated.
        run_of_task: Only a checkpoint of this task of the same DAG run counts: a ``StreamPipelineOperator`` that is not mapped.
        newer_than: Only a checkpoint with a higher number counts: the ``checkpoint`` of an earlier XCom. Templated; empty: any.
        max_age: Only a checkpoint that is at most that old counts.
        kwargs: As for :class:`~airflow_provider.sensors.pipeline_sensor.PipelineSensor`.

    Raises:
        PipelineRunRefusedError: The home is not allowed.
        AirflowSensorTimeout: There was no such checkpoint within ``timeout``.
        AirflowTaskTimeout: There was no such checkpoint within ``execution_timeout``, deferred or not.
    """

    only_final: ClassVar[bool] = False
    template_fields: Sequence[str] = ("home", "run", "newer_than")

    def __init__(
        self,
        *,
        run: str | None = None,
        run_of_task: str | None = None,
        newer_than: int | str | None = None,
        max_age: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if run is not None and run_of_task is not None:
            raise ValueError("Give run or run_of_task, not both.")
        self.run = run
        self.run_of_task = run_of_task
        self.newer_than = newer_than
        self.max_age = max_age

    def wait_in(self, files: Files, context: "Context") -> CheckpointWait:
        run = self.run or None
        if self.run_of_task is not None:
            run = run_id_of(context["ti"], task_id=self.run_of_task)
        newer_than = checkpoint_number("newer_than", self.newer_than) or 0
        max_age_s = None if self.max_age is None else self.max_age.total_seconds()
        return CheckpointWait(files, final=self.only_final, run=run, newer_than=newer_than, max_age_s=max_age_s)
