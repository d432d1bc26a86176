"""The pipelines page: which pipelines a user sees, the details of one, and the escaping of foreign texts."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from shutil import copytree
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from airflow_provider.tasks.identity import dag_of
from spark_jobs.checkpoint.savepoint import export
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import history_path
from spark_jobs.protocol.documents import (
    BlockedPublication,
    ErrorReport,
    InputLag,
    RunState,
    StageState,
    StageStatus,
    Status,
    ToleratedRows,
)
from spark_jobs.protocol.errors import PermanentFailureError
from spark_jobs.protocol.history import CheckpointHistory, StepTime
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RequestId, RunId, SinkName, StageName
from spark_jobs.storage.files import Files, create_document
from spark_jobs.storage.open import open_files, open_place
from tests.airflow.browser import Browser
from tests.airflow.conftest import connection
from tests.support.command_line import UsedHome, a_try, lose_files
from tests.support.measured_homes import passes_over
from tests.support.object_store import object_store
from tests.support.staged_pipeline import NOW

from airflow_provider.pages import look_limits, pipeline_looks, pipelines  # isort: skip
from airflow_provider.pages.pipeline_looks import Listing, Row, Sight, levels, list_pipelines, look_at  # isort: skip
from tests.support.pipelines_page import HOSTILE, OF_A_DAG, auth, controlled, root, used_home

__all__ = ["auth", "root"]

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]


class _Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def shown(role: str | None, path: str = "pipelines") -> _Page:
    return _Page(Browser(role).page(f"/{path}"))


def words(path: str) -> str:
    """Returns the text of a page for a viewer, with one space between two words or cells."""
    return shown_words("viewer", path)


def shown_words(role: str, path: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", Browser(role).page(f"/{path}"))).split())


def link_to(page: _Page, home: UsedHome) -> str:
    """Returns the address of a pipeline's own page."""
    return link_to_place(page, home.url)


def link_to_place(page: _Page, url: str) -> str:
    key = Row("", url, None).key
    (found,) = [str(each["href"]) for each in page.all("a") if key in str(each["href"])]
    return found


def buttons(page: _Page) -> set[str | None]:
    return {each["data-action"] for each in page.all("button")}


def test_a_viewer_sees_the_pipelines_of_their_dags_and_a_user_who_may_read_the_connection_sees_all(
    root: Path,
) -> None:
    by_dag, by_shell = used_home(root, "by-dag", OF_A_DAG), used_home(root, "by-shell", "monday")
    assert [home.url in shown("viewer").text for home in (by_dag, by_shell)] == [True, False]
    assert [home.url in shown("op").text for home in (by_dag, by_shell)] == [True, True]
    assert Browser("viewer").get(f"/{link_to(shown('op'), by_shell)}").status_code == 404
    controlled(by_shell)
    assert [home.url in shown("viewer").text for home in (by_dag, by_shell)] == [True, True]
    assert shown("viewer", link_to(shown("viewer"), by_shell)).text


def test_a_user_without_a_session_or_without_permissions_sees_no_pipeline(root: Path) -> None:
    home = used_home(root, "by-dag", OF_A_DAG)
    path = link_to(shown("op"), home)
    for each in ("pipelines", path):
        answer = Browser(signed_in=False).get(f"/{each}")
        assert (answer.status_code, home.url in answer.text) == (401, False)
    assert home.url not in shown(None).text
    assert Browser(None).get(f"/{path}").status_code == 404


def test_the_pages_accept_only_reads_and_write_nothing(root: Path) -> None:
    home = used_home(root, "by-dag", OF_A_DAG)
    browser, before = Browser("admin"), sorted(map(str, root.rglob("*")))
    for path in ("pipelines", link_to(shown("op"), home), "static/pipelines.js"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            headers = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
            assert browser.client.request(method, f"/{path}", headers=headers).status_code == 405
    assert sorted(map(str, root.rglob("*"))) == before


def test_a_pipeline_that_needs_attention_is_first_and_says_why(root: Path) -> None:
    well, ill = used_home(root, "a-well", OF_A_DAG), used_home(root, "b-ill", OF_A_DAG)
    well.complete(run=OF_A_DAG)
    report = ErrorReport(
        error="RejectedError", retry="never", failed="The constraint amount > 0 refuses a row.", remedy="Drop it."
    )
    blocked = BlockedPublication(checkpoint=CheckpointId(1), since=NOW, tries=3, waiting=(SinkName("hourly"),), error=report)
    stages = {StageName("daily"): StageStatus(state=StageState.FAILED, reason="division by zero")}
    for home in (well, ill):
        fields: dict[str, Any] = {"stages": stages, "blocked": blocked} if home is ill else {}
        status = Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=NOW, **fields)
        write_status(home.files, status)
    with well.driver(), ill.driver():
        page = shown("viewer")
    assert page.text.index(ill.url) < page.text.index(well.url)
    assert "Stage daily is failed: division by zero" in page.text
    assert "The constraint amount > 0 refuses a row." in page.text
    assert re.search(r"1, \d+ days ago", page.text)


def test_one_pipeline_shows_its_stages_tries_attempts_savepoints_and_settings(root: Path) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    failure = ErrorReport(error="StorageError", retry="at once", failed="The disk is away.")
    home.staged.store.record(a_try(1, failure=failure, aligned=None))
    manifest = home.complete(run=OF_A_DAG)
    export(
        home.files,
        manifest.checkpoint,
        open_files(str(home.directory / "home/savepoints/mine")),
        request=RequestId("savepoint-1"),
    )
    channel = Channel(home.files)
    channel.respond_failure(channel.request(RequestId("start-1")), PermanentFailureError("It has failed.", remedy="Mend it."))
    controlled(home, pipeline={"entry": "/pipelines/orders.py"})
    page = shown("viewer", link_to(shown("viewer"), home))
    for text in (
        *("hourly", "daily", "reads airlines, events", "Checkpoint 1,", "The disk is away.", "It has failed. Mend it."),
        *(
            "home/savepoints/mine",
            "interval_ms",
            "warehouse (parameter)",
        ),
    ):
        assert text in page.text, text
    plots = [json.loads(str(each["data-plot"])) for each in page.all("figure")]
    assert [plot["title"] for plot in plots] == ["Duration by step", "State", "Alignment", "In flight"]
    duration = {series["label"]: series["values"] for series in plots[0]["series"]}
    assert duration["total"] == [1.75, 1.75]
    assert sorted(map(str, duration["failed"])) == ["1.75", "None"]


def test_two_tries_at_a_checkpoint_are_compared_fact_by_fact(root: Path) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    failure = ErrorReport(error="StorageError", retry="at once", failed="The disk is away.")
    quick = a_try(1, reused_state_bytes=2_000, new_state_bytes=1_000, alignment_s=1.0, aligned=True)
    steps = (StepTime(step="cut", duration_s=0.5), StepTime(step="persist", duration_s=3.0))
    slow = a_try(2, steps=steps, new_state_bytes=4_000, in_flight_rows=7, aligned=False, failure=failure)
    for each in (quick, slow):
        home.staged.store.record(each)
    path = link_to(shown("viewer"), home)
    first = next(
        str(each["href"])
        for each in shown("viewer", path).all("a")
        if each.get("aria-label", "") == "Compare 2-1 with another one"
    )
    second = next(
        str(each["href"])
        for each in shown("viewer", path + first.partition("#")[0]).all("a")
        if "Compare 2-1 with 1-1" in str(each.get("aria-label"))
    )
    text = words(path + second.partition("#")[0])
    for fact in (
        "Outcome failed: StorageError: The disk is away. complete",
        "Cut unaligned aligned",
        "Duration 3.50 s 1.75 s -1.75 s (-50%)",
        "Duration of persist 3.00 s 1.50 s -1.50 s (-50%)",
        "Alignment 0.00 s 1.00 s +1.00 s",
        "Rows in flight 7 0 -7 (-100%)",
        "New state 4.0 kB 1.0 kB -3.0 kB (-75%)",
        "Reused state 0 bytes 2.0 kB +2.0 kB",
        "Rows for tables 6 6",
    ):
        assert fact in text, fact


def test_losses_come_from_the_ledger_with_their_state_and_only_of_runs_that_the_viewer_may_see(root: Path) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    home.complete(run=OF_A_DAG)
    accepted, opened = lose_files(home, f"/data/{HOSTILE}", "/data/b")
    home.begin(2, run="by-hand")
    (of_another,) = lose_files(home, "/data/c")
    LossLedger(home.files).accept([accepted], "They were empty.")
    home.begin(3, run=OF_A_DAG)
    page = words(link_to(shown("op"), home))
    for part in (
        f"{opened} open ",
        "events hourly 7 1 file with 7 rows, such as /data/b",
        f"{accepted} accepted : They were empty.",
    ):
        assert part in page, part
    assert "/data/c" not in page
    assert f"{of_another} open " in shown_words("op", link_to(shown("op"), home))
    cells = re.findall(r'<td class="number">(\d*)</td>', Browser("op").page("/pipelines"))
    assert cells == ["2"]


@pytest.mark.parametrize("query", ["?first=1-1", "?first=1-1&second=9-9", "?first=<script>&second=1-1", "?first=1-1&second=1-1"])
def test_a_comparison_with_a_missing_try_is_not_shown(root: Path, query: str) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    home.staged.store.record(a_try(1))
    text = Browser("viewer").page(f"/{link_to(shown('viewer'), home)}{query}")
    assert "Difference" not in text
    assert "<script>" not in text


def test_the_graph_has_rows_lag_watermark_and_load_of_each_stage_and_the_list_the_whole_lag(root: Path) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    home.complete(run=OF_A_DAG)
    lag = {
        "events": InputLag(rows=1_234, size_bytes=5_000),
        "prices": InputLag(versions=1),
        "folder": InputLag(files=2),
        "rates": InputLag(),
    }
    stages = {
        StageName("hourly"): StageStatus(
            state=StageState.RUNNING, rows_in=70, rows_per_s=12.5, busy=0.97, lag=lag, watermark_ms=1_767_225_600_000
        ),
        StageName("daily"): StageStatus(
            state=StageState.RUNNING,
            busy=0.99,
            restarts=3,
            lag={"hourly": InputLag(rows=0)},
            tolerates=ToleratedRows(rows=10, interval_ms=3_600_000),
        ),
    }
    write_status(
        home.files, Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=NOW, stages=stages)
    )
    with home.driver():
        listed = shown("viewer")
        text = words(link_to(listed, home))
    assert "1,234 rows, 1 version, 2 files, 5.0 kB" in listed.text.replace("\u00a0", " ")
    for part in (
        "Rows 70, 12.5/s Watermark 2026-01-01 00:00:00",
        "Lag of events 1,234 rows, 5.0 kB Lag of folder 2 files Lag of prices 1 version Lag of rates not known",
        "Busy 97 % too slow for its input",
        "running, 3 restarts",
        "Busy 99 % May lose 10 rows in 60 min",
    ):
        assert part in text, part


def test_a_stage_with_a_tolerance_shows_how_many_rows_it_may_still_lose_counting_hidden_losses(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_looks, "LOSSES_SHOWN", 1)
    home = used_home(root, "orders", OF_A_DAG)
    home.complete(run=OF_A_DAG)
    stage = StageStatus(state=StageState.RUNNING, tolerates=ToleratedRows(rows=10, interval_ms=3_600_000))
    stages = {StageName("daily"): stage}
    write_status(
        home.files, Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=NOW, stages=stages)
    )
    for rows in (3, 4):
        passes_over(LossLedger(home.files), rows, "daily")
    path = link_to(shown("op"), home)
    assert "May lose 10 rows in 60 min, 3 left" in shown_words("op", path)
    of_one_dag = words(path)  # the rows may have been lost in a run that the viewer may not see
    assert "May lose 10 rows in 60 min" in of_one_dag
    assert "3 left" not in of_one_dag


def test_a_viewer_sees_no_button_and_a_user_who_may_trigger_the_control_dag_sees_its_buttons(root: Path) -> None:
    always = {"checkpoint", "savepoint", "stop", "drain", "cancel", "publish", "dispose"}
    for name, arguments, more in (
        ("orders", {}, set()),
        ("prices", {"pipeline": {"entry": "/pipelines/prices.py"}}, {"restore"}),
    ):
        home = used_home(root, name, OF_A_DAG)
        place = open_files(str(home.directory / "home/savepoints/mine"))
        export(home.files, home.complete(run=OF_A_DAG).checkpoint, place, request=RequestId("savepoint-1"))
        path = link_to(shown("op"), home)
        assert buttons(shown("admin", path)) == set()
        dag_id = controlled(home, **arguments)
        assert buttons(shown("viewer", path)) == set()
        assert buttons(shown("user", path)) == always | more
        (asked,) = {each["data-dag-runs"] for each in shown("user", path).all("section") if "data-dag-runs" in each}
        assert asked == f"../../../api/v2/dags/{dag_id}/dagRuns"


def test_a_dag_shows_its_own_pipelines(root: Path) -> None:
    own, other = used_home(root, "own", OF_A_DAG), used_home(root, "other", "airflow/prices/monday/run")
    page = shown("viewer", "pipelines?dag_id=flights")
    assert (own.url in page.text, other.url in page.text) == (True, False)


def test_text_of_others_is_escaped_on_every_page(root: Path) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    home.complete(run=OF_A_DAG, parameters={"warehouse": HOSTILE})
    channel = Channel(home.files)
    channel.respond_failure(channel.request(RequestId("start-1")), PermanentFailureError(HOSTILE, remedy=HOSTILE))
    stages = {StageName("daily"): StageStatus(state=StageState.FAILED, reason=HOSTILE)}
    fields: dict[str, Any] = {"stages": stages, "spark_ui": "javascript:alert(1)"}
    write_status(
        home.files, Status(attempt=AttemptNumber(1), run=RunId(OF_A_DAG), state=RunState.RUNNING, updated_at=NOW, **fields)
    )
    for path in ("pipelines", link_to(shown("viewer"), home), f"pipelines?dag_id={HOSTILE}"):
        text = Browser("viewer").page(f"/{path}")
        page = _Page(text)
        assert {each.get("src") for each in page.all("script")} <= {
            f"{root}static/{name}" for root in ("", "../../") for name in ("theme.js", "pipelines.js", "uplot-1.6.32.min.js")
        }
        assert page.all("img") == []
        assert "javascript:" not in text
        assert "\u202e" not in text
        if "dag_id" not in path:
            assert "<script>alert(1)</script>" in page.text


def test_the_policy_allows_no_inline_script_or_style_and_the_pages_have_none(root: Path) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    home.complete(run=OF_A_DAG)
    browser = Browser("viewer")
    for path in ("pipelines", link_to(shown("viewer"), home)):
        answer = browser.get(f"/{path}")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"https?:", policy)
        page = _Page(answer.text)
        assert page.all("style") == []
        assert not any(name == "style" or name.startswith("on") for _, attributes in page.elements for name in attributes)
        for each in [*page.all("script"), *page.all("link")]:
            name = str(each.get("src") or each.get("href")).rpartition("/")[2]
            served = browser.get(f"/static/{name}")
            assert (served.status_code, served.headers["X-Content-Type-Options"]) == (200, "nosniff")
            assert ("javascript" if name.endswith("js") else "css") in served.headers["Content-Type"]
    assert "script-src" not in browser.get("/nothing").headers["Content-Security-Policy"]


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "uplot-LICENSE.txt", "%2e%2e%2fplugin.py"])
def test_no_other_file_is_served(root: Path, name: str) -> None:
    assert Browser("admin").get(f"/static/{name}").status_code == 404


def test_a_home_that_cannot_be_read_shows_no_contents_and_hides_no_other_home(root: Path) -> None:
    sound, broken = used_home(root, "sound", OF_A_DAG), used_home(root, "broken", OF_A_DAG)
    (broken.directory / "home/pipeline.json").write_text('{"secret": "of-another-dag"')
    page = shown("op")
    assert sound.url in page.text
    assert "pipeline.json cannot be read" in page.text
    own = shown("op", link_to(page, broken))
    assert "cannot be read" in own.text
    assert "of-another-dag" not in own.text + page.text


def test_the_history_is_read_once_however_often_its_page_is_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = used_home(root, "orders", OF_A_DAG)
    for number in range(1, 4):
        home.staged.store.record(a_try(number))
    row = Row("stream_pipeline_default", home.url, None)
    first = look_at(row, None)
    home.staged.store.record(a_try(4))
    read: list[str] = []
    real = pipeline_looks._try

    def reading(files: Files, path: str) -> CheckpointHistory | None:
        read.append(path)
        return real(files, path)

    monkeypatch.setattr(pipeline_looks, "_try", reading)
    second = look_at(row, first)
    assert [each.checkpoint for each in second.tries.values()] == [1, 2, 3, 4]
    assert read == ["history/4-1.json"]


def test_a_viewer_of_one_dag_sees_no_runs_of_another_dag_in_the_same_home(root: Path) -> None:
    home = used_home(root, "orders", "airflow/secret/monday/run")
    home.complete(run="airflow/secret/monday/run")
    home.begin(2, run=OF_A_DAG)
    row = Row("stream_pipeline_default", home.url, None)
    sight = Sight(lambda dag_id: dag_id == "flights", lambda _: False, {})
    found = sight.detail(look_at(row, None))
    assert sight.sees(found.row)
    assert [dag_of(each.run) for each in found.attempts] == ["flights"]
    assert {each.attempt for each in found.tries.values()} <= {2}
    assert found.row.found is not None
    assert found.row.found.head is None
    nobody = Sight(lambda _: False, lambda _: False, {})
    assert not nobody.sees(found.row)
    assert Attempts(home.files).numbers() == [1, 2]


def test_a_stage_is_drawn_right_of_its_inputs_also_in_a_graph_with_a_cycle() -> None:
    graph = {
        "stages": {"c": {"inputs": {"x": "b"}}, "a": {"inputs": {"e": "events"}}, "b": {"inputs": {"x": "a", "y": "events"}}}
    }
    assert levels(graph) == [[("a", ["events"])], [("b", ["a", "events"])], [("c", ["b"])]]
    assert levels({}) == []
    circle = {"stages": {"a": {"inputs": {"x": "b"}}, "b": {"inputs": {"x": "a"}}}}
    assert sorted(name for column in levels(circle) for name, _ in column) == ["a", "b"]


def test_a_viewer_of_one_dag_sees_no_runs_of_a_shell_in_the_same_home(root: Path) -> None:
    home = used_home(root, "orders", "by-hand")
    home.complete(run="by-hand", parameters={"warehouse": "w", "days": 77})
    home.begin(2, run=OF_A_DAG)
    path = link_to(shown("op"), home)
    for role, seen in (("op", True), ("viewer", False)):
        page = shown(role, path)
        assert ("by-hand" in page.text, "can be restored" in page.text) == (seen, seen)
        assert OF_A_DAG in page.text


def test_a_home_in_a_store_is_listed_and_shown_in_full(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = used_home(root, "orders", OF_A_DAG)
    used.complete(run=OF_A_DAG)
    with object_store() as url:
        monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=f"{url}/homes"))
        stored = open_place(f"{url}/homes/team/orders")
        for path in used.files.paths():
            if not path.startswith("work/"):
                stored.create(path, used.files.read(path))
        listing = list_pipelines("stream_pipeline_default")
        assert (listing.in_store, listing.problems, [row.home for row in listing.rows]) == (True, (), [stored.url])
        page = shown("viewer")
        assert stored.url in page.text
        own = shown("viewer", link_to_place(page, stored.url))
        assert "Checkpoint 1," in own.text
        assert "reads airlines, events" in own.text


def test_a_storage_that_hangs_holds_one_thread_for_all_viewers_and_hides_no_other_pipeline(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = Event()

    def hanging(conn_id: str) -> Listing:
        if conn_id == "away":
            goes_on.wait()
        return list_pipelines(conn_id)

    monkeypatch.setattr(pipelines, "list_pipelines", hanging)
    monkeypatch.setattr(look_limits, "LOOK_MAX_S", 2.0)
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", connection(home_root=str(tmp_path / "away")))
    home, viewers = used_home(root, "orders", OF_A_DAG), 30
    try:
        with ThreadPoolExecutor(viewers) as pool:
            texts = list(pool.map(lambda _: Browser("op").page("/pipelines"), range(viewers)))
        held = [each for each in enumerate_threads() if each.name == "pipelines page"]
    finally:
        goes_on.set()
    assert len(held) == 1
    assert all("away: The storage of the homes does not answer" in text for text in texts)
    assert any(home.url in text for text in texts)
    while any(each.name == "pipelines page" for each in enumerate_threads()):
        Event().wait(0.01)


def test_a_hundred_pipelines_and_a_thousand_checkpoints_are_shown(root: Path) -> None:
    """The list reads no history, so only one of the pipelines has one here."""
    home = used_home(root, "0", OF_A_DAG)
    home.complete(run=OF_A_DAG)
    for number in range(1, 100):
        copytree(root / "0", root / str(number))
    for number in range(2, 1_001):
        create_document(home.files, history_path(CheckpointId(number), 1), a_try(number))
    browser = Browser("viewer")
    listed = _Page(browser.page("/pipelines"))
    own = _Page(browser.page(f"/{link_to(listed, home)}"))
    assert len([each for each in listed.all("a") if str(each["href"]).startswith("pipelines/")]) == 100
    assert {len(json.loads(str(each["data-plot"]))["x"]) for each in own.all("figure")} == {1_000}
