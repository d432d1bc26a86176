"""A driver that repartitions state before any other work with Spark."""

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from tests.support.drivers import ended
from tests.support.killed_streams import Live, bounded, bounded_too, live
from tests.support.places import in_a_store_at_night
from tests.support.seeds import seed
from tests.support.state_partitions import partitions

__all__ = ["bounded", "live", "seed"]
pytestmark = pytest.mark.spark


def partitions_of(live: Live) -> dict[str, int]:
    """Returns the number of state partitions of each stage in the newest checkpoint."""
    head = CheckpointStore(live.files).head()
    return partitions(head) if head else {}


@pytest.mark.nightly
@bounded_too
@in_a_store_at_night
def test_a_new_driver_rescales_before_it_has_run_any_query(live: Live) -> None:
    """A bounded round is stopped while its windows are counted."""
    live.add(300)
    first = live.start()
    live.until(lambda: live.has_published(0.6 if live.bounded else 1.0) and partitions_of(live), first)
    CheckpointRequests(live.files).ask(request_id("live", Wanted.STOP))
    assert ended(first).code == 0
    before = partitions_of(live)
    head = CheckpointStore(live.files).head()
    assert head
    assert not head.drained
    live.add(300)
    live.assert_public(live.drivers.start(*live.options, "--state-partitions=3", run="later"))
    assert partitions_of(live) == dict.fromkeys(before, 3) != before
