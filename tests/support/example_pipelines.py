"""The example pipelines and their data."""

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from tests.airflow.conftest import DAGS

EXAMPLES = [
    "approximate_stream",
    "asset_consumer",
    "backfill_then_live",
    "bounded_flights",
    "daily_increment",
    "declarative_project",
    "live_arrivals",
    "live_stream",
    "live_stream_control",
    "nightly_drain",
    "upgrade_and_rescale",
    "watching_consumer",
    "write_audit",
    "write_audit_approve_publish",
    "write_audit_publish",
]


def flights_data() -> ModuleType:
    spec = spec_from_file_location("flights_data", DAGS / "pipelines/flights_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
