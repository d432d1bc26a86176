"""The cut rule, on stages that continue while it looks at them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import cast

import pytest

from spark_jobs.protocol.errors import CheckpointDeclinedError, DeadlineExceededError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.runtime.checkpoints.cut import Alignment, Cut, Cuttable, Waiting, quiesce, take_cut
from tests.support.cut_model import Model
from tests.support.seeds import seed

__all__ = ["seed"]

NEVER_S = 1e9
WORLDS = 300


class World:
    """Stages in topological order. They make steps, and fail and recover, between the looks of the rule."""

    def __init__(self, seed: int, stages: int = 5, *, failures: float = 0.0) -> None:
        self.random = Random(seed)
        self._failures = failures
        self.stages: list[Model] = []
        for number in range(stages):
            producers = [stage for stage in self.stages if self.random.random() < 0.4]
            self.stages.append(Model(StageName(f"s{number}"), producers))
        self.now_s = 0.0
        for _ in range(40):
            self.pause()

    def pause(self) -> None:
        self.now_s += 1.0
        for stage in self.random.choices(self.stages, k=self.random.randint(0, 4)) if self.stages else ():
            stage.step(self.random)
        if self._failures and self.random.random() < self._failures:
            self.random.choice(self.stages).fails()
        for stage in self.stages:
            stage.down = stage.down and self.random.random() < 0.9

    def cut(self, alignment: Alignment, deadline_s: float = NEVER_S, beside: Callable[[], None] = lambda: None) -> Cut:
        """Takes a cut. ``beside`` is called each time that the rule waits."""

        def pause() -> None:
            beside()
            self.pause()

        looks = [cast(Cuttable, Look(stage, self)) for stage in self.stages]
        return take_cut(looks, alignment, Waiting(deadline_s, lambda: self.now_s, pause))

    def quiesce(self, deadline_s: float) -> None:
        looks = [cast(Cuttable, Look(stage, self)) for stage in self.stages]
        quiesce(looks, Waiting(deadline_s, lambda: self.now_s, self.pause))


class Look:
    """A view of a stage. Each look lets the world make steps."""

    def __init__(self, stage: Model, world: World) -> None:
        self._stage, self._world, self.name, self.ends = stage, world, stage.name, stage.ends
        self.waits_for_none = stage.waits_for_none

    def __getattr__(self, method: str) -> object:
        def look(*arguments: object) -> object:
            self._world.pause()
            return getattr(self._stage, method)(*arguments)

        return look


def assert_consistent(world: World, cut: Cut) -> None:
    for stage in world.stages:
        for producer, read in stage.consumed_by(cut.batches[stage.name]).items():
            assert read <= cut.batches[producer], f"{stage.name} has read batch {read} of {producer}, which is cut before it"


FAILURES = [0.0, 0.01]
"""The probabilities that a stage fails."""


@pytest.mark.parametrize("failures", FAILURES)
def test_no_stage_of_a_cut_has_read_rows_that_its_producer_has_not_staged_in_the_cut(seed: int, failures: float) -> None:
    for number in range(WORLDS):
        world = World(seed + number, failures=failures)
        assert_consistent(world, world.cut(Alignment(wanted=False)))


@pytest.mark.parametrize("failures", FAILURES)
def test_an_aligned_cut_has_no_rows_in_flight(seed: int, failures: float) -> None:
    for number in range(WORLDS):
        world = World(seed + number, failures=failures)
        cut = world.cut(Alignment())
        assert cut.aligned
        assert_consistent(world, cut)
        for stage in world.stages:
            read = stage.consumed_by(cut.batches[stage.name])
            assert all(read.get(producer.name, -1) == cut.batches[producer.name] for producer in stage.producers)


def test_an_aligned_cut_that_leaves_out_failing_stages_has_no_rows_in_flight_between_the_others(seed: int) -> None:
    found: set[StageName] = set()
    for number in range(WORLDS):
        world = World(seed + number, failures=0.05)
        cut = world.cut(Alignment(with_failing=False))
        assert cut.aligned
        assert_consistent(world, cut)
        for stage in world.stages:
            if stage.name not in cut.failing:
                read = stage.consumed_by(cut.batches[stage.name])
                healthy = [producer.name for producer in stage.producers if producer.name not in cut.failing]
                assert all(read.get(name, -1) == cut.batches[name] for name in healthy)
        found |= cut.failing
    assert len(found) == 5, "no stage failed"


@pytest.mark.parametrize("failures", FAILURES)
def test_a_cut_that_gives_up_alignment_is_still_consistent(seed: int, failures: float) -> None:
    for number in range(WORLDS):
        world = World(seed + number, failures=failures)
        assert_consistent(world, world.cut(Alignment(timeout_s=3.0)))


def test_alignment_ends_if_too_many_bytes_are_in_flight() -> None:
    producer = Model(StageName("producer"), committed_batch=9, visible_batch=9)
    consumer = Model(StageName("consumer"), [producer], dead=True)
    world = World(0, stages=0)
    world.stages = [producer, consumer]
    assert not world.cut(Alignment(in_flight_bytes_max=5)).aligned
    with pytest.raises(DeadlineExceededError, match="stage 'consumer'"):
        world.cut(Alignment(in_flight_bytes_max=500), deadline_s=world.now_s + 50)


def test_alignment_ends_if_a_consumer_does_not_catch_up_in_time() -> None:
    producer = Model(StageName("producer"), committed_batch=9, visible_batch=9)
    consumer = Model(StageName("consumer"), [producer], dead=True)
    world = World(0, stages=0)
    world.stages = [producer, consumer]
    cut = world.cut(Alignment(timeout_s=20.0), deadline_s=world.now_s + 50)
    assert not cut.aligned
    assert cut.alignment_s >= 20.0
    assert not producer.held


def test_a_stage_that_never_commits_its_batch_fails_the_try_and_all_stages_are_released() -> None:
    world = World(1)
    world.stages[0].visible_batch += 1
    world.stages[0].dead = True
    with pytest.raises(DeadlineExceededError, match="expired before completing: stage 's0'"):
        world.cut(Alignment(), deadline_s=world.now_s + 50)
    assert not any(stage.held for stage in world.stages)


@pytest.mark.parametrize("wanted", [True, False])
def test_no_stage_is_held_after_a_cut(wanted: bool) -> None:
    world = World(2)
    world.cut(Alignment(wanted=wanted))
    assert not any(stage.held for stage in world.stages)


class Line:
    """A producer that has staged ten batches, and a consumer that has read none of them. Only the given events happen, each at its time."""

    def __init__(self, events: Mapping[float, Callable[["Line"], object]]) -> None:
        self.producer = Model(StageName("producer"), committed_batch=9, visible_batch=9)
        self.shaky = Model(StageName("shaky"), [self.producer])
        self.stages: Sequence[Cuttable] = [cast(Cuttable, self.producer), cast(Cuttable, self.shaky)]
        self.now_s, self._events = 0.0, events
        self.held: list[tuple[bool, bool]] = []
        """Two facts for each second: whether the consumer was failing, and whether a stage was held."""
        self._happens()

    def waiting(self, deadline_s: float = NEVER_S) -> Waiting:
        return Waiting(deadline_s, lambda: self.now_s, self._pause)

    def _pause(self) -> None:
        self.held.append((self.shaky.failing_with() is not None, self.producer.held or self.shaky.held))
        self.now_s += 1.0
        self._happens()

    def _happens(self) -> None:
        if event := self._events.get(self.now_s):
            event(self)

    def fails(self) -> None:
        self.shaky.fails()

    def goes_on(self) -> None:
        """Lets the producer stage a batch, unless it is held."""
        if not self.producer.held:
            self.producer.stages_another()

    def heals(self) -> None:
        """Lets the consumer read all staged batches."""
        self.shaky.down, self.shaky.failure = False, None
        self.shaky.visible_batch = self.shaky.committed_batch = 0
        self.shaky.reads[0] = {self.producer.name: self.producer.committed_batch}


def test_no_stage_is_held_while_another_is_failing_and_the_cut_is_aligned_afterwards() -> None:
    line = Line({5.0: Line.fails, 8.0: Line.goes_on, 20.0: Line.heals})
    cut = take_cut(line.stages, Alignment(), line.waiting(NEVER_S))
    assert line.held == [(False, True)] * 5 + [(True, False)] * 15
    assert (cut.aligned, cut.batches) == (True, {"producer": 10, "shaky": 0})


def test_a_try_that_expires_while_a_stage_is_failing_is_declined_and_names_the_failure() -> None:
    line = Line({0.0: Line.fails})
    with pytest.raises(
        CheckpointDeclinedError, match="stage 'shaky' is failing.*InterruptedRunError: A row cannot be read"
    ) as raised:
        take_cut(line.stages, Alignment(), line.waiting(50.0))
    assert line.held == [(True, False)] * 50
    assert raised.value.evidence == {"stage": "shaky"}


def test_a_try_that_expires_after_a_stage_was_failing_is_declined_too() -> None:
    def starts_again(line: Line) -> None:
        line.shaky.failure = None

    line = Line({0.0: Line.fails, 49.0: starts_again})
    with pytest.raises(CheckpointDeclinedError, match="stage 'shaky'"):
        take_cut(line.stages, Alignment(), line.waiting(50.0))


@pytest.mark.parametrize("fails_at_s", [0.0, 5.0])
def test_a_checkpoint_waits_for_no_failing_stage_and_names_it(fails_at_s: float) -> None:
    line = Line({fails_at_s: Line.fails, fails_at_s + 1: Line.goes_on})
    cut = take_cut(line.stages, Alignment(with_failing=False), line.waiting(50.0))
    assert line.now_s == fails_at_s
    assert (cut.aligned, cut.batches) == (True, {"producer": 9, "shaky": -1})
    assert cut.failing == {"shaky"}


def test_a_cut_does_not_wait_for_a_stage_that_fails_from_time_to_time() -> None:
    slow = Model(StageName("slow"), visible_batch=0)

    def commits(line: Line) -> None:
        slow.committed_batch = 0

    line = Line({1.0: Line.fails, 5.0: Line.heals, 6.0: Line.goes_on, 20.0: commits})
    cut = take_cut([*line.stages, cast(Cuttable, slow)], Alignment(with_failing=False), line.waiting(50.0))
    assert line.now_s == 20.0
    assert (cut.aligned, cut.batches) == (True, {"producer": 9, "shaky": 0, "slow": 0})
    assert cut.failing == {"shaky"}


@pytest.mark.parametrize("alignment", [Alignment(timeout_s=20.0), Alignment(in_flight_bytes_max=10)])
def test_an_unaligned_checkpoint_does_not_wait_for_ever_for_a_failing_stage(alignment: Alignment) -> None:
    line = Line({0.0: Line.fails, 5.0: Line.goes_on})
    cut = take_cut(line.stages, alignment, line.waiting(50.0))
    assert (cut.aligned, cut.batches) == (False, {"producer": 10, "shaky": -1})


def test_a_failing_stage_without_unread_rows_is_cut_without_waiting() -> None:
    """One example is a stage that only reads sources: its batch has staged nothing, and starts again after the stage is released."""
    line = Line({})
    line.producer.fails()
    cut = take_cut(line.stages[:1], Alignment(), line.waiting(50.0))
    assert (cut.aligned, cut.alignment_s, cut.batches) == (True, 0.0, {"producer": 9})
    assert not cut.failing, "no table shows less than the others"


def test_an_aligned_cut_names_a_failing_stage_that_ends_because_it_does_not_wait_for_it() -> None:
    line, ending = Line({}), Model(StageName("ending"), ends=True)
    ending.fails()
    cut = take_cut([*line.stages[:1], cast(Cuttable, ending)], Alignment(), line.waiting(50.0))
    assert cut.aligned
    assert cut.failing == {"ending"}


def test_each_hold_and_release_of_a_stage_is_reported_during_a_stop() -> None:
    line, told = Line({5.0: Line.fails, 20.0: Line.heals}), []

    def held(name: StageName) -> None:
        told.append((line.now_s, str(name)))

    def released(name: StageName) -> None:
        told.append((line.now_s, f"{name} goes on"))

    quiesce(line.stages, replace(line.waiting(), held=held, released=released))
    assert told == [
        (0.0, "producer"),
        *((float(second), "shaky goes on") for second in range(5, 20)),
        (20.0, "producer"),
        (20.0, "shaky"),
    ]
    assert line.producer.held
    assert line.shaky.held


def test_no_stage_reads_its_source_on_while_a_stop_waits_for_the_batch_of_another_stage() -> None:
    """Two stages read sources. The batch of the first one takes ten seconds; the second one needs a second for each batch."""
    slow, fast, now_s = Model(StageName("slow"), visible_batch=0), Model(StageName("fast")), 0.0

    def pause() -> None:
        nonlocal now_s
        now_s += 1.0
        for _ in range(2):
            fast.step(Random())
        if now_s == 10.0:
            slow.step(Random())

    quiesce([cast(Cuttable, slow), cast(Cuttable, fast)], Waiting(NEVER_S, lambda: now_s, pause))
    assert (now_s, slow.committed_batch, fast.committed_batch) == (10.0, 0, -1)


def test_no_stage_reads_its_source_on_while_a_stop_waits_for_a_failing_stage() -> None:
    """A released producer would stage a batch, both while the consumer fails and after it has recovered."""
    line = Line({5.0: Line.fails, 8.0: Line.goes_on, 20.0: Line.heals})
    quiesce(line.stages, line.waiting())
    assert [held for _, held in line.held] == [True] * 20
    assert (line.producer.committed_batch, line.shaky.consumed_by(BatchId(0))) == (9, {"producer": 9})


def test_a_stop_that_fails_because_a_stage_fails_releases_all_stages() -> None:
    line = Line({5.0: Line.fails})
    with pytest.raises(CheckpointDeclinedError, match="stage 'shaky' is failing"):
        quiesce(line.stages, line.waiting(50.0))
    assert (line.now_s, line.producer.held, line.shaky.held) == (50.0, False, False)


@pytest.mark.parametrize("failures", FAILURES)
def test_a_stop_ends_with_all_stages_held_and_no_rows_in_flight(seed: int, failures: float) -> None:
    for number in range(WORLDS):
        world = World(seed + number, failures=failures)
        world.quiesce(deadline_s=world.now_s + 10_000)
        names = [stage.name for stage in world.stages]
        assert all(stage.is_at_rest() and stage.has_consumed(names) for stage in world.stages)


def test_an_unaligned_cut_holds_no_stage_and_waits_for_no_rows() -> None:
    """U3, U4: ten batches wait for a stage that reads none of them, and no time passes."""
    line = Line({})
    cut = take_cut(line.stages, Alignment(wanted=False), line.waiting(NEVER_S))
    assert (cut.aligned, cut.batches) == (False, {"producer": 9, "shaky": -1})
    assert (line.now_s, line.held) == (0.0, [])


def test_a_cut_that_has_given_up_alignment_holds_no_stage() -> None:
    def commits(line: Line) -> None:
        line.producer.committed_batch = 10

    def has_staged_and_not_committed(line: Line) -> None:
        line.producer.visible_batch = 10
        line.shaky.visible_batch = line.shaky.committed_batch = 0
        line.shaky.reads[0] = {line.producer.name: 10}

    line = Line({0.0: has_staged_and_not_committed, 9.0: commits})
    cut = take_cut(line.stages, Alignment(timeout_s=3.0), line.waiting(50.0))
    assert (cut.aligned, cut.batches) == (False, {"producer": 10, "shaky": 0})
    assert line.held == [(False, True)] * 3 + [(False, False)] * 6


def test_no_cut_holds_or_waits_for_a_stage_whose_inputs_all_end(seed: int) -> None:
    """Such a stage may be in one batch for hours."""
    for number in range(WORLDS):
        world = World(seed + number)
        for stage in world.stages[:2]:
            stage.ends, stage.dead, stage.committed_batch = True, True, stage.visible_batch
        for stage in world.stages[2:]:
            stage.producers = []
        assert_consistent(world, world.cut(Alignment(), deadline_s=world.now_s + 1_000))
        assert not any(stage.held for stage in world.stages)


def test_a_cut_is_aligned_although_an_ending_stage_is_always_ahead(seed: int) -> None:
    """The ending stage is not held. A consumer that waited, held, for its remaining rows would wait for ever."""
    for number in range(WORLDS):
        world = World(seed + number)
        ahead, *others = world.stages
        ahead.ends = True
        for stage in others:
            stage.producers = [ahead, *(each for each in stage.producers if each is not ahead)]

        cut = world.cut(Alignment(), deadline_s=world.now_s + 1_000, beside=ahead.stages_another)
        assert cut.aligned
        assert_consistent(world, cut)
        for stage in others:
            read = stage.consumed_by(cut.batches[stage.name])
            live = [producer.name for producer in stage.producers if producer is not ahead]
            assert all(read.get(name, -1) == cut.batches[name] for name in live)
