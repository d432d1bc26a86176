"""A pipeline with everything in S3: its batches, checkpoints and publications, and the requests that these make."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, Tell
from benchmarks.site import Site


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    yield from measured("lives", site, quick=quick, tell=tell)


def measured(what: str, site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Figures of :mod:`benchmarks.store_lives`, in a process of its own: its Spark has a client of S3 from its start on."""
    directory = site.new()
    output = directory / "output"
    with output.open("w") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.store_lives", str(directory), what, "quick" if quick else "whole"],
            env=os.environ | {"XDG_CACHE_HOME": str(directory / "cache")},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if "figure" in said:
                    yield Figure.from_json(said["figure"])
                else:
                    tell(said["tell"])
        if child.wait():
            raise RuntimeError(f"the lives in stores have failed: {output.read_text()[-6_000:]}")
