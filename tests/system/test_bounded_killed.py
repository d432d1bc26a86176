"""Drivers of a bounded pipeline are killed at random moments. Then all files except the home and the tables are lost.

Each next driver continues from the newest checkpoint. It repeats the work after that checkpoint, and none before it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from signal import SIGKILL
from subprocess import Popen

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.steps import Step
from tests.support import bounded_pipeline
from tests.support.bounded_pipeline import KEYS, SINKS, Answer, Changes, public
from tests.support.drivers import Doomed, Drivers, drivers_on
from tests.support.killed_drivers import KilledDrivers
from tests.support.places import IN_A_STORE, ON_A_DISK, in_a_store_at_night
from tests.support.run_site import RunSite

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

NOTHING: Answer = {sink: [] for sink in SINKS}
DISTANT = "tests.support.distant_driver"


class Bounded(KilledDrivers):
    """A site of the bounded pipeline. Each driver may read its share of the input, so no driver reaches the end."""

    def __init__(self, drivers: Drivers, changes: Changes, random: Random) -> None:
        super().__init__(drivers, random)
        self.changes = changes
        self.store = CheckpointStore(self.files)
        self.admitted = 0
        """The number of admitted batches: first those of the first stage, then those of the next two."""

    @property
    def host(self) -> Path:
        assert self.drivers.host is not None
        return self.drivers.host

    def start(self) -> Popen[str]:
        """Starts a driver. Every second driver runs on another host."""
        entry = DISTANT if self.attempts() % 2 else "spark_jobs"
        return self.drivers.start(*self.options, run="live", entry=entry)

    def admit(self, batches: int) -> None:
        self.admitted += batches
        self.changes.admit(min(self.admitted, self.changes.parts), "admit")
        self.changes.admit(max(self.admitted - self.changes.parts, 0), "windows", "newest")

    def begun(self) -> int:
        return sum(map(len, self.changes.begun().values()))

    def taken(self) -> int:
        return max(self.store.taken(), default=0)

    def run_and_kill(self, batches: int, *, checkpoint: bool) -> None:
        """Kills a driver after it has begun some of the admitted batches. With ``checkpoint`` it has also taken a checkpoint."""
        before, attempt = self.taken(), self.attempts() + 1
        head = self.store.head()
        self.admit(batches)
        driver = self.start()
        wanted = self.random.randint(1, batches)
        self.until(lambda: self.runs(attempt) and self.begun() >= wanted, driver)
        if checkpoint:
            self.until(lambda: self.taken() > before, driver)
        self.wait(2.0)
        self.kill(driver)
        assert self.attempts() == attempt
        self.assert_goes_on_from(head)
        self.lose_all_but_home_and_tables()

    def progress(self) -> object:
        """Returns a value that changes as long as a driver makes progress."""
        status = read_status(self.files)
        stages = [(stage.state, stage.batch) for stage in status.stages.values()] if status else []
        return self.changes.begun(), self.taken(), status and (status.attempt, status.state), stages

    def kill_at(self, doom: Doomed) -> None:
        """Starts a driver that kills itself before the end of the run."""
        head = self.store.head()
        self.changes.admit(self.changes.parts)
        driver = self.drivers.start(*self.options, run="live", doom=doom)
        assert self.comes_to_its_end(driver, self.progress).code == -SIGKILL
        self.drivers.wait_gone()
        self.assert_goes_on_from(head)
        self.lose_all_but_home_and_tables()

    def assert_goes_on_from(self, head: Manifest | None) -> None:
        """Checks that no batch of the restored checkpoint was begun again, and that no later batch was left out."""
        for stage, parts in self.changes.begun().items():
            cut = head.stages.get(StageName(stage)) if head else None
            first = cut.batch + 1 if cut else 0
            assert parts in ([], list(range(first, first + len(parts)))), (stage, parts, first, head and head.checkpoint)

    def lose_all_but_home_and_tables(self) -> None:
        site = self.drivers.site
        for lost in (site.home if site.bucket else site.home / "work", self.host):
            rmtree(lost)
            assert not lost.exists()
        self.changes.forget()

    def assert_ends(self) -> None:
        """Runs a driver to the end. The tables have the result of a batch query, and each row is public once."""
        head = self.store.head()
        self.changes.admit(self.changes.parts)
        found = self.comes_to_its_end(self.start(), self.progress)
        assert found.code == 0, found
        self.assert_goes_on_from(head)
        last = self.store.head()
        assert last
        assert (last.round, last.checkpoint_kind, last.drained) == (1, CheckpointKind.FINAL, True)
        assert public(self.drivers.site.warehouse) == self.changes.answer()


@pytest.fixture
def bounded(tmp_path: Path, seed: int, bucket: str | None) -> Iterator[Bounded]:
    changes = Changes(tmp_path, 0)
    site = RunSite(tmp_path / "site", changes.path, bounded_pipeline.pipeline, bucket=bucket)
    with drivers_on(site, bounded_pipeline.__file__) as drivers:
        yield Bounded(replace(drivers, host=tmp_path / "host"), changes, Random(seed))


@pytest.mark.parametrize(
    ("bucket", "kills", "parts", "publish"),
    [
        (ON_A_DISK, 25, 39, "final"),
        (ON_A_DISK, 10, 24, "every_checkpoint"),
        pytest.param(IN_A_STORE, 10, 24, "final", marks=pytest.mark.stores),
        pytest.param(IN_A_STORE, 6, 24, "every_checkpoint", marks=pytest.mark.stores),
    ],
    indirect=["bucket"],
)
def test_with_home_and_tables_alone_only_what_came_after_the_newest_checkpoint_is_done_again(
    bounded: Bounded, kills: int, parts: int, publish: str
) -> None:
    bounded.changes.deliver(parts)
    bounded.options = ("--checkpoint-interval=1 second", f"--publish={publish}")
    assert len(bounded.changes.answer()["newest"]) < KEYS, "a key is deleted in the end"
    for number in range(kills):
        bounded.run_and_kill((2 * parts - 1) // kills, checkpoint=number % 2 == 0)
        if publish == "final":
            assert public(bounded.drivers.site.warehouse) == NOTHING
    head = bounded.store.head()
    assert head
    assert head.checkpoint_kind is CheckpointKind.PERIODIC
    bounded.assert_ends()
    if publish == "final":
        assert bounded.drivers.site.publications(SINKS) == dict.fromkeys(SINKS, 1)


@in_a_store_at_night
def test_with_home_and_tables_alone_a_final_checkpoint_becomes_public_once(bounded: Bounded) -> None:
    bounded.changes.deliver(3)
    for doom in (Doomed("killed", Step.PUBLISH_SINK, before=True), Doomed("killed", Step.BURY_KEYS, before=False)):
        bounded.kill_at(doom)
        assert bounded.store.head()
        assert public(bounded.drivers.site.warehouse)["newest"] == []
    bounded.assert_ends()
    assert bounded.drivers.site.publications(SINKS) == dict.fromkeys(SINKS, 1)
