"""Measures a run's cost before and after its batches (pins, tables, private logs, final checkpoint, publication), and a cold start."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from benchmarks.figures import Better, Figure, Kind, Tell, in_turn, measured_in_turn
from benchmarks.site import Input, Site
from benchmarks.staged_sink import WHOLE

COLD = Kind(
    "cold processes", "seconds a process, from its start to its end", Better.LESS, "spark-jobs run", "a script with writeStream"
)
_ROWS = 1_000
_COLD_PIPELINE = Path(__file__).with_name("cold_pipeline.py")


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Whole runs over one small batch, of one stage and of three in a row: in a session that is warm, and as processes of their own."""
    source = site.input("one-batch", 1, _ROWS)
    for stages in (1, 3):
        yield _warm(site, source, stages, 1 if quick else 3, tell)
    for stages in (1,) if quick else (1, 3):
        yield _cold(source, site, stages, 1 if quick else 2, tell)


def _warm(site: Site, source: Input, stages: int, turns: int, tell: Tell) -> Figure:
    return measured_in_turn(
        WHOLE,
        _name(stages),
        ours=lambda: site.ours(source, stages).run_s,
        plain=lambda: site.plain(source, stages).run_s,
        turns=turns,
        tell=tell,
    )


def _cold(source: Input, site: Site, stages: int, turns: int, tell: Tell) -> Figure:
    numbers = count()

    def ours() -> float:
        directory = site.directory / f"cold-{stages}-ours-{next(numbers)}"
        command = ["-m", "spark_jobs", "run", str(_COLD_PIPELINE), "--home", str(directory / "home")]
        return _process_s(command, source, directory, stages)

    def plain() -> float:
        directory = site.directory / f"cold-{stages}-plain-{next(numbers)}"
        return _process_s(["-m", "benchmarks.cold_plain"], source, directory, stages)

    found = in_turn(f"cold: {_name(stages)}", {"ours": ours, "plain": plain}, turns, tell, warm=False)
    return Figure(COLD, _name(stages), found["ours"], found["plain"])


def _process_s(command: Sequence[str], source: Input, directory: Path, stages: int) -> float:
    """Returns the duration of a process of this Python.

    Raises:
        RuntimeError: It failed; the message is what it printed.
    """
    directory.mkdir()
    environment = os.environ | {"COLD_INPUT": str(source.path), "COLD_OUTPUT": str(directory), "COLD_STAGES": str(stages)}
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    took_s = time.monotonic() - began_s
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-4_000:]}")
    return took_s


def _name(stages: int) -> str:
    return f"{stages} stage{'s' if stages > 1 else ''}, {_ROWS:,} rows"
