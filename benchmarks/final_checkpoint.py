"""The final checkpoint of stages in a row: one for all of them, so more stages should not make it longer."""

from collections.abc import Callable, Iterator

from benchmarks.figures import Better, Figure, Kind, Tell, in_turn
from benchmarks.site import Site

CHECKPOINT = Kind("final checkpoint", "seconds from the cut to the manifest", Better.LESS, "so many stages", "1 stage")


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Pipelines of 2, 4 and 8 stages, each against one of a single stage; each run has exactly one checkpoint."""
    source = site.input("cascade", 1, 1_000)
    numbers = (1, 4) if quick else (1, 2, 4, 8)

    def way(stages: int) -> Callable[[], float]:
        return lambda: site.ours(source, stages).checkpoint_s

    ways = {f"{stages} stage{'s' if stages > 1 else ''}": way(stages) for stages in numbers}
    found = in_turn("final checkpoint", ways, 1 if quick else 3, tell)
    one, *others = found
    for name in others:
        yield Figure(CHECKPOINT, name, found[name], found[one])
