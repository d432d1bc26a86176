"""The Spark settings that a run may choose."""

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.spark_conf import RUN_MAY_SET, checked_conf
from spark_jobs.protocol.errors import InvalidParameterError

TASK = BaseOperator(task_id="run")
JARS = {"spark.jars": "/opt/udfs.jar", "spark.executor.memory": "4g"}


def test_settings_that_the_dag_file_contains_are_allowed() -> None:
    assert checked_conf(TASK, JARS, dict(JARS)) == JARS


def test_a_run_may_choose_memory_and_cores() -> None:
    written = {"spark.executor.memory": "{{ params.memory }}", "spark.jars": "/opt/udfs.jar"}
    rendered = {"spark.executor.memory": "8g", "spark.jars": "/opt/udfs.jar"}
    assert checked_conf(TASK, written, rendered) == rendered


@pytest.mark.parametrize(
    ("rendered", "expected"),
    [
        ({"spark.executor.instances": 4}, {"spark.executor.instances": "4"}),
        ({"spark.dynamicAllocation.enabled": True}, {"spark.dynamicAllocation.enabled": "true"}),
        ({"spark.memory.fraction": 0.5}, {"spark.memory.fraction": "0.5"}),
        ('{"spark.sql.shuffle.partitions": "8"}', {"spark.sql.shuffle.partitions": "8"}),
        ({"spark.sql.autoBroadcastJoinThreshold": "-1"}, {"spark.sql.autoBroadcastJoinThreshold": "-1"}),
        ("", {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_one_template_may_provide_all_settings(rendered: object, expected: dict[str, str]) -> None:
    assert checked_conf(TASK, "{{ params.conf | tojson }}", rendered) == expected


@pytest.mark.parametrize(
    "key",
    [
        "spark.archives",
        "spark.driver.bindAddress",
        "spark.driver.defaultJavaOptions",
        "spark.driver.extraClassPath",
        "spark.driver.extraJavaOptions",
        "spark.driver.extraLibraryPath",
        "spark.driver.host",
        "spark.driver.userClassPathFirst",
        "spark.eventLog.dir",
        "spark.executor.extraClassPath",
        "spark.executor.extraJavaOptions",
        "spark.executorEnv.LD_PRELOAD",
        "spark.extraListeners",
        "spark.files",
        "spark.hadoop.fs.s3a.endpoint",
        "spark.jars",
        "spark.jars.ivySettings",
        "spark.jars.packages",
        "spark.jars.repositories",
        "spark.kerberos.keytab",
        "spark.kubernetes.container.image",
        "spark.kubernetes.driver.podTemplateFile",
        "spark.local.dir",
        "spark.master",
        "spark.metrics.conf",
        "spark.plugins",
        "spark.pyspark.driver.python",
        "spark.pyspark.python",
        "spark.redaction.regex",
        "spark.serializer",
        "spark.shuffle.manager",
        "spark.sql.adaptive.customCostEvaluatorClass",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.extensions",
        "spark.sql.streaming.stateStore.providerClass",
        "spark.sql.warehouse.dir",
        "spark.submit.deployMode",
        "spark.submit.pyFiles",
        "spark.yarn.appMasterEnv.PYTHONPATH",
        "spark.yarn.queue",
        "SPARK.EXECUTOR.MEMORY",
        "spark.executor.memory ",
    ],
)
def test_no_run_chooses_a_setting_that_loads_code_or_reaches_a_place(key: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        checked_conf(TASK, {key: "{{ params.it }}", "spark.executor.memory": "1g"}, {key: "2g", "spark.executor.memory": "1g"})
    assert caught.value.evidence == {"settings": [key]}
    assert caught.value.remedy


@pytest.mark.parametrize(
    "value",
    ["4g -agentpath:/tmp/x.so", "${env:HOME}", "4g\nspark.jars=/x", "/tmp/x", "x" * 33, "", "\N{FULLWIDTH DIGIT FOUR}g", None, ["4g"]],
)  # fmt: skip
def test_a_size_is_a_number_with_a_unit_and_nothing_else(value: object) -> None:
    with pytest.raises(InvalidParameterError, match="spark.executor.memory"):
        checked_conf(TASK, {}, {"spark.executor.memory": value})


@pytest.mark.parametrize("rendered", ["spark.jars=/x", "[]x", ["spark.jars"], 7])
def test_settings_that_are_no_mapping_are_refused(rendered: object) -> None:
    with pytest.raises(InvalidParameterError, match="not a mapping"):
        checked_conf(TASK, rendered, rendered)


def test_no_setting_that_a_run_may_choose_names_a_class_a_file_or_a_place() -> None:
    suspicious = ("class", "dir", "files", "host", "image", "jar", "java", "listener", "path", "plugin", "port", "python.", "url")
    assert [key for key in RUN_MAY_SET for part in suspicious if part in key.lower().replace("sql.files.", "")] == []


def declared(**arguments: Any) -> DAG:
    with DAG("sized", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        partial = {name: arguments.pop(name) for name in list(arguments) if not isinstance(arguments[name], list)}
        StreamPipelineOperator.partial(task_id="run", entry="/pipelines/answers.py", home="flights", **partial).expand(
            **arguments
        )
    return dag


def expanded(dag: DAG, **resolved: Any) -> StreamPipelineOperator:
    """Returns one instance of a mapped task, as a worker creates it."""
    task: Any = dag.get_task("run")
    instance = task.unmap(resolved)
    assert isinstance(instance, StreamPipelineOperator)
    return instance


def test_settings_that_all_instances_of_a_mapped_task_share_count_as_written_in_the_dag_file() -> None:
    task = expanded(declared(conf=JARS, parameters=[{"a": 1}]), parameters={"a": 1})
    assert checked_conf(task, task.written_conf, task.conf) == JARS


def test_settings_that_a_task_is_expanded_over_may_come_from_a_run() -> None:
    task = expanded(declared(conf=[JARS]), conf=JARS)
    with pytest.raises(InvalidParameterError) as caught:
        checked_conf(task, task.written_conf, task.conf)
    assert caught.value.evidence == {"settings": ["spark.jars"]}


def test_a_run_cannot_change_other_arguments() -> None:
    restored = {
        "restore",
        "allow_drained",
        "allow_dropped",
        "take_pending",
        "state_partitions",
        "new_sources",
        "accept_data_loss",
        "full_refresh",
    }
    chosen = {"home", "parameters", "on_end", "publish", "on_rewind", "checkpoint", "conf"} | restored
    assert set(StreamPipelineOperator.template_fields) == chosen
    assert set(PublishCheckpointOperator.template_fields) == {"pipelines", "conf"}
