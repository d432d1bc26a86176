"""A start whose state is in S3."""

from collections.abc import Iterator

from benchmarks import in_stores
from benchmarks.figures import Figure, Tell
from benchmarks.site import Site
from tests.support.versitygw import PROGRAM


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """The time from a start on an empty disk to its first batch. Without versitygw there is no figure."""
    if PROGRAM.exists():
        yield from in_stores.measured("restores", site, quick=quick, tell=tell)
    else:
        tell("a restore from S3 is left out: it needs versitygw, which `make bench` builds with Go")
