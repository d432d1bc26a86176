"""The pipelines page in a real browser, served by Airflow's own API server: a new user's path from the navigation to a stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import uvicorn
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import select

from spark_jobs.control.liveness import holding
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import AttemptNumber, RunId, StageName
from tests.airflow.browser import init_auth_manager, token
from tests.airflow.test_pipelines_page import OF_A_DAG, auth, controlled, root, used_home
from tests.support.chromium import Chromium, chromium
from tests.support.command_line import a_try
from tests.support.running_airflow import until
from tests.support.staged_pipeline import NOW

__all__ = ["auth", "root"]

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.nightly,  # needs Debian's package chromium
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]


@contextmanager
def served() -> Iterator[str]:
    """The address of Airflow's API server, with its UI and the plugin."""
    from airflow.api_fastapi.app import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(apps="core"), host="127.0.0.1", port=0, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, "Airflow's API server is there")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def text(browser: Chromium) -> str:
    return str(browser.evaluate("document.body.innerText"))


def complaints(browser: Chromium) -> list[str]:
    """Returns the browser's complaints about our own pages."""
    return [each for each in browser.complaints if "/stream-pipelines/" in each]


def test_from_the_navigation_to_the_stop_of_a_pipeline_that_needs_somebody(root: Path, tmp_path: Path) -> None:
    well, ill = used_home(root, "well", OF_A_DAG), used_home(root, "ill", OF_A_DAG)
    dag_id = controlled(ill)
    for number in range(1, 6):
        ill.staged.store.record(a_try(number, began_at=NOW.replace(minute=number)))
    for home in (well, ill):
        stage = (
            StageStatus(state=StageState.FAILED, reason="division by zero")
            if home is ill
            else StageStatus(state=StageState.RUNNING)
        )
        stages = {StageName("daily"): stage}
        write_status(
            home.files,
            Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=NOW, stages=stages),
        )
    locks = [holding(home.directory / "home" / DRIVER_LOCK, "start-1") for home in (well, ill)]
    with locks[0], locks[1], served() as airflow, chromium(tmp_path / "profile") as browser:
        init_auth_manager()
        browser.sign_in(token("viewer"))
        browser.open(f"{airflow}/")
        browser.shows("[...document.querySelectorAll('button')].some(each => each.innerText === 'Browse')", "the navigation")
        browser.evaluate(
            "[...document.querySelectorAll('button')].find(each => each.innerText === 'Browse')"
            ".dispatchEvent(new PointerEvent('pointerdown', {bubbles: true, button: 0}))"
        )
        browser.evaluate("[...document.querySelectorAll('button')].find(each => each.innerText === 'Browse').click()")
        browser.shows("document.querySelector('a[href$=\"stream-pipelines/pipelines\"]') !== null", "the page in the navigation")
        browser.open(
            str(browser.evaluate("document.querySelector('a[href$=\"stream-pipelines/pipelines\"]').href"))
        )  # in its own window
        browser.click("tbody tr a")
        browser.shows("document.querySelectorAll('.uplot canvas').length === 4", "the plots")
        assert "Stage daily is failed: division by zero" in text(browser)
        assert browser.evaluate("document.querySelectorAll('button').length") == 0
        page = browser.evaluate("location.href")

        browser.sign_in(token("user"))
        for theme in ("light", "dark"):
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            browser.open(page)
            colours = [browser.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")]
            assert len(set(colours)) == 2
        browser.call("Emulation.setDeviceMetricsOverride", width=380, height=800, deviceScaleFactor=1, mobile=False)
        browser.open(page)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert complaints(browser) == []

        browser.evaluate("document.querySelector('[data-action=stop]').focus()")
        browser.evaluate("document.querySelector('[data-action=stop]').click()")
        assert browser.evaluate("document.querySelector('[data-action=stop]').innerText") == "Stop the pipeline?"
        with create_session() as session:
            assert session.scalars(select(DagRun.run_id).where(DagRun.dag_id == dag_id)).all() == []
        browser.click("[data-action=stop]")
        browser.shows(f"location.pathname.startsWith('/dags/{dag_id}/runs/')", "the run that was started")
        with create_session() as session:
            (run,) = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id)).all()
            assert run.conf == {"action": "stop"}

        browser.sign_in(token("viewer"))
        asked = f"fetch('/api/v2/dags/{dag_id}/dagRuns', {{method: 'POST', headers: {{'Content-Type': 'application/json'}}, "
        body = "body: JSON.stringify({logical_date: null, conf: {action: 'stop'}})}).then(answer => answer.status)"
        assert browser.evaluate(asked + body) == 403

        browser.sign_in(token("user"))
        browser.open(page)
        stage = StageStatus(state=StageState.FAILED, reason="another reason")
        stages = {StageName("daily"): stage}
        write_status(
            ill.files,
            Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=NOW, stages=stages),
        )
        browser.shows("document.body.innerText.includes('another reason')", "the page has refreshed itself")
