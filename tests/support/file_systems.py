"""A directory on another file system than that of the tests, if the host has one."""

import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_KINDS = {"apfs", "btrfs", "ext4", "tmpfs", "xfs", "zfs"}
"""Types of file systems that keep files. A mount table lists others, too."""


def _for_everybody(beside: Path) -> list[Path]:
    """Returns writable directories on other devices than ``beside``. A mount table may name a directory that is hidden now."""
    mounted = [Path(each.mountpoint) for each in psutil.disk_partitions(all=True) if each.fstype in _KINDS]
    there = [place for place in dict.fromkeys(mounted) if place.is_dir() and place.stat().st_dev != beside.stat().st_dev]
    return [place for place in there if stat.S_IMODE(place.stat().st_mode) == 0o1777]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """Returns a directory on another file system. Falls back to one next to ``tmp_path``."""
    places = _for_everybody(tmp_path)
    made = Path(tempfile.mkdtemp(dir=places[0] if places else tmp_path))
    yield made
    shutil.rmtree(made)
