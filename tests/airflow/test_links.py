"""The targets of a task's links, and when the links exist."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import BaseOperator

from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.links import LINKS, RECORD_KEY
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from tests.airflow.conftest import Homes, connection
from tests.airflow.flights import context

pytestmark = pytest.mark.every_version


def link(page: int = 0, **changes: Any) -> str:
    names: dict[str, Any] = {
        "dag_id": "flights",
        "run_id": "manual__2026-01-01T00:00:00+00:00",
        "task_id": "run",
        "map_index": -1,
    }
    task = SimpleNamespace(**(names | changes))
    return LINKS[page].get_link(BaseOperator(task_id="run"), ti_key=cast(Any, task))


PATH = "stream-pipelines/dags/flights/runs/manual__2026-01-01T00:00:00+00:00/tasks/run/-1/manifest"


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (None, PATH),
        ("https://airflow.example", f"https://airflow.example/{PATH}"),
        ("https://airflow.example/", f"https://airflow.example/{PATH}"),
        ("https://airflow.example/team/a/", f"https://airflow.example/team/a/{PATH}"),
    ],
)
def test_a_link_is_below_airflows_own_address(monkeypatch: pytest.MonkeyPatch, base: str | None, expected: str) -> None:
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    if base is not None:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    assert link() == expected


def test_a_link_names_the_task_instance_and_nothing_else() -> None:
    assert link(task_id="group.run", map_index=3).endswith("/tasks/group.run/3/manifest")
    assert link(map_index=None).endswith("/tasks/run/-1/manifest")
    assert "/dags/a%2Fb%3Fc%23d/runs/" in link(dag_id="a/b?c#d")


def test_every_link_has_a_name_and_an_xcom_of_its_own() -> None:
    assert [each.name for each in LINKS] == ["Manifest", "Driver log", "Tables"]
    assert len({each.xcom_key for each in LINKS} | {RECORD_KEY}) == 4


@pytest.mark.parametrize("deferrable", [True, False])
def test_the_links_of_a_task_exist_before_its_driver(homes: Homes, monkeypatch: pytest.MonkeyPatch, deferrable: bool) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(homes.root), python="/no/such/python"))
    given = context()
    task = StreamPipelineOperator(task_id="run", entry="/pipelines/answers.py", home="x/../flights", deferrable=deferrable)
    with pytest.raises(PipelineRunRefusedError, match="not a program"):
        task.execute(given)
    pushed: dict[str, Any] = cast(Any, given["ti"]).pushed
    assert pushed[RECORD_KEY] == {"conn_id": "stream_pipeline_default", "homes": {f"file://{homes.path()}": None}}
    assert [pushed[each.xcom_key].rpartition("/")[2] for each in LINKS] == ["manifest", "driver-log", "tables"]


@pytest.mark.parametrize("number", [7, None])
def test_the_links_of_a_refused_publication_exist(homes: Homes, number: int | None) -> None:
    given = context()
    torn = homes.path() / "manifests/1.json"
    torn.parent.mkdir(parents=True)
    torn.write_text("{}")
    with pytest.raises(PipelineRunRefusedError):
        PublishCheckpointOperator(task_id="publish", pipelines={"x/../flights": number}).execute(given)
    pushed: dict[str, Any] = cast(Any, given["ti"]).pushed
    assert pushed[RECORD_KEY] == {"conn_id": "stream_pipeline_default", "homes": {f"file://{homes.path()}": number or 1}}
    assert {each.xcom_key for each in LINKS} <= pushed.keys()


def test_a_home_that_is_not_allowed_is_not_recorded(homes: Homes) -> None:
    given = context()
    with pytest.raises(PipelineRunRefusedError):
        StreamPipelineOperator(task_id="run", entry="/pipelines/answers.py", home="../elsewhere").execute(given)
    assert cast(Any, given["ti"]).pushed == {}
