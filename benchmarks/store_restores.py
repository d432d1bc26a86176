"""A start whose state is in S3."""

from collections.abc import Iterator

from benchmarks import in_stores
from benchmarks.figures import Figure, Tell
from benchmarks.site import Site


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """The time from a start on an empty disk to its first batch."""
    yield from in_stores.measured("restores", site, quick=quick, tell=tell)
