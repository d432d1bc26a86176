"""``python -m benchmarks``: measures every figure, shows it, and keeps the numbers in ``benchmarks/results``.

``--render FILE`` measures nothing: it makes the tables and the plot of ``docs/benchmarks.md`` from the numbers of a run.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import (
    backpressure,
    beside_flink,
    declarative,
    failures,
    final_checkpoint,
    fixed_cost,
    freshness,
    growth,
    in_stores,
    independent_stages,
    large_tables,
    merged_upsert,
    pages,
    publication,
    rebuilt_channel,
    running,
    staged_sink,
    state_sizes,
    stops,
    store_restores,
    upsert,
    waiting,
    watermark_state,
)
from benchmarks.figures import Figure
from benchmarks.plot import draw
from benchmarks.report import Report, about
from benchmarks.site import SETTINGS, Site

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, KEPT, PLOT = DOCS / "benchmarks.md", DOCS / "benchmarks" / "run.json", DOCS / "benchmarks" / "ratios.svg"
PARTS = {
    part.__name__.rpartition(".")[2]: part
    for part in (
        *(
            staged_sink,
            upsert,
            fixed_cost,
            declarative,
            publication,
            merged_upsert,
            large_tables,
            final_checkpoint,
            watermark_state,
            growth,
            waiting,
        ),
        *(
            running,
            independent_stages,
            freshness,
            backpressure,
            failures,
            state_sizes,
            rebuilt_channel,
            stops,
            in_stores,
            store_restores,
            pages,
        ),
        beside_flink,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs, eight minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part alone; may be repeated")
    parser.add_argument("--render", type=Path, metavar="FILE", help="make the page's tables and plot from the numbers of a run")
    options = parser.parse_args()
    if options.render:
        render(options.render)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 130)
    path = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    for report in measure(options.only or list(PARTS), quick=options.quick, console=console):
        report.write(path)
    report.show(console)
    loads = report.about["loads"]
    console.print(
        "A ratio above 1: ours is better. "
        f"Load of this machine: {min(loads):.1f} to {max(loads):.1f}; above the number of its cores ({os.cpu_count()}) the times say "
        f"little, the ratios more. Numbers: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"
    )
    return 0


def measure(names: list[str], *, quick: bool, console: Console) -> Iterator[Report]:
    """Measures the parts of these names, in one session; after each the report so far."""
    figures: list[Figure] = []
    began_s, loads = time.monotonic(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as directory, console.status("starting Spark") as status:

        def tell(what: str) -> None:
            line = f"{time.monotonic() - began_s:4.0f} s  {what}"
            status.update(line) if console.is_terminal else console.print(f"  {line}", highlight=False)

        site = Site(Path(directory))
        for name in names:
            part: Iterator[Figure] = PARTS[name].figures(site, quick=quick, tell=tell)
            figures.extend(part)
            loads.append(os.getloadavg()[0])
            kinds = list(dict.fromkeys(figure.kind for figure in figures))
            in_order = sorted(figures, key=lambda figure: kinds.index(figure.kind))
            yield Report(about(SETTINGS, quick=quick, loads=loads), in_order)
        site.spark.stop()


def render(source: Path) -> None:
    """Makes the tables and the plot of the page from ``source``, and keeps the numbers beside the plot.

    A run of some parts alone takes the place of those parts; what was kept of the others stays.
    """
    report = Report.read(source)
    if source.resolve() != KEPT.resolve() and KEPT.exists():
        report = Report.read(KEPT).with_newer(report)
    page = report.markdown(PAGE.read_text())  # before anything is written: the page may lack a place
    report.write(KEPT)
    PAGE.write_text(page)
    draw(report, KEPT, PLOT)


if __name__ == "__main__":
    sys.exit(main())
