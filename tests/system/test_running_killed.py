"""Drivers and executors of a pipeline are killed at random moments. Every row is public once, in every table.

The input grows, or it is bounded. Then all attempts work on one round, with a checkpoint every second.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree

import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.status import read_status
from tests.support.drivers import ROOT, SETTINGS
from tests.support.killed_streams import ENDS, LIVE, Live, bounded, bounded_too, live, live_on
from tests.support.live_pipeline import public_ids
from tests.support.spark_cluster import delta_on_this_host, spark_cluster

__all__ = ["bounded", "live"]

pytestmark = pytest.mark.spark

ROWS = 100_000
REFUSALS = 6
EXECUTOR_KILLS = 12
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bounded", "kills", "options"), [(LIVE, 25, []), (LIVE, 10, ["--unaligned"]), (ENDS, 10, [])], indirect=["bounded"]
)
def test_every_row_is_public_once_in_every_table_whoever_is_killed(live: Live, kills: int, options: list[str]) -> None:
    live.options += (*options,)
    for number in range(kills):
        live.add(ROWS // kills)
        live.run_and_kill(number, kills)
    live.add(1_000)
    live.assert_public(live.start())
    head = CheckpointStore(live.files).head()
    assert head
    assert head.aligned == (not options)


@pytest.mark.nightly
def test_every_row_is_public_once_although_drivers_are_killed_while_a_table_refuses_rows(live: Live) -> None:
    """The table has no hold, so all tables wait. Every second time, it still refuses when the next driver starts."""
    driver = live.start()
    live.add(1_000)
    live.until(lambda: live.has_published(1.0), driver)
    for number in range(REFUSALS):
        again, before = DeltaTable(str(live.table("again"))), live.events.rows
        again.alter.add_constraint({"closed": f"id < {before}"})
        live.add(1_000)
        live.until(live.is_blocked, driver)
        live.wait(3.0)
        live.kill(driver)
        if number % 2 == 0:
            again.alter.drop_constraint("closed")
        driver = live.start()
        if number % 2 == 1:
            live.until(partial(live.runs, number + 2), driver)
            live.until(live.is_blocked, driver)
            assert public_ids(live.table("again")) == list(range(before))
            again.alter.drop_constraint("closed")
        live.until(lambda: live.has_published(1.0), driver)
    live.assert_public(driver)


@pytest.mark.parametrize(
    ("bounded", "store", "kills"),
    [
        (LIVE, "in_s3", 1),
        pytest.param(LIVE, "in_hdfs", 1, marks=pytest.mark.nightly),
        pytest.param(LIVE, "in_s3", 12, marks=pytest.mark.nightly),
        pytest.param(LIVE, "in_hdfs", 12, marks=pytest.mark.nightly),
        pytest.param(ENDS, "in_s3", 8, marks=pytest.mark.nightly),
        pytest.param(ENDS, "in_hdfs", 3, marks=pytest.mark.nightly),
    ],
    indirect=["bounded"],
)
def test_every_row_is_public_once_although_the_home_is_in_a_store(
    tmp_path: Path, seed: int, bounded: bool, store: str, kills: int, request: pytest.FixtureRequest
) -> None:
    """The daily sample also uses a store, because a home in directories can lose less.

    Every second time, the work directory is lost with the driver. The next driver then has its state from the store alone.
    """
    with live_on(tmp_path, seed, bounded=bounded, store=f"{request.getfixturevalue(store)}/homes/live") as live:
        for number in range(kills):
            live.add(ROWS // 10 // kills)
            live.run_and_kill(number, kills)
            if number % 2 == 0:
                rmtree(live.drivers.site.home / "work")
        live.add(1_000)
        live.assert_public(live.start())
        head = CheckpointStore(live.files).head()
        assert head
        assert any(cut.files for cut in head.stages.values())
        assert list((live.drivers.site.home / "state").rglob("*.*")) == [], "nothing waits any more"


@pytest.mark.nightly
@bounded_too
@pytest.mark.parametrize("task_failures", [4, 1])
def test_every_row_is_public_once_although_executors_of_a_cluster_are_killed(
    live: Live, tmp_path: Path, task_failures: int
) -> None:
    """Two workers share the driver's disk.

    The driver continues: Spark repeats the lost tasks or, if this is not allowed, a stage restarts.
    """
    with spark_cluster(tmp_path / "cluster") as cluster:
        settings = {
            **SETTINGS,
            **EXECUTORS,
            **delta_on_this_host(),
            "spark.master": cluster.master,
            "spark.task.maxFailures": str(task_failures),
        }

        def both_work(share: float) -> bool:
            staged = live.bounded or live.has_staged_all("copied")
            return len(cluster.executors()) == 2 and staged and live.has_published(share)

        live.add(1_000)
        driver = replace(live.drivers, settings=settings).start(*live.options, run="live")
        killed = set()
        for number in range(EXECUTOR_KILLS):
            live.until(partial(both_work, live.share(number, EXECUTOR_KILLS)), driver)
            live.add(ROWS // EXECUTOR_KILLS)
            live.wait(2.0)
            for executor in cluster.executors()[live.random.randrange(2) :]:  # both executors, or one of them
                executor.kill()
                killed.add(executor.pid)
        live.add(1_000)
        live.assert_public(driver)
    assert len(killed) >= EXECUTOR_KILLS
    assert Channel(live.files).attempts.numbers() == [1]
    status = read_status(live.files)
    assert status
    restarts = sum(stage.restarts for stage in status.stages.values())
    assert restarts > 0 or task_failures > 1
