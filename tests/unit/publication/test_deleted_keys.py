"""The table of a sink's deleted keys stays small and correct, also for concurrent readers."""

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.savepoint import copy_files
from spark_jobs.protocol.errors import StorageError
from spark_jobs.publication.deleted_keys import FOLD_VERSIONS
from tests.support.graves import Graves, Keeper
from tests.support.systems import quick

WEEK_S = 7 * 86_400.0


@pytest.fixture
def graves(tmp_path: Path) -> Graves:
    return Graves.made(tmp_path / "tombstones")


@pytest.mark.slow
def test_two_hundred_rounds_leave_no_more_files_than_fifty(graves: Graves) -> None:
    sizes = []
    for number in graves.rounds(200):
        graves.keep_small()
        sizes.append(graves.files())
        assert len(graves.own().files()) <= 5 * FOLD_VERSIONS + 8, "a savepoint copies them, and a verification reads them"
        if number % 10 == 0:
            graves.assert_right()
    graves.assert_right()
    log, data = (max(counts) for counts in zip(*sizes, strict=True))
    assert graves.version > 4 * FOLD_VERSIONS, "it was folded several times"
    assert log <= 2 * FOLD_VERSIONS + 8
    assert data <= 3 * FOLD_VERSIONS, "each round adds one, and replaces the one before"


@pytest.mark.slow
def test_without_folding_there_would_be_hundreds_of_files(graves: Graves) -> None:
    """Shows that the limits in the other tests mean something."""
    for _ in graves.rounds(100):
        pass
    log, data = graves.files()
    assert min(log, data) > 60


@pytest.mark.slow
def test_a_fold_comes_at_an_interval_of_versions_and_rewrites_only_small_files(graves: Graves) -> None:
    folded = [number for number in graves.rounds(200) if graves.keep_small()]
    versions = graves.version
    assert versions / FOLD_VERSIONS - 2 <= len(folded) <= versions / FOLD_VERSIONS


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_savepoint_that_was_taken_at_any_time_has_every_key(graves: Graves, tmp_path: Path, at: int) -> None:
    for _ in graves.rounds(at * FOLD_VERSIONS * 2 + 5):
        graves.keep_small()
    own, copy = graves.own(), tmp_path / "copy"
    copy_files(quick(copy), {file.path: file for file in (*own.files(), *own.checksums())})
    graves.assert_right(copy)
    graves.path = copy
    for _ in graves.rounds(2 * FOLD_VERSIONS, seed=1):
        graves.keep_small()
    graves.assert_right()


def test_no_fold_comes_before_the_newest_deleted_keys_are_public(graves: Graves) -> None:
    """A new incarnation takes over the keys that were buried before it."""
    for _ in graves.rounds(3 * FOLD_VERSIONS):
        graves.keep_small()
    graves.becomes_due()
    before = graves.files()
    public = graves.version
    graves.bury({2: 1_000}, public=False)
    graves.keep_small()
    assert graves.files() == (before[0] + 1, before[1] + 1)
    assert DeltaTable(graves.path, version=public).to_pyarrow_table().num_rows == len(graves.expected)
    graves.bury({2: 1_000})
    graves.keep_small()
    graves.assert_right()


@pytest.mark.slow
@pytest.mark.parametrize("folds", [1, 3])
def test_a_read_that_began_before_a_fold_is_not_disturbed(graves: Graves, folds: int) -> None:
    """An attempt reads the keys of an abandoned incarnation while that one's last publication still folds them."""
    for _ in graves.rounds(2 * FOLD_VERSIONS * folds):
        graves.keep_small()
    graves.becomes_due()
    reader, expected = DeltaTable(graves.path), dict(graves.expected)
    assert graves.keep_small()
    graves.bury({2: 1_000})
    assert {row["id"]: row["seq"] for row in reader.to_pyarrow_table().to_pylist()} == expected


def test_deleted_keys_that_are_recorded_again_after_a_fold_change_nothing(graves: Graves) -> None:
    """The checkpoints of the log contain the versions of all app ids."""
    for _ in graves.rounds(5 * FOLD_VERSIONS):
        graves.keep_small()
    version, graves.checkpoint = graves.version, graves.checkpoint - 1
    graves.bury({1: -1}, public=False)
    assert graves.version == version


def test_a_file_of_a_dead_writer_is_deleted_after_a_week_and_a_newer_file_stays(graves: Graves) -> None:
    for _ in graves.rounds(2 * FOLD_VERSIONS):
        graves.keep_small()
    left, new = graves.path / "part-left.parquet", graves.path / "part-new.parquet"
    for path in (left, new):
        path.write_bytes(b"rows")
    for path in (left, next(graves.path.glob("part-0*.parquet"))):
        os.utime(path, (time.time() - WEEK_S - 60,) * 2)
    while not graves.keep_small():
        graves.bury({1: graves.checkpoint})
    assert (left.exists(), new.exists()) == (False, True)
    new.unlink()
    graves.assert_right()


def test_no_file_is_deleted_if_the_log_checkpoint_was_not_written(graves: Graves) -> None:
    """Delta only logs a warning when it cannot write a checkpoint."""

    class Failing(Keeper):
        def checkpoint(self, uri: str) -> None:
            pass

    for _ in graves.rounds(3 * FOLD_VERSIONS):
        graves.keep_small()
    graves.becomes_due()
    before = graves.files()
    with pytest.raises(StorageError, match="has no checkpoint at its newest version"):
        graves.keep_small(keeper=Failing())
    assert graves.files() >= before
    graves.keep_small()
    graves.assert_right()
