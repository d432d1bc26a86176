"""The connection's form and its test, served by a running Airflow."""

import json
import os
from pathlib import Path

import pytest

from airflow_provider.get_provider_info import get_provider_info
from tests.support.fake_python import make_fake_python
from tests.support.running_airflow import RunningAirflow

pytestmark = pytest.mark.airflow


def said_by_test(airflow: RunningAirflow, **extra: str) -> tuple[bool, str]:
    """Returns the response to *Test* on the connection's page."""
    body = {"connection_id": "tried", "conn_type": "stream_pipeline", "extra": json.dumps(extra)}
    answer = airflow.call("POST", "/api/v2/connections/test", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["status"], answer.json()["message"]


def test_the_form_has_the_connections_own_fields_only(airflow: RunningAirflow) -> None:
    answer = airflow.call("GET", "/ui/connections/hook_meta")
    assert answer.status_code == 200, answer.text
    (kind,) = (each for each in answer.json() if each["connection_type"] == "stream_pipeline")
    (described,) = get_provider_info()["connection-types"]
    assert kind["hook_name"] == "Stream pipeline"
    assert list(kind["extra_fields"]) == list(described["conn-fields"])
    assert all(kind["standard_fields"][name]["hidden"] for name in ("login", "password", "port", "url_schema"))


def test_the_test_of_a_connection_names_its_host_and_what_it_found(airflow: RunningAirflow, roots: Path, tmp_path: Path) -> None:
    well, said = said_by_test(airflow, home_root=str(roots), python=str(make_fake_python(tmp_path)))
    assert well, said
    for part in (f"Seen from {os.uname().nodename}", str(roots), "pyspark 4", "delta-spark 4", "Java "):
        assert part in said


def test_the_test_of_a_connection_says_what_is_wrong(airflow: RunningAirflow, roots: Path) -> None:
    wrong = {
        "/proc/homes": {"home_root": "/proc/homes"},
        "is not a program": {"home_root": str(roots), "python": "/no/such/python"},
    }
    for part, extra in wrong.items():
        well, said = said_by_test(airflow, **extra)
        assert not well
        assert part in said
