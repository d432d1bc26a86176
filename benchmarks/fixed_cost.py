"""What a run costs before and after its batches: pinning, tables, private logs, the final checkpoint, publication."""

from collections.abc import Callable, Iterator

from benchmarks.figures import Figure, in_turn
from benchmarks.site import Site

_ROWS = 1_000


def figures(site: Site, *, quick: bool, tell: Callable[[str], None]) -> Iterator[Figure]:
    """Whole runs over one small batch, of one stage and of three in a row."""
    source = site.input("one-batch", 1, _ROWS)
    for stages in (1, 3):
        name = f"a run of {stages} stage{'s' if stages > 1 else ''}"
        ours, plain = in_turn(
            lambda stages=stages: site.ours(source, stages).run_s,
            lambda stages=stages: site.plain(source, stages).run_s,
            turns=2 if quick else 5,
            tell=lambda what, name=name: tell(f"{name}: {what}"),
        )
        yield Figure(f"{name}: one batch of {_ROWS:,} rows", "s a run", ours, plain)
