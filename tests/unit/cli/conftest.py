from pathlib import Path

import pytest

from tests.support.command_line import UsedHome


@pytest.fixture
def unused(tmp_path: Path) -> UsedHome:
    """A pipeline whose home does not exist yet."""
    return UsedHome(tmp_path)


@pytest.fixture
def interrupted(unused: UsedHome) -> UsedHome:
    """A home whose first round was begun and not finished."""
    unused.begin()
    return unused


@pytest.fixture
def drained(interrupted: UsedHome) -> UsedHome:
    """A home whose pipeline is drained: checkpoint 1, staged only."""
    interrupted.complete()
    return interrupted
