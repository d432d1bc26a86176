"""Sites for real drivers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.drivers import Drivers, drivers_on
from tests.support.run_site import RunSite
from tests.support.seeds import seed
from tests.support.small_pipeline import deliver

__all__ = ["seed"]


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    """Drivers on a new site."""
    deliver(tmp_path / "events", 0)
    with drivers_on(RunSite(tmp_path / "site", tmp_path / "events")) as found:
        yield found
