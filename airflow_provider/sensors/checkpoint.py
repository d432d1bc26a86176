"""The sensor for a pipeline's checkpoints."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import checkpoint_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.sensors.time_up import seen_error
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.tasks.time_limits import time_limits
from airflow_provider.triggers.checkpoint import CheckpointTrigger
from airflow_provider.waits.looking import WantedCheckpoint, find_checkpoint
from airflow_provider.waits.patient_look import patient_look
from airflow_provider.waits.waiting import Patience
from spark_jobs.protocol.ids import CheckpointId, RunId

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointSensor(BaseSensorOperator):
    """Waits for a checkpoint in a pipeline's home, whoever runs the pipeline. Only reads.

    A checkpoint makes rows durable; whether they are public already depends on the sinks' policies.
    Returns as XCom what :func:`airflow_provider.facts.checkpoint_facts` says.

    Args:
        home: The pipeline's home, inside the connection's home roots. Templated.
        run: Only a checkpoint of this run counts. Templated.
        run_of_task: Only one of this task of the same DAG run counts; a ``StreamPipelineOperator`` that is not mapped.
        newer_than: Only one with a higher number counts: the ``checkpoint`` of an earlier XCom. Templated; empty: any.
        deferrable: Wait in the triggerer, and hold no worker's slot meanwhile; ``poke_interval`` and ``mode`` then do not matter.
        poll_interval_s: Between two looks of the triggerer, while something changes.
        max_poll_interval_s: The same, once nothing has changed for a while; None: 3 s, and 30 s in an object store.
        conn_id: The connection, of type ``stream_pipeline``.
        kwargs: As for every sensor.

    Raises:
        PipelineRunRefusedError: The home is not allowed.
        AirflowSensorTimeout: There was none within ``timeout``.
        AirflowTaskTimeout: There was none within ``execution_timeout``, deferred or not.
    """

    only_final: ClassVar[bool] = False
    template_fields: Sequence[str] = ("home", "run", "newer_than")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        home: str,
        run: str | None = None,
        run_of_task: str | None = None,
        newer_than: int | str | None = None,
        deferrable: bool = True,
        poll_interval_s: float = 2.0,
        max_poll_interval_s: float | None = None,
        conn_id: str = StreamPipelineHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if run is not None and run_of_task is not None:
            raise ValueError("Give run or run_of_task, not both.")
        if poll_interval_s <= 0:
            raise ValueError("poll_interval_s is above 0.")
        self.home = home
        self.run = run
        self.run_of_task = run_of_task
        self.newer_than = newer_than
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
        wanted = self._wanted(context)
        self.defer(
            trigger=CheckpointTrigger(
                home=self.hook.files(self.home).url,
                conn_id=self.conn_id,
                final=wanted.final,
                run=wanted.run,
                newer_than=wanted.newer_than,
                deadline_at=limits.first_at,
                timeout_s=limits.first_s,
                poll_interval_s=self.poll_interval_s,
                max_poll_interval_s=self.max_poll_interval_s,
            ),
            method_name="execute_complete",
        )

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """What the trigger has seen: the pipeline may have discarded it by now."""
        with raising_airflow_errors():
            if "error" in event:
                raise seen_error(self, event["error"])
            return dict(event["facts"])

    def poke(self, context: "Context") -> PokeReturnValue:
        """Looks once; a storage that is away shows nothing yet."""
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            files, wanted = self.hook.files(self.home), self._wanted(context)
            found = patient_look(lambda: find_checkpoint(files, wanted), self._patience, self.log)
            return PokeReturnValue(found is not None, None if found is None else checkpoint_facts(files.url, found))

    def _wanted(self, context: "Context") -> WantedCheckpoint:
        run = RunId(self.run) if self.run else None
        if self.run_of_task is not None:
            run = run_id_of(context["ti"], task_id=self.run_of_task)
        after = int(self.newer_than) if self.newer_than not in (None, "") else 0
        return WantedCheckpoint(self.only_final, run, CheckpointId(after))
