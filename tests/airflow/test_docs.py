"""The DAGs on the documentation pages, parsed by Airflow."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator

from airflow_provider.control_dag import control_dag
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.links import LINKS
from airflow_provider.operators.cancel import CancelPipelineOperator
from airflow_provider.operators.losses import AcceptLossOperator, BackfillLossOperator
from airflow_provider.operators.partitions import EmitFinishedPartitionsOperator
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.savepoint import (
    DisposeSavepointOperator,
    StopWithSavepointOperator,
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
)
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.sensors.checkpoint import CheckpointSensor
from airflow_provider.sensors.final_checkpoint import FinalCheckpointSensor
from airflow_provider.sensors.pipeline_state import PipelineStateSensor
from airflow_provider.spark_conf import RUN_MAY_SET
from airflow_provider.triggers.losses import LossTrigger
from airflow_provider.triggers.publication import PublicationTrigger
from spark_jobs.api.load import load_pipeline
from tests.support.example_pipelines import EXAMPLES
from tests.support.pages import ROOT, Row, files, pages, table_rows

PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert "pyspark" not in sys.modules
print(json.dumps({"errors": bag.import_errors, "dags": {name: dag.task_ids for name, dag in bag.dags.items()}}))
"""
REFERENCE = sorted((ROOT / "docs/reference").glob("airflow*.md"))
MOVE = ROOT / "docs/how-to/from-spark-submit.md"
EXAMPLES_PAGE = ROOT / "docs/how-to/run-the-examples.md"
AUDIT = ROOT / "docs/how-to/write-audit-publish.md"
SECURITY = ROOT / "docs/security.md"
GUIDE = ROOT / "docs/how-to/write-a-pipeline.md"
CONTROL = ["approve", "drain", "choose", "checkpoint", "savepoint", "stop", "cancel", "publish", "dispose", "restore"]
"""The tasks of a control DAG, in the order of its file."""


OPERATORS: list[type[BaseOperator]] = [
    StreamPipelineOperator,
    PublishCheckpointOperator,
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
    StopWithSavepointOperator,
    DisposeSavepointOperator,
    CancelPipelineOperator,
    AcceptLossOperator,
    BackfillLossOperator,
    EmitFinishedPartitionsOperator,
    CheckpointSensor,
    PipelineStateSensor,
]


@pytest.mark.parametrize(("problems", "code"), [([], None), (["Days with negative revenue: 3"], "Days with negative revenue: 3")])
def test_the_audit_of_the_guide_succeeds_only_where_it_has_found_no_problem(problems: list[str], code: str | None) -> None:
    ending = ast.parse(files(AUDIT)["audit_orders.py"]).body[-1]
    assert isinstance(ending, ast.If)
    found = {"sys": SimpleNamespace(exit=sys.exit, argv=["", "", "1"]), "delta_session": object, "problems": lambda *_: problems}
    with pytest.raises(SystemExit) as caught:
        exec(compile(ast.Module(ending.body, []), "audit_orders.py", "exec"), found)
    assert caught.value.code == code


def test_airflow_parses_every_dag_on_the_pages_without_spark(tmp_path: Path) -> None:
    shown = {title: text for page in pages() for title, text in files(page).items() if "DAG(" in text or "control_dag(" in text}
    for title, text in shown.items():
        file = tmp_path / "dags" / title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "orders.py").write_text(files(GUIDE)["orders.py"])
    schema = load_pipeline(str(tmp_path / "orders.py")).schema()
    (tmp_path / "dags/orders.schema.json").write_text(json.dumps(schema))
    answer = subprocess.run([sys.executable, "-c", PARSE, str(tmp_path / "dags")], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["errors"] == {}
    assert found["dags"] == {
        "after_orders": ["read"],
        "after_sessions": ["wait"],
        "approved_orders": ["run", "approve", "publish"],
        "audited_orders": ["run", "audit", "publish"],
        "cancel_sensors": ["cancel"],
        "drain_sensors": ["drain"],
        "elsewhere": ["orders_are_done"],
        "finish_hours_of_sales": ["emit"],
        "gated_shop": ["orders", "refunds", "publish"],
        "in_a_pool": ["run"],
        "nightly": ["run"],
        "orders": ["run"],
        "orders_alert": ["recent_checkpoint"],
        "orders_by_submit": ["run"],
        "orders_on_a_cluster": ["run"],
        "orders_by_hand": ["run"],
        "refresh_prices": ["refresh"],
        "report": ["read"],
        "report_an_hour": ["report"],
        "report_on_sales": ["read"],
        "sales": ["run"],
        "save_sensors": ["save"],
        "sensors": ["run"],
        "sensors_control": CONTROL,
        "sessions": ["run"],
        "shop": ["run", "tell"],
        "shop_project": ["run"],
        "shop_control": CONTROL,
        "sized": ["run"],
        "stop_sensors": ["stop"],
        "views": ["run"],
        "visits_losses": ["tell"],
        "visits": ["run", "approve", "open_losses", "accept", "look"],
        "watches_orders": ["read"],
        "with_spark_events": ["run"],
    }
    assert len(shown) == 27


def reference_rows() -> Iterator[Row]:
    for page in REFERENCE:
        yield from table_rows(page)


def arguments_of(kind: Callable[..., object]) -> Iterator[Parameter]:
    """Yields the arguments of ``kind`` itself, and of its base classes in this provider that have no table of their own."""
    if not isinstance(kind, type) or not issubclass(kind, BaseOperator):
        yield from signature(kind).parameters.values()
        return
    for each in kind.__mro__:
        if each is kind or (each.__module__.startswith("airflow_provider.") and each not in OPERATORS):
            yield from signature(each).parameters.values()
        elif each in OPERATORS or not each.__module__.startswith("airflow_provider."):
            return


@pytest.mark.parametrize("kind", [*OPERATORS, PublicationTrigger, LossTrigger, control_dag])
def test_the_reference_describes_every_argument(kind: Callable[..., object]) -> None:
    described = {
        row.cells["argument"].strip("`"): row.cells["default"].strip("`")
        for page in REFERENCE
        for row in table_rows(page)
        if row.heading == f"`{kind.__name__}`"
    }
    own = [each for each in arguments_of(kind) if each.kind is each.KEYWORD_ONLY]
    assert described == {each.name: "" if each.default is each.empty else repr(each.default) for each in own}


def test_the_guide_for_moving_from_spark_submit_names_every_argument_of_its_operator() -> None:
    rows = [
        row.cells["`SparkSubmitOperator`"].strip("`")
        for row in table_rows(MOVE)
        if set(row.cells) == {"`SparkSubmitOperator`", "here"}
    ]
    own = [name for name, each in signature(SparkSubmitOperator).parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert sorted(rows) == sorted(own)


def test_the_reference_names_every_setting_that_a_run_may_choose() -> None:
    rows = [
        row.cells[column]
        for page in REFERENCE
        for row in table_rows(page)
        if (column := "settings that a run may choose") in row.cells
    ]
    assert sorted(re.findall(r"`([^`]+)`", " ".join(rows))) == sorted(RUN_MAY_SET)


def test_the_page_on_security_names_everything_that_a_run_may_choose() -> None:
    (sentence,) = re.findall(r"^Templated are (.*?); nothing else", SECURITY.read_text(), flags=re.DOTALL | re.MULTILINE)
    kinds: list[type[BaseOperator]] = [*OPERATORS, FinalCheckpointSensor]
    assert set(re.findall(r"`(\w+)`", sentence)) == {field for kind in kinds for field in kind.template_fields}


def test_the_reference_names_every_link() -> None:
    described = [row.cells["link"] for row in reference_rows() if "link" in row.cells]
    assert described == [link.name for link in LINKS]


def test_every_example_dag_has_a_page_that_explains_it() -> None:
    rows = [row.cells for row in table_rows(EXAMPLES_PAGE) if "DAG" in row.cells]
    assert sorted(row["DAG"].strip("`") for row in rows) == EXAMPLES
    assert all(row["shows"] and row["read"].startswith("[") for row in rows)


def test_the_sensors_take_the_same_arguments() -> None:
    assert signature(FinalCheckpointSensor) == signature(CheckpointSensor)


def test_the_reference_describes_every_extra_of_the_connection() -> None:
    described = [row.cells["extra"].strip("`") for row in reference_rows() if "extra" in row.cells]
    (connection,) = get_provider_info()["connection-types"]
    assert described == list(connection["conn-fields"])
