"""What a sensor raises for an error that its trigger has seen."""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseSensorOperator

from airflow_provider.tasks.time_limits import time_limits
from airflow_provider.version_compat import AirflowSensorTimeout, AirflowTaskTimeout
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.reports import reported_error


def seen_error(sensor: BaseSensorOperator, report: Mapping[str, Any]) -> BaseException:
    """The error to raise: time that is up is Airflow's own, as in a worker.

    Args:
        sensor: Whose trigger has seen it.
        report: The error of the trigger's event.
    """
    error = reported_error(ErrorReport.model_validate(report))
    if not isinstance(error, DeadlineExceededError):
        return error
    if time_limits(sensor, sensor.timeout).airflows_is_first:
        return AirflowTaskTimeout(str(error))  # as in a worker: it is retried
    return AirflowSensorTimeout(str(error))  # as every sensor: it may be soft, and is not retried
