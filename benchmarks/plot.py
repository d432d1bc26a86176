"""The plot of a report: how many times as good as the other way ours is."""

import hashlib
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from benchmarks.report import Report

_INCHES_PER_ROW = 0.3
_COLOURS = ("#1f77b4", "#d9791e", "#2a8a57", "#b0413e", "#7a5195", "#6b6b6b")


def draw(report: Report, source: Path, target: Path) -> None:
    """Draws ``report`` as SVG; the same report gives the same bytes.

    Args:
        report: What was measured.
        source: The file it was read from; its hash goes into the drawing.
        target: The drawing.
    """
    # Text stays text, so that the drawing does not depend on a machine's fonts, and ids do not depend on chance.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 9}):
        rows = len(report.figures)
        canvas = Canvas(figsize=(9, 1.1 + _INCHES_PER_ROW * (rows + len(report.kinds()))), layout="constrained")
        axes = canvas.subplots()
        labels: list[tuple[float, str]] = []
        y = 0.0
        for colour, (kind, figures) in zip(cycle(_COLOURS), report.kinds(), strict=False):
            axes.text(
                -0.02, y, kind.name, transform=axes.get_yaxis_transform(), ha="right", va="center", weight="bold", color=colour
            )
            y -= 1
            for figure in figures:
                axes.plot([min(figure.ratios), max(figure.ratios)], [y, y], color=colour, linewidth=2, alpha=0.4)
                axes.plot([figure.ratio], [y], "o", color=colour)
                if figure.goal is not None:
                    axes.plot([figure.goal], [y], "|", color="black", markersize=11)
                labels.append((y, figure.name))
                y -= 1
        axes.axvline(1, color="#999999", linewidth=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
        axes.set_yticks([place for place, _ in labels], [name for _, name in labels])
        axes.set_ylim(y + 0.3, 0.7)
        axes.set_xlabel("times as good as the other way (dot: median, line: least to most, tick: goal)")
        axes.grid(axis="x", color="#e5e5e5")
        axes.set_axisbelow(True)
        canvas.savefig(target, format="svg", metadata={"Date": None, "Description": fingerprint(source)})


def fingerprint(source: Path) -> str:
    """Returns the text in a drawing that identifies its source file."""
    return f"SHA-256 of the numbers: {hashlib.sha256(source.read_bytes()).hexdigest()}"
