"""Drivers and executors of a pipeline are killed at random moments. Every row is public once, in every table.

The input grows, or it is bounded. Then all attempts work on one round, with a checkpoint every second.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
from tests.support.live_pipeline import BOUNDED, Events, public_ids, public_minutes
from tests.support.run_site import RunSite
from tests.support.spark_cluster import delta_on_this_host, spark_cluster

pytestmark = pytest.mark.spark

ROWS = 100_000
BOUNDED_ROWS, BOUNDED_FILES = 6_000, 60
EXECUTOR_KILLS = 12
COPIES = ("copied", "again")
LIVE, ENDS = "live", "bounded"
bounded_too = pytest.mark.parametrize("bounded", [LIVE, ENDS], indirect=True)
bounded_at_night = pytest.mark.parametrize("bounded", [LIVE, pytest.param(ENDS, marks=pytest.mark.nightly)], indirect=True)
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Live(KilledDrivers):
    """A site of the live pipeline: its drivers, its input and its tables.

    All rows of a bounded input exist from the beginning. Each batch of a stage reads one file.
    """

    def __init__(self, drivers: Drivers, events: Events, random: Random, *, bounded: bool) -> None:
        super().__init__(drivers, random)
        self.events, self.bounded = events, bounded
        if bounded:
            self.options = ("--publish=every_checkpoint",)
            events.add(BOUNDED_ROWS, BOUNDED_FILES)

    def add(self, rows: int) -> None:
        """Adds rows, unless the input is bounded."""
        if not self.bounded:
            self.events.add(rows)

    def run_and_kill(self, number: int, kills: int) -> None:
        """Kills a driver some time after its stages have begun. Every second time, it kills one of the Python workers first.

        With a bounded input, the kills are spread over the round, and the workers are killed while the first stage runs.
        """
        before, share = self.attempts(), self.share(number, kills)
        driver = self.start()
        self.until(lambda: self.runs(before + 1) and self.has_published(share), driver)
        self.wait(1.0 if self.bounded else 6.0)
        if number % 2 == 0 and share < 0.4:
            self.until(lambda: self.workers(driver), driver)  # no worker runs before the first batch
            self.random.choice(self.workers(driver)).kill()
            self.wait(2.0)
        self.kill(driver)

    def share(self, number: int, kills: int) -> float:
        """Returns the share of a bounded input after which a kill is due. Nothing is due of an input that grows."""
        return (number + 1) / (kills + 1) if self.bounded else 0.0

    def has_published(self, share: float) -> bool:
        """Returns True if a share of the rows is public. The second copy begins when the first has ended."""
        return sum(len(public_ids(self.table(copy))) for copy in COPIES) >= share * len(COPIES) * self.events.rows

    def has_staged_all(self, stage: str) -> bool:
        status = read_status(self.files)
        return status is not None and status.stages[StageName(stage)].rows_in >= self.events.rows

    def assert_public(self, driver: Popen[str]) -> None:
        """Lets a driver read all events. Each table then has exactly the rows that follow from the input.

        A round ends by itself, and closes every window. Any other driver is cancelled.
        """
        minutes = self.events.all_minutes() if self.bounded else self.events.closed_minutes()
        if self.bounded:
            found = self.comes_to_its_end(driver, lambda: (self.has_published(1.0), read_status(self.files)))
            assert found.code == 0, found
        else:
            self.until(lambda: self.has_published(1.0), driver)
            self.until(lambda: len(public_minutes(self.table("minutes"))) >= len(minutes), driver)
            self.cancel()
            ended(driver)
        for copy in COPIES:
            assert public_ids(self.table(copy)) == list(range(self.events.rows))
        assert public_minutes(self.table("minutes")) == minutes


@contextmanager
def live_on(directory: Path, seed: int, *, bounded: bool, store: str | None = None) -> Iterator[Live]:
    events = Events(directory / "events")
    site = RunSite(directory / "site", events.path, live_pipeline.pipeline, store=store)
    with drivers_on(site, live_pipeline.__file__) as drivers:
        yield Live(drivers, events, Random(seed), bounded=bounded)


@pytest.fixture
def bounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Returns True if the input of the drivers is bounded, by the test's parameter."""
    is_bounded = getattr(request, "param", LIVE) == ENDS
    if is_bounded:
        monkeypatch.setenv(BOUNDED, "yes")
    return is_bounded


@pytest.fixture
def live(tmp_path: Path, seed: int, bounded: bool) -> Iterator[Live]:
    with live_on(tmp_path, seed, bounded=bounded) as found:
        yield found


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
