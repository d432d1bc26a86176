"""A whole run whose home keeps its documents and its cache in two places. It loses power in both at once; see ``test_run.py``."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from spark_jobs.protocol.steps import Step
from tests.support.crashes import NOT_IN_A_SMALL_RUN, AtRandom, contents, run_into, watched
from tests.support.crashes_in_turn import crash_in_turn
from tests.support.run_site import RunSite

pytestmark = pytest.mark.spark

CRASHES = 3


@pytest.fixture
def in_store(site: RunSite) -> RunSite:
    return replace(site, store=str(site.directory / "documents"))


def assert_finished(site: RunSite) -> None:
    """Checks that every row is public once, one more run starts nothing, and each place has the files that belong there."""
    site.assert_answered()
    tables, attempts = contents(site.directory / "warehouse"), site.attempts()
    site.run()
    assert contents(site.directory / "warehouse") == tables
    assert site.attempts() == attempts
    documents = {path.name for path in (site.directory / "documents").iterdir()}
    assert documents - {"history", "logs"} == {
        *(
            "attempts",
            "channels",
            "checkpoints",
            "manifests",
            "pipeline.json",
            "requests",
            "responses",
            "rounds",
            "runs",
            "state",
            "status.json",
        )
    }
    assert {path.name for path in site.home.iterdir()} - {"state"} == {"logs", "work"}
    assert not [path for path in site.home.glob("state/**/*") if path.is_file()], "nothing waits there any more"


def test_attempts_that_die_one_after_the_other_lose_and_double_no_row(in_store: RunSite, seed: int) -> None:
    chosen = Random(seed)
    for _ in range(CRASHES):
        run_into(in_store, AtRandom(chosen, 60))
    in_store.run()
    assert_finished(in_store)


@pytest.mark.nightly
def test_attempts_that_die_at_every_point_lose_and_double_no_row(in_store: RunSite, tmp_path: Path) -> None:
    clean = watched(replace(in_store, directory=tmp_path / "clean", store=str(tmp_path / "clean/documents")).run)
    assert {point.step for point in clean} >= {Step.PIPELINE_CREATE, Step.MANIFEST_CREATE}
    assert not {point.step for point in clean} & NOT_IN_A_SMALL_RUN
    crash_in_turn(in_store)
    assert_finished(in_store)
