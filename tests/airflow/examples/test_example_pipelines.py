"""The example pipelines and DAG files, as far as they can be checked without Spark and without a run."""

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jobs.api.load import load_pipeline
from tests.airflow.conftest import AIRFLOW_HOME, DAGS, ROOT
from tests.support.example_pipelines import EXAMPLES, flights_data

PARSE = """
import sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
print(sorted(bag.dag_ids), sorted({"pyspark", "delta", "pyarrow", "pandas"} & set(sys.modules)))
print(sorted(dag_id for dag_id, dag in bag.dags.items() if not dag.doc_md or dag.catchup or not dag.start_date))
"""


def test_the_dags_parse_without_spark_and_explain_themselves() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "AIRFLOW_HOME": f"{AIRFLOW_HOME.name}/parse"}
    done = subprocess.run([sys.executable, "-c", PARSE, str(DAGS)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [f"{EXAMPLES} []", "[]"]


@pytest.mark.parametrize("name", ["approximate", "flights", "increments", "live", "backfill"])
def test_the_schema_that_a_dag_reads_is_the_schema_of_its_pipeline(name: str) -> None:
    pipeline = load_pipeline(str(DAGS / f"pipelines/{name}.py"))
    assert json.loads((DAGS / f"pipelines/{name}.schema.json").read_text()) == pipeline.schema()


@pytest.mark.parametrize("name", ["approximate", "live"])
def test_the_next_version_of_a_pipeline_has_the_same_stages_and_parameters(name: str) -> None:
    old, new = (load_pipeline(str(DAGS / f"pipelines/{each}.py")) for each in (name, f"{name}_next"))
    assert (old.name, old.schema(), old.graph().describe()) == (new.name, new.schema(), new.graph().describe())


@pytest.mark.parametrize(
    ("name", "stages"),
    [("flights", ["hourly", "daily", "late_spells"]), ("increments", ["hourly_departures", "daily_departures"])],
)
def test_the_stages_are_in_a_row_and_each_has_a_table(name: str, stages: list[str]) -> None:
    graph = load_pipeline(str(DAGS / f"pipelines/{name}.py")).graph()
    assert [str(name) for name in graph.stages] == [str(name) for name in graph.sinks] == stages
    for before, after in zip(graph.stages, list(graph.stages)[1:], strict=False):
        assert before in graph.stages[after].inputs


@pytest.mark.parametrize("name", ["live", "backfill"])
def test_the_unbounded_pipelines_have_the_same_tables_and_publish_every_checkpoint(name: str) -> None:
    graph = load_pipeline(str(DAGS / f"pipelines/{name}.py")).graph()
    assert [str(sink) for sink in graph.sinks] == ["departed", "hourly_delays"]
    assert all(stage.unbounded for stage in graph.stages.values())


def test_the_year_is_loaded_completely_and_only_once(tmp_path: Path) -> None:
    data = flights_data()
    flights, airlines = str(tmp_path / "flights"), str(tmp_path / "airlines")
    assert data.load_year(flights, airlines) == data.load_year(flights, airlines) == 336_776
    table = DeltaTable(flights)
    assert table.version() == 0
    assert len(table.file_uris()) == 12
    assert DeltaTable(airlines).count() == 16


def test_cancelled_flights_are_kept_and_departures_are_utc() -> None:
    flights = flights_data().read_flights()
    assert flights["dep_delay"].null_count == 8255
    assert flights["departure"].null_count == 0
    assert str(flights["departure"][0]) == "2013-01-01 10:15:00+00:00"


def test_a_table_with_other_rows_than_the_years_is_refused(tmp_path: Path) -> None:
    data = flights_data()
    flights = str(tmp_path / "flights")
    data.load_day(flights, date(2013, 1, 1))
    with pytest.raises(SystemExit, match="842 rows instead of 336,776"):
        data.load_year(flights, str(tmp_path / "airlines"))


def test_a_day_that_is_loaded_twice_is_in_the_table_once(tmp_path: Path) -> None:
    data = flights_data()
    flights = str(tmp_path / "arrivals")
    for day in (date(2013, 1, 1), date(2013, 1, 1), date(2013, 1, 2)):
        assert data.load_day(flights, day) in (842, 943)
    assert DeltaTable(flights).count() == 842 + 943


def test_a_day_without_flights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="of 2013"):
        flights_data().load_day(str(tmp_path / "arrivals"), date(2026, 1, 1))
    assert not (tmp_path / "arrivals").exists()
