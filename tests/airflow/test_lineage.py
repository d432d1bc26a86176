"""The lineage of tasks. DAG runs send it through Airflow's OpenLineage provider."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.facts import HomeResult
from airflow_provider.lineage import dataset_name, lineage_of
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.known_sources import DeltaCommit, KnownDelta, KnownFiles, KnownKafka, KnownOther
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.protocol.spark_settings import conf_of_environment
from spark_jobs.protocol.table_shape import StagedFor, StagedSince, TableShape
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes
from tests.airflow.known_dags import run_dag
from tests.airflow.lineage_events import Event, datasets, ended
from tests.support.staged_pipeline import HOURLY, StagedPipeline, a_channel, a_manifest, a_sink_cut, a_stage_cut, path_of

__all__ = ["ended"]
pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]

COLUMNS = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "struct", "fields": [{"name": "hour", "type": "integer"}]}},
        {"name": "tags", "type": {"type": "array", "elementType": "string"}},
        {"name": "counts", "type": {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": "long"}}},
    ],
}
SHAPE = TableShape(table_schema=json.dumps(COLUMNS), partition_by=(), configuration={}, features=())
FACTS = {"home": "file:///homes/orders", "checkpoint": 4, "behind": [], "exact": False}


def field(name: str, kind: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "fields": list(fields)}


def test_a_publication_reports_its_tables_with_version_columns_and_rows_and_their_inputs(
    homes: Homes, ended: Callable[[str], Event]
) -> None:
    pipeline = StagedPipeline(open_files(str(homes.path("orders"))), homes.root.parent)
    pipeline.make_table(HOURLY)
    pipeline.checkpoint(
        {HOURLY: [(1, "a"), (2, "b")]},
        publish=Publish.EXTERNAL,
        sources={InputName("events"): (KnownDelta(path="/data/events", table="e", shape=SHAPE),)},
        inputs={InputName("events"): (DeltaPin(path="/data/events", table="e", version=7),)},
    )
    with DAG("reports_a_publication", schedule=None) as dag:
        PublishCheckpointOperator(task_id="publish", pipelines=["orders"])
    run_dag(dag)
    event = ended("publish")
    assert event["eventType"] == "COMPLETE"
    assert datasets(event, "outputs") == {
        f"file {path_of(pipeline.tables[HOURLY])}": {
            "version": {"datasetVersion": "1"},
            "schema": {"fields": [field("id", "long"), field("day", "string")]},
            "outputStatistics": {"rowCount": 2},
        }
    }
    nested = [
        field("id", "long"),
        field("at", "struct", field("hour", "integer")),
        field("tags", "array", field("_element", "string")),
        field("counts", "map", field("key", "string"), field("value", "array", field("_element", "long"))),
    ]
    assert datasets(event, "inputs") == {"file /data/events": {"version": {"datasetVersion": "7"}, "schema": {"fields": nested}}}
    (result,) = event["run"]["facets"]["streamPipeline"]["homes"].values()
    assert (result["checkpoint"], result["run"]) == (1, "run-1")


def test_a_run_reports_its_tables_and_gives_its_driver_the_tasks_run_as_parent(
    homes: Homes, ended: Callable[[str], Event], settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO", "True")
    with DAG("reports_a_run", schedule=None) as dag:
        StreamPipelineOperator(task_id="run", entry="/pipelines/answers.py", home="flights")
    run_dag(dag)
    event = ended("run")
    assert datasets(event, "outputs") == {
        "file /t/hourly": {"version": {"datasetVersion": "3"}, "outputStatistics": {"rowCount": 9}}
    }
    assert conf_of_driver(homes) == {
        "spark.openlineage.parentJobNamespace": event["job"]["namespace"],
        "spark.openlineage.parentJobName": event["job"]["name"],
        "spark.openlineage.parentRunId": event["run"]["runId"],
        "spark.openlineage.rootParentJobNamespace": event["job"]["namespace"],
        "spark.openlineage.rootParentJobName": "reports_a_run",
        "spark.openlineage.rootParentRunId": event["run"]["facets"]["parent"]["run"]["runId"],
    }


def test_a_driver_gets_no_parent_unless_that_is_configured(homes: Homes, settled: None) -> None:
    with DAG("gives_no_parent", schedule=None) as dag:
        StreamPipelineOperator(task_id="run", entry="/pipelines/answers.py", home="flights")
    run_dag(dag)
    assert conf_of_driver(homes) == {}


def conf_of_driver(homes: Homes) -> dict[str, str]:
    """Returns the settings of the only driver, from its command line."""
    (start,) = homes.starts()
    words = start["argv"]
    assert conf_of_environment(start["environment"]) == {}
    given = [words[index + 1].partition("=") for index, word in enumerate(words) if word == "--conf"]
    return {name: value for name, _, value in given if "openlineage" in name}


def test_a_run_that_fails_reports_the_failure_and_no_table(homes: Homes, ended: Callable[[str], Event], settled: None) -> None:
    with DAG("reports_a_failure", schedule=None) as dag:
        StreamPipelineOperator(task_id="run", entry="/pipelines/refused.py", home="flights", retries=0)
    run_dag(dag)
    event = ended("run")
    assert (event["eventType"], event["outputs"]) == ("FAIL", [])


def test_staged_rows_are_not_reported_as_output() -> None:
    facts = FACTS | {"sinks": {"orders": {"table": "file:///t/orders", "version": None, "rows": 3}}}
    assert lineage_of([HomeResult(facts, a_manifest())]).outputs == []


def test_a_checkpoint_that_was_discarded_since_is_reported_with_what_is_known() -> None:
    facts = FACTS | {"sinks": {"orders": {"table": "file:///t/ref%20unds", "version": 2, "rows": None}}}
    found = lineage_of([HomeResult(facts, None)])
    (output,) = found.outputs
    assert (output.name, set(output.facets), output.outputFacets) == ("/t/ref unds", {"version"}, {})
    assert found.inputs == []


def test_a_checkpoint_without_new_rows_reports_the_columns_for_which_its_stage_stages() -> None:
    facts = FACTS | {"sinks": {"orders": {"table": "file:///t/orders", "version": 2, "rows": 0}}}
    channel = a_channel(3, staged_for=StagedFor(table_id="t", since=(StagedSince(first=0, shape=SHAPE),)))
    stages = {StageName("orders"): a_stage_cut(3, channel=channel)}
    (output,) = lineage_of([HomeResult(facts, a_manifest(sinks={"orders": a_sink_cut("orders")}, stages=stages))]).outputs
    assert [each.name for each in output.facets["schema"].fields] == ["id", "at", "tags", "counts"]


def test_inputs_of_every_kind_have_names_and_only_what_a_run_was_pinned_to_has_a_version() -> None:
    seen = DeltaCommit(version=9, sha256="")
    manifest = a_manifest(
        sources={
            InputName("live"): (KnownDelta(path="s3a://lake/live", table="l", seen=seen),),
            InputName("files"): (KnownFiles(path="file:///in/my%20files"),),
            InputName("clicks"): (KnownKafka(cluster="c1", topics={"clicks": "t1", "views": "t2"}),),
            InputName("custom"): (KnownOther(source="rate"),),
        },
        inputs={InputName("names"): (DeltaPin(path="hdfs://nn:8020/names", table="n", version=3),)},
    )
    found = lineage_of([HomeResult(FACTS | {"sinks": {}}, manifest)]).inputs
    versions = {
        (each.namespace, each.name): each.facets["version"].datasetVersion if "version" in each.facets else None for each in found
    }
    assert versions == {
        ("s3://lake", "live"): None,
        ("file", "/in/my files"): None,
        ("kafka://c1", "clicks"): None,
        ("kafka://c1", "views"): None,
        ("hdfs://nn:8020", "/names"): "3",
    }


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/data/in", ("file", "/data/in")),
        ("file:/data/in", ("file", "/data/in")),
        ("file:///data/in", ("file", "/data/in")),
        ("s3a://lake/in/a", ("s3://lake", "in/a")),
        ("abfss://lake@flights.dfs.core.windows.net/in/a", ("abfss://lake@flights.dfs.core.windows.net", "in/a")),
        ("gs://lake/in/a", ("gs://lake", "in/a")),
        ("hdfs://nn:8020/in", ("hdfs://nn:8020", "/in")),
        ("data/in", None),
    ],
)
def test_a_dataset_has_the_name_that_the_spark_integration_gives_it(place: str, name: tuple[str, str] | None) -> None:
    assert dataset_name(place) == name
