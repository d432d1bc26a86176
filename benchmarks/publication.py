"""Publication without a JVM against the same by Spark, from one file to ten thousand."""

import os
import shutil
import time
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import quote, unquote

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.site import Site, chain
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import Manifest, Publish, Publisher
from spark_jobs.protocol.ids import AppId, CheckpointId, SinkName
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.open import open_files

PUBLICATION = Kind("publication", "seconds a publication", Better.LESS, "ours, without a JVM", "a bare commit by Spark")
_SINK, _APP = SinkName("stage_0"), AppId("benchmark")


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Checkpoints of so many files: our whole publication, with all that is checked before it and read back after.

    Against a Delta transaction of the same actions by Spark, in a session that is warm and knows the table, with nothing checked.
    """
    for files in (1, 10, 1_000) if quick else (1, 10, 100, 1_000, 10_000):
        ours, plain = Staged(site, files), Staged(site, files)
        yield measured_in_turn(
            PUBLICATION,
            f"{files:,} file{'s' if files > 1 else ''}",
            ours=ours.published_s,
            plain=plain.committed_s,
            turns=2 if quick else 3,
            tell=tell,
            goal=10.0 if files == 10 else 1.0,
        )
        for staged in (ours, plain):
            staged.check()
            staged.remove()


class Staged:
    """A pipeline whose staged file is there as often as wanted: by hard links under other names.

    Args:
        site: Runs the pipeline, once.
        files: How many files a checkpoint adds.
    """

    def __init__(self, site: Site, files: int) -> None:
        self.site, self._files = site, files
        self._directory = site.new()
        self._publishers = Publishers(lambda: site.spark, in_driver=True)
        self._links, self._commits = count(), count(1)
        source = site.input(f"input-of-{self._directory.name}", 1, 1)
        site.run(chain(source, self._directory, 1), self._directory, Publish.EXTERNAL)
        self.home = open_files(str(self._directory / "home"))
        self.table = self._directory / _SINK
        self._store = CheckpointStore(self.home)
        self._head: Manifest = self._store.manifest(self._store.taken()[-1])
        self.add: dict[str, Any] = self._store.read_actions(self._head.sinks[_SINK])[0]["add"]
        publish(self.home, self._head.checkpoint)

    @property
    def newest(self) -> CheckpointId:
        """The newest checkpoint."""
        return self._head.checkpoint

    @property
    def app(self) -> AppId:
        """The app id that the table is published under."""
        return self._head.sinks[_SINK].app

    def published_s(self) -> float:
        """Completes a checkpoint and publishes it."""
        return self.published_by_s(Publisher.DELTA_RS)

    def published_by_s(self, publisher: Publisher) -> float:
        """Completes a checkpoint and has it published, by Spark in a session that is warm."""
        number = self.checkpoint(publisher)
        began_s = time.monotonic()
        publish(self.home, number, publishers=self._publishers)
        return time.monotonic() - began_s

    def committed_s(self) -> float:
        """Commits the same by Spark, as a line of checkpoints that nobody has: as Delta's own idempotent writes do."""
        actions, version = self.stage(), CheckpointId(next(self._commits))
        began_s = time.monotonic()
        delta = DeltaJvm(self.site.spark)
        delta.log(str(self.table)).startTransaction().txnVersion(_APP)
        transaction = delta.transaction(str(self.table), _APP)
        transaction.commit(actions, version, {}, replace=False)
        return time.monotonic() - began_s

    def stage(self) -> list[dict[str, Any]]:
        """New files in the table's directory, and their ``add`` actions."""
        original = unquote(self.add["path"])
        names = [f"{next(self._links)}-{original}" for _ in range(self._files)]
        for name in names:
            os.link(self.table / original, self.table / name)
        return [self.add | {"path": quote(name)} for name in names]

    def checkpoint(self, publisher: Publisher = Publisher.DELTA_RS) -> CheckpointId:
        """Stages files and completes the next checkpoint with them, as the runtime does."""
        number, cut = self._store.next_id(self._head.checkpoint), self._head.sinks[_SINK]
        actions = self._store.write_actions(number, _SINK, [{"add": add, "batch": 0} for add in self.stage()])
        changes = {
            "checkpoint": number,
            "parent": self._head.checkpoint,
            "sinks": {_SINK: cut.model_copy(update={"actions": actions, "publisher": publisher})},
        }
        self._head = self._head.model_copy(update=changes)
        self._store.complete(self._head)
        return number

    def check(self) -> None:
        """Every file that was staged is public, once."""
        rows, expected = self.site.rows(self.table), 1 + next(self._links)
        if rows != expected:
            raise AssertionError(f"{self.table} has {rows} rows instead of {expected}")

    def finish(self) -> None:
        """Waits for what a driver does in the background."""
        self._publishers.finish()

    def remove(self) -> None:
        """Removes the pipeline and its table."""
        self.finish()
        shutil.rmtree(self._directory)
