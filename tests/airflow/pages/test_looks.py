"""The pages only show documents that belong to the task, or to a DAG that the viewer may see."""

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from airflow_provider.pages.looks import HOMES_MAX, Look, Record, TaskKey, look_at_homes
from airflow_provider.tasks.identity import dag_of, run_id_of
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.retention import discard
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.old_starts import STARTS_KEPT, forget_old_starts
from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.documents import SinkResult, StartResponse
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RunId, SinkName
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes, connection
from tests.support.attempts import attempt
from tests.support.staged_pipeline import NOW, a_manifest

TASK = TaskKey("flights", "manual__2026-01-01T00:00:00+00:00", "run", -1)
RUN = run_id_of(TASK)
SINKS = {SinkName("hourly"): SinkResult(table="file:///t/hourly", checkpoint=CheckpointId(1), version=3, rows=9)}


def asked(home: Path, run: RunId = RUN) -> StartRequest:
    return Channel(open_files(str(home))).request_start(run, parameters={})


def answered(home: Path, run: RunId = RUN) -> None:
    """Answers a run with one checkpoint."""
    request = asked(home, run)
    files = open_files(str(home))
    CheckpointStore(files).complete(a_manifest(int(request.attempt), run=run, attempt=request.attempt, parent=None))
    Channel(files).respond(
        StartResponse(
            request=request.request,
            attempt=request.attempt,
            run=run,
            checkpoint=CheckpointId(int(request.attempt)),
            sinks=SINKS,
            answered_at=NOW,
        )
    )


def look(home: Path | str, checkpoint: int | None = None, *, sees: tuple[str, ...] = (), conn_id: str | None = None) -> Look:
    url = home if isinstance(home, str) else f"file://{home}"
    record = Record(conn_id=conn_id or "stream_pipeline_default", homes={url: checkpoint})
    (found,) = look_at_homes(TASK, record, sees.__contains__)
    return found


def test_a_task_shows_the_checkpoint_that_its_run_was_answered_with(homes: Homes) -> None:
    answered(homes.path())
    asked(homes.path(), RunId("somebody else's"))
    found = look(homes.path())
    assert (found.problem, found.attempt, found.results()) == ("", 1, SINKS)
    assert found.manifest is not None
    assert found.manifest.run == RUN
    assert [log.name for log in found.logs] == ["logs/1.log", "logs/driver-1.out"]


def test_a_task_whose_checkpoint_was_discarded_since_shows_its_answer(homes: Homes) -> None:
    answered(homes.path())
    discard(open_files(str(homes.path())), [CheckpointId(1)])
    found = look(homes.path())
    assert (found.problem, found.manifest, found.results()) == ("", None, SINKS)


def test_a_task_whose_start_was_forgotten_since_shows_the_answer_that_is_kept(homes: Homes) -> None:
    answered(homes.path())
    files = open_files(str(homes.path()))
    attempts = Attempts(files)
    attempts.create(attempt(STARTS_KEPT + 1))
    forget_old_starts(files, attempts.read(AttemptNumber(STARTS_KEPT + 1)))
    assert Channel(files).newest_request(RUN) is None
    found = look(homes.path())
    assert (found.problem, found.attempt, found.results()) == ("", 1, SINKS)


def test_a_run_that_has_not_ended_shows_its_driver(homes: Homes) -> None:
    asked(homes.path())
    found = look(homes.path())
    assert (found.problem, found.attempt, found.manifest, found.results()) == ("", 1, None, {})


def test_a_run_that_died_between_its_checkpoint_and_its_answer_shows_the_checkpoint(homes: Homes) -> None:
    asked(homes.path())
    CheckpointStore(open_files(str(homes.path()))).complete(a_manifest(1, run=RUN, parent=None))
    assert look(homes.path()).manifest is not None


def test_a_home_without_this_run_shows_nothing_of_others(homes: Homes) -> None:
    answered(homes.path(), RunId("airflow/payroll/nightly/run"))
    found = look(homes.path(), sees=("payroll",))
    assert "nothing of this run" in found.problem
    assert (found.manifest, found.logs, found.results()) == (None, (), {})


def test_a_checkpoint_of_another_dag_is_shown_to_viewers_of_that_dag(homes: Homes) -> None:
    answered(homes.path(), RunId("airflow/pay%20roll/nightly/run"))
    assert "does not belong to a DAG that you may see" in look(homes.path(), 1, sees=("payroll", "flights")).problem
    found = look(homes.path(), 1, sees=("pay roll",))
    assert found.manifest is not None
    assert [log.name for log in found.logs] == ["logs/1.log", "logs/driver-1.out", "work/publish-1.out"]


def test_a_checkpoint_of_no_dag_is_not_shown(homes: Homes) -> None:
    answered(homes.path(), RunId("by hand"))
    assert "does not belong to a DAG that you may see" in look(homes.path(), 1, sees=("", "by hand")).problem


def test_the_page_says_that_a_home_is_not_on_this_host(homes: Homes) -> None:
    found = look(homes.path("gone"))
    assert f"It is not on {os.uname().nodename}" in found.problem
    assert f"spark-jobs status --home {homes.path('gone')}" in found.remedy
    assert not homes.path("gone").exists()


def test_a_home_with_an_impossible_name_counts_as_missing(homes: Homes) -> None:
    assert "It is not on " in look(homes.path("x" * 300)).problem


@pytest.mark.parametrize(
    "home",
    [
        "file://{elsewhere}",
        "{elsewhere}",
        "file://{root}/../elsewhere",
        "file://{root}/%2e%2e/elsewhere",
        "file://{root}/%252e%252e/elsewhere",
        "file://{root}/link",
        "file://{root}",
        "file://localhost{elsewhere}",
        "file://host{elsewhere}",
        "s3://bucket/flights",
        "http://169.254.169.254/",
        "../elsewhere",
        "flights",
        "{root}/flights",
        "~",
        "",
        "file:///",
        "file:///etc/passwd\0",
    ],
)
def test_a_record_that_was_tampered_with_shows_nothing_outside_the_roots(homes: Homes, home: str) -> None:
    elsewhere = homes.root.parent / "elsewhere"
    for place in (elsewhere, homes.path()):
        answered(place)
    (homes.root / "link").symlink_to(elsewhere)
    found = look(home.format(elsewhere=elsewhere, root=homes.root))
    assert "home roots of the connection" in found.problem
    assert str(homes.root) not in found.problem + found.remedy
    assert (found.manifest, found.logs) == (None, ())


@pytest.mark.parametrize(
    ("conn_id", "expected"),
    [("nowhere", "is not known on"), ("without_roots", "home roots of the connection"), ("wrong", "cannot be used")],
)
def test_a_connection_that_allows_nothing_shows_nothing(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, conn_id: str, expected: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WITHOUT_ROOTS", connection())
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", connection(home_root=7))
    answered(homes.path())
    found = look(homes.path(), conn_id=conn_id)
    assert expected in found.problem
    assert found.remedy
    assert (found.manifest, found.logs) == (None, ())


def test_an_answer_that_names_a_checkpoint_of_another_dag_shows_nothing_of_it(homes: Homes) -> None:
    payroll = RunId("airflow/payroll/nightly/run")
    files, first = open_files(str(homes.path())), asked(homes.path(), payroll)
    CheckpointStore(files).complete(a_manifest(1, run=payroll, attempt=first.attempt, parent=None))
    request = asked(homes.path())
    Channel(files).respond(
        StartResponse(
            request=request.request, attempt=request.attempt, run=RUN, checkpoint=CheckpointId(1), sinks=SINKS, answered_at=NOW
        )
    )
    found = look(homes.path(), sees=("flights",))
    assert "Checkpoint 1 does not belong to a DAG that you may see" in found.problem
    assert (found.manifest, found.answer, found.logs) == (None, None, ())
    assert look(homes.path(), sees=("flights", "payroll")).manifest is not None


@pytest.mark.parametrize("checkpoint", [None, 1])
def test_the_contents_of_a_broken_manifest_are_not_shown(homes: Homes, checkpoint: int | None) -> None:
    answered(homes.path())
    path = homes.path() / "manifests/1.json"
    envelope = json.loads(path.read_bytes()) | {"kind": "salaries of the board"}
    del envelope["checksum"]
    path.write_bytes(canonical(envelope | {"checksum": sha256(canonical(envelope))}) + b"\n")
    found = look(homes.path(), checkpoint)
    assert "cannot be read" in found.problem
    assert "salaries" not in found.problem + found.remedy


def test_the_page_says_that_a_manifest_is_torn(homes: Homes) -> None:
    answered(homes.path())
    path = homes.path() / "manifests/1.json"
    path.write_text(path.read_text()[:-20])
    found = look(homes.path())
    assert found.problem == f"{homes.path()}/manifests/1.json cannot be read.".replace("/", "file:///", 1)


def test_a_link_in_place_of_a_document_is_not_followed(homes: Homes) -> None:
    answered(homes.path())
    answered(homes.path("others"), RUN)
    path = homes.path() / "manifests/1.json"
    path.unlink()
    path.symlink_to(homes.path("others") / "manifests/1.json")
    assert look(homes.path()).problem


def test_a_look_writes_nothing(homes: Homes) -> None:
    answered(homes.path())
    before = {path: path.stat().st_mtime_ns for path in homes.root.rglob("*")}
    look(homes.path())
    look(homes.path(), 1)
    assert {path: path.stat().st_mtime_ns for path in homes.root.rglob("*")} == before


@pytest.mark.parametrize(
    "record",
    [
        None,
        "file:///x",
        {"conn_id": "c"},
        {"conn_id": 1, "homes": {}},
        {"conn_id": "c", "homes": ["x"]},
        {"conn_id": "c", "homes": {"x": "1"}},
        {"conn_id": "c", "homes": {f"file:///{n}": None for n in range(HOMES_MAX + 1)}},
    ],
)
def test_a_value_that_is_no_record_is_refused(record: object) -> None:
    with pytest.raises(ValidationError):
        Record.model_validate(record)


@pytest.mark.parametrize(
    ("run", "dag"),
    [(RUN, "flights"), ("airflow/a%2Fb/r/t", "a/b"), ("airflow/x", None), ("airflow/", None), ("by hand", None), ("other/x/y/z", None)],
)  # fmt: skip
def test_a_run_names_its_dag(run: str, dag: str | None) -> None:
    assert dag_of(RunId(run)) == dag
