"""A whole run loses power at any of its durable steps, and is run again.

The steps are not listed here: they are those that a clean run passes. A loss of power forgets everything that was not fsynced through the
storage port. Spark writes its own files (offsets, commits, state, and Parquet files before a manifest names them) without the port. They
stay, as after the death of a process. Parquet files that a manifest names are lost, too.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from spark_jobs.control import old_starts
from spark_jobs.protocol.documents import OnEnd, Publish
from spark_jobs.protocol.errors import NotFoundError, RejectedError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.protocol.steps import Step
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.stages import staging
from tests.support.crashes import HOUSEKEEPING, NOT_IN_A_SMALL_RUN, AtRandom, InTurn, Point, contents, run_into, watched
from tests.support.crashes_in_turn import crash_in_turn
from tests.support.places import AT_NIGHT, IN_A_STORE, ON_A_DISK, in_a_store_too
from tests.support.run_site import RunSite
from tests.support.small_pipeline import SINKS, answer, deliver

pytestmark = pytest.mark.spark

ONLY_IN_A_FRESH_START = {Step.INCARNATION_CLOSE}
ONLY_IN_LATER_ROUNDS = {Step.LOG_TRIM}
DAYS = 3


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory: pytest.TempPathFactory, one_day: Path) -> list[Point]:
    """Returns the points of an undisturbed run."""
    return watched(RunSite(tmp_path_factory.mktemp("clean") / "site", one_day).run)


def crash_once(site: RunSite, point: Point) -> None:
    """Dies at ``point``, and runs twice more."""
    assert run_into(site, lambda passed: passed == point) == point
    staged_only = site.checkpoints() == []
    site.run()
    assert_finished(site)
    if staged_only:
        assert site.orphans() == [], f"left after a crash {point}"


def assert_finished(site: RunSite) -> None:
    """Checks that every row is public once, and one more run starts nothing."""
    site.assert_answered()
    tables, attempts = contents(site.warehouse), site.attempts()
    site.run()
    assert contents(site.warehouse) == tables
    assert site.attempts() == attempts


def test_a_clean_run_passes_every_kind_of_step(clean_run: list[Point]) -> None:
    assert {point.step for point in clean_run} == set(Step) - ONLY_IN_A_FRESH_START - ONLY_IN_LATER_ROUNDS - NOT_IN_A_SMALL_RUN
    assert [point.step for point in clean_run].count(Step.MANIFEST_CREATE) == 2, "before it and after it, once"


def test_attempts_that_die_one_after_the_other_at_every_point_lose_and_double_no_row(
    any_site: RunSite, clean_run: list[Point]
) -> None:
    died_at = crash_in_turn(any_site)
    assert_finished(any_site)
    assert sorted(map(str, map(name_of, died_at))) == sorted(map(str, map(name_of, without_housekeeping(clean_run))))


def name_of(point: Point) -> Point:
    return replace(point, occurrence=0)


def without_housekeeping(points: list[Point]) -> list[Point]:
    return [point for point in points if point.step not in HOUSEKEEPING]


@in_a_store_too
def test_a_run_that_dies_once_is_finished_by_the_next_run(
    any_site: RunSite, clean_run: list[Point], seed: int, tmp_path: Path
) -> None:
    kinds = {point.name: point for point in clean_run if point.step in (Step.SWEEP, Step.LOG_FOLD, Step.LOG_CHECKPOINT)}
    for number, point in enumerate(
        [*Random(seed).sample(list(kinds.values()), 1), *Random(seed).sample(without_housekeeping(clean_run), 1)]
    ):
        crash_once(replace(any_site, directory=tmp_path / str(number)), point)


@pytest.mark.nightly
def test_a_run_that_dies_once_at_any_point_is_finished_by_the_next_run(
    any_site: RunSite, clean_run: list[Point], tmp_path: Path
) -> None:
    for number, point in enumerate(clean_run):
        crash_once(replace(any_site, directory=tmp_path / str(number)), point)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bucket", "sample"),
    [
        *((ON_A_DISK, sample) for sample in range(100)),
        *(pytest.param(IN_A_STORE, sample, marks=pytest.mark.stores) for sample in range(100, 105)),
    ],
    indirect=["bucket"],
)
def test_a_recovery_that_dies_as_well_is_finished_by_the_next_run(
    any_site: RunSite, clean_run: list[Point], seed: int, sample: int
) -> None:
    chosen = Random(f"{seed} {sample}")
    for _ in range(chosen.choice([2, 2, 3])):
        run_into(any_site, AtRandom(chosen, len(clean_run)))
    any_site.run()
    assert_finished(any_site)


def with_own_events(site: RunSite, tmp_path: Path) -> RunSite:
    """Returns the site with events of its own. More events are delivered every day."""
    return replace(site, events=tmp_path / "daily events")


@pytest.mark.nightly
def test_three_suspended_days_survive_crashes_at_random_points(
    any_site: RunSite, clean_run: list[Point], seed: int, tmp_path: Path
) -> None:
    daily_site, chosen = with_own_events(any_site, tmp_path), Random(seed)
    for day in range(DAYS):
        deliver(daily_site.events, day)
        run, on_end = f"day {day}", OnEnd.DRAIN if day == DAYS - 1 else OnEnd.SUSPEND
        for _ in range(2):
            run_into(daily_site, AtRandom(chosen, len(clean_run)), run, on_end=on_end)
        daily_site.run(run, on_end=on_end)
    daily_site.assert_answered(range(DAYS), checkpoints=DAYS)


@pytest.mark.nightly
def test_three_suspended_days_survive_crashes_at_every_point(
    any_site: RunSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        old_starts, "STARTS_KEPT", 1_000
    )  # an attempt answers the starts that it deletes, which would end the chain
    daily_site = with_own_events(any_site, tmp_path)
    for day in range(DAYS):
        deliver(daily_site.events, day)
        crash_in_turn(daily_site, f"day {day}", on_end=OnEnd.DRAIN if day == DAYS - 1 else OnEnd.SUSPEND)
    daily_site.assert_answered(range(DAYS), checkpoints=DAYS)


SOME = {Step.ATTEMPT_CREATE, Step.INCARNATION_CLOSE, Step.MANIFEST_CREATE, Step.RESPONSE_CREATE}


# The durable steps are the same in both. By day the points on a disk already find faults that do not depend on the store.
@pytest.mark.parametrize(
    ("bucket", "steps"),
    [
        pytest.param(ON_A_DISK, SOME, id="some points"),
        pytest.param(IN_A_STORE, SOME, id="some points in a store", marks=AT_NIGHT),
        pytest.param(ON_A_DISK, set(Step), id="every point", marks=pytest.mark.nightly),
        pytest.param(IN_A_STORE, set(Step), id="every point in a store", marks=AT_NIGHT),
    ],
    indirect=["bucket"],
)
def test_after_a_fresh_start_that_dies_the_abandoned_rows_cannot_be_published(any_site: RunSite, steps: set[Step]) -> None:
    any_site.run("abandoned", publish=Publish.EXTERNAL)
    chain, closed = InTurn(steps), 0
    while not chain.answered:
        run_into(any_site, chain.choose, "fresh", fresh=True)
        closed += chain.last is not None and chain.last.name == (Step.INCARNATION_CLOSE, False)
        if closed == len(SINKS):
            refused_to_publish_the_abandoned(any_site)
    refused_to_publish_the_abandoned(any_site)
    assert closed == len(SINKS)
    assert any_site.public() == answer([0])
    assert any_site.publications() == dict.fromkeys(SINKS, 1)
    assert any_site.checkpoints() == [1, 2]


def test_a_run_whose_rows_can_never_become_public_fails(site: RunSite) -> None:
    run_into(site, lambda passed: passed.name == (Step.MANIFEST_CREATE, False), "abandoned")
    site.run("fresh", fresh=True)
    with pytest.raises(RejectedError, match="never can be"):
        site.run("abandoned")
    assert site.public() == answer([0])


def refused_to_publish_the_abandoned(site: RunSite) -> None:
    before = site.public()
    with pytest.raises(RejectedError):
        publish(site.files(), CheckpointId(1), policy=Publish.EXTERNAL)
    assert site.public() == before


def lose_power_after_the_manifest(site: RunSite) -> None:
    point = run_into(site, lambda passed: passed.name == (Step.MANIFEST_CREATE, False), foreign=("*.parquet",))
    assert point is not None


def test_all_files_that_a_manifest_names_survive_a_loss_of_power(site: RunSite) -> None:
    lose_power_after_the_manifest(site)
    site.run()
    assert_finished(site)


def test_without_their_fsync_staged_files_would_be_lost(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "make_durable", lambda _, adds: adds)
    lose_power_after_the_manifest(site)
    with pytest.raises(NotFoundError):
        site.run()
    assert site.public() == {sink: [] for sink in SINKS}
