"""A page of pipelines in a browser: how soon it shows its first row, beside a page of Airflow's that shows as many things."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.listed_dags import FIRST
from benchmarks.site import Site
from spark_jobs.home.layout import history_path
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.storage.files import create_document
from tests.support.chromium import Chromium, chromium
from tests.support.command_line import UsedHome, a_try
from tests.support.running_airflow import until

FIRST_ROW = Kind(
    "pages in a browser", "seconds from the click until the first row is there", Better.LESS, "our page", "Airflow's"
)
_MOST_S = 2.0
"""The promised limit."""
_LOOK_FOR = """{
  const look = () => {
    if (document.querySelector(%s)) window.firstRowMs = performance.now();
    else requestAnimationFrame(look);
  };
  look();
}"""
"""Notes the time from the beginning of a page's load to the frame in which an element is on it."""


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """The list of pipelines beside Airflow's list of DAGs, and the page of a pipeline beside Airflow's list of a DAG's runs."""
    if not shutil.which("chromium"):
        tell("Pages are not measured: there is no command chromium.")
        return
    pipelines, checkpoints = (20, 200) if quick else (100, 1_000)
    directory = site.new()
    tell(f"making {pipelines:,} homes with {checkpoints:,} checkpoints each")
    _make_homes(directory / "homes", pipelines, checkpoints)
    with _airflow(directory, pipelines, checkpoints, tell) as address, chromium(directory / "profile") as browser:
        browser.open(address)  # signs in
        browser.shows("location.pathname === '/'", "Airflow's first page")
        ours = f"{address}/stream-pipelines/pipelines"
        browser.open(ours)
        one = str(browser.evaluate("document.querySelector('tbody tr a').href"))
        for name, own, airflows in (
            (
                f"a list: {pipelines:,} pipelines, {pipelines:,} DAGs",
                (ours, "tbody tr a"),
                (f"{address}/dags", "[data-testid=dag-card]"),
            ),
            (
                f"one of them: {checkpoints:,} checkpoints, {checkpoints:,} runs",
                (one, "[aria-label^=Compare]"),
                (f"{address}/dags/{FIRST}/runs", "tbody tr"),
            ),
        ):
            timed = measured_in_turn(
                FIRST_ROW,
                name,
                ours=partial(_first_row_s, browser, *own),
                plain=partial(_first_row_s, browser, *airflows),
                turns=3 if quick else 5,
                tell=tell,
            )
            yield Figure(timed.kind, timed.name, timed.ours, timed.plain, most=_MOST_S)
    shutil.rmtree(directory)


def _first_row_s(browser: Chromium, url: str, row: str) -> float:
    browser.open("about:blank")
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source=_LOOK_FOR % json.dumps(row))
    try:
        browser.open(url)
        browser.shows("window.firstRowMs !== undefined", f"the first row of {url}")
        return float(browser.evaluate("window.firstRowMs")) / 1_000
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **added)


def _make_homes(root: Path, pipelines: int, checkpoints: int) -> None:
    """Makes homes with the history of as many checkpoints each. Their files are links to those of the first one."""
    first = root / "pipeline-0"
    first.mkdir(parents=True)
    home = UsedHome(first)
    home.begin()
    home.complete()
    for number in range(2, checkpoints + 1):
        create_document(home.files, history_path(CheckpointId(number), 1), a_try(number))
    for number in range(1, pipelines):
        shutil.copytree(first, root / f"pipeline-{number}", copy_function=os.link)


@contextmanager
def _airflow(directory: Path, dags: int, runs: int, tell: Tell) -> Iterator[str]:
    """Airflow's API server, whose visitors are all signed in as administrators; the address of its UI."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(directory / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(directory / "airflow/dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT": json.dumps(
            {"conn_type": "stream_pipeline", "extra": {"home_root": str(directory / "homes")}}
        ),
    }
    tell(f"putting {dags:,} DAGs into Airflow's database")
    (directory / "airflow/dags").mkdir(parents=True)
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.listed_dags", str(dags), str(runs)],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(made.stderr[-4000:])
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    tell("starting Airflow's API server")
    with (directory / "airflow/server.out").open("wb") as output:
        server = subprocess.Popen(
            [Path(sys.executable).with_name("airflow"), "api-server", "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(partial(_answers, address), "Airflow's API server is there")
        yield address
    finally:
        server.terminate()
        server.wait(60.0)


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/api/v2/version", timeout=5.0):
            return True
    except OSError:
        return False
