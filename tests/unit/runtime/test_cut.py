"""The cut rule over stages that go on while it looks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import cast

import pytest

from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.runtime.cut import Alignment, Cut, Cuttable, Waiting, take_cut
from tests.support.seeds import seed

__all__ = ["seed"]

NEVER_S = 1e9
WORLDS = 300


@dataclass
class Model:
    """A stage that stages a batch, makes it visible to its consumers, and commits it: three moments."""

    name: StageName
    producers: list["Model"] = field(default_factory=list)
    committed_batch: int = -1
    visible_batch: int = -1
    reads: dict[int, dict[StageName, int]] = field(default_factory=dict)
    """By batch how far it has read each producer."""
    held: bool = False
    dead: bool = False

    def step(self, random: Random) -> None:
        if self.dead:
            return
        if self.visible_batch > self.committed_batch:
            self.committed_batch += 1
        elif not self.held and (not self.producers or self._left()):
            self.visible_batch += 1
            before = self.reads.get(self.visible_batch - 1, {})
            self.reads[self.visible_batch] = {
                p.name: random.randint(before.get(p.name, -1), p.visible_batch) for p in self.producers
            }

    def _left(self) -> bool:
        done = self.reads.get(self.committed_batch, {})
        return any(done.get(producer.name, -1) < producer.visible_batch for producer in self.producers)

    def committed(self) -> BatchId:
        return BatchId(self.committed_batch)

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        return {name: BatchId(read) for name, read in self.reads.get(batch, {}).items()}

    def has_consumed_all(self) -> bool:
        return not self._left()

    def in_flight_bytes(self) -> int:
        done = self.reads.get(self.committed_batch, {})
        return sum(producer.visible_batch - done.get(producer.name, -1) for producer in self.producers)

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def is_at_rest(self) -> bool:
        return self.held and self.visible_batch == self.committed_batch


class World:
    """Stages in topological order, whose steps come between any two looks of the rule."""

    def __init__(self, seed: int, stages: int = 5) -> None:
        self.random = Random(seed)
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

    def cut(self, alignment: Alignment, deadline_s: float = NEVER_S) -> Cut:
        looks = [cast(Cuttable, Look(stage, self)) for stage in self.stages]
        return take_cut(looks, alignment, deadline_s, Waiting(lambda: self.now_s, self.pause))


class Look:
    """A stage seen from outside: the world goes on at each look."""

    def __init__(self, stage: Model, world: World) -> None:
        self._stage, self._world, self.name = stage, world, stage.name

    def __getattr__(self, method: str) -> object:
        def look(*arguments: object) -> object:
            self._world.pause()
            return getattr(self._stage, method)(*arguments)

        return look


def assert_consistent(world: World, cut: Cut) -> None:
    for stage in world.stages:
        for producer, read in stage.consumed_by(cut.batches[stage.name]).items():
            assert read <= cut.batches[producer], f"{stage.name} has read batch {read} of {producer}, which is cut before it"


def test_no_stage_has_read_what_its_producer_has_not_staged_in_the_cut(seed: int) -> None:
    for number in range(WORLDS):
        world = World(seed + number)
        assert_consistent(world, world.cut(Alignment(wanted=False)))


def test_an_aligned_cut_leaves_nothing_between_two_stages(seed: int) -> None:
    for number in range(WORLDS):
        world = World(seed + number)
        cut = world.cut(Alignment())
        assert cut.aligned
        assert_consistent(world, cut)
        for stage in world.stages:
            read = stage.consumed_by(cut.batches[stage.name])
            assert all(read.get(producer.name, -1) == cut.batches[producer.name] for producer in stage.producers)


def test_a_cut_that_gives_up_alignment_is_consistent_all_the_same(seed: int) -> None:
    for number in range(WORLDS):
        world = World(seed + number)
        assert_consistent(world, world.cut(Alignment(timeout_s=3.0)))


def test_alignment_ends_where_more_is_in_flight_than_it_may_wait_for() -> None:
    producer = Model(StageName("producer"), committed_batch=9, visible_batch=9)
    consumer = Model(StageName("consumer"), [producer], dead=True)
    world = World(0, stages=0)
    world.stages = [producer, consumer]
    assert not world.cut(Alignment(in_flight_bytes_max=5)).aligned
    with pytest.raises(DeadlineExceededError, match="stage 'consumer'"):
        world.cut(Alignment(in_flight_bytes_max=500), deadline_s=world.now_s + 50)


def test_a_stage_that_never_comes_so_far_fails_the_try_and_all_are_released() -> None:
    world = World(1)
    world.stages[0].visible_batch += 1
    world.stages[0].dead = True
    with pytest.raises(DeadlineExceededError, match="expired before completing: stage 's0'"):
        world.cut(Alignment(), deadline_s=world.now_s + 50)
    assert not any(stage.held for stage in world.stages)


@pytest.mark.parametrize("wanted", [True, False])
def test_all_stages_go_on_after_a_cut(wanted: bool) -> None:
    world = World(2)
    world.cut(Alignment(wanted=wanted))
    assert not any(stage.held for stage in world.stages)
