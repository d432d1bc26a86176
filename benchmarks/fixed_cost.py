"""What a run costs before and after its batches: pinning, tables, private logs, the final checkpoint, publication."""

from collections.abc import Callable, Iterator

from benchmarks.figures import Figure, measured_in_turn
from benchmarks.site import Input, Site

_ROWS = 1_000


def figures(site: Site, *, quick: bool, tell: Callable[[str], None]) -> Iterator[Figure]:
    """Whole runs over one small batch, of one stage and of three in a row."""
    source = site.input("one-batch", 1, _ROWS)
    for stages in (1, 3):
        yield _figure(site, source, stages, 1 if quick else 3, tell)


def _figure(site: Site, source: Input, stages: int, turns: int, tell: Callable[[str], None]) -> Figure:
    return measured_in_turn(
        f"a run of {stages} stage{'s' if stages > 1 else ''}: one batch of {_ROWS:,} rows",
        "s a run",
        ours=lambda: site.ours(source, stages).run_s,
        plain=lambda: site.plain(source, stages).run_s,
        turns=turns,
        tell=tell,
    )
