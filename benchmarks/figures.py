"""A figure: the same work done our way and plainly, in turn, so that a busy machine disturbs both."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One comparison.

    Args:
        name: What was done.
        measure: What the numbers are, with their unit.
        ours: One number for each turn.
        plain: The same for Spark and Delta alone.
    """

    name: str
    measure: str
    ours: Sequence[float]
    plain: Sequence[float]

    @property
    def ratio(self) -> float:
        """How many times the plain way's median ours is."""
        return median(self.ours) / median(self.plain)

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured, with what follows from it."""
        return asdict(self) | {"ours_median": median(self.ours), "plain_median": median(self.plain), "ratio": self.ratio}


def measured_in_turn(
    name: str,
    measure: str,
    *,
    ours: Callable[[], float],
    plain: Callable[[], float],
    turns: int,
    tell: Callable[[str], None],
) -> Figure:
    """Measures both ways ``turns`` times, each time ours first; one more turn before is thrown away: it warms the JVM up."""
    found: dict[str, list[float]] = {"ours": [], "plain": []}
    for turn in range(turns + 1):
        for what, way in (("ours", ours), ("plain", plain)):
            tell(f"{name}, {what}: {f'turn {turn} of {turns}' if turn else 'warming up'}")
            value = way()
            if turn:
                found[what].append(value)
    return Figure(name, measure, found["ours"], found["plain"])
