"""Streams whose drivers are killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from subprocess import Popen

import pytest

from spark_jobs.control.status import read_status
from spark_jobs.protocol.ids import StageName
from tests.support import live_pipeline
from tests.support.drivers import Drivers, drivers_on, ended
from tests.support.killed_drivers import KilledDrivers
from tests.support.live_pipeline import BOUNDED, Events, public_ids, public_minutes
from tests.support.run_site import RunSite

BOUNDED_ROWS, BOUNDED_FILES = 6_000, 60
BOUNDED_FILES_IN_A_STORE = 20
"""Fewer, because each batch with its checkpoint and its publications takes seconds there."""
COPIES = ("copied", "again")
LIVE, ENDS = "live", "bounded"
bounded_too = pytest.mark.parametrize("bounded", [LIVE, ENDS], indirect=True)
bounded_at_night = pytest.mark.parametrize("bounded", [LIVE, pytest.param(ENDS, marks=pytest.mark.nightly)], indirect=True)


class Live(KilledDrivers):
    """A site of the live pipeline: its drivers, its input and its tables.

    All rows of a bounded input exist from the beginning. Each batch of a stage reads one file.
    """

    def __init__(self, drivers: Drivers, events: Events, random: Random, *, bounded: bool) -> None:
        super().__init__(drivers, random)
        self.events, self.bounded = events, bounded
        if bounded:
            self.options = ("--publish=every_checkpoint",)
            events.add(BOUNDED_ROWS, BOUNDED_FILES_IN_A_STORE if drivers.site.bucket else BOUNDED_FILES)

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

    def is_blocked(self) -> bool:
        """Returns True if a table refuses the rows of a checkpoint."""
        status = read_status(self.files)
        return status is not None and status.blocked is not None

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
def live_on(directory: Path, seed: int, *, bounded: bool, store: str | None = None, bucket: str | None = None) -> Iterator[Live]:
    events = Events(directory / "events")
    site = RunSite(directory / "site", events.path, live_pipeline.pipeline, store=store, bucket=bucket)
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
def live(tmp_path: Path, seed: int, bounded: bool, bucket: str | None) -> Iterator[Live]:
    with live_on(tmp_path, seed, bounded=bounded, bucket=bucket) as found:
        yield found
