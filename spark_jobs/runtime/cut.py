"""The cut rule: which batch of each stage belongs to a checkpoint (design, section 7).

A cut is consistent if no stage has consumed what its producer has not produced in it. Spark's batch commit log says what a stage has done;
a consumer can be ahead of it, because it sees a version of its producer's private log a moment before the producer commits that batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import BatchId, StageName


class Cuttable(Protocol):
    """What the rule needs to know of a stage."""

    @property
    def name(self) -> StageName: ...

    def committed(self) -> BatchId:
        """The last batch that Spark has committed; -1 where there is none."""
        ...

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        """By producer the last of its batches of which ``batch``, or one before it, has read anything."""
        ...

    def has_consumed_all(self) -> bool:
        """Whether no row that its producers have staged is left for it."""
        ...

    def in_flight_bytes(self) -> int:
        """How much its producers have staged that it has not consumed."""
        ...

    def hold(self) -> None:
        """Lets no further batch begin; idempotent."""
        ...

    def release(self) -> None:
        """Lets batches begin again; idempotent."""
        ...

    def is_at_rest(self) -> bool:
        """Whether it is held, and every batch that it has begun is committed."""
        ...


@dataclass(frozen=True)
class Alignment:
    """How long a checkpoint waits for channels to become empty.

    Args:
        wanted: Whether it waits at all.
        timeout_s: After this long it does not wait any longer. None: as long as the checkpoint may take.
        in_flight_bytes_max: It does not wait for more than this either.
    """

    wanted: bool = True
    timeout_s: float | None = None
    in_flight_bytes_max: int | None = None


@dataclass(frozen=True)
class Cut:
    """The last batch of each stage that belongs to a checkpoint."""

    batches: Mapping[StageName, BatchId]
    aligned: bool
    alignment_s: float
    """How long stages were held for it."""


@dataclass(frozen=True)
class Waiting:
    """The time, and a way to let some of it pass. ``pause`` may raise: a cancel, or a stage that has given up, ends a cut."""

    now_s: Callable[[], float]
    pause: Callable[[], None]


def take_cut(stages: Sequence[Cuttable], alignment: Alignment, deadline_s: float, waiting: Waiting) -> Cut:
    """Finds a consistent cut.

    Args:
        stages: In topological order.
        alignment: Whether channels are to be empty at the cut.
        deadline_s: On the clock of ``waiting``.
        waiting: The clock.

    Raises:
        DeadlineExceededError: A stage did not come so far in time. All stages run on.
    """
    began_s = waiting.now_s()
    try:
        aligned = alignment.wanted and _align(stages, alignment, deadline_s, waiting)
        batches = _consistent(stages, deadline_s, waiting)
        return Cut(batches, aligned, waiting.now_s() - began_s if alignment.wanted else 0.0)
    finally:
        release(stages)


def quiesce(stages: Sequence[Cuttable], deadline_s: float, waiting: Waiting) -> Cut:
    """Holds every stage with nothing left for it, and keeps it held; :func:`release` lets them go.

    Args:
        stages: In topological order.
        deadline_s: On the clock of ``waiting``.
        waiting: The clock.

    Raises:
        DeadlineExceededError: A stage did not come so far in time. All stages run on.
    """
    began_s = waiting.now_s()
    try:
        _align(stages, Alignment(), deadline_s, waiting)
        return Cut(_consistent(stages, deadline_s, waiting), True, waiting.now_s() - began_s)
    except BaseException:
        release(stages)
        raise


def release(stages: Sequence[Cuttable]) -> None:
    """Lets stages go on; idempotent."""
    for stage in stages:
        stage.release()


def _align(stages: Sequence[Cuttable], alignment: Alignment, deadline_s: float, waiting: Waiting) -> bool:
    """Holds each stage once it has consumed all of the stages before it, which are held by then; whether all are held."""
    began_s = waiting.now_s()
    for stage in stages:
        while not (stage.has_consumed_all() and _is_held(stage)):
            if alignment.timeout_s is not None and waiting.now_s() - began_s >= alignment.timeout_s:
                return False
            if alignment.in_flight_bytes_max is not None and stage.in_flight_bytes() > alignment.in_flight_bytes_max:
                return False
            _wait(stage, deadline_s, waiting)
    return True


def _is_held(stage: Cuttable) -> bool:
    stage.hold()
    return stage.is_at_rest()


def _consistent(stages: Sequence[Cuttable], deadline_s: float, waiting: Waiting) -> dict[StageName, BatchId]:
    """Consumers before producers: whatever a consumer has read by then, its producer has at its own turn, or soon commits."""
    batches: dict[StageName, BatchId] = {}
    needed: dict[StageName, BatchId] = {}
    for stage in reversed(stages):
        while (batch := stage.committed()) < needed.get(stage.name, BatchId(-1)):
            _wait(stage, deadline_s, waiting)
        batches[stage.name] = batch
        for producer, last in stage.consumed_by(batch).items():
            needed[producer] = max(last, needed.get(producer, BatchId(-1)))
    return batches


def _wait(stage: Cuttable, deadline_s: float, waiting: Waiting) -> None:
    if waiting.now_s() >= deadline_s:
        raise expired(f"stage '{stage.name}' did not reach the end of a batch in time", stage=stage.name)
    waiting.pause()


def expired(why: str, **evidence: str) -> DeadlineExceededError:
    """The failure of a try that took longer than it may."""
    return DeadlineExceededError(
        f"Checkpoint expired before completing: {why}.",
        exists="All stages run on, and the checkpoints before this one stand.",
        safe="Nothing of this try was kept.",
        remedy="Give checkpoints a longer timeout, or take unaligned ones.",
        **evidence,
    )
