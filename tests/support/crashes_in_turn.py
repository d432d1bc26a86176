"""Crashes at each step of a run."""

from typing import Any

from tests.support.crashes import InTurn, Point, run_into
from tests.support.run_site import RunSite


def crash_in_turn(site: RunSite, run: str = "first", **options: Any) -> list[Point]:
    """Lets each attempt die one point later, until the run has been answered."""
    chain = InTurn()
    while not chain.answered:
        before = len(chain.chosen)
        run_into(site, chain.choose, run, **options)
        assert len(chain.chosen) == before + 1, f"the attempt after {chain.last} did not come to the next point"
    return chain.chosen
