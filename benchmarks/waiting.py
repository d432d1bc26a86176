"""A thousand waits in one triggerer: what they cost while nothing happens, and how soon one ends when something does."""

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.site import Site, chain
from benchmarks.triggerer import Triggerer, waiting
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.home import open_home
from spark_jobs.protocol.documents import Manifest, Publish
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.storage.beside import at_once
from spark_jobs.storage.open import open_files
from tests.support.hdfs_cluster import hdfs_cluster
from tests.support.object_store import object_store

_OURS, _PLAIN = "our sensor's", "Airflow's own for files"
_STORE, _DIRECTORY = "homes in a store", "homes in directories"
CPU = Kind("waits at rest", "percent of one core that the triggerer uses", Better.LESS, _OURS, _PLAIN)
READS = Kind("reads at rest", "files opened and directories listed a second", Better.LESS, _OURS, "each wait for itself")
MEMORY = Kind("memory of waits", "MiB of the triggerer", Better.LESS, _OURS, _PLAIN)
REACTION = Kind("end of a wait", "seconds from the checkpoint to the resumed task", Better.LESS, _OURS, _PLAIN)
CPU_IN_STORES = Kind("waits in stores at rest", "percent of one core that the triggerer uses", Better.LESS, _STORE, _DIRECTORY)
MEMORY_IN_STORES = Kind("memory of waits in stores", "MiB of the triggerer", Better.LESS, _STORE, _DIRECTORY)
REACTION_IN_STORES = Kind(
    "end of a wait in a store", "seconds from the checkpoint to the resumed task", Better.LESS, _STORE, _DIRECTORY
)
_PAUSE_S = 3.0
"""Between two looks at rest: the default of ours, but for object stores."""
_PAUSE_IN_OBJECT_STORES_S = 30.0
_LISTINGS = 2
"""Of a look."""
_REACT_S = 30.0
Trigger = tuple[str, Mapping[str, Any]]
"""Class and arguments."""


@dataclass(frozen=True)
class Measured:
    """What one triggerer with its waits has shown; a number for each window."""

    cpu: list[float]
    reads: list[float]
    memory: list[float]
    reaction_s: list[float]


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Waits for the next checkpoint, each of a home of its own, and 20 of each home; then with the homes in stores."""
    waits = 200 if quick else 1_000
    measure = Measurement(site, _manifest(site), waits, quick, tell)
    in_directories: Measured | None = None
    for homes in (waits,) if quick else (waits, waits // 20):
        name = f"{waits:,} waits for {homes:,} homes"
        ours, plain = (measure.of(kind, f"file://{site.new()}", homes) for kind in (_ours, _files))
        in_directories = in_directories or ours
        yield Figure(CPU, name, ours.cpu, plain.cpu)
        yield Figure(READS, name, ours.reads, [_LISTINGS * waits / _PAUSE_S] * len(ours.reads))
        yield Figure(MEMORY, name, ours.memory, plain.memory)
        yield Figure(REACTION, name, ours.reaction_s, plain.reaction_s)
    assert in_directories
    with hdfs_cluster(site.new()) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.settings))
        found = measure.of(_ours, f"hdfs://{cluster.authority}", waits)
    yield from _in_stores(f"{waits:,} homes in HDFS", found, in_directories)
    with object_store() as url:
        found = measure.of(_ours, url, waits, _PAUSE_IN_OBJECT_STORES_S)
    yield from _in_stores(f"{waits:,} homes in S3", found, in_directories)


def _in_stores(name: str, found: Measured, in_directories: Measured) -> Iterator[Figure]:
    yield Figure(CPU_IN_STORES, name, found.cpu, in_directories.cpu)
    yield Figure(MEMORY_IN_STORES, name, found.memory, in_directories.memory)
    yield Figure(REACTION_IN_STORES, name, found.reaction_s, in_directories.reaction_s)


@dataclass(frozen=True)
class Measurement:
    """Measures waits of one kind after the other, each in a triggerer of its own.

    Args:
        site: Where.
        template: The checkpoint that each home begins with.
        waits: How many.
        quick: Fewer windows and fewer ends.
        tell: Told what is going on.
    """

    site: Site
    template: Manifest
    waits: int
    quick: bool
    tell: Tell

    def of(self, kind: Callable[[str], Trigger], root: str, homes: int, pause_s: float = _PAUSE_S) -> Measured:
        """Waits for homes below ``root``, of which the one at rest is looked at every ``pause_s``."""
        directory = self.site.new()
        places = [f"{root}/homes/home-{number:04}" for number in range(homes)]
        self.tell(f"making {homes:,} homes in {root}")
        at_once([partial(self._begin, place) for place in places], threads_max=8)
        triggers = [kind(places[number % homes]) for number in range(self.waits)]
        name = f"{self.waits:,} waits for {homes:,} homes"
        # Looks become rarer by and by: it takes about four of the longest pauses until they are as rare as they get.
        settled_s = max(20.0, 4 * pause_s)
        with waiting(directory, Path(root.removeprefix("file://")), triggers, self.tell, settled_s) as triggerer:
            self.tell(f"{name}, at rest")
            windows = [triggerer.at_rest(max(20.0, 2 * pause_s)) for _ in range(1 if self.quick else 3)]
            memory = [triggerer.memory_mib()]
            self.tell(f"{name}, ending some")
            reaction_s = self._reactions(triggerer, places, _REACT_S + pause_s)
        shutil.rmtree(directory)
        return Measured([cpu for cpu, _ in windows], [reads for _, reads in windows], memory, reaction_s)

    def _begin(self, place: str) -> None:
        CheckpointStore(open_home(place)).complete(self.template)

    def _reactions(self, triggerer: Triggerer, places: Sequence[str], patience_s: float) -> list[float]:
        """Completes a checkpoint in some homes, one after the other, and tells when the tasks that waited for it were resumed."""
        following = self.template.model_copy(update={"checkpoint": CheckpointId(2), "parent": CheckpointId(1)})
        done_at: dict[int, datetime] = {}
        for number in random.Random(7).sample(range(len(places)), 5 if self.quick else 10):
            CheckpointStore(open_home(places[number])).complete(following)
            done_at[number] = datetime.now(UTC)
            time.sleep(random.Random(number).uniform(0.5, 1.5))
        wanted = {number for number in range(self.waits) if number % len(places) in done_at}
        end_s = time.monotonic() + patience_s
        while not wanted <= (resumed := triggerer.resumed_at()).keys():
            if time.monotonic() > end_s:
                raise RuntimeError(f"of {len(wanted)} waits that were over {len(resumed)} have ended")
            time.sleep(0.5)
        return sorted((resumed[number] - done_at[number % len(places)]).total_seconds() for number in wanted)


def _ours(home: str) -> Trigger:
    arguments = {
        "home": home,
        "final": False,
        "run": None,
        "newer_than": 1,
        "deadline_at": time.time() + 24 * 3600.0,
        "timeout_s": 24 * 3600.0,
        "poll_interval_s": 2.0,
        "max_poll_interval_s": None,
    }
    return "airflow_provider.triggers.checkpoint.CheckpointTrigger", arguments


def _files(home: str) -> Trigger:
    path = f"{home.removeprefix('file://')}/checkpoints/2/manifest.json"
    return "airflow.providers.standard.triggers.file.FileTrigger", {"filepath": path, "poke_interval": _PAUSE_S}


def _manifest(site: Site) -> Manifest:
    """That of a real run."""
    directory = site.new()
    site.run(chain(site.input("input-of-waits", 1, 1), directory, 1), directory, Publish.EXTERNAL)
    return CheckpointStore(open_files(str(directory / "home"))).manifest(CheckpointId(1))
