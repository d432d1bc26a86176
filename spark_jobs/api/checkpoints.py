"""What a user says about checkpoints."""

from dataclasses import dataclass
from typing import Any

from spark_jobs.api.refusals import Place
from spark_jobs.protocol.checkpointing import Checkpointing, read_checkpointing
from spark_jobs.protocol.errors import InvalidPipelineError


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """When a pipeline takes checkpoints while its stages run, and how many it keeps. Intervals are as ``"1 hour 30 minutes"``.

    Checked where a pipeline is given it. Where all inputs end, the final checkpoint comes on top: a run that is shorter than ``interval``
    takes no other.

    Args:
        interval: From one checkpoint's beginning to the next one's; at least a millisecond.
        timeout: How long a checkpoint may take, over every step up to its manifest, until it has failed. Its publication does not count.
            The copy that makes a savepoint may take as long again; that of a stop has no limit, and neither has a final checkpoint.
        min_pause: From one checkpoint's end to the next one's beginning, at least.
        tolerable_failures: So many checkpoints in a row may fail; one more ends the attempt. None: any number, as long as another try may
            succeed.
        retained: How many complete checkpoints are kept, at least one.
        unaligned: No stage waits: what one stage has staged and the next has not read yet belongs to the checkpoint. By default
            a checkpoint begins aligned: each stage with an unbounded input first reads what such stages before it have staged.
        aligned_timeout: After this long an aligned checkpoint becomes an unaligned one; shorter than ``timeout``. None: half of
            ``interval``, or half of ``timeout`` if that is shorter. ``"never"``: it waits, and fails once ``timeout`` is over.
        max_in_flight_bytes: An aligned checkpoint that would have to wait for more than this becomes an unaligned one.
        second_copy: The home has the bytes of state a second time. By default a file of Spark's gets a second name there where the home and
            the work directory are on one file system: nothing is written, and what a disk does to one of the names it does to both.
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
    """The settings, checked; see :class:`CheckpointSettings`. ``place`` is the pipeline's."""
    if not isinstance(settings, CheckpointSettings):
        raise place.refused(f"checkpoint={settings!r} is none of its settings.", "Write checkpoint=CheckpointSettings(...).")
    return read_checkpointing(Refusing(place, "checkpoint"), vars(settings))


@dataclass(frozen=True)
class Refusing:
    """Refuses an option of a part's settings."""

    place: Place
    settings: str

    def __call__(self, problem: str, remedy: str, **evidence: Any) -> InvalidPipelineError:
        return self.place.refused(f"{self.settings} {problem}", remedy, **evidence)
