"""A fold of a table of deleted keys is interrupted at any of its operations, and no key is lost."""

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication import deleted_keys
from tests.support.graves import Graves
from tests.support.systems import Crashed, CrashSystem, FaultSystem

FOLD_VERSIONS = 3
DELTAS_OWN = ("*.parquet", "*.json", "*.crc")
"""The names of files that Delta writes and does not make durable."""


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """Makes folds frequent, so that each has few operations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deleted_keys, "FOLD_VERSIONS", FOLD_VERSIONS)
        yield


@pytest.fixture(scope="module")
def due(tmp_path_factory: pytest.TempPathFactory) -> Graves:
    """A table that was folded twice and is due again, so that the next fold does all of its steps."""
    graves = Graves.made(tmp_path_factory.mktemp("due") / "tombstones")
    for _ in graves.rounds(6 * FOLD_VERSIONS):
        graves.keep_small()
    graves.becomes_due()
    return graves


def copy_of(due: Graves, path: Path) -> Graves:
    shutil.copytree(due.path, path)
    return Graves(path, dict(due.expected), due.checkpoint)


def goes_on(graves: Graves) -> None:
    """Checks that the table is right after an interruption, stays right, and becomes as small as an undisturbed one."""
    graves.assert_right()
    for _ in graves.rounds(5 * FOLD_VERSIONS, seed=2):
        graves.keep_small()
    graves.assert_right()
    log, data = graves.files()
    assert log <= 2 * FOLD_VERSIONS + 8
    assert data <= 5 * FOLD_VERSIONS


STEPS = (Step.COMPACT_KEYS, Step.FOLD_KEYS, Step.TRIM_KEYS)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("dies_at", STEPS)
def test_a_driver_that_dies_at_any_step_of_a_fold_loses_no_key(due: Graves, tmp_path: Path, dies_at: Step, before: bool) -> None:
    class Dies:
        def before(self, step: Step) -> None:
            if before and step is dies_at:
                raise Crashed

        def after(self, step: Step) -> None:
            if not before and step is dies_at:
                raise Crashed

    graves = copy_of(due, tmp_path / "tombstones")
    with observed_by(Dies()), pytest.raises(Crashed):
        graves.keep_small()
    goes_on(graves)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("foreign", [(), DELTAS_OWN], ids=["a kill", "a loss of power"])
def test_a_fold_that_is_interrupted_anywhere_loses_no_key(
    due: Graves, tmp_path: Path, foreign: tuple[str, ...], stride: int
) -> None:
    """A loss of power removes the files that the fold itself has not made durable, but not the files that it relies on."""
    operation = 0
    while True:
        graves = copy_of(due, tmp_path / str(operation))
        system = CrashSystem(graves.path, crash_before=operation, foreign=foreign)
        try:
            graves.keep_small(system)
        except Crashed:
            graves.assert_right()
            shutil.rmtree(graves.path)
            operation += stride
        else:
            break
    assert operation > 100
    goes_on(graves)


def test_folded_keys_survive_a_loss_of_power_at_any_later_time(tmp_path: Path) -> None:
    """Delta makes nothing durable, so all commits after the last fold are lost here. Deletes from before the fold are not needed."""
    graves = Graves.made(tmp_path / "tombstones")
    system = CrashSystem(tmp_path, foreign=DELTAS_OWN)
    folds, expected = 0, dict[int, int]()
    for _ in graves.rounds(10 * FOLD_VERSIONS):
        if graves.keep_small(system):
            expected, folds = dict(graves.expected), folds + 1
    assert folds > 3
    system.crash()
    graves.assert_right(expected=expected)


@pytest.mark.parametrize("stride", [15, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_later_fold_repairs_a_failure_of_any_operation(due: Graves, tmp_path: Path, stride: int) -> None:
    for number in count(0, stride):
        system, graves = FaultSystem(number), copy_of(due, tmp_path / str(number))
        try:
            graves.keep_small(system)
        except StreamPipelineError:
            graves.assert_right()
        if not system.injected:
            assert number > 100
            return goes_on(graves)
        shutil.rmtree(graves.path)
