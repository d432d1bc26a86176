"""A thousand waits in one triggerer: what they cost while nothing happens, and how soon one ends when something does."""

import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.site import Site, chain
from benchmarks.triggerer import Triggerer, waiting
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import Manifest, Publish
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.storage.open import open_files

_OURS, _PLAIN = "our sensor's", "Airflow's own for files"
CPU = Kind("waits at rest", "percent of one core that the triggerer uses", Better.LESS, _OURS, _PLAIN)
READS = Kind("reads at rest", "files opened and directories listed a second", Better.LESS, _OURS, "each wait for itself")
MEMORY = Kind("memory of waits", "MiB of the triggerer", Better.LESS, _OURS, _PLAIN)
REACTION = Kind("end of a wait", "seconds from the checkpoint to the resumed task", Better.LESS, _OURS, _PLAIN)
_PAUSE_S = 3.0
"""Between two looks at rest: the default of ours."""
_LISTINGS = 2
"""Of a look."""
_REACT_S = 30.0
Triggers = Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Measured:
    """What one triggerer with its waits has shown; a number for each window."""

    cpu: list[float]
    reads: list[float]
    memory: list[float]
    reaction_s: list[float]


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Waits for the next checkpoint, each of a home of its own, and 20 of each home."""
    waits = 200 if quick else 1_000
    template = _manifest(site)
    for homes in (waits,) if quick else (waits, waits // 20):
        name = f"{waits:,} waits for {homes:,} homes"
        ours, plain = (_measured(site, template, kind, waits, homes, quick, tell) for kind in (_ours, _files))
        yield Figure(CPU, name, ours.cpu, plain.cpu)
        yield Figure(READS, name, ours.reads, [_LISTINGS * waits / _PAUSE_S] * len(ours.reads))
        yield Figure(MEMORY, name, ours.memory, plain.memory)
        yield Figure(REACTION, name, ours.reaction_s, plain.reaction_s)


def _measured(site: Site, template: Manifest, kind: Any, waits: int, homes: int, quick: bool, tell: Tell) -> Measured:
    directory = site.new()
    places = [directory / "homes" / f"home-{number:04}" for number in range(homes)]
    for place in places:
        CheckpointStore(open_files(str(place))).complete(template)
    triggers: Triggers = [kind(places[number % homes]) for number in range(waits)]
    airflow = directory / "airflow"
    airflow.mkdir()
    with waiting(airflow, directory / "homes", triggers, tell) as triggerer:
        tell(f"{waits:,} waits for {homes:,} homes, at rest")
        windows = [triggerer.at_rest(20.0) for _ in range(1 if quick else 3)]
        memory = [triggerer.memory_mib()]
        tell(f"{waits:,} waits for {homes:,} homes, ending some")
        reaction_s = _reactions(triggerer, template, places, waits, 5 if quick else 10)
    shutil.rmtree(directory)
    return Measured([cpu for cpu, _ in windows], [reads for _, reads in windows], memory, reaction_s)


def _reactions(triggerer: Triggerer, template: Manifest, places: Sequence[Path], waits: int, count: int) -> list[float]:
    """Completes a checkpoint in some homes, one after the other, and tells when the tasks that waited for it were resumed."""
    following = template.model_copy(update={"checkpoint": CheckpointId(2), "parent": CheckpointId(1)})
    done_at: dict[int, datetime] = {}
    chosen = random.Random(7).sample(range(len(places)), count)
    for number in chosen:
        CheckpointStore(open_files(str(places[number]))).complete(following)
        done_at[number] = datetime.now(UTC)
        time.sleep(random.Random(number).uniform(0.5, 1.5))
    wanted = {number for number in range(waits) if number % len(places) in done_at}
    end_s = time.monotonic() + _REACT_S
    while not wanted <= (resumed := triggerer.resumed_at()).keys():
        if time.monotonic() > end_s:
            raise RuntimeError(f"of {len(wanted)} waits that were over {len(resumed)} have ended")
        time.sleep(0.5)
    return sorted((resumed[number] - done_at[number % len(places)]).total_seconds() for number in wanted)


def _ours(home: Path) -> tuple[str, Mapping[str, Any]]:
    arguments = {
        "home": f"file://{home}",
        "final": False,
        "run": None,
        "newer_than": 1,
        "deadline_at": time.time() + 24 * 3600.0,
        "timeout_s": 24 * 3600.0,
        "poll_interval_s": 2.0,
        "max_poll_interval_s": _PAUSE_S,
    }
    return "airflow_provider.triggers.checkpoint.CheckpointTrigger", arguments


def _files(home: Path) -> tuple[str, Mapping[str, Any]]:
    arguments = {"filepath": str(home / "checkpoints/2/manifest.json"), "poke_interval": _PAUSE_S}
    return "airflow.providers.standard.triggers.file.FileTrigger", arguments


def _manifest(site: Site) -> Manifest:
    """That of a real run."""
    directory = site.new()
    site.run(chain(site.input("input-of-waits", 1, 1), directory, 1), directory, Publish.EXTERNAL)
    return CheckpointStore(open_files(str(directory / "home"))).manifest(CheckpointId(1))
