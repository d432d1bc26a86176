"""What Airflow finds out about the provider."""

import importlib
import json
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema

from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.settings import Settings, read_settings


def test_airflow_finds_the_provider_by_its_entry_point() -> None:
    found = {entry.value for entry in entry_points(group="apache_airflow_provider")}
    assert "airflow_provider.get_provider_info:get_provider_info" in found


def test_its_description_is_one_that_airflow_takes() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_module_it_names_is_there() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors"):
        for entry in info[kind]:
            assert all(importlib.import_module(module) for module in entry["python-modules"])


def test_the_connection_type_is_the_hooks() -> None:
    (kind,) = get_provider_info()["connection-types"]
    assert kind["connection-type"] == StreamPipelineHook.conn_type
    assert kind["hook-class-name"] == f"{StreamPipelineHook.__module__}.{StreamPipelineHook.__name__}"


def test_the_form_has_exactly_the_fields_that_are_read() -> None:
    (kind,) = get_provider_info()["connection-types"]
    values = {"home_root": "/a", "python": "/p", "master": "local[1]", "conf": "{}"}
    assert set(kind["conn-fields"]) == set(values)
    assert read_settings(values, "c") == Settings(("/a",), "/p", "local[1]", {})
