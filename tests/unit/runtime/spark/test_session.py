"""The required settings of a Spark session. No session is started."""

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from spark_jobs.api.refusals import Place
from spark_jobs.api.settings import check_settings
from spark_jobs.protocol.errors import InvalidPipelineError, MissingRequirementError, RejectedError
from spark_jobs.protocol.spark_settings import PACKAGES
from spark_jobs.runtime.spark.session import REQUIRED_SETTINGS, job_group, new_table, start_session
from spark_jobs.runtime.spark.spark_facts import SPARK_MINOR
from tests.support.secret_shapes import CORE, SHAPES


def test_no_setting_that_a_guarantee_needs_can_be_set_by_a_user() -> None:
    accepted = []
    for key, value in REQUIRED_SETTINGS.items():
        try:
            check_settings(Place("flights"), {key: value})
        except InvalidPipelineError:
            continue
        accepted.append(key)
    assert accepted == []


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command line and the address of the JVM that a session starts. The JVM ends at once."""
    said, program = tmp_path / "said", tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$@" "SPARK_LOCAL_IP=$SPARK_LOCAL_IP" > {said}\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr("pyspark.java_gateway._find_spark_home", lambda: str(tmp_path))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    return said


no_jvm = pytest.mark.filterwarnings("ignore:Exception ignored")  # PySpark leaves a pipe open after the JVM fails to start


@no_jvm
def test_no_setting_with_any_shape_of_secret_is_on_the_command_line_of_the_jvm(
    said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {"spark.executor.cores": "2"}
    for number, secret in enumerate(SHAPES.values()):
        monkeypatch.setenv(f"SPARK_JOBS_PARAM_{number}", secret)  # the secret is masked under any name
        names = (
            "spark.executorEnv.LOGIN",
            "spark.hadoop.shop.login",
            "spark.sql.catalog.shop.header",
            "spark.shop",
            "spark.executor.x",
        )
        conf |= {f"{name}{number}": secret for name in names}
    with pytest.raises(MissingRequirementError, match="Spark did not start"):
        start_session("flights", conf)
    assert "spark.executor.cores=2" in said.read_text().splitlines()
    assert CORE not in said.read_text()


OF_DELTA = f"io.delta:delta-spark_{SPARK_MINOR}_2.13:{version('delta-spark')}"


@no_jvm
@pytest.mark.parametrize(
    ("conf", "packages", "expected"),
    [
        ({PACKAGES: "g:a:1, g:b:2"}, [], f"{OF_DELTA},g:a:1,g:b:2"),
        ({}, ["g:a:1"], f"{OF_DELTA},g:a:1"),
        ({PACKAGES: "g:b:2"}, ["g:a:1"], f"{OF_DELTA},g:a:1,g:b:2"),
        ({PACKAGES: "io.delta:delta-spark_4.2_2.13:4.4.9,g:a:1"}, [], "io.delta:delta-spark_4.2_2.13:4.4.9,g:a:1"),
        ({PACKAGES: ""}, [], ""),
        ({PACKAGES: ""}, ["g:a:1"], "g:a:1"),
    ],
)
def test_a_driver_has_all_packages_that_were_named_and_delta_unless_spark_has_it(
    said: Path, conf: dict[str, str], packages: list[str], expected: str
) -> None:
    with pytest.raises(MissingRequirementError):
        start_session("flights", conf, packages=packages)
    assert f"{PACKAGES}={expected}" in said.read_text().splitlines()


@no_jvm
@pytest.mark.parametrize(
    ("master", "given", "address"),
    [
        ("local[2]", "", "127.0.0.1"),
        ("local", "", "127.0.0.1"),
        ("local[2]", "10.0.0.7", "10.0.0.7"),
        ("spark://host:7077", "", ""),
        ("yarn", "", ""),
        ("yarn", "10.0.0.7", "10.0.0.7"),
    ],
)
def test_only_a_driver_with_a_local_master_hides_its_address_from_other_hosts(
    said: Path, monkeypatch: pytest.MonkeyPatch, master: str, given: str, address: str
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP")
    if given:
        monkeypatch.setenv("SPARK_LOCAL_IP", given)
    with pytest.raises(MissingRequirementError):
        start_session("flights", {"spark.master": master})
    assert said.read_text().splitlines()[-1] == f"SPARK_LOCAL_IP={address}"


@pytest.mark.parametrize("name", ["city.rides", "spark_catalog.city.rides"])
def test_a_table_in_a_schema_that_the_catalog_does_not_have_is_refused(name: str) -> None:
    schemas = {"default"}
    spark: Any = SimpleNamespace(
        conf={"spark.sql.catalogImplementation": "hive"},
        catalog=SimpleNamespace(databaseExists=schemas.__contains__, currentCatalog=lambda: "spark_catalog"),
    )
    with pytest.raises(RejectedError, match=f"Table {name} cannot be made: Spark's catalog has no schema city") as caught:
        new_table(spark, name)
    assert caught.value.remedy
    assert "CREATE SCHEMA city" in caught.value.remedy


def test_jobs_get_no_group_where_a_call_may_run_in_another_thread_of_the_jvm() -> None:
    """The group would stay in that thread. It may be cancelled for good."""
    context: Any = SimpleNamespace(_gateway=object())  # it has no way to set a group
    with job_group(context, "packing", "packs files"):
        pass
