"""The sensor for a pipeline's final checkpoint."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import checkpoint_facts
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.identity import run_id_of
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.ids import CheckpointId, RunId

if TYPE_CHECKING:
    from airflow.sdk import Context


class FinalCheckpointSensor(BaseSensorOperator):
    """Waits for a final checkpoint in a pipeline's home, whoever runs the pipeline. Only reads.

    A final checkpoint makes a run's rows durable; whether they are public already depends on the sinks' policies.
    Returns as XCom what :func:`airflow_provider.facts.checkpoint_facts` says.

    Args:
        home: The pipeline's home, inside the connection's home roots. Templated.
        run: Only a final checkpoint of this run counts. Templated.
        run_of_task: Only one of this task of the same DAG run counts; a ``StreamPipelineOperator`` that is not mapped.
        newer_than: Only one with a higher number counts: the ``checkpoint`` of an earlier XCom. Templated; empty: any.
        conn_id: The connection, of type ``stream_pipeline``.
        kwargs: As for every sensor.

    Raises:
        PipelineRunRefusedError: The home is not allowed.
    """

    template_fields: Sequence[str] = ("home", "run", "newer_than")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        home: str,
        run: str | None = None,
        run_of_task: str | None = None,
        newer_than: int | str | None = None,
        conn_id: str = StreamPipelineHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if run is not None and run_of_task is not None:
            raise ValueError("Give run or run_of_task, not both.")
        self.home = home
        self.run = run
        self.run_of_task = run_of_task
        self.newer_than = newer_than
        self.conn_id = conn_id

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    def poke(self, context: "Context") -> PokeReturnValue:
        """Looks once."""
        run = RunId(self.run) if self.run else None
        if self.run_of_task is not None:
            run = run_id_of(context["ti"], task_id=self.run_of_task)
        after = int(self.newer_than) if self.newer_than not in (None, "") else 0
        with raising_airflow_errors():
            answer = None if run is None else self.hook.answer(self.home, run)
            answered = None if answer is None else answer.checkpoint  # a round that another run has finished
            found = next((each for each in self.hook.manifests(self.home) if _counts(each, run, answered, after)), None)
            if found is None:
                return PokeReturnValue(is_done=False)
            return PokeReturnValue(is_done=True, xcom_value=checkpoint_facts(self.hook.files(self.home).url, found))


def _counts(manifest: Manifest, run: RunId | None, answered: CheckpointId | None, after: int) -> bool:
    final = manifest.checkpoint_kind is CheckpointKind.FINAL
    return final and manifest.checkpoint > after and (run in (None, manifest.run) or manifest.checkpoint == answered)
