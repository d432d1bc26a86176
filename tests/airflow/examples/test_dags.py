"""The example DAGs, run by Airflow with its embedded database and real drivers."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.utils import db
from airflow.utils.session import create_session
from deltalake import DeltaTable

from scripts.demo.independent import compare, read_airlines, read_flights
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import DAGS, EXAMPLES, ROOT, connection
from tests.airflow.lineage_events import Event, datasets, ended
from tests.support.example_pipelines import flights_data
from tests.support.short_jvm import FEW_ROWS, SHORT_RUN

__all__ = ["ended"]
pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]

HOUR, DAY, TICK = timedelta(hours=1), timedelta(days=1), timedelta(microseconds=1)
DAYS = [date(2013, 1, day) for day in (1, 2, 3)]
Row = tuple[object, ...]


@pytest.fixture(scope="module")
def bag() -> DagBag:
    """The example DAGs, in a new database."""
    db.initdb()
    with create_session() as session:
        bundles: Any = DagBundlesManager
        bundles().sync_bundles_to_db(session=session)
    found = DagBag(dag_folder=str(DAGS))
    sync_bag_to_db(found, "dags-folder", None)
    return found


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None) -> Path:
    """The home root of the connection."""
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"} | SHORT_RUN
    extra = {"home_root": str(tmp_path), "master": "local[2]", "conf": json.dumps(conf)}
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(**extra))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    defaults = SHORT_RUN | {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2"}
    spark_defaults(tmp_path / "spark", defaults, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spark_defaults(directory: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives these settings to every Spark that a task starts, like the administrator of a host."""
    directory.mkdir(exist_ok=True)
    (directory / "spark-defaults.conf").write_text("\n".join(f"{key} {value}" for key, value in settings.items()))
    monkeypatch.setenv("SPARK_CONF_DIR", str(directory))


@pytest.fixture
def few_rows(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings for a few days of flights, for which compiled code would not pay off."""
    defaults = FEW_ROWS | {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2"}
    spark_defaults(homes / "spark", defaults, monkeypatch)


def run(bag: DagBag, dag_id: str, day: date, **conf: Any) -> dict[str, Any]:
    """Runs a DAG to its end and returns the facts of its pipeline's run."""
    dag: Any = bag.dags[dag_id]
    dag_run = dag.test(logical_date=datetime(day.year, day.month, day.day, tzinfo=UTC), run_conf=conf)
    assert dag_run.state == "success"
    return dict(dag_run.get_task_instance("run").xcom_pull(task_ids="run"))


def published(facts: dict[str, Any]) -> dict[str, pa.Table]:
    return {name: DeltaTable(sink["table"]).to_pyarrow_table() for name, sink in facts["sinks"].items()}


def counted(bag: DagBag, dag_id: str) -> dict[str, int]:
    """Returns the row counts of a DAG that reads tables."""
    dag: Any = bag.dags[dag_id]
    dag_run = dag.test(logical_date=datetime(2026, 1, 1, tzinfo=UTC))
    assert dag_run.state == "success"
    return dict(dag_run.get_task_instance("count_rows").xcom_pull(task_ids="count_rows"))


def rows(table: pa.Table) -> Counter[Row]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def arrivals(days: list[date]) -> list[tuple[datetime, str, bool]]:
    """Returns departure, origin and cancellation of each flight on these days."""
    first = flights_data().read_flights().slice(0, 5_000).select(["day", "departure", "origin", "dep_delay"])
    flights = zip(*(column.to_pylist() for column in first.columns), strict=True)
    return [(at, origin, delay is None) for day, at, origin, delay in flights if day in days]


def hourly_answer(days: list[date], before: datetime | None = None) -> Counter[Row]:
    """Computes the rows of ``hourly_departures`` by counting, for windows that end at ``before`` or earlier."""
    flights: Counter[tuple[str, datetime]] = Counter()
    cancelled: Counter[tuple[str, datetime]] = Counter()
    for at, origin, is_cancelled in arrivals(days):
        hour = (origin, at.replace(minute=0, second=0, microsecond=0))
        flights[hour] += 1
        cancelled[hour] += is_cancelled
    return Counter(
        (origin, start, start + HOUR - TICK, count, cancelled[origin, start])
        for (origin, start), count in flights.items()
        if before is None or start + HOUR <= before
    )


def daily_answer(days: list[date]) -> Counter[Row]:
    """Computes the rows of ``daily_departures`` from those of the hours."""
    found: dict[tuple[object, datetime], list[tuple[int, int]]] = {}
    for origin, start, _, flights, cancelled in hourly_answer(days):
        assert isinstance(start, datetime)
        assert isinstance(flights, int)
        assert isinstance(cancelled, int)
        found.setdefault((origin, start.replace(hour=0)), []).append((flights, cancelled))
    return Counter(
        (origin, start, start + DAY - TICK, sum(f for f, _ in hours), sum(c for _, c in hours), max(f for f, _ in hours))
        for (origin, start), hours in found.items()
    )


def test_bounded_flights_gives_what_an_independent_query_gives(bag: DagBag, homes: Path) -> None:
    facts = run(bag, "bounded_flights", date(2026, 1, 1))
    assert (facts["round"], facts["drained"]) == (1, True)
    assert facts["home"] == f"file://{homes}/bounded_flights"
    assert {name: sink["version"] for name, sink in facts["sinks"].items()} == {"hourly": 1, "daily": 1, "late_spells": 1}
    tables = published(facts)
    assert {name: table.num_rows for name, table in tables.items()} == {n: s["rows"] for n, s in facts["sinks"].items()}
    compared = compare(tables, read_flights(), read_airlines())
    assert len(compared) == 3
    assert [each for each in compared if not each.same] == []


# test_an_audit_that_fails_leaves_every_table_as_it_was runs the same DAG by day, and test_publish_operator.py publishes.
@pytest.mark.nightly
@pytest.mark.usefixtures("few_rows")
def test_a_checkpoint_that_passes_the_audit_is_published_and_readers_see_one_cut(
    bag: DagBag, ended: Callable[[str], Event]
) -> None:
    facts = run(bag, "write_audit_publish", DAYS[0])
    assert {name: sink["version"] for name, sink in facts["sinks"].items()} == {
        "hourly_departures": None,
        "daily_departures": None,
    }
    watermark = max(at for at, _, _ in arrivals(DAYS[:1])) - HOUR
    assert rows(published(facts)["hourly_departures"]) == hourly_answer(DAYS[:1], before=watermark)
    assert_lineage(facts, staged=ended("run"), public=ended("publish"))
    assert counted(bag, "asset_consumer") == {name: table.num_rows for name, table in published(facts).items()}


def assert_lineage(facts: dict[str, Any], staged: Event, public: Event) -> None:
    """Checks that the tables are outputs of the task that has made them public, and that both tasks have the same input."""
    (arrivals,) = datasets(staged, "inputs")
    assert arrivals.removeprefix("file ") == f"{EXAMPLES}/write_audit_publish/arrivals"
    assert datasets(staged, "inputs") == datasets(public, "inputs")
    assert datasets(staged, "inputs")[arrivals]["version"] == {"datasetVersion": str(DeltaTable(arrivals[5:]).version())}
    assert datasets(staged, "outputs") == {}
    outputs = datasets(public, "outputs")
    tables = published(facts)
    assert set(outputs) == {
        f"file {DeltaTable(sink['table']).table_uri.removeprefix('file://').rstrip('/')}" for sink in facts["sinks"].values()
    }
    for name, table in tables.items():
        (found,) = (each for dataset, each in outputs.items() if dataset.endswith(f"/{name}"))
        assert found["version"] == {"datasetVersion": "1"}
        assert found["outputStatistics"] == {"rowCount": table.num_rows}
        assert [field["name"] for field in found["schema"]["fields"]] == table.column_names


@pytest.mark.nightly
@pytest.mark.usefixtures("few_rows")
def test_a_declarative_project_is_published_as_one_cut_after_its_audit(bag: DagBag) -> None:
    facts = run(bag, "declarative_project", DAYS[0])
    assert {name: sink["version"] for name, sink in facts["sinks"].items()} == {"hourly_departures": None, "origins": None}
    watermark = max(at for at, _, _ in arrivals(DAYS[:1])) - HOUR
    expected = hourly_answer(DAYS[:1], before=watermark)
    tables = published(facts)
    assert rows(tables["hourly_departures"]) == expected
    until = max(end for _, _, end, _, _ in expected if isinstance(end, datetime))
    flights = Counter(origin for at, origin, _ in arrivals(DAYS[:1]) if at <= until)
    assert dict(zip(*(tables["origins"][name].to_pylist() for name in ("origin", "flights")), strict=True)) == flights


@pytest.mark.nightly
def test_an_audit_publishes_nothing_and_a_later_spark_jobs_publish_does(bag: DagBag) -> None:
    facts = run(bag, "write_audit", DAYS[0])
    assert all(table.num_rows == 0 for table in published(facts).values())
    publish(open_files(facts["home"]))
    assert {name: table.num_rows for name, table in published(facts).items()} == {
        name: sink["rows"] for name, sink in facts["sinks"].items()
    }


@pytest.mark.usefixtures("few_rows")
def test_an_audit_that_fails_leaves_every_table_as_it_was(bag: DagBag, homes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dag: Any = bag.dags["write_audit_publish"]
    apart = EXAMPLES / "audit that fails"  # separate from the days of the other tests
    conf = {"most_cancelled": 0.0, "arrivals": f"{apart}/arrivals", "warehouse": f"{apart}/warehouse"}
    dag_run = dag.test(logical_date=datetime(2013, 1, 2, tzinfo=UTC), run_conf=conf)
    assert dag_run.state == "failed"
    states = {each.task_id: each.state for each in dag_run.get_task_instances()}
    assert states == {"arrive": "success", "run": "success", "audit": "failed", "publish": "upstream_failed"}
    facts = dag_run.get_task_instance("run").xcom_pull(task_ids="run")
    assert all(table.num_rows == 0 for table in published(facts).values())
    assert "read_staged(spark" in "".join(capfd.readouterr())


@pytest.mark.nightly
def test_runs_of_three_days_equal_one_batch_query_over_all_three(bag: DagBag) -> None:
    tables: dict[str, pa.Table] = {}
    for number, day in enumerate(DAYS, start=1):
        last = day == DAYS[-1]
        facts = run(bag, "daily_increment", day, on_end="drain" if last else "suspend")
        assert (facts["round"], facts["drained"]) == (number, last)
        so_far = DAYS[:number]
        watermark = None if last else max(at for at, _, _ in arrivals(so_far)) - HOUR
        tables = published(facts)
        assert rows(tables["hourly_departures"]) == hourly_answer(so_far, before=watermark)
        assert rows(tables["daily_departures"]) <= daily_answer(so_far)
    assert rows(tables["daily_departures"]) == daily_answer(DAYS)
    assert counted(bag, "watching_consumer") == {name: table.num_rows for name, table in tables.items()}
