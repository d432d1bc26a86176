"""Exports the metrics of a run through OpenTelemetry, if its standard variables configure an exporter.

Everything happens in background threads, which only read the heartbeat and the newest manifest. So an exporter that hangs or fails delays
nothing.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spark_jobs.background import run_in_background
from spark_jobs.control.pipeline_metrics import METRICS, PREFIX, Metric, MetricsReader, PipelineFacts
from spark_jobs.protocol.documents import Status
from spark_jobs.storage.files import Files

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider

_LOG = logging.getLogger(__name__)
_LAST_EXPORT_S = 2.0
"""Time limit for the last export, after the run has ended. A process that ends sooner would lose the last values."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_GROUP = "opentelemetry_metrics_exporter"
"""The entry points of installed exporters."""
_SERVICE = "spark-jobs"


def exporter_names(environment: Mapping[str, str]) -> list[str]:
    """Returns the entry points of the configured exporters.

    Without ``OTEL_METRICS_EXPORTER``, metrics are exported through OTLP if an endpoint is set.

    Args:
        environment: The variables of OpenTelemetry.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if _first(environment, _ENDPOINTS) else "none"
    names = [name.strip() for name in (environment.get("OTEL_METRICS_EXPORTER") or default).split(",")]
    protocol = _first(environment, _PROTOCOLS) or "http/protobuf"
    otlp = _OTLP.get(protocol, f"otlp ({protocol})")
    return [otlp if name == "otlp" else name for name in names if name and name != "none"]


class MetricsExport:
    """Exports the metrics of a run from :meth:`begin` until the context closes.

    Args:
        files: The home.
        environment: The variables of OpenTelemetry.
    """

    def __init__(self, files: Files, environment: Mapping[str, str] = os.environ) -> None:
        self._reader, self._environment = MetricsReader(files), environment
        self._begun: Future[MeterProvider | None] | None = None
        self._seen: tuple[PipelineFacts, dict[str, str]] | None = None
        """The facts and tags of the newest collection."""

    def __enter__(self) -> "MetricsExport":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._begun is not None:
            wait_for([run_in_background(self._export_last)], _LAST_EXPORT_S)

    def begin(self, status: Callable[[], Status]) -> None:
        """Starts the export. Does nothing if no exporter is configured.

        Args:
            status: Returns the heartbeat.
        """
        names = exporter_names(self._environment)
        if names:
            self._begun = run_in_background(lambda: self._started(names, status))

    def _started(self, names: list[str], status: Callable[[], Status]) -> "MeterProvider | None":
        try:
            exporters = [_exporter(name) for name in names]
            return self._provider(exporters, status)
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises: the run goes on without metrics
            _LOG.warning(
                "OpenTelemetry is configured, but metrics are not exported: %s: %s. The run goes on without them. "
                "Install this package's 'otel' extra, or set OTEL_METRICS_EXPORTER=none.",
                type(error).__name__,
                error,
            )
            return None

    def _provider(self, exporters: list[Any], status: Callable[[], Status]) -> "MeterProvider":
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource

        is_named = self._environment.get("OTEL_SERVICE_NAME") or "service.name=" in self._environment.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        resource = Resource.create({} if is_named else {SERVICE_NAME: _SERVICE})
        readers = [PeriodicExportingMetricReader(exporter) for exporter in exporters]
        provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        meter = provider.get_meter(PREFIX)
        for metric in METRICS:
            meter.create_observable_gauge(
                metric.full_name,
                [self._observing(metric, status, is_first=metric is METRICS[0])],
                metric.unit.value,
                metric.description,
            )
        return provider

    def _observing(
        self, metric: Metric, status: Callable[[], Status], *, is_first: bool
    ) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        """Returns the callback of a gauge. The first gauge of a collection looks at the home, and the others share its look."""
        from opentelemetry.metrics import Observation

        def observe(_: "CallbackOptions") -> "Iterable[Observation]":
            if is_first or self._seen is None:
                self._seen = self._reader.facts(status(), time.time()), self._reader.tags()
            facts, tags = self._seen
            return [Observation(value, tags | own) for value, own in metric.values(facts)]

        return observe

    def _export_last(self) -> None:
        provider = self._begun.result() if self._begun else None
        if provider is not None:
            with suppress(Exception):  # OpenTelemetry raises if an exporter does not end in time, and logs other errors itself
                provider.shutdown()


def _exporter(name: str) -> Any:
    """Returns a new exporter.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    import_module("opentelemetry.sdk.metrics")
    found = next(iter(entry_points(group=_GROUP, name=name)), None)
    if found is None:
        raise ModuleNotFoundError(f"no exporter {name} is installed")
    return found.load()()


def _first(environment: Mapping[str, str], names: Iterable[str]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")
