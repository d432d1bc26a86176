"""Drivers get SIGKILL at each durable step of a stop. The next driver finishes the stop, and every row is public once."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.status import read_status
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.steps import Step
from spark_jobs.storage.open import open_place
from tests.support import live_pipeline
from tests.support.crashes import HOUSEKEEPING
from tests.support.drivers import Doomed, Drivers, drivers_on, ended
from tests.support.live_pipeline import BOUNDED, Events, public_ids, public_minutes
from tests.support.places import IN_A_STORE, ON_A_DISK
from tests.support.run_site import RunSite
from tests.support.stop_steps import DRAIN_STEPS, FLUSH_STEPS, STOP_STEPS

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

PATIENCE_S = 120.0
LOOK_S = 0.2
ROWS, FILES = 500, 25


def case(bucket: str, step: Step, *, before: bool, bounded: bool, drain: bool) -> Any:
    """Returns the parameters of a stop whose driver is killed before or after a step."""
    doom = Doomed("killed", step, before, since=Step.DRAIN_BEGIN if step in FLUSH_STEPS else None)
    what, when = "drain" if drain else "stop", "before" if before else "after"
    name = f"{what} {when} {step.value}-{'bounded' if bounded else 'live'}-{bucket}"
    return pytest.param(bucket, bounded, drain, doom, id=name, marks=pytest.mark.stores if bucket == IN_A_STORE else ())


def cases() -> Iterator[Any]:
    """Yields two cases of each step on a disk, and one in a store."""
    for bounded, drain in product((False, True), (False, True)):
        for number, step in enumerate(DRAIN_STEPS if drain else STOP_STEPS):
            if bounded and not drain and step in HOUSEKEEPING:
                continue  # such a stop comes before the first stage's rows are consumed
            for before in (True, False):
                yield case(ON_A_DISK, step, before=before, bounded=bounded, drain=drain)
            # A live input is killed before the steps with an even number and after the others, a bounded one the other way round.
            is_even = number % 2 == 0
            yield case(IN_A_STORE, step, before=is_even != bounded, bounded=bounded, drain=drain)


@pytest.fixture
def drivers(tmp_path: Path, bucket: str | None) -> Iterator[Drivers]:
    site = RunSite(tmp_path / "site", tmp_path / "events", live_pipeline.pipeline, bucket=bucket)
    with drivers_on(site, live_pipeline.__file__) as made:
        yield made


def wait_until(condition: Callable[[], object]) -> None:
    waited_s = 0.0
    while not condition():
        assert waited_s < PATIENCE_S, "it did not happen"
        Event().wait(LOOK_S)
        waited_s += LOOK_S


@pytest.mark.parametrize(("bucket", "bounded", "drain", "doom"), list(cases()), indirect=["bucket"])
def test_a_stop_is_ended_by_whoever_comes_next(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: Doomed, *, drain: bool, bounded: bool
) -> None:
    events, options = Events(tmp_path / "events"), ["--checkpoint-interval=1 hour"]
    events.add(ROWS, FILES)
    furthest, enough = ["again", "minutes"], ROWS
    if bounded:  # the stop comes while the first stage is running
        monkeypatch.setenv(BOUNDED, "yes")
        options.append("--publish=every_checkpoint")
        furthest, enough = ["copied"], ROWS // FILES
    files = drivers.site.files()
    driver = drivers.start(*options, run="live", doom=doom)

    def has_read() -> bool:
        status = read_status(files)
        return status is not None and all(status.stages[StageName(name)].rows_in >= enough for name in furthest)

    wait_until(lambda: has_read() or driver.poll() is not None)
    requests, request = CheckpointRequests(files), request_id("nightly", Wanted.STOP)
    requests.ask(request, drain=drain)
    assert ended(driver).code == -9
    drivers.wait_gone()
    again = drivers.run(*options, run="live")
    assert again.code == 0, again.stderr
    answer = requests.answer_of(request)
    assert answer is not None
    assert answer.error is None
    assert answer.savepoint is not None
    assert (verify(open_place(answer.savepoint)).checkpoint, answer.drained) == (answer.checkpoint, drain)
    rows = len(public_ids(drivers.site.table("copied")))
    if bounded:
        assert 0 < rows < ROWS, "the stop came in the middle"
    if bounded and not drain:
        ending = drivers.run(*options, run="ending")
        assert ending.code == 0, ending.stderr
    if not bounded or not drain:
        rows = ROWS
    for table in ("copied", "again"):
        assert public_ids(drivers.site.table(table)) == list(range(rows))
    expected = events.all_minutes(rows) if drain or bounded else events.closed_minutes()
    assert public_minutes(drivers.site.table("minutes")) == expected
