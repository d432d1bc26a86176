"""A DAG's form from a pipeline's schema."""

import json
from pathlib import Path

import pytest
from airflow.sdk import Param
from pydantic import BaseModel, Field, SecretStr

from airflow_provider.params import Below, params_from_schema
from airflow_provider.version_compat import ParamValidationError
from spark_jobs.api.parameters import schema


class Station(BaseModel):
    name: str


class Params(BaseModel):
    flights: str = Field(title="Flights", description="A table.", pattern="^/")
    days: int = Field(default=3, ge=1)
    station: Station = Station(name="EWR")
    token: SecretStr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema(Params)))
    return path


def test_each_public_parameter_is_a_field_of_the_form(file: Path) -> None:
    params = params_from_schema(file, flights="/data/flights")
    assert list(params) == ["flights", "days", "station"]
    assert (params["flights"].value, params["flights"].description) == ("/data/flights", "A table.")
    assert params["days"].resolve() == 3
    assert params["flights"].schema["title"] == "Flights"


def test_a_parameter_without_a_default_has_to_be_given(file: Path) -> None:
    with pytest.raises(ParamValidationError):
        params_from_schema(file)["flights"].resolve()


@pytest.mark.parametrize(("name", "value"), [("flights", "relative"), ("days", 0), ("days", "x"), ("station", {"name": 1})])
def test_the_form_refuses_values_that_the_pipeline_would_refuse(file: Path, name: str, value: object) -> None:
    param: Param = params_from_schema(file)[name]
    with pytest.raises(ParamValidationError):
        param.resolve(value)


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        ("/data/a+b/flights", True),
        ("/data/a+b/of/every day/..flights", True),
        ("/data/a+b", False),
        ("/data/a+b/", False),
        ("/data/aab/flights", False),
        ("/data/a+b/../flights", False),
        ("/data/a+b/x/..", False),
        ("/data/a+b/./flights", False),
        ("/elsewhere/data/a+b/flights", False),
        ("s3://data/a+b/flights", False),
        ("/data/a+b/x\n", False),
        ("/data/a+b/%2e%2e/flights", False),
        ("/data/a+b/{x/y,../{c/d,../etc}}", False),
        ("/data/a+b/*", False),
        ("/data/a+b/year=2013/ü", True),
        ("/data/a+b/file:x", False),
    ],
)
def test_a_path_that_a_form_may_choose_stays_below_its_directory(file: Path, chosen: str, taken: bool) -> None:
    param: Param = params_from_schema(file, flights=Below("/data/a+b/", "flights"))["flights"]
    assert param.resolve() == "/data/a+b/flights"
    if taken:
        assert param.resolve(chosen) == chosen
        return
    with pytest.raises(ParamValidationError):
        param.resolve(chosen)


def test_a_parameter_below_a_directory_takes_a_text_only(tmp_path: Path) -> None:
    """Otherwise the form would accept a list, because a pattern only applies to texts."""

    class Several(BaseModel):
        flights: str | list[str]

    (tmp_path / "schema.json").write_text(json.dumps(schema(Several)))
    param: Param = params_from_schema(tmp_path / "schema.json", flights=Below("/data", "flights"))["flights"]
    assert param.resolve("/data/x") == "/data/x"
    with pytest.raises(ParamValidationError):
        param.resolve(["/elsewhere"])


def test_the_pipelines_rules_for_a_path_hold_below_a_directory_too(file: Path) -> None:
    param: Param = params_from_schema(file, flights=Below("s3://bucket", "flights"))["flights"]
    with pytest.raises(ParamValidationError):
        param.resolve()


def test_a_default_for_an_unknown_parameter_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="no parameter fligths"):
        params_from_schema(file, fligths="/data")
