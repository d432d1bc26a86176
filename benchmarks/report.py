"""Keeps measurements as JSON, and shows them as tables in the terminal and in ``docs/benchmarks.md``."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Better, Figure, Kind

_PART = re.compile(r"(?P<begin><!-- figures: (?P<name>[^>]+) -->\n).*?(?P<end><!-- end of figures -->)", re.DOTALL)


@dataclass(frozen=True)
class Report:
    """A run of the benchmarks.

    Args:
        about: When, where and with what it was measured.
        figures: In the order of the pages; those of one kind stand together.
    """

    about: Mapping[str, Any]
    figures: Sequence[Figure]

    def kinds(self) -> list[tuple[Kind, list[Figure]]]:
        """The figures by kind."""
        return [(kind, list(some)) for kind, some in groupby(self.figures, lambda figure: figure.kind)]

    def write(self, path: Path) -> None:
        """Keeps it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = dict(self.about) | {"figures": [figure.to_json() for figure in self.figures]}
        path.write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Reads a report that :meth:`write` has written."""
        about = json.loads(path.read_text())
        return cls(about, [Figure.from_json(data) for data in about.pop("figures")])

    def with_newer(self, newer: "Report") -> "Report":
        """Returns this report with the kinds of a newer one in place of its own, and with the machine on which those were measured."""
        kinds = [kind.name for kind, _ in newer.kinds()]
        figures = [figure for figure in self.figures if figure.kind.name not in kinds]
        if not figures:
            return newer
        older = [
            entry | {"kinds": [kind for kind in entry["kinds"] if kind not in kinds]} for entry in self.about.get("later", [])
        ]
        later = [entry for entry in older if entry["kinds"]]
        return Report(dict(self.about) | {"later": [*later, {"kinds": kinds} | dict(newer.about)]}, [*figures, *newer.figures])

    def markdown(self, page: str) -> str:
        """``page`` with the table of each kind of figure between its marks, and where it was measured.

        Raises:
            ValueError: The page has no place for a kind that was measured, or one for a kind that was not.
        """
        tables = {kind.name: _markdown_table(kind, figures) for kind, figures in self.kinds()} | {"measured on": self._where()}
        places = {found["name"] for found in _PART.finditer(page)}
        if places != tables.keys():
            raise ValueError(f"the page has places for {sorted(places)}, the report has {sorted(tables)}")
        return _PART.sub(lambda found: f"{found['begin']}\n{tables[found['name']]}\n{found['end']}", page)

    def show(self, console: Console) -> None:
        """The tables for people at a terminal."""
        for kind, figures in self.kinds():
            table = Table(title=f"{kind.name}: {kind.measure}, {kind.better.value} is better", title_justify="left")
            for number, heading in enumerate(_headings(kind)):
                table.add_column(heading, justify="right" if number else "left")
            for figure in figures:
                style = {True: "green", False: "yellow", None: ""}[figure.met]
                table.add_row(*_cells(figure), style=style)
            console.print(table)

    def _where(self) -> str:
        later = self.about.get("later", [])
        measured = [(self.about, "all others" if later else "all"), *((entry, ", ".join(entry["kinds"])) for entry in later)]
        machines = dict.fromkeys(_machine(about) for about, _ in measured)
        return "\n".join(
            _measured_on(machine, [entry for entry in measured if _machine(entry[0]) == machine]) for machine in machines
        )


def _measured_on(machine: str, measured: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """A sentence about a machine, and the table of what was measured on it."""
    rows = [["figures", "measured on", "load"], ["---", "---", "---:"]]
    for about, figures in measured:
        load = " to ".join(f"{load:.1f}" for load in (min(about["loads"]), max(about["loads"])))
        rows.append([figures, about["measured_at"][:10], load])
    return f"With {machine}:\n\n{_table(rows)}\n"


def _machine(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return f"{about['cores']} cores ({about['machine']}), Python {about['python']}, {versions}, `{about['settings']['spark.master']}`"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row).replace("  ", " ") + " |" for row in rows)


def about(settings: Mapping[str, str], *, quick: bool, loads: Sequence[float]) -> dict[str, Any]:
    """Returns the time, the machine and the versions of a measurement.

    Args:
        settings: Spark's.
        quick: Whether it was a quick run.
        loads: The load of the machine before each part, and at the end.
    """
    return {
        "measured_at": datetime.now(UTC).isoformat(),
        "quick": quick,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "loads": [round(load, 2) for load in loads],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("pyspark", "delta-spark", "deltalake")},
        "settings": dict(settings),
    }


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the most where they differ."""
    digits = 0 if median(values) >= 100 else 2 if median(values) >= 0.1 else 3
    shown = [f"{value:,.{digits}f}" for value in (median(values), min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _headings(kind: Kind) -> list[str]:
    return ["what", kind.ours, kind.plain, "ratio", "goal"]


def _cells(figure: Figure) -> list[str]:
    wanted = [f"≥ {figure.goal:g}"] if figure.goal is not None else []
    wanted += [f"at most {figure.most:g}"] if figure.most is not None else []
    goal = ", ".join([*wanted, "not met"] if figure.met is False else wanted)
    return [figure.name, spread(figure.ours), spread(figure.plain), f"{figure.ratio:.2f}", goal]


def _markdown_table(kind: Kind, figures: Sequence[Figure]) -> str:
    better = "more is better" if kind.better is Better.MORE else "less is better"
    rows = [_headings(kind), ["---", *["---:"] * 4], *map(_cells, figures)]
    return f"{kind.measure[0].upper()}{kind.measure[1:]}; {better}.\n\n{_table(rows)}\n"
