"""A thousand waits in one triggerer: what they cost while nothing happens, and how soon one ends when something does."""

import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.site import Site, chain
from benchmarks.triggerer import Triggerer, waiting
from spark_jobs.background import run_all
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.control.liveness import holding
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK, manifest_path
from spark_jobs.protocol.documents import (
    AttemptDocument,
    Manifest,
    Publish,
    RunState,
    StageState,
    StageStatus,
    StartResponse,
    Status,
    WorkDirectory,
)
from spark_jobs.protocol.ids import (
    BatchId,
    CheckpointId,
    IncarnationId,
    PipelineName,
    RoundNumber,
    RunId,
    StageName,
    WorkDirectoryId,
)
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import open_files
from tests.support.hdfs_cluster import hdfs_cluster
from tests.support.object_store import object_store
from tests.support.staged_pipeline import CHECKPOINTING

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
_REACT_S = 30.0
_CPU_MOST, _REACTION_MOST_S = 25.0, 5.0
"""The promised limits. In object stores the reaction takes one pause at most."""
Trigger = tuple[str, Mapping[str, Any]]
"""Class and arguments."""


@dataclass(frozen=True)
class Measured:
    """The measurements of one triggerer with its waits, with one number for each window."""

    cpu: list[float]
    reads: list[float]
    memory: list[float]
    reaction_s: list[float]


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Waits for the next checkpoint, each of a home of its own, and 20 of each home; for runs; then with the homes in stores."""
    waits = 200 if quick else 1_000
    measure, manifest = Measurement(site, waits, quick, tell), _manifest(site)
    in_directories, plain = (measure.of(kind(manifest), f"file://{site.new()}", waits) for kind in (Checkpoints, ManifestFiles))
    yield from _in_directories(f"{waits:,} waits for {waits:,} homes", in_directories, plain)
    yield _reads(f"{waits:,} waits for {waits:,} homes", in_directories, waits * Checkpoints.LOOK_READS)
    with Runs() as runs:
        at_work = measure.of(runs, f"file://{site.new()}", waits)
    yield from _in_directories(f"{waits:,} waits for {waits:,} runs at work", at_work, plain)
    yield _reads(f"{waits:,} waits for {waits:,} runs at work", at_work, waits * Runs.LOOK_READS)
    if not quick:
        ours, plain = (measure.of(kind(manifest), f"file://{site.new()}", waits // 20) for kind in (Checkpoints, ManifestFiles))
        yield from _in_directories(f"{waits:,} waits for {waits // 20:,} homes", ours, plain)
        yield _reads(f"{waits:,} waits for {waits // 20:,} homes", ours, waits * Checkpoints.LOOK_READS)
    with hdfs_cluster(site.new()) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.settings))
        for what, kind, beside in (("homes", Checkpoints(manifest), in_directories), ("runs at work", RunsElsewhere(), at_work)):
            found = measure.of(kind, f"hdfs://{cluster.authority}/{what.partition(' ')[0]}", waits)
            yield from _in_stores(f"{waits:,} {what} in HDFS", found, beside)
    for what, kind, beside in (("homes", Checkpoints(manifest), in_directories), ("runs at work", RunsElsewhere(), at_work)):
        with object_store() as url:
            found = measure.of(kind, url, waits, _PAUSE_IN_OBJECT_STORES_S)
        yield from _in_stores(f"{waits:,} {what} in S3", found, beside, _PAUSE_IN_OBJECT_STORES_S)


def _in_directories(name: str, ours: Measured, plain: Measured) -> Iterator[Figure]:
    yield Figure(CPU, name, ours.cpu, plain.cpu, most=_CPU_MOST)
    yield Figure(MEMORY, name, ours.memory, plain.memory)
    yield Figure(REACTION, name, ours.reaction_s, plain.reaction_s, most=_REACTION_MOST_S)


def _reads(name: str, ours: Measured, unshared: int) -> Figure:
    """Against ``unshared``, what one look of every wait reads."""
    return Figure(READS, name, ours.reads, [unshared / _PAUSE_S] * len(ours.reads))


def _in_stores(name: str, found: Measured, in_directories: Measured, most_s: float = _REACTION_MOST_S) -> Iterator[Figure]:
    yield Figure(CPU_IN_STORES, name, found.cpu, in_directories.cpu, most=_CPU_MOST)
    yield Figure(MEMORY_IN_STORES, name, found.memory, in_directories.memory)
    yield Figure(REACTION_IN_STORES, name, found.reaction_s, in_directories.reaction_s, most=most_s)


class Waits(Protocol):
    """An event in homes that tasks wait for."""

    def begin(self, home: str) -> None:
        """Makes a home in which it is not there yet."""

    def trigger(self, home: str) -> Trigger:
        """Returns the trigger that waits for the event."""

    def end(self, home: str) -> None:
        """Makes it happen."""


class Checkpoints:
    """A checkpoint newer than the first one, which our sensor waits for.

    Args:
        first: That one.
    """

    LOOK_READS = 1
    """One read: the list of the checkpoints."""

    def __init__(self, first: Manifest) -> None:
        self._first = first
        self._following = first.model_copy(update={"checkpoint": CheckpointId(2), "parent": CheckpointId(1)})

    def begin(self, home: str) -> None:
        CheckpointStore(open_home(home)).complete(self._first)

    def trigger(self, home: str) -> Trigger:
        arguments = {"final": False, "run": None, "newer_than": 1}
        own = {"home": home, "kind": "checkpoint", "arguments": arguments}
        return "airflow_provider.triggers.home.HomeTrigger", own | _limits()

    def end(self, home: str) -> None:
        CheckpointStore(open_home(home)).complete(self._following)


class ManifestFiles(Checkpoints):
    """The same, by the path of its manifest and Airflow's own trigger."""

    def trigger(self, home: str) -> Trigger:
        path = f"{home.removeprefix('file://')}/{manifest_path(CheckpointId(2))}"
        return "airflow.providers.standard.triggers.file.FileTrigger", {"filepath": path, "poke_interval": _PAUSE_S}


class Runs(ExitStack):
    """The end of a run, which our operator waits for. Its driver is at work while the context is open: it holds the home's lock."""

    LOOK_READS = 4
    """Four reads: the heartbeat, the driver's lock, the lock's note and the answer."""

    def begin(self, home: str) -> None:
        files = open_home(home)
        request = _asked(files, datetime.now(UTC))
        self.enter_context(holding(local_path(files, DRIVER_LOCK), request.request))

    def trigger(self, home: str) -> Trigger:
        own = {
            "home": home,
            "request": "start-1",
            "attempt": 1,
            "owner": 1,
            "cancel_on_kill": False,
            "wait_for": "final_checkpoint",
            "start_by": None,
            "start_timeout_s": None,
            "token": None,
        }
        return "airflow_provider.triggers.run.RunTrigger", own | _limits()

    def end(self, home: str) -> None:
        answer = {
            "request": "start-1",
            "attempt": 1,
            "run": "run",
            "checkpoint": 1,
            "sinks": {},
            "answered_at": datetime.now(UTC),
        }
        Channel(open_home(home)).respond(StartResponse.model_validate(answer))


class RunsElsewhere(Runs):
    """The same, whose drivers are on hosts that the triggerer sees no locks of: it goes by their heartbeats.

    A thousand drivers cannot beat on this machine, so that each heartbeat is of a moment that is to come: a look takes it for a fresh one,
    and reads what it reads of a living one. What drivers write is not measured.
    """

    def begin(self, home: str) -> None:
        files, now = open_home(home), datetime.now(UTC)
        request = _asked(files, now + timedelta(days=1))
        elsewhere = AttemptDocument(
            attempt=request.attempt,
            request=request.request,
            run=request.run,
            round=RoundNumber(1),
            incarnation=IncarnationId("first"),
            restored_from=None,
            work_directory=WorkDirectory(id=WorkDirectoryId("work"), path="work/work", host="elsewhere"),
            host="elsewhere",
            process=1,
            started_at=now,
            versions={},
            checkpointing=CHECKPOINTING,
        )
        Attempts(files).create(elsewhere)


def _asked(files: Files, heard_at: datetime) -> StartRequest:
    """A request in a new home, and the heartbeat of a driver that is at work on it."""
    channel = Channel(files)
    channel.claim(PipelineName("waited_for"))
    request = channel.request_start(RunId("run"), parameters={})
    stages = {StageName(f"stage_{number}"): StageStatus(state=StageState.RUNNING, batch=BatchId(7)) for number in range(3)}
    write_status(
        files, Status(attempt=request.attempt, run=request.run, state=RunState.RUNNING, updated_at=heard_at, stages=stages)
    )
    return request


def _limits() -> dict[str, Any]:
    """Returns the limits of every wait. None of them ends by itself."""
    day_s = 24 * 3600.0
    return {"deadline_at": time.time() + day_s, "timeout_s": day_s, "poll_interval_s": 2.0, "max_poll_interval_s": None}


@dataclass(frozen=True)
class Measurement:
    """Measures waits of one kind after the other, each in a triggerer of its own.

    Args:
        site: Where.
        waits: How many.
        quick: Fewer windows and fewer ends.
        tell: Told what is going on.
    """

    site: Site
    waits: int
    quick: bool
    tell: Tell

    def of(self, kind: Waits, root: str, homes: int, pause_s: float = _PAUSE_S) -> Measured:
        """Waits for homes below ``root``, of which the one at rest is looked at every ``pause_s``."""
        directory = self.site.new()
        places = [f"{root}/homes/home-{number:04}" for number in range(homes)]
        self.tell(f"making {homes:,} homes in {root}")
        run_all([partial(kind.begin, place) for place in places], threads_max=8)
        triggers = [kind.trigger(places[number % homes]) for number in range(self.waits)]
        name = f"{self.waits:,} waits for {homes:,} homes"
        # Looks become rarer by and by: it takes about four of the longest pauses until they are as rare as they get.
        settled_s = max(20.0, 4 * pause_s)
        with waiting(directory, Path(root.removeprefix("file://")), triggers, self.tell, settled_s) as triggerer:
            self.tell(f"{name}, at rest")
            windows = [triggerer.at_rest(max(20.0, 2 * pause_s)) for _ in range(1 if self.quick else 3)]
            memory = [triggerer.memory_mib()]
            self.tell(f"{name}, ending some")
            reaction_s = self._reactions(triggerer, kind, places, _REACT_S + pause_s)
        shutil.rmtree(directory)
        return Measured([cpu for cpu, _ in windows], [reads for _, reads in windows], memory, reaction_s)

    def _reactions(self, triggerer: Triggerer, kind: Waits, places: Sequence[str], patience_s: float) -> list[float]:
        """Ends the wait for some homes, one after the other, and tells when the tasks that waited for it were resumed."""
        done_at: dict[int, datetime] = {}
        for number in random.Random(7).sample(range(len(places)), 5 if self.quick else 10):
            kind.end(places[number])
            done_at[number] = datetime.now(UTC)
            time.sleep(random.Random(number).uniform(0.5, 1.5))
        wanted = {number for number in range(self.waits) if number % len(places) in done_at}
        end_s = time.monotonic() + patience_s
        while not wanted <= (resumed := triggerer.resumed_at()).keys():
            if time.monotonic() > end_s:
                raise RuntimeError(f"of {len(wanted)} waits that were over {len(resumed)} have ended")
            time.sleep(0.5)
        return sorted((resumed[number] - done_at[number % len(places)]).total_seconds() for number in wanted)


def _manifest(site: Site) -> Manifest:
    """Returns the manifest of a real run."""
    directory = site.new()
    site.run(chain(site.input("input-of-waits", 1, 1), directory, 1), directory, Publish.EXTERNAL)
    return CheckpointStore(open_files(str(directory / "home"))).manifest(CheckpointId(1))
