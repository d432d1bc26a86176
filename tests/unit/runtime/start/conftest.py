"""What the tests of starts share."""

from pathlib import Path

import pytest

from tests.support.state_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Four batches of state, a snapshot of it among them."""
    site = Site(tmp_path)
    site.batches(3)
    site.checkpoint.snapshot(1)
    site.batches(1)
    return site
