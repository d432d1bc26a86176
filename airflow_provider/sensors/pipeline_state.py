"""The sensor for where a pipeline is."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.sensors.time_up import seen_error
from airflow_provider.tasks.time_limits import time_limits
from airflow_provider.triggers.state import PipelineStateTrigger
from airflow_provider.waits.patient_look import patient_look
from airflow_provider.waits.pipeline_states import LookForState, state_facts
from airflow_provider.waits.waiting import Patience
from spark_jobs.protocol.documents import RunState

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineStateSensor(BaseSensorOperator):
    """Waits until the pipeline of a home is in one of some states, whoever runs it. Only reads.

    ``starting``, ``running``, ``stopping``, ``completing`` and ``publishing`` are those of a driver that is at work. ``done`` and
    ``failed`` are how the newest attempt has ended, once its driver has: the home is free then. A driver that was lost counts as failed;
    who supervises it may start the next attempt.

    Returns as XCom what :func:`airflow_provider.waits.pipeline_states.state_facts` says.

    Args:
        home: The pipeline's home, inside the connection's home roots. Templated.
        states: The states, each of which ends the wait.
        deferrable: Wait in the triggerer, and hold no worker's slot meanwhile; ``poke_interval`` and ``mode`` then do not matter.
        poll_interval_s: Between two looks of the triggerer, while something changes.
        max_poll_interval_s: The same, once nothing has changed for a while; None: 3 s, and 30 s in an object store.
        conn_id: The connection, of type ``stream_pipeline``.
        kwargs: As for every sensor.

    Raises:
        PipelineRunRefusedError: The home is not allowed.
        AirflowSensorTimeout: It was in none of them within ``timeout``.
        AirflowTaskTimeout: It was in none of them within ``execution_timeout``, deferred or not.
    """

    template_fields: Sequence[str] = ("home",)
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        home: str,
        states: Sequence[str] = ("running",),
        deferrable: bool = True,
        poll_interval_s: float = 2.0,
        max_poll_interval_s: float | None = None,
        conn_id: str = StreamPipelineHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        unknown = sorted(set(states) - set(RunState)) if not isinstance(states, str) else [states]
        if unknown or not states:
            raise ValueError(f"states={states!r}: give some of {', '.join(RunState)}, as a list.")
        if poll_interval_s <= 0:
            raise ValueError("poll_interval_s is above 0.")
        self.home = home
        self.states = tuple(states)
        self.deferrable = deferrable
        self.poll_interval_s = poll_interval_s
        self.max_poll_interval_s = max_poll_interval_s
        self.conn_id = conn_id

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    @cached_property
    def _patience(self) -> Patience:
        """Of the looks of one worker's process; Airflow ends the wait between two of them."""
        return Patience(None)

    def execute(self, context: "Context") -> Any:
        """Looks once; then waits in the triggerer, or here, as every sensor."""
        if not self.deferrable:
            return super().execute(context)
        limits = time_limits(self, self.timeout)
        found = self.poke(context)
        if found:
            return found.xcom_value
        self.defer(
            trigger=PipelineStateTrigger(
                home=self.hook.files(self.home).url,
                conn_id=self.conn_id,
                states=self.states,
                deadline_at=limits.first_at,
                timeout_s=limits.first_s,
                poll_interval_s=self.poll_interval_s,
                max_poll_interval_s=self.max_poll_interval_s,
            ),
            method_name="execute_complete",
        )

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """What the trigger has seen: the pipeline may be elsewhere by now."""
        with raising_airflow_errors():
            if "error" in event:
                raise seen_error(self, event["error"])
            return dict(event["facts"])

    def poke(self, context: "Context") -> PokeReturnValue:
        """Looks once; a storage that is away shows nothing yet."""
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            files, states = self.hook.files(self.home), frozenset(RunState(state) for state in self.states)

            def look() -> PokeReturnValue:
                found = LookForState(files)()
                is_there = found.is_one_of(states)
                return PokeReturnValue(is_there, state_facts(files, found) if is_there else None)

            return patient_look(look, self._patience, self.log) or PokeReturnValue(False)
