"""The cut rule: which batch of each stage belongs to a checkpoint.

A cut is consistent if no stage has consumed what its producer has not produced in it. Spark's batch commit log says what a stage has done;
a consumer can be ahead of it, because it sees a version of its producer's private log a moment before the producer commits that batch.
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
    """A stage, as far as the rule needs to know it."""

    @property
    def name(self) -> StageName: ...

    @property
    def ends(self) -> bool:
        """True if all of its inputs end: rows wait in its channels until the stages that it reads have ended."""
        ...

    @property
    def waits_for_none(self) -> bool:
        """True if it may be held at any time: it reads sources alone, or rows may wait in its channels."""
        ...

    def committed(self) -> BatchId:
        """Returns the last batch that Spark has committed; -1 where there is none."""
        ...

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        """Returns by producer the last of its batches of which ``batch``, or one before it, has read anything."""
        ...

    def has_consumed(self, producers: Collection[StageName]) -> bool:
        """Returns whether no row that these of its producers have staged is left for it."""
        ...

    def in_flight_bytes(self, producers: Collection[StageName]) -> int:
        """Returns how many bytes these of its producers have staged that it has not consumed."""
        ...

    def hold(self) -> None:
        """Lets no further batch begin; idempotent."""
        ...

    def release(self) -> None:
        """Lets batches begin again; idempotent."""
        ...

    def is_at_rest(self) -> bool:
        """Returns whether it is held, and every batch that it has begun is committed."""
        ...

    def is_failing(self) -> bool:
        """Returns whether it has failed, and has done no batch since although there is one to do."""
        ...

    def failing_with(self) -> Exception | None:
        """Returns what it failed with, if it is failing and can be held only once it has done a batch again."""
        ...


@dataclass(frozen=True)
class Alignment:
    """The limits of a checkpoint's wait for channels to become empty.

    Args:
        wanted: Whether it waits at all.
        timeout_s: After this long it does not wait any longer. None: as long as the checkpoint may take.
        in_flight_bytes_max: It does not wait for more than this either.
        with_failing: Whether it waits for stages that are failing. Else each of them is left out: what it has not read is in flight.
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
    """How long stages were held for it."""
    failing: frozenset[StageName] = frozenset()
    """The stages that were failing. An aligned cut is one without them."""


@dataclass(frozen=True)
class Due:
    """A checkpoint that is to be taken now."""

    kind: CheckpointKind
    find_cut: Callable[[], Cut]
    """Says where each stage is cut."""
    request: RequestId | None = None
    """The request that asks for it, if there is one."""
    deadline_s: float = math.inf
    """On the monotonic clock: a try that is not complete by then has failed. What follows its manifest has no deadline."""
    pause: Callable[[], object] = lambda: None
    """Called again and again while its files are kept and made durable. What it raises ends the try."""
    drained: bool = False
    """True if everything that stages held back is flushed."""


@dataclass
class Waiting:
    """The wait of one look for a cut: how long it may take, and which stages have failed meanwhile.

    Args:
        deadline_s: Until when, by ``now_s``.
        now_s: The clock.
        pause: Lets some time pass. It may raise: a cancel, or a stage that has given up, ends a cut.
        held: Called with each stage once it is held. The first one that it is not called with is the one that is waited for.
        let_go: Called, perhaps more than once, with each stage that is held no longer because one is failing.
    """

    deadline_s: float
    now_s: Callable[[], float]
    pause: Callable[[], None]
    held: Callable[[StageName], object] = lambda name: None
    let_go: Callable[[StageName], object] = lambda name: None
    _declined: CheckpointDeclinedError | None = None

    def wait_for(self, stage: Cuttable) -> None:
        """Lets some time pass, because of a stage.

        Raises:
            CheckpointDeclinedError: There is none left, and a stage was failing.
            DeadlineExceededError: There is none left.
        """
        if (failure := stage.failing_with()) is not None:
            self._declined = _declined(stage.name, failure)
        if self.now_s() >= self.deadline_s:
            raise self._declined or expired(f"stage '{stage.name}' did not reach the end of a batch in time", stage=stage.name)
        self.pause()


def take_cut(stages: Sequence[Cuttable], alignment: Alignment, waiting: Waiting) -> Cut:
    """Finds a consistent cut.

    No cut waits for a stage whose inputs all end. It may be in a batch for hours, and it is not held: what the others have not read of its
    rows by then is in flight. Nor does one wait for a failing stage, unless its alignment says so.

    Args:
        stages: In topological order.
        alignment: Whether the channels of the other stages are to be empty at the cut.
        waiting: How long, by which clock.

    Raises:
        CheckpointDeclinedError: A stage was failing, and did not come so far in time. All stages run on.
        DeadlineExceededError: A stage did not come so far in time. All stages run on.
    """
    began_s, failing = waiting.now_s(), set[StageName]()
    try:
        aligned = alignment.wanted and _align([stage for stage in stages if not stage.ends], alignment, waiting, failing)
        if not aligned:
            release(stages)
        failing |= {stage.name for stage in stages if stage.is_failing()}
        batches = _consistent(stages, waiting)
        alignment_s = waiting.now_s() - began_s if alignment.wanted else 0.0
        return Cut(batches, aligned, alignment_s, frozenset(failing))
    finally:
        release(stages)


def quiesce(stages: Sequence[Cuttable], waiting: Waiting) -> None:
    """Holds every stage once nothing is left for it, and keeps it held until :func:`release` lets it go.

    Stages that read sources alone are held at once: no source is read on while another stage is in its batch, or fails and starts again.

    Args:
        stages: In topological order.
        waiting: How long, by which clock, and who is told.

    Raises:
        CheckpointDeclinedError: A stage was failing, and did not come so far in time. All stages run on.
        DeadlineExceededError: A stage did not come so far in time. All stages run on.
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
    """Lets stages go on; idempotent."""
    for stage in stages:
        stage.release()


def _align(
    stages: Sequence[Cuttable],
    alignment: Alignment,
    waiting: Waiting,
    left_out: set[StageName],
    stay_held: Collection[Cuttable] = (),
) -> bool:
    """Holds each stage once it has consumed all of those before it, which are held by then. Returns whether all are held.

    The channels of other stages do not count: those go on, and a consumer that is held could never catch up with them. So it is with a
    stage that fails: once it has, it is one of ``left_out`` and goes on, whether or not it is up again before the cut.

    Where the alignment waits for failing stages, no other is held while one is failing, because that may take for ever: all go on until
    it is up, and alignment begins again. Only those of ``stay_held`` do not, also where they fail themselves: what they have staged is
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
                    waiting.let_go(each.name)
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

    Consumers come before producers: whatever a consumer has read by then, its producer has at its own turn, or soon commits.
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
        f"Checkpoint declined: stage '{stage}' is failing, and did no batch in time. "
        f"Its last failure: {type(failure).__name__}: {failed.strip()}",
        exists="The other stages run on, and the checkpoints before this one stand.",
        safe="Nothing of this try was kept, and it counts for no tolerable failure.",
        remedy="Mend what the stage fails with. Checkpoints at the interval do without it.",
        stage=stage,
    )


def expired(why: str, **evidence: str) -> DeadlineExceededError:
    """Returns the error of a try that took longer than it may."""
    return DeadlineExceededError(
        f"Checkpoint expired before completing: {why}.",
        exists="All stages run on, and the checkpoints before this one stand.",
        safe="Nothing of this try was kept.",
        remedy="Give checkpoints a longer timeout, or take unaligned ones.",
        **evidence,
    )
