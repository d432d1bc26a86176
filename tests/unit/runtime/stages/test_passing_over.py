"""The file that a stage passes over, and the time at which it does so."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.api.tolerance import Tolerance
from spark_jobs.protocol.errors import InterruptedRunError, PermanentFailureError, RestartsExhaustedError, StorageError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.losses import Loss, PassedOver, Records, StagedFile, units_of
from spark_jobs.runtime.inputs.bounds import Bound
from spark_jobs.runtime.spark.session import QuietQueries
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog
from spark_jobs.runtime.staged.channel_bound import ChannelBound
from spark_jobs.runtime.stages.gate import Gate, TurnedAwayError
from spark_jobs.runtime.stages.passing_over import PassingOver, Planned, some_of
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.staging import ProbePassedError
from tests.support.memory_files import MemoryFiles
from tests.support.private_logs import begun, staged

POISONED = PermanentFailureError("ValueError: it cannot be scored")


@dataclass(frozen=True)
class FakeRun:
    """A stage whose planned batch reads files of a channel. A probe fails if it reads a poisoned file."""

    files: MemoryFiles
    log: Any
    bound: ChannelBound
    site: "Site"
    without: tuple[str, ...] = ()
    is_probe: bool = False
    sources: tuple[None, ...] = ()
    gate: Gate = field(default_factory=Gate)
    stage: Any = field(default_factory=lambda: SimpleNamespace(name=StageName("scored")))
    frame: Any = field(default_factory=lambda: SimpleNamespace(sparkSession=None))
    cancellation: Any = field(default_factory=lambda: SimpleNamespace(check=lambda: None))

    @property
    def spark_log(self) -> SparkLog:
        return SparkLog(self.files, "scored")

    def ends_of(self, batch: int) -> list[tuple[Bound, str | None, str]]:
        return StageRun.ends_of(cast(StageRun, SimpleNamespace(spark_log=self.spark_log, bounds=[self.bound])), cast(Any, batch))

    def run_query(self, trigger: Mapping[str, Any], look: Any) -> None:
        assert self.is_probe
        self.site.probes.append(self.without)
        self.site.on_probe()
        if self.site.poison - set(self.without) or self.site.fails_always:
            raise self.site.error
        raise ProbePassedError


def files_of(losses: Sequence[Loss]) -> list[str]:
    return [unit.file for unit in units_of(losses) if isinstance(unit, StagedFile)]


class Site:
    """A channel with three batches, and a stage that has read the first one and has planned to read the other two."""

    def __init__(self, *poison: str, files: int = 8) -> None:
        self.poison, self.fails_always, self.error = set(poison), False, cast(Exception, POISONED)
        self.probes: list[tuple[str, ...]] = []
        self.recorded: list[PassedOver] = []
        self.on_probe: Any = lambda: None
        memory = MemoryFiles()
        channel = begun(memory, "copied")
        channel.append(staged(0, "read.parquet"))
        channel.append(staged(1, *(f"a{number}.parquet" for number in range(files - 1))))
        channel.append(staged(2, "b.parquet"))
        self.own = begun(memory, "own")
        self.own.append(staged(0))
        for batch, version in ((0, 2), (1, 4)):
            line = json.dumps({"reservoirVersion": version, "index": -1})
            memory.create(f"scored/offsets/{batch}", "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), line]).encode())
        memory.create("scored/commits/0", b"v2\n{}")
        self.memory, self.stopping = memory, threading.Event()
        self.run = FakeRun(memory, self.own, ChannelBound(StageName("copied"), channel, NO_BATCH), self)
        self.passing_over = PassingOver(Tolerance(2, 100, 1), self._build, self.recorded.append, self.stopping)

    def _build(self, run: StageRun, losses: Sequence[Loss]) -> StageRun:
        names = files_of([*losses, *self.recorded])
        return cast(StageRun, FakeRun(self.memory, self.own, self.run.bound, self, tuple(names)))

    def fails(self, error: Exception = POISONED) -> bool:
        return self.passing_over.tolerates(cast(StageRun, self.run), error)

    def is_due(self) -> bool:
        return self.passing_over.is_due

    def goes_on(self) -> FakeRun:
        return cast(FakeRun, self.passing_over.pass_over(cast(StageRun, self.run)))


@pytest.fixture(autouse=True, scope="module")
def without_spark() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuietQueries, "during", lambda session: nullcontext())
        yield


@pytest.mark.parametrize("poison", [f"a{number}.parquet" for number in range(7)] + ["b.parquet"])
def test_the_file_that_fails_a_batch_is_found_at_any_position(poison: str) -> None:
    site = Site(poison)
    site.fails()
    assert not site.is_due()
    site.fails()
    assert site.is_due()
    assert site.goes_on().without == (poison,)
    (loss,) = site.recorded
    assert isinstance(loss.unit, StagedFile)
    assert (loss.unit.file, loss.input, loss.rows, loss.tries) == (poison, "copied", 2, 2)
    assert loss.unit.batch == (2 if poison == "b.parquet" else 1)
    assert "cannot be scored" in loss.error
    assert not any("read.parquet" in without for without in site.probes), "it is in no batch any more"
    assert len(site.probes) <= 5, "each try halves what is left"


def test_the_only_file_of_a_batch_is_passed_over_only_if_the_batch_still_fails_with_it() -> None:
    site = Site("b.parquet", files=1)
    site.fails(), site.fails()
    assert site.goes_on().without == ("b.parquet",)
    healed = Site(files=1)
    healed.fails(), healed.fails()
    assert healed.goes_on().without == ()
    assert healed.recorded == []


def test_a_second_file_is_found_at_the_next_failure_of_the_same_batch() -> None:
    site = Site("a2.parquet", "a5.parquet")
    site.fails(), site.fails()
    assert site.goes_on().without == ("a2.parquet",)
    assert not site.is_due()
    site.fails()
    assert site.is_due()
    assert site.goes_on().without == ("a2.parquet", "a5.parquet")
    assert site.recorded[1].tries == 3


@given(poison=st.sets(st.sampled_from([*(f"a{number}.parquet" for number in range(7)), "b.parquet"])))
def test_exactly_the_files_that_fail_a_batch_are_passed_over(poison: set[str]) -> None:
    site, without = Site(*poison), set[str]()
    while poison - without:
        site.fails()
        if site.is_due():
            without = set(site.goes_on().without)
    assert files_of(site.recorded) == sorted(poison)


def test_an_error_that_another_try_may_heal_is_not_tolerated() -> None:
    site = Site("b.parquet")
    assert not any(site.fails(InterruptedRunError("the service is away")) for _ in range(5))
    assert not site.is_due()


def test_a_failure_counts_only_once_its_batch_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site("b.parquet")
    with monkeypatch.context() as away:
        away.setattr(MemoryFiles, "names", lambda files, directory: (_ for _ in ()).throw(StorageError("The disk is away.")))
        assert [site.fails() for _ in range(5)] == [True] * 5
    assert not site.is_due()
    assert site.fails()
    assert not site.is_due()


def test_no_file_of_a_staged_batch_is_passed_over() -> None:
    site = Site("b.parquet")
    site.own.append(staged(1, "result.parquet"))
    assert not site.fails()


def test_a_stage_that_fails_without_any_rows_has_nothing_to_pass_over() -> None:
    site = Site()
    site.fails_always = True
    site.fails(), site.fails()
    with pytest.raises(RestartsExhaustedError, match="also without the rows of its inputs"):
        site.goes_on()
    assert site.recorded == []


def test_no_file_is_passed_over_while_a_service_is_unavailable() -> None:
    site = Site("a0.parquet")
    site.fails(), site.fails()
    away = InterruptedRunError("the service is away")
    site.on_probe = lambda: setattr(site, "error", away if len(site.probes) > 2 else POISONED)
    with pytest.raises(InterruptedRunError, match="away"):
        site.goes_on()
    assert site.recorded == []


def test_a_stage_that_is_to_stop_ends_the_search() -> None:
    site = Site("a3.parquet")
    site.fails(), site.fails()
    site.on_probe = site.stopping.set
    with pytest.raises(TurnedAwayError):
        site.goes_on()
    assert (len(site.probes), site.recorded) == (1, [])


@given(
    sizes=st.lists(st.integers(min_value=1, max_value=5), min_size=1, max_size=5),
    begin=st.integers(min_value=0, max_value=25),
    count=st.integers(min_value=0, max_value=25),
)
def test_the_pieces_of_a_batch_are_the_pieces_of_its_units_in_their_order(sizes: list[int], begin: int, count: int) -> None:
    name = InputName("clicks")
    ranges = [Records(topic="clicks", partition=number, first=7, end=7 + size) for number, size in enumerate(sizes)]
    planned = [Planned(name, each, each.end - each.first) for each in ranges]
    every = [(each.partition, offset) for each in ranges for offset in range(each.first, each.end)]
    some = some_of(planned, begin, begin + count)
    units = [each.unit for each in some if isinstance(each.unit, Records)]
    assert [(unit.partition, offset) for unit in units for offset in range(unit.first, unit.end)] == every[begin : begin + count]
    assert [each.rows for each in some] == [unit.end - unit.first for unit in units]
