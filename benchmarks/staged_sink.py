"""What staging costs a batch: files and a version of the private log here, a Delta commit there."""

from collections.abc import Callable, Iterator

from benchmarks.figures import Figure, measured_in_turn
from benchmarks.site import Input, Site


def figures(site: Site, *, quick: bool, tell: Callable[[str], None]) -> Iterator[Figure]:
    """Many small batches, where the fixed part of a batch counts, and a few large ones, where its rows do."""
    small = (8, 1_000) if quick else (20, 1_000)
    large = (2, 250_000) if quick else (4, 1_000_000)
    for name, (files, rows) in (("many small batches", small), ("few large batches", large)):
        tell(f"{name}: writing the input")
        source = site.input(name.replace(" ", "-"), files, rows)
        yield _figure(site, f"{name}: {files} of {rows:,} rows", source, 1 if quick else 3, tell)


def _figure(site: Site, name: str, source: Input, turns: int, tell: Callable[[str], None]) -> Figure:
    return measured_in_turn(
        name,
        "ms a batch",
        ours=lambda: site.ours(source).batch_ms,
        plain=lambda: site.plain(source).batch_ms,
        turns=turns,
        tell=tell,
    )
