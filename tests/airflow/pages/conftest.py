"""One API server of Airflow and one browser for the tests of pages. A test that fails keeps screenshots of its page."""

from collections.abc import Generator, Iterator
from threading import Thread
from typing import Any

import pytest
import uvicorn

from tests.support.chromium import FAILURES, Chromium, chromium, keep_screenshots
from tests.support.running_airflow import until


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    browser = getattr(item, "funcargs", {}).get("browser")
    if browser is not None and report.when == "call" and report.failed:
        keep_screenshots(browser, FAILURES / item.name)
    return report


@pytest.fixture(scope="module")
def airflow() -> Iterator[str]:
    """The address of Airflow's API server, with its UI and the plugin."""
    from airflow.api_fastapi.app import create_app

    app: Any = create_app(apps="core")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, "Airflow's API server is there")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def open_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture
def browser(open_browser: Chromium) -> Chromium:
    """The browser with an empty page, as if it had just been started."""
    open_browser.open("about:blank")
    open_browser.theme("light")
    open_browser.window(1100, 900)
    open_browser.complaints.clear()
    open_browser.clicks = 0
    return open_browser
