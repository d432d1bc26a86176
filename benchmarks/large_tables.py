"""Publications into a table of a million files against those into a table of a hundred; both are made from log entries alone."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from benchmarks.figures import Better, Figure, Kind, Tell, in_turn
from benchmarks.publication import Staged
from benchmarks.site import Site
from spark_jobs.protocol.documents import Publisher
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.delta_rs import open_table

_FEW, _MANY = 100, 1_000_000
_LARGE, _SMALL = f"{_MANY:,} files", f"{_FEW} files"
RUNNING = Kind("publication into a large table", "seconds a publication", Better.LESS, _LARGE, _SMALL)
FRESH = Kind("publication by a fresh process", "seconds from its start to its end", Better.LESS, _LARGE, _SMALL)
MEMORY = Kind("memory of a fresh publication", "MB that the process has at its peak", Better.LESS, _LARGE, _SMALL)
CHECKPOINT = Kind("checkpoint of a table's log", "seconds", Better.LESS, _LARGE, _SMALL)
_GOAL = round(1 / 1.5, 2)
"""In a driver that is running a large table costs at most 1.5 times what a small one costs."""
_FRESH_S_MOST, _FRESH_MB_MOST = 3.0, 300.0
_FILES_A_COMMIT = 10_000
_INTERVAL_OF_DELTA = 10
"""The default of ``delta.checkpointInterval`` in Delta for Spark."""
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """One staged file a publication: by a driver that has published before, and by a new ``spark-jobs publish``."""
    large, small = (LargeTable(site, files, tell) for files in (_MANY, _FEW))
    turns = 5 if quick else 20
    running = in_turn(RUNNING.name, {"large": large.published_s, "small": small.published_s}, turns, tell)
    yield Figure(RUNNING, "in a running driver", running["large"], running["small"], goal=_GOAL)
    tracked = [LargeTable(site, files, tell, row_tracking=True) for files in (_MANY, _FEW)]
    ways = {"large": tracked[0].published_s, "small": tracked[1].published_s}
    running = in_turn(f"{RUNNING.name}, with row tracking", ways, turns, tell)
    yield Figure(RUNNING, "in a running driver, with row tracking", running["large"], running["small"], goal=_GOAL)
    for table in tracked:
        table.check_public()
        table.remove()
    by_spark = in_turn(
        f"{RUNNING.name}, by Spark", {"large": large.published_by_spark_s, "small": small.published_by_spark_s}, turns, tell
    )
    yield Figure(RUNNING, "in a running driver, by Spark", by_spark["large"], by_spark["small"], goal=_GOAL)
    tenths = in_turn(
        f"{RUNNING.name}, every tenth version by Spark",
        {"large": large.tenth_published_by_spark_s, "small": small.tenth_published_by_spark_s},
        3,
        tell,
    )
    yield Figure(RUNNING, "every tenth version, by Spark", tenths["large"], tenths["small"])  # Delta counts all files: no goal
    for table in (large, small):
        table.finish()
    fresh: dict[str, list[tuple[float, float]]] = {"large": [], "small": []}
    for turn in range(2 if quick else 5):
        for name, table in (("large", large), ("small", small)):
            tell(f"{FRESH.name}, {name}: turn {turn + 1}")
            fresh[name].append(table.published_by_a_fresh_process())
    seconds, megabytes = ({name: [each[index] for each in found] for name, found in fresh.items()} for index in (0, 1))
    yield Figure(FRESH, "spark-jobs publish", seconds["large"], seconds["small"], most=_FRESH_S_MOST)
    yield Figure(MEMORY, "spark-jobs publish", megabytes["large"], megabytes["small"], most=_FRESH_MB_MOST)
    found = in_turn(CHECKPOINT.name, {"large": large.checkpointed_s, "small": small.checkpointed_s}, 1 if quick else 3, tell)
    yield Figure(CHECKPOINT, "by Spark, beside the stages", found["large"], found["small"])
    for table in (large, small):
        table.check_public()
        table.remove()


class LargeTable(Staged):
    """A pipeline whose table has many files, of which only the log knows.

    Args:
        site: Runs the pipeline, once.
        files: How many files the table has.
        tell: Told what is going on.
        row_tracking: True if each file has row ids.
    """

    def __init__(self, site: Site, files: int, tell: Tell, *, row_tracking: bool = False) -> None:
        super().__init__(site, files=1)
        tell(f"a table of {files:,} files")
        log = self.table / "_delta_log"
        version = int(max(path.stem for path in log.glob("*.json"))) + 1
        if row_tracking:
            (log / f"{version:020}.json").write_text("".join(json.dumps(action) + os.linesep for action in _row_tracking(files)))
            version += 1
        for first in range(0, files, _FILES_A_COMMIT):
            numbers = range(first, min(first + _FILES_A_COMMIT, files))
            (log / f"{version:020}.json").write_text(
                "".join(_line(self.add, number, row_tracking=row_tracking) for number in numbers)
            )
            version += 1
        # In a process of its own: delta-rs takes two gigabytes for it.
        subprocess.run([sys.executable, "-c", _WRITE_CHECKPOINT, str(self.table)], check=True)

    def published_by_spark_s(self) -> float:
        """The same by Spark."""
        return self.published_by_s(Publisher.SPARK)

    def tenth_published_by_spark_s(self) -> float:
        """Publishes so many times that Spark commits a version at which Delta counts all files. Returns the seconds of that one."""
        self.published_by_spark_s()  # after a commit by delta-rs Spark reads the list of files as well
        while (open_table(self.table.as_uri()).facts.version + 1) % _INTERVAL_OF_DELTA:
            self.published_by_spark_s()
        return self.published_by_spark_s()

    def published_by_a_fresh_process(self) -> tuple[float, float]:
        """Completes a checkpoint, has a new process publish it, and returns its seconds and its peak of memory in MB."""
        number = self.checkpoint()
        command = [sys.executable, "-c", _PUBLISH, "publish", "--home", self.home.url, "--checkpoint", str(number)]
        began_s = time.monotonic()
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        took_s = time.monotonic() - began_s
        peak = _PEAK.search(ended.stderr)
        if peak is None:
            raise AssertionError(f"the process does not tell its peak of memory: {ended.stderr}")
        return took_s, int(peak[1]) * 1024 / 1e6

    def checkpointed_s(self) -> float:
        """Writes a checkpoint of the log as a driver does."""
        began_s = time.monotonic()
        DeltaJvm(self.site.spark.newSession()).checkpoint(str(self.table))
        return time.monotonic() - began_s

    def check_public(self) -> None:
        """Every checkpoint is public, in the eyes of delta-rs."""
        version = subprocess.run(
            [sys.executable, "-c", _READ_VERSION, str(self.table), self.app], check=True, capture_output=True, text=True
        ).stdout
        if int(version) != self.newest:
            raise AssertionError(f"{self.table} has reached checkpoint {version} instead of {self.newest}")


def _line(add: dict[str, Any], number: int, *, row_tracking: bool) -> str:
    path = f"part-{number:07}-{uuid4()}.snappy.parquet"
    ids = {"baseRowId": number, "defaultRowCommitVersion": 1} if row_tracking else {}  # each file has one row
    return json.dumps({"add": add | {"path": path} | ids}) + os.linesep


def _row_tracking(files: int) -> Iterator[dict[str, Any]]:
    """Yields the actions that give a table row tracking, and the highest id of so many rows."""
    features = ["appendOnly", "domainMetadata", "invariants", "rowTracking"]
    yield {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}}
    configuration = json.dumps({"rowIdHighWaterMark": files - 1})
    yield {"domainMetadata": {"domain": "delta.rowTracking", "configuration": configuration, "removed": False}}


_WRITE_CHECKPOINT = "import sys; from deltalake import DeltaTable; DeltaTable(sys.argv[1]).create_checkpoint()"
_READ_VERSION = "import sys; from deltalake import DeltaTable; print(DeltaTable(sys.argv[1]).transaction_version(sys.argv[2]))"
_PUBLISH = """
import atexit, sys
from pathlib import Path
atexit.register(lambda: sys.stderr.write(Path("/proc/self/status").read_text()))
from spark_jobs.cli import main
main()
"""
"""``spark-jobs publish``, which says at its end what memory it has used."""
