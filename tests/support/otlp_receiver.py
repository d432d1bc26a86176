"""A receiver of OpenTelemetry's protocol over HTTP. It decodes what exporters really send."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from threading import enumerate as threads
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

Series = tuple[str, frozenset[tuple[str, str]]]
_EXPORTER = "OtelPeriodicExportingMetricReader"
"""The name of an exporter's thread."""
_ENDS_S = 60.0


@dataclass
class Receiver:
    """The received metrics."""

    port: int = 0
    asked: Event = field(default_factory=Event)
    """Set when the first request has arrived."""
    values: dict[Series, float] = field(default_factory=dict)
    """The newest value of each gauge by its name and its tags."""
    units: dict[str, str] = field(default_factory=dict)
    resources: list[dict[str, str]] = field(default_factory=list)
    """The attributes of the resource of each request."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Returns the standard variables of an exporter that sends here."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}", "OTEL_METRIC_EXPORT_INTERVAL": "200"}

    def value(self, name: str, **tags: str) -> float | None:
        """Returns the newest value of the series with a name that has at least these tags."""
        found = [value for (each, given), value in self.values.items() if each == name and given.issuperset(tags.items())]
        assert len(found) <= 1, found
        return found[0] if found else None

    def take(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.resources.append({each.key: each.value.string_value for each in resource.resource.attributes})
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                self.units[metric.name] = metric.unit
                for point in metric.gauge.data_points:
                    tags = frozenset((each.key, each.value.string_value) for each in point.attributes)
                    self.values[metric.name, tags] = point.as_double if point.HasField("as_double") else point.as_int


@contextmanager
def receiver(answer: Callable[[], int] = lambda: 200) -> Iterator[Receiver]:
    """Starts a receiver. At the end it answers until the exporters of all runs have ended.

    An exporter without a receiver would try again in a background thread, beside the next tests.

    Args:
        answer: Returns the status code of each answer. It may hang.
    """
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.asked.set()
            code = answer()
            if code == 200:
                assert self.path == "/v1/metrics"
                found.take(body)
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # the exporter has given up
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
        for exporter in [each for each in threads() if each.name == _EXPORTER]:
            exporter.join(_ENDS_S)
            assert not exporter.is_alive(), "An exporter goes on after its run."
    finally:
        server.shutdown()
        thread.join()
        server.socket.close()
