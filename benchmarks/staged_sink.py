"""What staging costs a batch: files and a version of the private log here, a Delta commit there."""

from collections.abc import Callable, Iterator

from benchmarks.figures import Figure, in_turn
from benchmarks.site import Site


def figures(site: Site, *, quick: bool, tell: Callable[[str], None]) -> Iterator[Figure]:
    """Many small batches, where the fixed part of a batch counts, and a few large ones, where its rows do."""
    turns = 2 if quick else 5
    for name, files, rows in (
        ("many small batches", 8 if quick else 40, 1_000),
        ("few large batches", 2 if quick else 4, 250_000 if quick else 2_000_000),
    ):
        tell(f"{name}: writing the input")
        source = site.input(name.replace(" ", "-"), files, rows)
        described = f"{name}: {files} of {rows:,} rows"
        ours, plain = in_turn(
            lambda source=source: site.ours(source).batch_ms,  # type: ignore[misc]
            lambda source=source: site.plain(source).batch_ms,  # type: ignore[misc]
            turns,
            lambda what, name=name: tell(f"{name}: {what}"),  # type: ignore[misc]
        )
        yield Figure(described, "ms a batch", ours, plain)
