"""A model of the stages of a cut."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random

from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import BatchId, StageName


@dataclass
class Model:
    """A stage that stages a batch, makes it visible to its consumers, and commits it in three separate steps."""

    name: StageName
    producers: list["Model"] = field(default_factory=list)
    committed_batch: int = -1
    visible_batch: int = -1
    reads: dict[int, dict[StageName, int]] = field(default_factory=dict)
    """The position in each producer, by batch."""
    held: bool = False
    dead: bool = False
    down: bool = False
    """The stage has failed and its query does not run."""
    failure: Exception | None = None
    """The error of the last failure, or None after a committed batch."""
    ends: bool = False
    """All inputs of the stage end."""

    @property
    def waits_for_none(self) -> bool:
        return self.ends or not self.producers

    def stages_another(self) -> None:
        self.committed_batch += 1
        self.visible_batch = self.committed_batch

    def fails(self) -> None:
        self.down, self.failure = True, InterruptedRunError("A row cannot be read.")

    def step(self, random: Random) -> None:
        if self.dead or self.down:
            return
        if self.visible_batch > self.committed_batch:
            self.committed_batch += 1
            self.failure = None
        elif not self.held and (not self.producers or self._left()):
            self.visible_batch += 1
            before = self.reads.get(self.visible_batch - 1, {})
            self.reads[self.visible_batch] = {
                p.name: random.randint(before.get(p.name, -1), p.visible_batch) for p in self.producers
            }

    def _left(self, names: Collection[StageName] | None = None) -> bool:
        done = self.reads.get(self.committed_batch, {})
        of = [producer for producer in self.producers if names is None or producer.name in names]
        return any(done.get(producer.name, -1) < producer.visible_batch for producer in of)

    def committed(self) -> BatchId:
        return BatchId(self.committed_batch)

    def consumed_by(self, batch: BatchId) -> Mapping[StageName, BatchId]:
        return {name: BatchId(read) for name, read in self.reads.get(batch, {}).items()}

    def has_consumed(self, producers: Collection[StageName]) -> bool:
        return not self._left(producers)

    def in_flight_bytes(self, producers: Collection[StageName]) -> int:
        done = self.reads.get(self.committed_batch, {})
        return sum(each.visible_batch - done.get(each.name, -1) for each in self.producers if each.name in producers)

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def is_at_rest(self) -> bool:
        return self.held and self.visible_batch == self.committed_batch

    def is_failing(self) -> bool:
        return self.failure is not None and (self.down or self.failing_with() is not None)

    def failing_with(self) -> Exception | None:
        return self.failure if self._left() or self.visible_batch > self.committed_batch else None
