"""The pipelines page in a real browser, served by Airflow's own API server: a new user's path from the navigation to a stop."""

import json
import os
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from threading import Event
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select, update

from airflow_provider.control_dag import control_dag
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import history_path
from spark_jobs.protocol.documents import (
    CheckpointKind,
    ErrorReport,
    InputLag,
    PipelineDocument,
    Publish,
    RunState,
    StageState,
    StageStatus,
    Status,
)
from spark_jobs.protocol.history import StepTime
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, PipelineName, RunId, StageName
from spark_jobs.storage.files import create_document
from tests.airflow.browser import token
from tests.airflow.conftest import connection
from tests.airflow.known_dags import store_dag
from tests.support.chromium import Chromium
from tests.support.command_line import UsedHome, a_try, lose_files
from tests.support.pages import ROOT
from tests.support.pipelines_page import HOSTILE, OF_A_DAG, auth, controlled, root, used_home
from tests.support.staged_pipeline import DAILY, HOURLY, NOW, PIPELINE

from airflow_provider.pages import look_limits, pipelines  # isort: skip
from airflow_provider.pages.pipeline_looks import Listing, Row, list_pipelines  # isort: skip

__all__ = ["auth", "root"]

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]


def text(browser: Chromium) -> str:
    return str(browser.evaluate("document.body.innerText"))


def shop(root: Path, name: str, now: datetime, **status: Any) -> UsedHome:
    """Makes the home of a pipeline that has run for an hour, with sixty checkpoints and a heartbeat."""
    (root / name).mkdir()
    home = UsedHome(root / name)
    create_document(home.files, "pipeline.json", PipelineDocument(name=PipelineName(name), uuid=PIPELINE))
    home.staged.make_table(HOURLY)
    home.staged.make_table(DAILY, partition_by=())
    home.begin(run=OF_A_DAG, started_at=now - timedelta(hours=1))
    first = home.complete(
        run=OF_A_DAG,
        publish=Publish.EVERY_CHECKPOINT,
        checkpoint_kind=CheckpointKind.PERIODIC,
        drained=False,
        began_at=now - timedelta(minutes=60),
        completed_at=now - timedelta(seconds=40),
    )
    home.staged.store.complete(first.model_copy(update={"checkpoint": CheckpointId(60), "parent": CheckpointId(59)}))
    for number in range(2, 61):
        load = 1 + abs(number - 30) / 10
        failure = (
            ErrorReport(error="StorageError", retry="at once", failed="The store does not answer.") if number == 41 else None
        )
        home.staged.store.record(
            a_try(
                number,
                began_at=now - timedelta(minutes=61 - number),
                checkpoint_kind=CheckpointKind.PERIODIC,
                steps=tuple(
                    StepTime(step=step, duration_s=round(load * share, 3))
                    for step, share in (("align", 0.4), ("cut", 0.1), ("persist", 0.9), ("publish", 0.5))
                ),
                rows=int(8_000 * load),
                aligned=number % 7 != 0,
                alignment_s=round(0.4 * load, 3),
                in_flight_rows=0 if number % 7 else int(900 * load),
                in_flight_bytes=0 if number % 7 else int(90_000 * load),
                new_state_bytes=int(1_500_000 * load),
                new_state_files=12,
                reused_state_bytes=180_000 * number,
                reused_state_files=number,
                failure=failure,
            )
        )
    write_status(
        home.files,
        Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=now, **status),
    )
    return home


def stages(now: datetime, **daily: Any) -> dict[StageName, StageStatus]:
    """The heartbeat's stages of a pipeline that runs."""
    watermark_ms = round((now - timedelta(minutes=11)).timestamp() * 1000)
    hourly = StageStatus(
        state=StageState.RUNNING,
        rows_in=1_482_201,
        rows_per_s=8_410.5,
        busy=0.42,
        watermark_ms=watermark_ms,
        late_rows=12,
        lag={"events": InputLag(rows=310)},
    )
    fields: dict[str, Any] = {
        "state": StageState.RUNNING,
        "rows_in": 96_120,
        "rows_per_s": 530.2,
        "busy": 0.31,
        "watermark_ms": watermark_ms,
        "lag": {"hourly": InputLag(rows=1_204, size_bytes=88_000)},
    }
    return {StageName("hourly"): hourly, StageName("daily"): StageStatus(**(fields | daily))}


IMAGES = ROOT / "docs/how-to/images"
IMAGE_MAX_BYTES = 100_000


def show_as(browser: Chromium, place: Path, shown: str) -> None:
    """Replaces a directory of this host in the text of a page, which is not refreshed meanwhile."""
    browser.evaluate(
        "for (const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); walk.nextNode();)"
        f" walk.currentNode.data = walk.currentNode.data.replaceAll({json.dumps(str(place))}, {json.dumps(shown)});"
    )


@pytest.mark.nightly
def test_the_screenshots_of_the_guide_show_the_pages_in_both_themes(
    root: Path, tmp_path: Path, airflow: str, browser: Chromium
) -> None:
    """``make screenshots`` takes them again."""
    images = Path(os.environ.get("SPARK_TESTS_SCREENSHOTS", tmp_path / "images"))
    now = datetime.now(UTC)
    orders = shop(
        root, "orders", now, stages=stages(now, state=StageState.FAILED, reason="DivideByZero: Division by zero.", restarts=3)
    )
    slow = {"busy": 0.99, "lag": {"hourly": InputLag(rows=88_120, size_bytes=6_400_000)}}
    visits, payments = shop(root, "visits", now, stages=stages(now, **slow)), shop(root, "payments", now, stages=stages(now))
    store_dag(control_dag("orders_control", home=orders.url, pipeline={"entry": "/pipelines/orders.py"}))
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == "orders_control").values(is_paused=False))
    with ExitStack() as stack:
        for home in (orders, visits, payments):
            stack.enter_context(home.driver())
        browser.sign_in(token("user"))
        browser.window(1100, 330)
        browser.open(f"{airflow}/stream-pipelines/pipelines")
        page = str(browser.evaluate("document.querySelector('tbody tr a').href"))
        for name, url, height in (
            ("pipelines", f"{airflow}/stream-pipelines/pipelines", 330),
            ("pipeline", page, 1000),
            ("comparison", f"{page}?first=10-1&second=41-1#compared", 700),
        ):
            for theme in ("light", "dark"):
                browser.theme(theme)
                browser.window(1100, height)
                browser.open("about:blank")
                browser.open(url)
                show_as(browser, root, "/data/homes")
                if name == "comparison":
                    browser.evaluate("document.getElementById('compared').scrollIntoView()")
                browser.screenshot(images / f"{name}-{theme}.webp")
                assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert complaints(browser) == []
    guide = (ROOT / "docs/how-to/pipelines-page.md").read_text()
    taken = sorted(images.glob("*.webp"))
    assert [each.name for each in taken] == [each.name for each in sorted(IMAGES.glob("*.webp"))]
    for each in taken:
        assert f"images/{each.name}" in guide
        assert 1_000 < each.stat().st_size < IMAGE_MAX_BYTES


def complaints(browser: Chromium) -> list[str]:
    """Returns the browser's complaints about our own pages, without its warning of the frame in which Airflow shows them."""
    return [each for each in browser.complaints if "/stream-pipelines/" in each and "An iframe which has both" not in each]


def failing(home: UsedHome, reason: str) -> None:
    """Writes the heartbeat of a pipeline whose stage has failed."""
    stages = {StageName("daily"): StageStatus(state=StageState.FAILED, reason=reason)}
    write_status(
        home.files,
        Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=NOW, stages=stages),
    )


def runs_of(dag_id: str) -> list[DagRun]:
    with create_session() as session:
        return list(session.scalars(select(DagRun).where(DagRun.dag_id == dag_id)))


def test_three_clicks_lead_from_the_navigation_to_the_reason_of_a_stalled_pipeline_and_its_stop(
    root: Path, airflow: str, browser: Chromium
) -> None:
    well, ill = used_home(root, "a-well", OF_A_DAG), used_home(root, "b-ill", OF_A_DAG)
    dag_id = controlled(ill)
    failing(ill, "division by zero")
    locks = [home.driver() for home in (well, ill)]
    with locks[0], locks[1]:
        browser.sign_in(token("user"))
        browser.open(f"{airflow}/")
        browser.click("button", "Browse")
        link = "a[href$='stream-pipelines/pipelines']"
        browser.shows(f"document.querySelector({json.dumps(link)}) !== null", "the page in the navigation")
        browser.evaluate(f"document.querySelector({json.dumps(link)}).target = '_self'")  # it opens in a window of its own
        browser.click(link)
        browser.click("tbody tr:first-child a")
        browser.shows("document.querySelector('[data-action=stop]') !== null", "the button")
        assert "Stage daily is failed: division by zero" in text(browser)
        assert browser.clicks == 3
        browser.click("[data-action=stop]")
        browser.click("[data-action=stop]", "Stop the pipeline?")
        browser.shows(f"location.pathname.startsWith('/dags/{dag_id}/runs/')", "the run that was started")
    assert [run.conf for run in runs_of(dag_id)] == [{"action": "stop"}]


def test_a_viewer_sees_what_happens_without_a_button_and_is_refused_a_run(root: Path, airflow: str, browser: Chromium) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    dag_id = controlled(home)
    failing(home, "division by zero")
    with home.driver(), browser.hurried():
        browser.sign_in(token("viewer"))
        browser.open(f"{airflow}/stream-pipelines/pipelines")
        browser.click("tbody tr a")
        browser.shows("document.body?.innerText.includes('division by zero')", "the pipeline's page")
        failing(home, "another reason")
        browser.shows("document.body.innerText.includes('another reason')", "the page has refreshed itself")
        assert browser.evaluate("document.querySelectorAll('button').length") == 0
        assert complaints(browser) == []
        asked = f"fetch('/api/v2/dags/{dag_id}/dagRuns', {{method: 'POST', headers: {{'Content-Type': 'application/json'}}, "
        body = "body: JSON.stringify({logical_date: null, conf: {action: 'stop'}})}).then(answer => answer.status)"
        assert browser.evaluate(asked + body) == 403
    assert runs_of(dag_id) == []


FAINTEST = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [red, green, blue] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const contrasts = [...document.querySelectorAll("body *")].filter((each) => each.innerText).map((each) => {
    const ink = light(getComputedStyle(each).color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  });
  return Math.min(...contrasts);
})()"""
"""Returns the contrast of the faintest text of a page with the paper."""
READABLE = 4.5
"""The contrast that the Web Content Accessibility Guidelines ask of text."""


def test_each_page_can_be_read_in_both_themes_and_in_a_narrow_window(root: Path, airflow: str, browser: Chromium) -> None:
    orders = shop(root, "orders", datetime.now(UTC), stages=stages(datetime.now(UTC), state=StageState.FAILED, reason="x" * 200))
    controlled(orders)
    browser.sign_in(token("user"))
    with orders.driver():
        own = f"pipelines/stream_pipeline_default/{Row('', orders.url, None).key}"
        for page in ("pipelines", own, f"{own}?first=10-1&second=41-1"):
            papers = set()
            for theme in ("light", "dark"):
                browser.theme(theme)
                browser.open(f"{airflow}/stream-pipelines/{page}")
                papers.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
                assert browser.evaluate(FAINTEST) >= READABLE, (page, theme)
                for width in (1100, 380):
                    browser.window(width, 800)
                    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), (page, width)
            assert len(papers) == 2, page
        assert browser.evaluate("document.getElementById('compared') !== null")
    assert complaints(browser) == []


def test_the_tab_of_a_dag_starts_a_run_and_leads_nowhere_else(root: Path, airflow: str, browser: Chromium) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    dag_id = controlled(home)
    browser.sign_in(token("user"))
    browser.open(f"{airflow}/dags/{dag_id}/plugin/stream-pipelines-of-dag")
    page = "document.querySelector('iframe')?.contentDocument"
    there = f"{page}?.readyState === 'complete' && {page}.querySelector"
    browser.shows(f"{there}('tbody tr a') !== null", "the tab")
    assert browser.evaluate(f"{page}.querySelectorAll('a.outside[href]').length") == 0
    browser.evaluate(f"{page}.querySelector('tbody tr a').click()")
    browser.shows(f"{there}('[data-action=checkpoint]') !== null", "the pipeline's page")
    browser.evaluate(f"{page}.querySelector('[data-action=checkpoint]').click()")
    browser.shows(f"{page}.body.innerText.includes('of DAG {dag_id} has started')", "the run that was started")
    assert [run.conf for run in runs_of(dag_id)] == [{"action": "checkpoint"}]
    assert complaints(browser) == []


def test_a_page_follows_the_theme_that_its_user_chooses_in_airflow(root: Path, airflow: str, browser: Chromium) -> None:
    home = shop(root, "orders", datetime.now(UTC), stages=stages(datetime.now(UTC)))
    dag_id = controlled(home)
    browser.sign_in(token("user"))
    browser.open(f"{airflow}/dags/{dag_id}/plugin/stream-pipelines-of-dag")
    page = "document.querySelector('iframe')?.contentDocument"
    browser.shows(f"{page}?.readyState === 'complete' && {page}.querySelector('tbody tr a') !== null", "the tab")
    browser.evaluate(f"{page}.querySelector('tbody tr a').click()")
    canvases = f"[...({page}?.querySelectorAll('.uplot canvas') ?? [])]"
    browser.shows(f"{canvases}.length === 4", "the pipeline's page")
    plots = f"{canvases}.map(each => each.toDataURL()).join()"
    paper = f"document.querySelector('iframe').contentWindow.getComputedStyle({page}.body).backgroundColor"
    light, drawn_light = browser.evaluate(paper), browser.evaluate(plots)
    try:
        browser.evaluate("localStorage.setItem('theme', 'dark')")  # as the switch of Airflow's UI does
        browser.shows(f"{paper} !== {json.dumps(light)} && {plots} !== {json.dumps(drawn_light)}", "the dark page")
        browser.evaluate("document.querySelector('iframe').contentWindow.location.reload()")
        browser.shows(f"{canvases}.length === 4 && {paper} !== {json.dumps(light)}", "the dark page again")
    finally:
        browser.evaluate("localStorage.removeItem('theme')")


def test_a_keyboard_is_enough_and_hostile_texts_are_shown_as_they_are(root: Path, airflow: str, browser: Chromium) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    home.complete(run=OF_A_DAG, parameters={"warehouse": HOSTILE})
    for number in range(2, 5):
        failure = ErrorReport(error="StorageError", retry="at once", failed=HOSTILE) if number == 3 else None
        home.staged.store.record(a_try(number, began_at=NOW.replace(minute=number), failure=failure))
    lose_files(home, f"/data/{HOSTILE}")
    failing(home, HOSTILE)
    dag_id = controlled(home)
    with home.driver():
        browser.sign_in(token("user"))
        browser.open(f"{airflow}/stream-pipelines/pipelines?dag_id=flights")
        assert "<script>alert(1)</script>" in text(browser)
        browser.tab_to("tbody tr a")
        browser.press("Enter")
        browser.shows("document.querySelectorAll('.uplot canvas').length === 4", "the pipeline's page")
        assert text(browser).count("<script>alert(1)</script>") >= 4  # the stage, the loss, the parameter, the failure
        browser.tab_to("[aria-label='Compare 4-1 with another one']")
        browser.press("Enter")
        browser.shows("document.body?.innerText.includes('Choose the checkpoint to compare with 4, try 1')", "the first choice")
        browser.tab_to("[aria-label='Compare 4-1 with 3-1']")
        browser.press("Enter")
        browser.shows("document.getElementById('compared') !== null", "the comparison")
        assert "StorageError: </td><script>alert(1)</script>" in text(browser)
        browser.tab_to("[data-action=stop]")
        browser.press("Enter")
        browser.shows("document.activeElement?.innerText === 'Stop the pipeline?'", "the question")
        browser.press("Enter")
        browser.shows(f"location.pathname.startsWith('/dags/{dag_id}/runs/')", "the run that was started")
        assert complaints(browser) == []  # an inline script or an event handler would be blocked and reported


def test_a_storage_that_hangs_hides_no_other_pipeline_and_the_page_recovers_with_the_storage(
    root: Path, tmp_path: Path, airflow: str, browser: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = Event()

    def hanging(conn_id: str) -> Listing:
        if conn_id == "away":
            goes_on.wait()
        return list_pipelines(conn_id)

    monkeypatch.setattr(pipelines, "list_pipelines", hanging)
    monkeypatch.setattr(look_limits, "LOOK_MAX_S", 2.0)
    (tmp_path / "away").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", connection(home_root=str(tmp_path / "away")))
    here, away = used_home(root, "orders", OF_A_DAG), used_home(tmp_path / "away", "prices", OF_A_DAG)
    said = "away: The storage of the homes does not answer"
    try:
        with browser.hurried():
            browser.sign_in(token("op"))
            browser.open(f"{airflow}/stream-pipelines/pipelines")
            assert said in text(browser)
            assert (here.url in text(browser), away.url in text(browser)) == (True, False)
            browser.click("tbody tr a")
            browser.shows("document.body?.innerText.includes('Newest checkpoint')", "the page of the other pipeline")
            browser.open(f"{airflow}/stream-pipelines/pipelines")
            goes_on.set()
            browser.shows(f"document.body?.innerText.includes({json.dumps(away.url)})", "the storage is back")
            assert said not in text(browser)
            assert complaints(browser) == []
    finally:
        goes_on.set()


PAINT_MAX_MS = 2_000
LOOKS = 5


@pytest.mark.nightly
def test_a_hundred_pipelines_and_a_thousand_checkpoints_are_painted_within_two_seconds(
    root: Path, airflow: str, browser: Chromium
) -> None:
    """The list reads no history, so only one of the pipelines has one here. Of several looks the best counts: this host is busy."""
    home = used_home(root, "0", OF_A_DAG)
    home.complete(run=OF_A_DAG)
    for number in range(1, 100):
        copytree(root / "0", root / str(number))
    for number in range(2, 1_001):
        create_document(home.files, history_path(CheckpointId(number), 1), a_try(number))
    browser.sign_in(token("viewer"))
    own = f"stream_pipeline_default/{Row('', home.url, None).key}"
    for page in ("pipelines", f"pipelines/{own}"):
        painted_ms = []
        for _ in range(LOOKS):
            browser.open("about:blank")
            browser.open(f"{airflow}/stream-pipelines/{page}")
            browser.shows("performance.getEntriesByName('first-contentful-paint').length === 1", "the page is painted")
            painted_ms.append(browser.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        assert min(painted_ms) < PAINT_MAX_MS, (page, painted_ms)
    assert browser.evaluate("document.querySelectorAll('.uplot canvas').length") == 4
