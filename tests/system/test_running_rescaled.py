"""A driver that repartitions state before any other work with Spark."""

import pytest

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from tests.spark.test_rescaling import partitions
from tests.support.drivers import ended
from tests.support.live_pipeline import public_ids, public_minutes
from tests.support.seeds import seed
from tests.system.test_running_killed import Live, live

__all__ = ["live", "seed"]
pytestmark = pytest.mark.spark


def stopped_after(live: Live, *options: str, run: str) -> dict[str, int]:
    """Runs until every row is public, and stops. Returns the number of state partitions of each stage."""
    live.events.add(300)
    driver = live.drivers.start(*options, run=run)
    live.until(lambda: public_ids(live.table("again")) == list(range(live.events.rows)), driver)
    live.until(lambda: public_minutes(live.table("minutes")) == live.events.closed_minutes(), driver)
    CheckpointRequests(live.files).ask(request_id(run, Wanted.STOP))
    assert ended(driver).code == 0
    head = CheckpointStore(live.files).head()
    assert head is not None
    return partitions(head)


@pytest.mark.nightly
def test_a_new_driver_rescales_before_it_has_run_any_query(live: Live) -> None:
    before = stopped_after(live, run="first")
    assert stopped_after(live, "--state-partitions=3", run="second") == dict.fromkeys(before, 3) != before
