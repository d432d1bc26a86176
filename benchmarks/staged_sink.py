"""The staged sink against Delta's own streaming sink: files and a version of the private log here, a Delta commit there."""

from collections.abc import Iterator

from benchmarks.figures import Better, Figure, Kind, Tell, in_turn, measured_in_turn
from benchmarks.site import Input, Outcome, Site, keyed_work

SINK = Kind("staged sink", "rows a second in a batch", Better.MORE, "staged", "Delta's sink")
WHOLE = Kind("whole runs", "seconds a run, warm", Better.LESS, "ours", "writeStream")
_OVERHEAD_MAX = 0.1


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Many small batches, where the fixed part of a batch counts, and large ones, where its rows do.

    The runs of the large ones are also compared as a whole, from the call to its return.
    """
    turns = 1 if quick else 3
    files, rows = (8, 1_000) if quick else (20, 1_000)
    tell("writing the inputs")
    small = site.input("many-small", files, rows)
    yield measured_in_turn(
        SINK,
        f"many small batches: {files} of {rows:,} rows",
        ours=lambda: site.ours(small).rows_per_s,
        plain=lambda: site.plain(small).rows_per_s,
        turns=turns,
        tell=tell,
        goal=1.2,
    )
    yield measured_in_turn(
        SINK,
        f"small batches with state: {files} of {rows:,} rows",
        ours=lambda: site.ours(small, does=keyed_work).rows_per_s,
        plain=lambda: site.plain(small, does=keyed_work).rows_per_s,
        turns=turns,
        tell=tell,
        goal=1.2,
    )
    files, rows = (2, 250_000) if quick else (10, 1_000_000)
    yield from _large(site, site.input("large", files, rows), turns, tell)


def _large(site: Site, large: Input, turns: int, tell: Tell) -> Iterator[Figure]:
    """Not warmed up again: the small batches have done that."""
    found: dict[str, list[Outcome]] = {"ours": [], "plain": []}

    def noted(way: str, outcome: Outcome) -> float:
        found[way].append(outcome)
        return outcome.run_s

    name = f"{large.files} of {large.rows // large.files:,} rows"
    ways = {"ours": lambda: noted("ours", site.ours(large)), "plain": lambda: noted("plain", site.plain(large))}
    runs = in_turn(f"large batches: {name}", ways, turns, tell, warm=False)
    rates = {way: [outcome.rows_per_s for outcome in outcomes] for way, outcomes in found.items()}
    yield Figure(SINK, f"large batches: {name}", rates["ours"], rates["plain"], goal=1.0)
    goal = None if large.rows < 10_000_000 else round(1 / (1 + _OVERHEAD_MAX), 2)
    yield Figure(WHOLE, f"1 stage, {large.rows:,} rows", runs["ours"], runs["plain"], goal)
