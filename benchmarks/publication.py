"""Publication without a JVM against the same by Spark, from one file to ten thousand."""

import os
import shutil
import time
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import quote, unquote

from benchmarks.figures import Better, Figure, Kind, Tell, Way, measured_in_turn
from benchmarks.site import Site, chain
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import Manifest, Publish, Publisher
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.open import open_files

PUBLICATION = Kind("publication", "seconds a publication", Better.LESS, "without a JVM", "by Spark")
_SINK = SinkName("stage_0")


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Checkpoints of so many files, each made public by either publisher, with everything that is checked before and read back after.

    Spark's has a session that is there: what it takes to start one is not in it.
    """
    publishers = Publishers(lambda: site.spark)
    for files in (1, 10, 1_000) if quick else (1, 10, 100, 1_000, 10_000):
        ways = {publisher: Staged(site, files, publisher) for publisher in (Publisher.DELTA_RS, Publisher.SPARK)}

        def way(staged: Staged) -> Way:
            def run() -> float:
                number = staged.checkpoint()
                began_s = time.monotonic()
                publish(staged.home, number, publishers=publishers)
                return time.monotonic() - began_s

            return run

        yield measured_in_turn(
            PUBLICATION,
            f"{files:,} file{'s' if files > 1 else ''}",
            ours=way(ways[Publisher.DELTA_RS]),
            plain=way(ways[Publisher.SPARK]),
            turns=2 if quick else 3,
            tell=tell,
            goal=10.0 if files == 10 else 1.0,
        )
        for staged in ways.values():
            staged.check()
            staged.remove()


class Staged:
    """A pipeline whose staged file is there as often as wanted: by hard links under other names.

    Args:
        site: Runs the pipeline, once.
        files: How many files a checkpoint adds.
        publisher: Who makes them public.
    """

    def __init__(self, site: Site, files: int, publisher: Publisher) -> None:
        self._site, self._files, self._publisher = site, files, publisher
        self._directory = site.new()
        self._links = count()
        source = site.input(f"staged-{files}-{publisher}", 1, 1)
        site.run(chain(source, self._directory, 1), self._directory, Publish.EXTERNAL)
        self.home = open_files(str(self._directory / "home"))
        self.table = self._directory / _SINK
        self._store = CheckpointStore(self.home)
        self._head: Manifest = self._store.manifest(self._store.taken()[-1])
        self._add: dict[str, Any] = self._store.read_actions(self._head.sinks[_SINK])[0]["add"]
        publish(self.home, self._head.checkpoint)

    def stage(self) -> list[dict[str, Any]]:
        """New files in the table's directory, and their ``add`` actions."""
        original = unquote(self._add["path"])
        names = [f"{next(self._links)}-{original}" for _ in range(self._files)]
        for name in names:
            os.link(self.table / original, self.table / name)
        return [self._add | {"path": quote(name)} for name in names]

    def checkpoint(self) -> CheckpointId:
        """Stages files and completes the next checkpoint with them, as the runtime does."""
        number, cut = self._store.next_id(self._head.checkpoint), self._head.sinks[_SINK]
        actions = self._store.write_actions(number, _SINK, [{"add": add, "batch": 0} for add in self.stage()])
        changes = {
            "checkpoint": number,
            "parent": self._head.checkpoint,
            "sinks": {_SINK: cut.model_copy(update={"actions": actions, "publisher": self._publisher})},
        }
        self._head = self._head.model_copy(update=changes)
        self._store.complete(self._head)
        return number

    def check(self) -> None:
        """Every file that was staged is public, once."""
        rows, expected = self._site.rows(self.table), 1 + next(self._links)
        if rows != expected:
            raise AssertionError(f"{self.table} has {rows} rows instead of {expected}")

    def remove(self) -> None:
        """Removes the pipeline and its table."""
        shutil.rmtree(self._directory)
