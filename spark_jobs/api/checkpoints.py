"""The checkpoint settings of a pipeline."""

from dataclasses import dataclass
from typing import Any

from spark_jobs.api.refusals import Place
from spark_jobs.protocol.checkpointing import Checkpointing, read_checkpointing
from spark_jobs.protocol.errors import InvalidPipelineError


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """The times of a pipeline's checkpoints, and how many it keeps. Intervals are written as ``"1 hour 30 minutes"``.

    The pipeline checks the settings when it is declared. A pipeline whose inputs end takes its final checkpoint in addition. A run that is
    shorter than ``interval`` takes only the final one.

    Args:
        interval: Time from the beginning of one checkpoint to the beginning of the next; at least a millisecond.
        timeout: Time limit of a checkpoint, from its first step to its manifest. The publication does not count. The copy that makes a
            savepoint may take as long again. The checkpoint of a stop and the final checkpoint have no limit.
        min_pause: Minimum time from the end of one checkpoint to the beginning of the next.
        tolerable_failures: Number of checkpoints in a row that may fail; one more failure ends the attempt. None: any number, while
            another try may succeed.
        retained: Number of complete checkpoints to keep, at least one.
        unaligned: True: no stage waits, and rows that one stage has staged and the next has not read belong to the checkpoint. By default
            a checkpoint begins aligned: each stage with an unbounded input first reads everything that such stages before it have staged.
        aligned_timeout: Time after which an aligned checkpoint becomes an unaligned one; shorter than ``timeout``. None: half of
            ``interval``, or half of ``timeout`` if that is shorter. ``"never"``: it waits, and fails after ``timeout``.
        max_in_flight_bytes: An aligned checkpoint that would have to wait for more bytes becomes an unaligned one.
        second_copy: True: the home keeps a second copy of the state's bytes. By default it holds hard links to Spark's state files if
            home and work directory are on one file system: that costs no space, but a disk fault damages both names.
    """

    interval: str = "1 minute"
    timeout: str = "10 minutes"
    min_pause: str = "0 seconds"
    tolerable_failures: int | None = None
    retained: int = 1
    unaligned: bool = False
    aligned_timeout: str | None = None
    max_in_flight_bytes: int | None = None
    second_copy: bool = False


def declare_checkpoints(place: Place, settings: object) -> Checkpointing:
    """Returns the checked settings; see :class:`CheckpointSettings`. ``place`` is the pipeline's."""
    if not isinstance(settings, CheckpointSettings):
        raise place.refused(f"checkpoint={settings!r} is not a CheckpointSettings.", "Write checkpoint=CheckpointSettings(...).")
    return read_checkpointing(Refusing(place, "checkpoint"), vars(settings))


@dataclass(frozen=True)
class Refusing:
    """Refuses an option of a part's settings."""

    place: Place
    settings: str

    def __call__(self, problem: str, remedy: str, **evidence: Any) -> InvalidPipelineError:
        return self.place.refused(f"{self.settings} {problem}", remedy, **evidence)
