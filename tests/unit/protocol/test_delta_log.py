"""The versions and checkpoints that file names in a Delta log stand for."""

import pytest

from spark_jobs.protocol.delta_log import LogListing, commit_name, version_of

PART = "{:020}.checkpoint.{:010}.{:010}.parquet"


def listing(*commits: int, checkpoints: tuple[int, ...] = ()) -> LogListing:
    return LogListing([*map(commit_name, commits), *(f"{version:020}.checkpoint.parquet" for version in checkpoints)])


@pytest.mark.parametrize(
    ("commits", "checkpoints", "last", "lacking"),
    [
        ((), (), -1, []),
        ((0, 1, 2), (), -1, []),
        ((0, 2), (), -1, [1]),
        ((1, 2), (), -1, [0]),
        ((0, 1), (), 3, [2, 3]),
        ((4, 5, 6), (4,), -1, []),
        ((5, 6), (4,), 6, []),
        ((5, 7), (4, 6), -1, [6]),
        ((2, 3, 5, 6), (4,), 7, [7]),
        ((), (4,), 4, []),
    ],
)
def test_only_versions_after_the_oldest_checkpoint_count_as_missing(
    commits: tuple[int, ...], checkpoints: tuple[int, ...], last: int, lacking: list[int]
) -> None:
    assert listing(*commits, checkpoints=checkpoints).lacking(last) == lacking


@pytest.mark.parametrize(("checkpoints", "needed_from"), [((), None), ((4,), None), ((4, 9), 4), ((4, 9, 12), 9)])
def test_readers_need_the_last_checkpoint_but_one(checkpoints: tuple[int, ...], needed_from: int | None) -> None:
    assert listing(12, checkpoints=checkpoints).needed_from == needed_from


def test_a_checkpoint_in_parts_counts_once_it_has_all_parts() -> None:
    parts = [PART.format(7, number, 2) for number in (1, 2)]
    assert LogListing(parts[:1]).newest is None
    assert list(LogListing(parts).checkpoints) == [7]


@pytest.mark.parametrize(
    ("name", "version"),
    [(commit_name(3), 3), (f"{4:020}.crc", 4), (PART.format(5, 1, 2), 5), ("_last_checkpoint", None), ("3.json", None)],
)
def test_the_name_of_a_log_file_has_its_version(name: str, version: int | None) -> None:
    assert version_of(name) == version
