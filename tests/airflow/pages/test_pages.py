"""The pages of the plugin, with Airflow's own database and authentication."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urljoin

import pytest
from airflow.models.xcom import XComModel
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider.links import LINKS, RECORD_KEY, URL_PREFIX
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.pages.looks import Look
from airflow_provider.plugin import StreamPipelinesPlugin
from spark_jobs.checkpoint.retention import discard
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.storage.open import open_files
from tests.airflow.browser import LINE_MAX_CHARACTERS, LOG_LINES, Browser, init_auth_manager, make_app
from tests.airflow.conftest import Homes, connection
from tests.airflow.known_dags import run_dag
from tests.support.staged_pipeline import HOURLY, StagedPipeline
from tests.support.systems import quick

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.usefixtures("settled"),
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]

START = datetime(2026, 1, 1, tzinfo=UTC)
PAGES = [link.page for link in LINKS]


@pytest.fixture(scope="module", autouse=True)
def auth() -> None:
    init_auth_manager()


@pytest.fixture
def viewer(auth: None) -> Iterator[Browser]:
    browser = Browser()
    with browser.client:
        yield browser


def links(dag_run: Any, task_id: str = "run", map_index: int = -1) -> dict[str, str]:
    """Returns the links of a task by page, as Airflow's API finds them."""
    with create_session() as session:
        found = {
            link.page: session.scalar(
                select(XComModel.value).where(
                    XComModel.dag_id == dag_run.dag_id,
                    XComModel.run_id == dag_run.run_id,
                    XComModel.task_id == task_id,
                    XComModel.map_index == map_index,
                    XComModel.key == link.xcom_key,
                )
            )
            for link in LINKS
        }
    return {
        page: json.loads(link) if isinstance(link, str) and link.startswith('"') else str(link) for page, link in found.items()
    }


def run(name: str = "answers", **arguments: Any) -> Any:
    with DAG("flights", schedule=None, start_date=START) as dag:
        StreamPipelineOperator(
            task_id="run", entry=f"/pipelines/{name}.py", home="flights", poll_interval_s=0.05, retries=0, **arguments
        )
    return run_dag(dag)


def publish(homes: Homes, run: str) -> dict[str, str]:
    """Publishes another run's staged rows in a task. Returns the links of this task."""
    pipeline = StagedPipeline(quick(homes.path("orders")), homes.root.parent / "orders")
    pipeline.make_table(HOURLY)
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL, run=run)
    with DAG("publishing", schedule=None, start_date=START) as dag:
        PublishCheckpointOperator(task_id="publish", pipelines="orders")
    return links(run_dag(dag), "publish")


def tamper(dag_run: Any, value: Any) -> None:
    """Replaces the task's record, like a user who may edit XComs."""
    names = {"dag_id": dag_run.dag_id, "run_id": dag_run.run_id, "task_id": "run"}
    with create_session() as session:
        XComModel.set(RECORD_KEY, value, **names, serialize=False, session=session)


@pytest.fixture
def answered(homes: Homes) -> dict[str, str]:
    """The links of a task that has ended."""
    return links(run())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, fake_python: Path) -> Iterator[dict[str, str]]:
    """The links of a task that has ended, shared by tests that only read."""
    root = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_KEPT", connection(home_root=str(root), python=str(fake_python)))
        yield links(run(conn_id="kept", deferrable=False))


def test_a_link_leads_to_the_page_of_its_name(homes: Homes, viewer: Browser) -> None:
    found = links(run())
    pages = {page: viewer.page(link) for page, link in found.items()}
    assert "<h1>Manifest</h1>" in pages["manifest"]
    assert '"kind": "final"' not in pages["manifest"]
    assert "<td>1, final</td>" in pages["manifest"]
    assert "&#34;checkpoint_kind&#34;: &#34;final&#34;" in pages["manifest"]
    assert "the driver says hello" in pages["driver-log"]
    assert "noon error out of disk" in pages["driver-log"]
    assert "<td>file:///t/hourly</td>" in pages["tables"]
    assert "3, public" in pages["tables"]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("role", "signed_in", "expected"),
    [("viewer", True, 200), ("user", True, 200), ("admin", True, 200), (None, True, 403), ("admin", False, 401)],
)
def test_only_users_who_may_see_the_dag_may_see_its_pages(
    kept: dict[str, str], page: str, role: str | None, signed_in: bool, expected: int
) -> None:
    answer = Browser(role, signed_in=signed_in).get(kept[page])
    assert answer.status_code == expected
    assert ("file://" in answer.text) == (expected == 200)


def test_a_storage_that_does_not_answer_holds_no_thread_of_the_api_server(
    kept: dict[str, str], viewer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated loads of the page hold no thread either. The heartbeats of tasks need these threads."""
    back, hung = Event(), list[None]()

    def look(*_: object) -> list[Look]:
        hung.append(None)
        back.wait(30.0)
        return []

    with monkeypatch.context() as patch:
        for limit in ("LOOK_MAX_S", "PLACE_MAX_S"):
            patch.setattr(f"airflow_provider.pages.look_limits.{limit}", 0.1)
        patch.setattr("airflow_provider.pages.app.look_at_homes", look)
        answers = [viewer.get(kept["manifest"]) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {503}
    assert "does not answer" in answers[0].text
    assert len(hung) == 8
    back.set()
    assert viewer.get(kept["manifest"]).status_code == 200


def test_every_route_is_guarded_and_no_schema_lists_the_routes(viewer: Browser) -> None:
    paths = [route.path for route in make_app().routes]  # type: ignore[attr-defined]
    pipelines = ["/pipelines", "/pipelines/{conn_id}/{key}", "/static/{name}"]
    assert sorted(path if path in pipelines else path.rpartition("/")[2] for path in paths) == sorted([*PAGES, *pipelines])
    anonymous = Browser(signed_in=False)
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "conn_id": "c", "key": "k", "name": "pipelines.js"}
    for path in (*paths, "/dags/x/runs/y/tasks/z/one/manifest"):
        assert anonymous.client.get(path.format(**names)).status_code == 401
        assert anonymous.client.post(path).status_code == 405
    for path in ("/docs", "/redoc", "/openapi.json", "/", "/dags"):
        assert viewer.client.get(path).status_code == 404


def test_an_altered_token_is_refused(kept: dict[str, str]) -> None:
    browser = Browser()
    browser.client.cookies["_token"] = browser.client.cookies["_token"][:-3] + "abc"
    assert browser.get(kept["manifest"]).status_code in (401, 403)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_no_script_and_may_not_be_framed_by_others(viewer: Browser, kept: dict[str, str], page: str) -> None:
    answer = viewer.get(kept[page])
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "frame-ancestors 'self'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "<script" not in answer.text
    assert "style=" not in answer.text


def test_the_links_of_a_page_work_below_any_base_url(viewer: Browser, kept: dict[str, str]) -> None:
    text = viewer.page(kept["manifest"])
    assert not re.search(r'(?:href|src)="(?:/|https?:)', text)
    here = "https://airflow.example/a/b/" + kept["manifest"]
    task, pipelines = re.findall(r'href="(\.\./[^"]+)"', text)
    assert urljoin(here, pipelines) == f"https://airflow.example/a/b{URL_PREFIX}/pipelines?dag_id=flights"
    assert urljoin(here, task).startswith("https://airflow.example/a/b/dags/flights/runs/manual")
    assert urljoin(here, "tables") == "https://airflow.example/a/b/" + kept["tables"]


def test_text_from_a_driver_is_escaped(homes: Homes, viewer: Browser, answered: dict[str, str]) -> None:
    (homes.path() / "logs/1.log").write_text('</pre><script>alert(1)</script>\n{"message": "<img src=x onerror=alert(2)>"}\n')
    text = viewer.page(answered["driver-log"])
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_long_log_is_shown_in_part(homes: Homes, viewer: Browser, answered: dict[str, str]) -> None:
    lines = [f"line {number}" for number in range(10_000)] + ["x" * 300_000]
    (homes.path() / "logs/1.log").write_text("\n".join(lines))
    text = viewer.page(answered["driver-log"])
    assert "x" * LINE_MAX_CHARACTERS in text
    assert "x" * (LINE_MAX_CHARACTERS + 1) not in text
    assert len(text) < LOG_LINES * LINE_MAX_CHARACTERS


def test_a_driver_that_has_not_answered_has_a_log_and_no_manifest(homes: Homes, viewer: Browser) -> None:
    found = links(run("failed", deferrable=False))
    assert "no checkpoint yet" in viewer.page(found["manifest"])
    assert "no checkpoint yet" in viewer.page(found["tables"])
    assert "out of disk" in viewer.page(found["driver-log"])


def test_the_page_says_that_a_checkpoint_was_discarded(homes: Homes, viewer: Browser) -> None:
    found = links(run(deferrable=False))
    discard(open_files(str(homes.path())), [CheckpointId(1)])
    assert "Checkpoint 1, with which this run was answered, was discarded since" in viewer.page(found["manifest"])
    assert "Checkpoint 1, as it was when this task ended" in viewer.page(found["tables"])


def test_the_page_of_a_refused_publication_claims_nothing_about_its_tables(
    homes: Homes, viewer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Any:
        raise RejectedError("The table is another one.", safe="Nothing was written.", remedy="Look at it.")

    monkeypatch.setattr("airflow_provider.operators.publish_checkpoint.plan_publication", refused)
    text = viewer.page(publish(homes, "airflow/publishing/nightly/run")["tables"])
    assert "<p>Checkpoint 1.</p>" in text
    assert "unknown: this task has not succeeded" in text


def test_the_page_says_that_a_home_is_on_another_host(homes: Homes, viewer: Browser, answered: dict[str, str]) -> None:
    homes.path().rename(homes.root / "moved")
    for page in PAGES:
        assert "where Airflow&#39;s API server runs" in viewer.page(answered[page])


def test_a_record_that_was_tampered_with_links_to_no_page(homes: Homes, viewer: Browser, tmp_path: Path) -> None:
    dag_run = run()
    found = links(dag_run)
    homes.path().rename(tmp_path / "elsewhere")
    tamper(dag_run, {"conn_id": "stream_pipeline_default", "homes": {f"file://{tmp_path}/elsewhere": None}})
    text = viewer.page(found["driver-log"])
    assert "home roots of the connection" in text
    assert "says hello" not in text
    for nonsense in ("<script>", {"homes": 1}, None):
        tamper(dag_run, nonsense)
        answer = viewer.get(found["manifest"])
        assert answer.status_code == 404
        assert "has recorded no home" in answer.text


def test_only_the_path_decides_which_task_is_shown(viewer: Browser, kept: dict[str, str]) -> None:
    assert viewer.get(kept["manifest"].replace("/tasks/run/", "/tasks/other/") + "?task_id=run").status_code == 404
    assert viewer.get(kept["manifest"].replace("/dags/flights/", "/dags/~/") + "?dag_id=flights").status_code == 404
    assert viewer.get(kept["manifest"].replace("/-1/", "/0/")).status_code == 404


def test_each_instance_of_a_mapped_task_has_pages_of_its_own(homes: Homes, viewer: Browser) -> None:
    with DAG("mapped", schedule=None, start_date=START) as dag:
        StreamPipelineOperator.partial(task_id="run", entry="/pipelines/answers.py", poll_interval_s=0.05).expand(home=["a", "b"])
    dag_run = run_dag(dag)
    for index, home in enumerate("ab"):
        text = viewer.page(links(dag_run, map_index=index)["manifest"])
        assert f"<h2>file://{homes.path(home)}</h2>" in text
        assert f"/tasks/run/mapped/{index}" in text


def test_a_publishing_task_shows_the_checkpoint_that_it_published(homes: Homes, viewer: Browser) -> None:
    found = publish(homes, "airflow/publishing/nightly/run")
    text = viewer.page(found["tables"])
    assert f"<td>{(homes.root.parent / 'orders/hourly').as_uri()}</td>" in text
    assert "1, public" in text
    assert "<td>airflow/publishing/nightly/run</td>" in viewer.page(found["manifest"])


def test_a_publishing_task_shows_no_checkpoint_that_another_task_published(homes: Homes, viewer: Browser) -> None:
    for link in publish(homes, "by hand").values():
        assert "does not belong to a DAG that you may see" in viewer.page(link)


def test_the_plugin_links_to_the_pages_where_they_are_served() -> None:
    plugin: Any = StreamPipelinesPlugin()
    (served,) = plugin.fastapi_apps
    assert (served["url_prefix"], len(served["app"].routes)) == (URL_PREFIX, len(PAGES) + 3)
    views = {each["destination"]: each for each in plugin.external_views}
    assert set(views) == {"nav", "dag", "task_instance"}
    assert {each["href"].partition("?")[0] for each in views.values()} == {f"{URL_PREFIX.lstrip('/')}/pipelines"}
