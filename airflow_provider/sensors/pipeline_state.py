"""The sensor that waits for a state of a pipeline."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider.sensors.pipeline_sensor import PipelineSensor
from airflow_provider.waits.pipeline_states import StateWait
from spark_jobs.protocol.documents import RunState
from spark_jobs.storage.files import Files

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineStateSensor(PipelineSensor):
    """Waits until the pipeline of a home is in one of some states, whoever runs it. Only reads.

    In the states ``starting``, ``running``, ``stopping``, ``completing`` and ``publishing``, a driver is at work. In ``done`` and
    ``failed``, the newest attempt and its driver have ended, and the home is free. A lost driver counts as failed. The pipeline's restart
    strategy may still start the next attempt.

    Returns as XCom the value of :func:`airflow_provider.waits.pipeline_states.state_facts`.

    Args:
        states: The states, each of which ends the wait.
        kwargs: As for :class:`~airflow_provider.sensors.pipeline_sensor.PipelineSensor`.

    Raises:
        PipelineRunRefusedError: The home is not allowed.
        AirflowSensorTimeout: The pipeline reached none of the states within ``timeout``.
        AirflowTaskTimeout: The pipeline reached none of the states within ``execution_timeout``, deferred or not.
    """

    def __init__(self, *, states: Sequence[str] = ("running",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        unknown = sorted(set(states) - set(RunState)) if not isinstance(states, str) else [states]
        if unknown or not states:
            raise ValueError(f"states={states!r}: give some of {', '.join(RunState)}, as a list.")
        self.states = tuple(states)

    def wait_in(self, files: Files, context: "Context") -> StateWait:
        return StateWait(files, states=list(self.states))
