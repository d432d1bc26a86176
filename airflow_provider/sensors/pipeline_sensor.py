"""The base class of the sensors of this provider."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.operators.pipeline_task import PollingTask
from airflow_provider.tasks.time_limits import time_limits
from airflow_provider.triggers.home import failure_of
from airflow_provider.version_compat import AirflowSensorTimeout, AirflowTaskTimeout
from spark_jobs.protocol.errors import DeadlineExceededError, StreamPipelineError
from spark_jobs.storage.files import Files
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.patience import Patience

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineSensor(PollingTask, BaseSensorOperator):
    """A sensor that waits for something in a pipeline's home. Only reads.

    With ``deferrable``, the sensor's ``poke_interval`` and ``mode`` do not matter.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative path starts at the first root. Templated.
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.PollingTask` and every sensor.
    """

    template_fields: Sequence[str] = ("home",)

    def __init__(self, *, home: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.home = home

    @abstractmethod
    def wait_in(self, files: Files, context: "Context") -> HomeWait[Any, dict[str, Any]]:
        """Returns the wait in a home, whose result has ``"facts"``: the sensor's XCom."""

    @cached_property
    def _patience(self) -> Patience:
        """The patience of all looks in this process. Airflow ends the wait between two looks."""
        return Patience(None, self.wait_limits)

    def execute(self, context: "Context") -> Any:
        """Looks once. Then waits in the triggerer, or here like every sensor."""
        if not self.deferrable:
            return super().execute(context)
        limits = time_limits(self, self.timeout)
        found = self.poke(context)
        if found:
            return found.xcom_value
        self.defer_wait(self.wait_in(self.hook.files(self.home), context), limits)

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """Returns the facts in the event, because the pipeline may have changed since."""
        with raising_airflow_errors():
            if (error := failure_of(event)) is not None:
                raise self._error(error)
            return dict(event["facts"])

    def poke(self, context: "Context") -> PokeReturnValue:
        """Looks once. An unavailable storage is tolerated."""
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            wait = self.wait_in(self.hook.files(self.home), context)
            found = self.first_result(wait, self._patience)
            return PokeReturnValue(found is not None, None if found is None else found["facts"])

    def _error(self, error: StreamPipelineError) -> BaseException:
        """Returns the error to raise for the error of an event. A timeout is Airflow's own error, as in a worker."""
        if not isinstance(error, DeadlineExceededError):
            return error
        if time_limits(self, self.timeout).airflows_is_first:
            return AirflowTaskTimeout(str(error))  # is retried, as in a worker
        return AirflowSensorTimeout(str(error))  # respects soft_fail and is not retried, as in every sensor
