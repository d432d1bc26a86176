"""The operators that accept losses of a pipeline, and backfill them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import acceptance_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.links import LINKS, record_homes
from airflow_provider.operators.pipeline_task import PipelineOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.orders import refused
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.version_compat import AirflowSkipException
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.ids import LossId
from spark_jobs.protocol.options import names

if TYPE_CHECKING:
    from airflow.sdk import Context


class AcceptLossOperator(PipelineOperator):
    """Accepts losses of a pipeline: their rows stay out, and tasks no longer fail because of them.

    Put it after a task in which a person decides. Idempotent: a loss that is already accepted keeps its first reason.

    Returns as XCom the value of :func:`airflow_provider.facts.acceptance_facts`.

    Args:
        home: The pipeline's home, inside the connection's home roots. Templated.
        losses: The ids of the losses, such as ``"3-1"``: one, several, or none. Templated.
        reason: The reason, for readers of the ledger; the name of the DAG run is added. Templated.
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.PipelineOperator`.

    Raises:
        PipelineRunRefusedError: The home has no such loss, or its input is read again. No loss was accepted; Airflow does not retry.
        PipelineRunError: The storage fails; a retry accepts the rest.
    """

    template_fields: Sequence[str] = ("home", "losses", "reason")
    operator_extra_links = LINKS

    def __init__(
        self,
        *,
        home: str,
        losses: str | Sequence[str],
        reason: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.home = home
        self.losses = losses
        self.reason = reason

    def execute(self, context: "Context") -> dict[str, Any]:
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            files = self.hook.files(self.home)
            Channel(files).claimed()
            record_homes(context, self.conn_id, {files.url: None})
            named = [self.losses] if isinstance(self.losses, str) else self.losses
            ledger = LossLedger(files)
            accepted = ledger.accept([LossId(loss) for loss in named], f"{self.reason} ({run_id_of(context['ti'])})")
            facts = acceptance_facts(files.url, accepted, ledger.entries())
            self.log.info("Accepted %s; %d losses are open.", ", ".join(facts["losses"]) or "no loss", facts["open"])
            return facts


class BackfillLossOperator(StreamPipelineOperator):
    """Backfills losses of a pipeline: processes rows that stages with ``tolerate=`` have left out, and publishes them, each once.

    Run it after the code was corrected. The run reads no new rows of bounded sources. A pipeline without an end continues afterwards: give
    the task ``wait_for="running"``. No other driver may work in the home. Without losses the task is skipped.

    Args:
        losses: The ids of the losses, such as ``"3-1"``: one, several, or none. Templated.
        kwargs: As for :class:`~airflow_provider.operators.stream_pipeline.StreamPipelineOperator`.

    Raises:
        PipelineRunRefusedError: A loss cannot be backfilled. Nothing of it was published; Airflow does not retry.
        PipelineRunError: Any other error; a retry resumes from what is durable.
    """

    template_fields: Sequence[str] = (*StreamPipelineOperator.template_fields, "losses")

    def __init__(self, *, losses: str | Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.losses = losses

    def execute(self, context: "Context") -> dict[str, Any]:
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            found = names(refused, "losses", self.losses)
        if not found:
            raise AirflowSkipException("There is no loss to backfill.")
        return super().execute(context)
