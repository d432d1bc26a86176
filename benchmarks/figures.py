"""A figure: the same work done in two ways, in turn, so that a busy machine disturbs both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any

Way = Callable[[], float]
"""Does the work once and tells what it measured."""
Tell = Callable[[str], None]
"""Shows people what is going on."""


class Better(StrEnum):
    """The direction in which numbers are better."""

    MORE = "more"
    LESS = "less"


@dataclass(frozen=True)
class Kind:
    """The common fields of several figures.

    Args:
        name: A word or two; the heading of their table.
        measure: What the numbers are, with their unit.
        better: Which are the better ones.
        ours: What our way is.
        plain: What it is compared with.
    """

    name: str
    measure: str
    better: Better
    ours: str
    plain: str


@dataclass(frozen=True)
class Figure:
    """One comparison.

    Args:
        kind: What is measured and compared.
        name: What was done.
        ours: One number for each turn.
        plain: The same for the other way.
        goal: The ratio that is wanted at least; None where the figure only tells what something costs.
        most: The number that ours may be at most, in every turn; None where there is no such promise.
    """

    kind: Kind
    name: str
    ours: Sequence[float]
    plain: Sequence[float]
    goal: float | None = None
    most: float | None = None

    @property
    def ratio(self) -> float:
        """The ratio of the medians. Above 1, ours is better, in either direction of the numbers."""
        return self._ratio(median(self.ours), median(self.plain))

    @property
    def ratios(self) -> list[float]:
        """The same for each turn."""
        return [self._ratio(*turn) for turn in zip(self.ours, self.plain, strict=True)]

    @property
    def met(self) -> bool | None:
        """True if the goal is met. None if there is no goal."""
        wanted = [self.ratio >= self.goal] if self.goal is not None else []
        wanted += [max(self.ours) <= self.most] if self.most is not None else []
        return all(wanted) if wanted else None

    def _ratio(self, ours: float, plain: float) -> float:
        return ours / plain if self.kind.better is Better.MORE else plain / ours

    def to_json(self) -> dict[str, Any]:
        """Returns all measurements, with their medians and their ratio."""
        return asdict(self) | {"ours_median": median(self.ours), "plain_median": median(self.plain), "ratio": self.ratio}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Figure":
        """Returns the figure that :meth:`to_json` has written."""
        kind = Kind(**data["kind"] | {"better": Better(data["kind"]["better"])})
        return cls(kind, data["name"], data["ours"], data["plain"], data["goal"], data.get("most"))


def in_turn(what: str, ways: Mapping[str, Way], turns: int, tell: Tell, *, warm: bool = True) -> dict[str, list[float]]:
    """Measures every way ``turns`` times, one after the other in each turn.

    Args:
        what: Shown with the turns.
        ways: In the order in which they take their turns.
        turns: How many count.
        tell: Told what is going on.
        warm: One more turn before is thrown away: it warms the JVM up.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(0 if warm else 1, turns + 1):
        for name, way in ways.items():
            tell(f"{what}, {name}: {f'turn {turn} of {turns}' if turn else 'warming up'}")
            value = way()
            if turn:
                found[name].append(value)
    return found


def measured_in_turn(
    kind: Kind, name: str, *, ours: Way, plain: Way, turns: int, tell: Tell, goal: float | None = None, warm: bool = True
) -> Figure:
    """Returns one figure, ours first in each turn; see :func:`in_turn`."""
    found = in_turn(f"{kind.name}: {name}", {"ours": ours, "plain": plain}, turns, tell, warm=warm)
    return Figure(kind, name, found["ours"], found["plain"], goal)
