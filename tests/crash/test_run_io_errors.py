"""A whole run during which the storage fails once, and the run after it.

Every operation of the home can fail, and every operation of the runtime itself on the tables' directories, on a disk and in a store. Spark
and delta-rs do not use the storage port for their own operations.
"""

import errno
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from spark_jobs.protocol.errors import OutcomeUnknownError, StorageError, StreamPipelineError
from spark_jobs.protocol.steps import Step, observed_by
from tests.support.crashes import HOUSEKEEPING, NOT_IN_A_SMALL_RUN
from tests.support.places import IN_A_STORE
from tests.support.run_site import RunSite
from tests.support.small_pipeline import answer
from tests.support.systems import FaultSystem

pytestmark = pytest.mark.spark

CODES = [errno.EIO, errno.ENOSPC, errno.EACCES]
STRIDE = 7
"""The number of parts of the nightly sweep. Each part is a test of its own, so that it can be repeated alone."""
SHARES = 7
"""The number of shares of the requests to a store. Each night has one of them."""


@pytest.fixture(scope="session")
def operations(tmp_path_factory: pytest.TempPathFactory, one_day: Path) -> int:
    """Returns the number of operations of an undisturbed run."""
    system = FaultSystem()
    RunSite(tmp_path_factory.mktemp("clean") / "site", one_day).run(system=system)
    return system.operations


def fail_once(site: RunSite, index: int, code: int, *, answer_lost: bool = False) -> None:
    """Fails one operation of a run. Checks that the tables are old or new, and that the next run ends well."""
    system = FaultSystem(index, code, answer_lost=answer_lost)
    error = error_of(site, system)
    where = f"{errno.errorcode[code]} at operation {index} ({system.trace[-1] if not system.injected else system.trace[index]})"
    if error is not None:
        assert isinstance(error, StorageError | OutcomeUnknownError), f"{where}: {error!r}"
        assert error.remedy, where
    expected, found = answer([0]), site.public()
    assert all(rows in ([], expected[sink]) for sink, rows in found.items()), f"{where} left a mix"
    assert site.checkpoints() or not any(found.values()), f"{where}: public before the manifest"
    unswept = bool(site.checkpoints())
    site.run()
    site.assert_answered()
    assert unswept or site.orphans() == [], where


def error_of(site: RunSite, system: FaultSystem) -> StreamPipelineError | None:
    try:
        site.run(system=system)
    except StreamPipelineError as error:
        return error
    return None


@pytest.mark.parametrize(
    "code",
    [CODES[0], *(pytest.param(code, marks=pytest.mark.nightly) for code in CODES[1:])],
    ids=lambda code: errno.errorcode[code],
)
def test_a_run_whose_storage_fails_once_reports_it_and_the_next_run_succeeds(
    site: RunSite, operations: int, code: int, seed: int, tmp_path: Path
) -> None:
    index = Random(f"{seed} {code}").randrange(operations)
    fail_once(replace(site, directory=tmp_path / str(index)), index, code)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(STRIDE))
def test_a_pipeline_survives_a_failure_of_any_operation_of_a_run(
    site: RunSite, operations: int, part: int, seed: int, tmp_path: Path
) -> None:
    for index in range(part, operations, STRIDE):
        code = CODES[(index // STRIDE + seed) % len(CODES)]
        fail_once(replace(site, directory=tmp_path / str(index)), index, code)


@pytest.fixture
def requests(any_site: RunSite, tmp_path: Path) -> list[int]:
    """Returns the operations of an undisturbed run that are requests to the store."""
    system = FaultSystem()
    replace(any_site, directory=tmp_path / "clean").run(system=system)
    found = [index for index, operation in enumerate(system.trace) if f" {any_site.bucket}" in operation]
    assert len(found) > SHARES
    return found


# Each night another share. By day the sample on a disk already finds faults that do not depend on the store.
@pytest.mark.nightly
@pytest.mark.stores
@pytest.mark.parametrize("bucket", [IN_A_STORE], indirect=True)
@pytest.mark.parametrize("answer_lost", [False, True], ids=["not done", "done but answer lost"])
def test_a_pipeline_survives_a_failure_of_a_request_to_a_store(
    any_site: RunSite, requests: list[int], answer_lost: bool, seed: int, tmp_path: Path
) -> None:
    for index in requests[seed % SHARES :: SHARES]:
        fail_once(replace(any_site, directory=tmp_path / str(index)), index, errno.EIO, answer_lost=answer_lost)


class LosesAnswers:
    """Loses the answer to one step. The step has happened, and its caller gets an unknown outcome."""

    def __init__(self, step: Step) -> None:
        self._step, self.lost = step, False

    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        if step is self._step and not self.lost:
            self.lost = True
            raise OutcomeUnknownError("The storage did not answer.", remedy="Look again.")


def lose_the_answer(site: RunSite, step: Step) -> None:
    observer = LosesAnswers(step)
    with observed_by(observer), pytest.raises(OutcomeUnknownError):
        site.run()
    assert observer.lost


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_run_finds_every_write_that_succeeded_although_its_answer_was_lost(site: RunSite, seed: int, every: int) -> None:
    """Each attempt loses the answer to the next kind of step. A small sample takes every third kind."""
    never = {Step.PUBLISH_SINK, Step.INCARNATION_CLOSE} | HOUSEKEEPING | NOT_IN_A_SMALL_RUN
    landed = [step for step in Step if step not in never | {Step.MANIFEST_CREATE}]
    for step in landed[seed % every :: every]:
        lose_the_answer(site, step)
    site.run()
    site.assert_answered()


def test_an_attempt_finds_its_own_manifest_although_the_answer_to_the_write_was_lost(site: RunSite) -> None:
    observer = LosesAnswers(Step.MANIFEST_CREATE)
    with observed_by(observer):
        site.run()
    assert observer.lost
    site.assert_answered()
    assert site.attempts() == 1


def test_a_version_that_was_written_is_not_staged_again_although_its_answer_was_lost(site: RunSite) -> None:
    lose_the_answer(site, Step.STAGE_VERSION)
    (version,) = site.home.glob("work/*/stages/*/log/_delta_log/*1.json")
    staged = version.read_bytes()
    site.run()
    site.assert_answered()
    assert version.read_bytes() == staged
    assert site.orphans() == []
