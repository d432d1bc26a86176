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


def in_turn(
    ours: Callable[[], float], plain: Callable[[], float], turns: int, tell: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    """Measures both ``turns`` times, each time ours first; one more turn before is thrown away, because it warms the JVM up."""
    measured: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for what, measure, into in (("ours", ours, measured[0]), ("plain", plain, measured[1])):
            tell(f"{'warming up' if turn == 0 else f'turn {turn} of {turns}'}, {what}")
            value = measure()
            if turn:
                into.append(value)
    return measured
