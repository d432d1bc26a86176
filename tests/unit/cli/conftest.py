from pathlib import Path

import pytest

from tests.support.command_line import UsedHome


@pytest.fixture
def unused(tmp_path: Path) -> UsedHome:
    """A pipeline whose home does not exist yet."""
    return UsedHome(tmp_path)


@pytest.fixture
def interrupted(unused: UsedHome) -> UsedHome:
    """A home whose first round has begun and has not ended."""
    unused.begin()
    return unused


@pytest.fixture
def drained(interrupted: UsedHome) -> UsedHome:
    """A home whose pipeline is drained. Its checkpoint 1 is staged and not published."""
    interrupted.complete()
    return interrupted
