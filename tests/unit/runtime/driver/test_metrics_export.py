"""The export of metrics to a real receiver of OpenTelemetry's protocol, and to one that hangs, fails or is missing."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread

import pytest

from spark_jobs.control import pipeline_metrics
from spark_jobs.control.channel import Channel
from spark_jobs.control.pipeline_metrics import METRICS
from spark_jobs.protocol.errors import StorageError
from spark_jobs.runtime.driver import metrics_export
from spark_jobs.runtime.driver.metrics_export import MetricsExport, exporter_names
from tests.support.measured_homes import a_status, home_with_a_checkpoint
from tests.support.otlp_receiver import Receiver, receiver

UNKNOWN = ("pending_bytes", "budget_left")
"""The metrics that have no value in the tests."""
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        (ENDPOINT, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, ["otlp_proto_http"]),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        (
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
        ),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, ["otlp (http/json)"]),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, []),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, []),
        ({"OTEL_METRICS_EXPORTER": "console, otlp"}, ["console", "otlp_proto_http"]),
    ],
)
def test_the_standard_variables_choose_the_exporters(environment: Mapping[str, str], names: list[str]) -> None:
    assert exporter_names(environment) == names


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_receiver_gets_all_metrics_with_units_and_tags_and_the_last_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, statuses = home_with_a_checkpoint(tmp_path), [a_status()]
    with receiver() as found:
        set_environment(monkeypatch, found.environment)
        with MetricsExport(home.files) as export:
            export.begin(lambda: statuses[-1])
            until(lambda: found.value("stream_pipeline.attempt") == 3)
            monkeypatch.setattr(metrics_export, "_LAST_EXPORT_S", 20.0)
            statuses.append(a_status(completed_checkpoints=9))
        assert found.value("stream_pipeline.number_of_completed_checkpoints", pipeline="flights", home=home.files.url) == 9
        assert found.value("stream_pipeline.pending_records", stage="hourly", input="events") == 7
        age_ms = found.value("stream_pipeline.last_checkpoint_age")
        assert age_ms is not None
        assert age_ms > 0
        exist = {each.full_name: each.unit.value for each in METRICS if each.name not in UNKNOWN}
        assert found.units == exist
        assert {each["service.name"] for each in found.resources} == {"spark-jobs"}


def test_the_last_values_of_a_run_that_is_shorter_than_the_interval_are_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_a_checkpoint(tmp_path)
    monkeypatch.setattr(metrics_export, "_LAST_EXPORT_S", 20.0)
    with receiver() as found:
        set_environment(
            monkeypatch, dict(found.environment) | {"OTEL_METRIC_EXPORT_INTERVAL": "3600000", "OTEL_SERVICE_NAME": "flights"}
        )
        with MetricsExport(home.files) as export:
            export.begin(a_status)
        assert found.value("stream_pipeline.attempt") == 3
        assert {each["service.name"] for each in found.resources} == {"flights"}


def test_each_collection_reads_each_document_of_a_failing_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = {"manifest": 0, "pipeline": 0}

    def failing(name: str) -> Callable[..., None]:
        def fail(*_: object) -> None:
            looks[name] += 1
            raise StorageError("The disk is away.")

        return fail

    home = home_with_a_checkpoint(tmp_path)
    monkeypatch.setattr(pipeline_metrics, "newest_manifest", failing("manifest"))
    monkeypatch.setattr(Channel, "claimed", failing("pipeline"))
    monkeypatch.setattr(metrics_export, "_LAST_EXPORT_S", 20.0)
    with receiver() as found:
        set_environment(monkeypatch, dict(found.environment) | {"OTEL_METRIC_EXPORT_INTERVAL": "3600000"})
        with MetricsExport(home.files) as export:
            export.begin(a_status)
        assert found.value("stream_pipeline.attempt") == 3
    assert looks == {"manifest": 1, "pipeline": 1}


def test_the_end_of_a_run_does_not_wait_for_a_receiver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, goes_on, ended = home_with_a_checkpoint(tmp_path), Event(), Event()

    def hang() -> int:
        goes_on.wait()
        return 400

    def run(found: Receiver) -> None:
        with MetricsExport(home.files) as export:
            export.begin(a_status)
            found.asked.wait()
        ended.set()

    monkeypatch.setattr(metrics_export, "_LAST_EXPORT_S", 0.2)
    with receiver(hang) as found:
        set_environment(monkeypatch, dict(found.environment) | {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600"})
        thread = Thread(target=run, args=(found,))
        thread.start()
        try:
            assert ended.wait(20.0)
        finally:
            goes_on.set()
            thread.join()


def test_an_exporter_that_hangs_when_it_is_made_delays_neither_start_nor_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, ended = Event(), Event()

    def hang(_: str) -> None:
        goes_on.wait()
        raise OSError

    def run() -> None:
        with MetricsExport(home_with_a_checkpoint(tmp_path).files, ENDPOINT) as export:
            export.begin(a_status)
        ended.set()

    monkeypatch.setattr(metrics_export, "_exporter", hang)
    monkeypatch.setattr(metrics_export, "_LAST_EXPORT_S", 0.2)
    thread = Thread(target=run)
    thread.start()
    try:
        assert ended.wait(20.0)
    finally:
        goes_on.set()
        thread.join()


def test_a_receiver_that_refuses_everything_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(lambda: 400) as found:
        set_environment(monkeypatch, found.environment)
        with MetricsExport(home_with_a_checkpoint(tmp_path).files) as export:
            export.begin(a_status)
            assert found.asked.wait(20.0)


def test_a_missing_exporter_is_logged_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_jobs")
    home = home_with_a_checkpoint(tmp_path)
    for environment in (ENDPOINT, {"OTEL_METRICS_EXPORTER": "carrier_pigeon"}):
        with pytest.MonkeyPatch.context() as patch:
            if environment is ENDPOINT:
                patch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
            patch.setattr(metrics_export, "_LAST_EXPORT_S", 20.0)
            with MetricsExport(home.files, environment) as export:
                export.begin(a_status)
    assert len(caplog.messages) == 2
    assert all("'otel' extra" in message for message in caplog.messages)
    assert "carrier_pigeon" in caplog.messages[1]


def test_no_export_begins_without_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_export, "run_in_background", None)
    with MetricsExport(home_with_a_checkpoint(tmp_path).files, {}) as export:
        export.begin(a_status)
