"""Airflow's metadata about the provider."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import airflow
import pytest

import spark_jobs
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.links import LINKS
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.settings import EXTRAS, Settings, read_settings
from airflow_provider.version_compat import AirflowPlugin
from tests.airflow.conftest import ROOT

pytestmark = pytest.mark.every_version


def test_airflow_finds_the_provider_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = project["entry-points"]["apache_airflow_provider"].values()
    module, _, function = found.partition(":")
    assert getattr(importlib.import_module(module), function) is get_provider_info


def test_the_provider_has_the_name_and_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = get_provider_info()
    assert (info["package-name"], info["versions"]) == (project["name"], [spark_jobs.__version__])


def test_the_description_of_the_provider_is_valid_for_airflow() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    importlib.import_module("jsonschema").validate(get_provider_info(), schema)


def test_every_module_that_the_provider_names_exists() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[kind]:
            assert all(importlib.import_module(module) for module in entry["python-modules"])


def test_every_link_that_the_provider_names_belongs_to_an_operator() -> None:
    named = get_provider_info()["extra-links"]
    assert named == [f"{type(link).__module__}.{type(link).__qualname__}" for link in LINKS]
    for operator in (StreamPipelineOperator, PublishCheckpointOperator):
        assert operator.operator_extra_links == LINKS


def test_airflow_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = project["entry-points"]["airflow.plugins"].values()
    module, _, name = found.partition(":")
    plugin = getattr(importlib.import_module(module), name)
    assert issubclass(plugin, AirflowPlugin)
    assert plugin.name == "stream_pipelines"


def test_no_worker_imports_what_the_pages_need() -> None:
    modules = "airflow_provider.plugin", "airflow_provider.operators.stream_pipeline", "airflow_provider.triggers.run"
    code = f"import sys, {', '.join(modules)}; print(sorted(name for name in sys.modules if 'airflow_provider.pages' in name))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_the_texts_of_the_form_contain_no_internal_names() -> None:
    (kind,) = get_provider_info()["connection-types"]
    texts = [text for field in kind["conn-fields"].values() for text in (field["label"], field["description"])]
    assert [text for text in texts if re.search(r"(?:^|\W)_", text)] == []


def test_the_connection_type_is_that_of_the_hook() -> None:
    (kind,) = get_provider_info()["connection-types"]
    assert kind["connection-type"] == StreamPipelineHook.conn_type
    assert kind["hook-class-name"] == f"{StreamPipelineHook.__module__}.{StreamPipelineHook.__name__}"


def test_the_form_has_exactly_the_fields_that_the_hook_reads() -> None:
    (kind,) = get_provider_info()["connection-types"]
    values = {
        "home_root": "/a",
        "work_root": "/w",
        "savepoint_root": "/b,s3://c/d",
        "store_conn_id": "lake",
        "python": "/p",
        "master": "local[1]",
        "conf": "{}",
        "checkpoint": "{}",
    }
    submitting = {"spark_conn_id": "spark_default", "spark_main": "local:///main.py"}
    assert tuple(kind["conn-fields"]) == EXTRAS == (*values, *submitting)
    assert read_settings(values, "c") == Settings(
        ("/a",), ("/b", "s3://c/d"), "/p", "local[1]", {}, work_root="/w", store_conn_id="lake"
    )
    assert read_settings(submitting, "c") == Settings(spark_conn_id="spark_default", spark_main="local:///main.py")
