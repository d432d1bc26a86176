"""Fixtures for the tests of starts."""

from pathlib import Path

import pytest

from tests.support.state_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with four batches of state, one of them with a snapshot."""
    site = Site(tmp_path)
    site.batches(3)
    site.checkpoint.snapshot(1)
    site.batches(1)
    return site
