"""The seed of a test that takes samples. It differs each night, and is printed with the command that repeats the test."""

import pytest


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Returns pytest-randomly's seed of this session."""
    chosen = int(request.config.getoption("randomly_seed"))
    print(f"\nrepeat with: python -m pytest -m '' '{request.node.nodeid}' --randomly-seed={chosen}")
    return chosen
