"""The unbounded examples on a running Airflow with a real pipeline: a table's history, then new rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.running_airflow.conftest import Home
from tests.support.running_airflow import RunningAirflow, until
from tests.support.two_days import FIRST_DAY, SECOND_DAY, departures

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

LATE_S = 300.0


def test_rows_of_a_history_and_later_rows_are_in_the_table_once(airflow: RunningAirflow, roots: Path) -> None:
    data = Path(airflow.environment["SPARK_JOBS_EXAMPLES"])
    arrivals, departed = data / "live_stream/arrivals", data / "backfill_then_live/warehouse/departed"
    task = airflow.trigger("backfill_then_live")
    until(lambda: departures(departed).total() >= FIRST_DAY, "the history is public", LATE_S)
    replace(airflow.trigger("live_arrivals", day="2013-01-02"), task_id="arrive").reaches("success")
    until(lambda: departures(departed).total() >= FIRST_DAY + SECOND_DAY, "what has arrived is public", LATE_S)
    assert departures(departed) == departures(arrivals)
    assert departures(departed).total() == FIRST_DAY + SECOND_DAY
    assert (task.state, task.tries) == ("deferred", 1)
    task.mark("failed")
    Home(roots / "backfill_then_live").ends()
