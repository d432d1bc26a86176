"""The examples that publish after an audit, on a running Airflow with real pipelines and a person's approval."""

from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.control_tasks import answer, ended, task
from tests.support.running_airflow import RunningAirflow, TaskRun, until

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]


def tables(run: TaskRun) -> dict[str, tuple[int, int]]:
    """Returns version and row count of each table of the pipeline."""
    sinks: dict[str, Any] = task(run, "run").xcom()["sinks"]
    opened = {name: DeltaTable(sink["table"]) for name, sink in sinks.items()}
    return {name: (table.version(), table.count()) for name, table in opened.items()}


def test_a_checkpoint_that_a_person_rejects_stays_staged_and_an_approved_one_is_published(airflow: RunningAirflow) -> None:
    first = airflow.trigger("write_audit_approve_publish", day="2013-01-01")
    answer(first, "Reject")
    assert ended(first) == {"arrive": "success", "run": "success", "audit": "success", "approve": "success", "publish": "skipped"}
    before = tables(first)
    assert {rows for _, rows in before.values()} == {0}
    assert "read_staged(spark, 'file://" in task(first, "audit").log()

    second = airflow.trigger("write_audit_approve_publish", day="2013-01-02")
    answer(second, "Approve")
    assert set(ended(second).values()) == {"success"}
    staged = [task(run, "run").xcom()["sinks"] for run in (first, second)]
    assert {name: rows for name, (_, rows) in tables(second).items()} == {
        name: sum(sinks[name]["rows"] for sinks in staged) for name in before
    }


def test_a_declarative_project_is_audited_and_published_and_continues_the_next_day(airflow: RunningAirflow) -> None:
    runs, versions = list[TaskRun](), list[dict[str, int]]()
    for day in ("2013-01-01", "2013-01-02"):
        runs.append(airflow.trigger("declarative_project", day=day))
        assert ended(runs[-1]) == dict.fromkeys(("arrive", "run", "audit", "publish"), "success")
        versions.append({name: version for name, (version, _) in tables(runs[-1]).items()})
    first, second = versions
    assert set(first) == {"hourly_departures", "origins"}
    assert all(second[name] > version for name, version in first.items())
    sinks = task(runs[-1], "run").xcom()["sinks"]
    hours, origins = (DeltaTable(sinks[name]["table"]).to_pyarrow_table() for name in ("hourly_departures", "origins"))
    assert sum(origins["flights"].to_pylist()) == sum(hours["flights"].to_pylist()) > 842  # more than those of the first day


def test_an_audit_that_fails_leaves_every_table_as_it_was_and_one_that_passes_starts_the_waiting_dag(
    airflow: RunningAirflow,
) -> None:
    airflow.unpause("asset_consumer")
    run = airflow.trigger("write_audit_publish", day="2013-01-01", most_cancelled=0)
    assert ended(run) == {"arrive": "success", "run": "success", "audit": "failed", "publish": "upstream_failed"}
    assert {rows for _, rows in tables(run).values()} == {0}
    log = task(run, "audit").log()
    assert "of the flights were cancelled" in log
    assert "read_staged(spark, 'file://" in log
    assert airflow.get("dags/asset_consumer/dagRuns")["total_entries"] == 0

    second = airflow.trigger("write_audit_publish", day="2013-01-02")
    assert set(ended(second).values()) == {"success"}
    (consumer,) = until(lambda: airflow.get("dags/asset_consumer/dagRuns")["dag_runs"], "the consumer runs")
    counted = TaskRun(airflow, "asset_consumer", consumer["dag_run_id"], "count_rows")
    counted.reaches("success")
    staged = [task(each, "run").xcom()["sinks"] for each in (run, second)]
    assert counted.xcom() == {name: sum(sinks[name]["rows"] for sinks in staged) for name in staged[0]}
