"""The cut rule: which batch of each stage belongs to a checkpoint.

A cut is consistent if every row that a stage has read in it is also produced in it. Spark's batch commit log has the progress of a stage. A
consumer can be ahead of it, because it sees a version of its producer's private log a moment before the producer commits that batch.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_jobs.protocol.checkpointing import Checkpointing
from spark_jobs.protocol.documents import CheckpointKind
from spark_jobs.protocol.errors import CheckpointDeclinedError, DeadlineExceededError, StreamPipelineError
from spark_jobs.protocol.ids import BatchId, RequestId, StageName


class Cuttable(Protocol):
    """A stage in the view of the cut rule."""

    @property
    def name(self) -> StageName: ...

    @property
    def ends(self) -> bool:
        """Returns True if all its inputs end. Rows wait in its channels until the stages that it reads have ended."""
        ...

    @property
    def waits_for_none(self) -> bool:
        """Returns True if it may be held at any time: it only reads sources, or rows may wait in its channels."""
        ...

    def committed(self) -> BatchId:
        """Returns the last batch that Spark has committed, or -1."""
        ...

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        """Returns for each producer the last of its batches that ``batch`` or an earlier one has read from."""
        ...

    def has_consumed(self, producers: Collection[StageName]) -> bool:
        """Returns True if it has read all staged rows of these producers."""
        ...

    def in_flight_bytes(self, producers: Collection[StageName]) -> int:
        """Returns the number of staged bytes of these producers that it has not read."""
        ...

    def hold(self) -> None:
        """Lets no further batch begin. Idempotent."""
        ...

    def release(self) -> None:
        """Lets batches begin again. Idempotent."""
        ...

    def is_at_rest(self) -> bool:
        """Returns True if it is held, and every batch that it has begun is committed."""
        ...

    def is_failing(self) -> bool:
        """Returns True if it has failed and has not completed a batch since, although there is one to run."""
        ...

    def failing_with(self) -> Exception | None:
        """Returns its error if it is failing and can only be held after it has completed a batch again."""
        ...


@dataclass(frozen=True)
class Alignment:
    """The limits of a checkpoint's wait for channels to become empty.

    Args:
        wanted: True if the checkpoint waits at all.
        timeout_s: Maximum time of the wait. None: as long as the checkpoint may take.
        in_flight_bytes_max: Maximum number of bytes to wait for.
        with_failing: True waits for failing stages. False leaves each of them out: its unread rows are in flight.
    """

    wanted: bool = True
    timeout_s: float | None = None
    in_flight_bytes_max: int | None = None
    with_failing: bool = True

    @staticmethod
    def declared(given: Checkpointing) -> "Alignment":
        """Returns the alignment of a pipeline's periodic checkpoints."""
        at_most_ms = given.aligned_at_most_ms
        timeout_s = None if at_most_ms is None else at_most_ms / 1000
        return Alignment(not given.unaligned, timeout_s, given.max_in_flight_bytes, with_failing=False)


@dataclass(frozen=True)
class Cut:
    """The last batch of each stage that belongs to a checkpoint."""

    batches: Mapping[StageName, BatchId]
    aligned: bool
    alignment_s: float
    """The time that stages were held for it."""
    failing: frozenset[StageName] = frozenset()
    """The failing stages that it does not wait for. If it is aligned, it leaves them out."""


@dataclass(frozen=True)
class CheckpointOrder:
    """A checkpoint that must be taken now."""

    kind: CheckpointKind
    find_cut: Callable[[], Cut]
    """Finds the cut of each stage."""
    request: RequestId | None = None
    """The request for it, if there is one."""
    deadline_s: float = math.inf
    """The deadline on the monotonic clock, at which the try has failed. The steps after the manifest have no deadline."""
    pause: Callable[[], object] = lambda: None
    """Called repeatedly while its files are pinned and made durable. Its exception ends the try."""
    drained: bool = False
    """True if everything that stages held back is flushed."""


@dataclass
class Waiting:
    """The wait of one search for a cut: its deadline, and the stages that have failed in the meantime.

    Args:
        deadline_s: Deadline by ``now_s``.
        now_s: The clock.
        pause: Waits a moment. Its exceptions, such as a cancel or a permanent failure of a stage, end the search.
        held: Called with each stage when it is held. The search waits for the first stage without a call.
        released: Called, perhaps several times, with each stage that is released because another one is failing.
    """

    deadline_s: float
    now_s: Callable[[], float]
    pause: Callable[[], None]
    held: Callable[[StageName], object] = lambda name: None
    released: Callable[[StageName], object] = lambda name: None
    _declined: CheckpointDeclinedError | None = None

    def wait_for(self, stage: Cuttable) -> None:
        """Waits a moment for a stage.

        Raises:
            CheckpointDeclinedError: The deadline has passed, and a stage was failing.
            DeadlineExceededError: The deadline has passed.
        """
        if (failure := stage.failing_with()) is not None:
            self._declined = _declined(stage.name, failure)
        if self.now_s() >= self.deadline_s:
            raise self._declined or expired(f"stage '{stage.name}' did not reach the end of a batch in time", stage=stage.name)
        self.pause()


def take_cut(stages: Sequence[Cuttable], alignment: Alignment, waiting: Waiting) -> Cut:
    """Finds a consistent cut.

    A cut does not wait for stages whose inputs all end. They may be in a batch for hours, and are not held: their unread rows are in
    flight. A cut does not wait for failing stages either, unless its alignment says so.

    Args:
        stages: Stages in topological order.
        alignment: Alignment of the cut, with its limits.
        waiting: Deadline and clock.

    Raises:
        CheckpointDeclinedError: A stage was failing until the deadline. All stages run on.
        DeadlineExceededError: A stage has not reached its cut before the deadline. All stages run on.
    """
    began_s, failing = waiting.now_s(), set[StageName]()
    try:
        aligned = alignment.wanted and _align([stage for stage in stages if not stage.ends], alignment, waiting, failing)
        if not aligned:
            release(stages)
        has_waited = aligned and alignment.with_failing  # a failing stage that it has waited for has read all rows before it
        failing |= {stage.name for stage in stages if stage.is_failing() and (stage.ends or not has_waited)}
        batches = _consistent(stages, waiting)
        alignment_s = waiting.now_s() - began_s if alignment.wanted else 0.0
        return Cut(batches, aligned, alignment_s, frozenset(failing))
    finally:
        release(stages)


def quiesce(stages: Sequence[Cuttable], waiting: Waiting) -> None:
    """Holds every stage when it has no rows left, and keeps it held until :func:`release`.

    Stages that only read sources are held at once, so that no source is read while another stage runs its batch or restarts.

    Args:
        stages: Stages in topological order.
        waiting: Deadline, clock and callbacks.

    Raises:
        CheckpointDeclinedError: A stage was failing until the deadline. All stages run on.
        DeadlineExceededError: A stage was not at rest before the deadline. All stages run on.
    """
    at_once = [stage for stage in stages if stage.waits_for_none]
    for stage in at_once:
        stage.hold()
    try:
        _align(stages, Alignment(), waiting, set(), at_once)
        _consistent(stages, waiting)
    except BaseException:
        release(stages)
        raise


def release(stages: Sequence[Cuttable]) -> None:
    """Lets stages go on. Idempotent."""
    for stage in stages:
        stage.release()


def _align(
    stages: Sequence[Cuttable],
    alignment: Alignment,
    waiting: Waiting,
    left_out: set[StageName],
    stay_held: Collection[Cuttable] = (),
) -> bool:
    """Holds each stage when it has read all rows of those before it, which are held by then. Returns True if all are held.

    The channels of other stages do not count: their producers go on, so a held consumer could never catch up. The same holds for failing
    stages: after a failure a stage is in ``left_out`` and goes on, even if it works again before the cut.

    If the alignment waits for failing stages, no other stage is held while one is failing, because that may take for ever. All go on until
    it works again, and then the alignment begins again. Only stages in ``stay_held`` stay held, even if they fail: their staged rows are
    committed while they are held.
    """
    began_s, at_rest = waiting.now_s(), 0
    while at_rest < len(stages):
        if not alignment.with_failing and (out := next((each for each in stages if each.is_failing()), None)):
            at_rest -= stages.index(out) < at_rest
            stages = [each for each in stages if each is not out]
            out.release()
            left_out.add(out.name)
            continue
        names = {stage.name for stage in stages}
        stage = next((each for each in stages if each.failing_with() is not None), None)
        if stage is not None:
            for each in stages:
                if each not in stay_held:
                    each.release()
                    waiting.released(each.name)
            at_rest = 0
        elif (stage := stages[at_rest]).has_consumed(names) and _is_held(stage):
            waiting.held(stage.name)
            at_rest += 1
            continue
        if alignment.timeout_s is not None and waiting.now_s() - began_s >= alignment.timeout_s:
            return False
        if alignment.in_flight_bytes_max is not None and stage.in_flight_bytes(names) > alignment.in_flight_bytes_max:
            return False
        waiting.wait_for(stage)
    return True


def _is_held(stage: Cuttable) -> bool:
    stage.hold()
    return stage.is_at_rest()


def _consistent(stages: Sequence[Cuttable], waiting: Waiting) -> dict[StageName, BatchId]:
    """Returns the last batch of each stage in a consistent cut.

    Consumers come before producers: everything that a consumer has read is committed by its producer, or will be soon.
    """
    batches: dict[StageName, BatchId] = {}
    needed: dict[StageName, BatchId] = {}
    for stage in reversed(stages):
        while (batch := stage.committed()) < needed.get(stage.name, BatchId(-1)):
            waiting.wait_for(stage)
        batches[stage.name] = batch
        for producer, last in stage.consumed_by(batch).items():
            needed[producer] = max(last, needed.get(producer, BatchId(-1)))
    return batches


def _declined(stage: StageName, failure: Exception) -> CheckpointDeclinedError:
    failed = failure.failed if isinstance(failure, StreamPipelineError) else str(failure)
    return CheckpointDeclinedError(
        f"Checkpoint declined: stage '{stage}' is failing, and has completed no batch in time. "
        f"Its last failure: {type(failure).__name__}: {failed.strip()}",
        exists="The other stages run on, and earlier checkpoints are valid.",
        safe="No file of this try is kept, and it does not count as a tolerable failure.",
        remedy="Remove the cause of the stage's failure. Periodic checkpoints leave the stage out.",
        stage=stage,
    )


def expired(why: str, **evidence: str) -> DeadlineExceededError:
    """Returns the error of a try that exceeded its time limit."""
    return DeadlineExceededError(
        f"Checkpoint expired before completing: {why}.",
        exists="All stages run on, and earlier checkpoints are valid.",
        safe="No file of this try is kept.",
        remedy="Give checkpoints a longer timeout, or take unaligned ones.",
        **evidence,
    )
