"""``python -m benchmarks``: measures every figure, shows it, and keeps the numbers in ``benchmarks/results``."""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import fixed_cost, staged_sink
from benchmarks.figures import Figure
from benchmarks.site import SETTINGS, Site

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs, under two minutes")
    quick = bool(parser.parse_args().quick)
    console = Console(width=None if sys.stdout.isatty() else 120)
    load_before = os.getloadavg()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as directory, console.status("starting Spark") as status:

        def tell(what: str) -> None:
            status.update(what) if console.is_terminal else console.print(f"  {what}", highlight=False)

        site = Site(Path(directory))
        for part in (staged_sink, fixed_cost):
            figures.extend(part.figures(site, quick=quick, tell=tell))
        site.spark.stop()
    show(console, figures)
    console.print(
        f"Load of this machine before: {load_before[0]:.1f}, after: {os.getloadavg()[0]:.1f}; above the number of its "
        f"cores ({os.cpu_count()}) the times say little, the ratios more. Numbers: {keep(figures, quick)}"
    )
    return 0


def show(console: Console, figures: Sequence[Figure]) -> None:
    """The table for people: medians, and how far the turns lie apart."""
    table = Table(title="The staged sink and the runtime, against Spark with Delta's own streaming sink", title_justify="left")
    for heading in ("what", "measure", "ours", "plain", "ratio"):
        table.add_column(heading, justify="left" if heading in ("what", "measure") else "right")
    for figure in figures:
        table.add_row(figure.name, figure.measure, spread(figure.ours), spread(figure.plain), f"{figure.ratio:.2f}")
    console.print(table)


def spread(values: Sequence[float]) -> str:
    """The median, the least and the most."""
    digits = 0 if median(values) >= 100 else 2
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def keep(figures: Sequence[Figure], quick: bool) -> Path:
    """Writes everything that was measured, and where."""
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    about = {
        "measured_at": now.isoformat(),
        "quick": quick,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("pyspark", "delta-spark", "deltalake")},
        "settings": dict(SETTINGS),
    }
    path.write_text(json.dumps(about | {"figures": [figure.to_json() for figure in figures]}, indent=1) + "\n")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
