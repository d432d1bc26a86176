"""Drivers and executors of an unbounded pipeline are killed at random moments. Every row is public once, in every table."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from subprocess import Popen

import pytest

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.status import read_status
from spark_jobs.protocol.ids import StageName
from tests.support import live_pipeline
from tests.support.drivers import ROOT, SETTINGS, Drivers, drivers_on, ended
from tests.support.killed_drivers import KilledDrivers
from tests.support.live_pipeline import Events, public_ids, public_minutes
from tests.support.run_site import RunSite
from tests.support.spark_cluster import delta_on_this_host, spark_cluster

pytestmark = pytest.mark.spark

ROWS = 100_000
EXECUTOR_KILLS = 12
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Live(KilledDrivers):
    """A site of the live pipeline: its drivers, its input and its tables."""

    def __init__(self, drivers: Drivers, events: Events, random: Random) -> None:
        super().__init__(drivers, random)
        self.events = events

    def run_and_kill(self, *, worker: bool) -> None:
        """Kills a driver some time after its stages have begun. With ``worker`` it kills one of the Python workers first."""
        before = self.attempts()
        driver = self.start()
        self.until(lambda: self.runs(before + 1), driver)
        self.wait(6.0)
        if worker:
            self.until(lambda: self.workers(driver), driver)  # no worker runs before the first batch
            self.random.choice(self.workers(driver)).kill()
            self.wait(2.0)
        self.kill(driver)

    def has_staged_all(self, stage: str) -> bool:
        status = read_status(self.files)
        return status is not None and status.stages[StageName(stage)].rows_in >= self.events.rows

    def assert_public(self, driver: Popen[str]) -> None:
        """Lets a driver read all events and ends it. Each table has exactly the rows that follow from the input."""
        self.until(lambda: len(public_ids(self.table("again"))) >= self.events.rows, driver)
        self.until(lambda: len(public_minutes(self.table("minutes"))) >= len(self.events.closed_minutes()), driver)
        self.cancel()
        ended(driver)
        for table in ("copied", "again"):
            assert public_ids(self.table(table)) == list(range(self.events.rows))
        assert public_minutes(self.table("minutes")) == self.events.closed_minutes()


@contextmanager
def live_on(directory: Path, seed: int, store: str | None = None) -> Iterator[Live]:
    events = Events(directory / "events")
    site = RunSite(directory / "site", events.path, live_pipeline.pipeline, store=store)
    with drivers_on(site, live_pipeline.__file__) as drivers:
        yield Live(drivers, events, Random(seed))


@pytest.fixture
def live(tmp_path: Path, seed: int) -> Iterator[Live]:
    with live_on(tmp_path, seed) as found:
        yield found


@pytest.mark.nightly
@pytest.mark.parametrize(("kills", "options"), [(25, []), (10, ["--unaligned"])])
def test_every_row_is_public_once_in_every_table_whoever_is_killed(live: Live, kills: int, options: list[str]) -> None:
    live.options = (*options,)
    for number in range(kills):
        live.events.add(ROWS // kills)
        live.run_and_kill(worker=number % 2 == 0)
    live.events.add(1_000)
    live.assert_public(live.start())
    head = CheckpointStore(live.files).head()
    assert head
    assert head.aligned == (not options)


@pytest.mark.parametrize(
    ("store", "kills"),
    [
        ("in_s3", 1),
        pytest.param("in_hdfs", 1, marks=pytest.mark.nightly),
        pytest.param("in_s3", 12, marks=pytest.mark.nightly),
        pytest.param("in_hdfs", 12, marks=pytest.mark.nightly),
    ],
)
def test_every_row_is_public_once_although_the_home_is_in_a_store(
    tmp_path: Path, seed: int, store: str, kills: int, request: pytest.FixtureRequest
) -> None:
    """The daily sample also uses a store, because a home in directories can lose less.

    Every second time, the work directory is lost with the driver. The next driver then has its state from the store alone.
    """
    with live_on(tmp_path, seed, f"{request.getfixturevalue(store)}/homes/live") as live:
        for number in range(kills):
            live.events.add(ROWS // 10 // kills)
            live.run_and_kill(worker=number % 2 == 0)
            if number % 2 == 0:
                rmtree(live.drivers.site.home / "work")
        live.events.add(1_000)
        live.assert_public(live.start())
        head = CheckpointStore(live.files).head()
        assert head
        assert any(cut.files for cut in head.stages.values())
        assert list((live.drivers.site.home / "state").rglob("*.*")) == [], "nothing waits any more"


@pytest.mark.nightly
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
        live.events.add(1_000)
        driver = replace(live.drivers, settings=settings).start(run="live")
        killed = set()
        for _ in range(EXECUTOR_KILLS):
            live.until(lambda: len(cluster.executors()) == 2 and live.has_staged_all("copied"), driver)  # both executors work
            live.events.add(ROWS // EXECUTOR_KILLS)
            live.wait(2.0)
            for executor in cluster.executors()[live.random.randrange(2) :]:  # both executors, or one of them
                executor.kill()
                killed.add(executor.pid)
        live.events.add(1_000)
        live.assert_public(driver)
    assert len(killed) >= EXECUTOR_KILLS
    assert Channel(live.files).attempts.numbers() == [1]
    status = read_status(live.files)
    assert status
    restarts = sum(stage.restarts for stage in status.stages.values())
    assert restarts > 0 or task_failures > 1
