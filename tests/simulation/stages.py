"""Replaces Spark: each stage hands numbered rows on unchanged, batch by batch, through Spark's own logs.

A query plans batch N in its offset log, gives the rows to the product's ``foreachBatch``, and commits N. After a start it runs the planned
batch again. All code around it is the product's own: the stage, its query, its writer, its gate, its private log.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.api.source import Source
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import BlockedPublication, PinnedInput, StopStatus
from spark_jobs.protocol.errors import PermanentFailureError
from spark_jobs.protocol.ids import BatchId, StageName, file_prefix
from spark_jobs.protocol.losses import StagedFile, units_of
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.publication.delta_rs import check_publishable
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.inputs.delta_source import DeltaBound, delta_offset
from spark_jobs.runtime.spark.spark_log import NO_BATCH, OFFSETS_VERSION, OffsetEntry, SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_bound import ChannelBound, channel_position
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.log_folding import Consumer
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.gate import Gate
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.stage_output import StageOutput
from spark_jobs.runtime.tables.outlets import Outlet, PublicTable
from spark_jobs.runtime.tables.tables import StagingTable
from spark_jobs.storage.files import local_path
from tests.simulation.delta_tables import SCHEMA_TEXT, Tables
from tests.simulation.storage import Disk, SimulatedFiles
from tests.simulation.threads import SimulatedEvent, SimulatedThread
from tests.simulation.windows import Windows
from tests.simulation.world import Interrupted, Process, World

PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
SOURCE_TABLE = "events"
_FILES_MAX = 2


@dataclass
class Input:
    """The pipeline's source. Its rows are numbered from 0."""

    rows: int = 0


@dataclass(frozen=True)
class Rows:
    """The frame of a batch."""

    numbers: tuple[int, ...]
    sparkSession: Any = None

    def count(self) -> int:
        return len(self.numbers)


@dataclass
class Site:
    """The state that all stages of a world share."""

    world: World
    disk: Disk
    tables: Tables
    input: Input = field(default_factory=Input)
    windows: bool = False
    """True if every stage holds rows back."""
    told: Callable[[StopStatus], None] = lambda status: None
    """Called with the status of a stop that users see."""
    blocked: set[Process] = field(default_factory=set)
    """The drivers that report a blocked publication."""
    also_blocked: Callable[[BlockedPublication], None] = lambda blocked: None
    """Called with each report of a blocked publication."""
    poison: frozenset[int] = frozenset()
    """The rows that the last stage cannot process."""

    def tell_blocked(self, blocked: BlockedPublication | None) -> None:
        """Records that the current driver reports a blocked publication, or that the publication is no longer blocked."""
        current = self.world.current
        assert current is not None
        (self.blocked.discard if blocked is None else self.blocked.add)(current.process)
        if blocked is not None:
            self.also_blocked(blocked)

    def files(self, path: str) -> SimulatedFiles:
        return SimulatedFiles(self.disk, path)

    def write_files(self, rows: Rows, table_path: str, prefix: str, is_checked: object = None) -> list[dict[str, Any]]:
        """Replaces :meth:`~spark_jobs.publication.delta_jvm.DeltaJvm.write_files`: writes one or two files that are not durable yet."""
        random, numbers = self.world.random, list(rows.numbers)
        if self.poison.intersection(numbers) and table_path.endswith("/again"):
            raise PermanentFailureError(f"rows {sorted(self.poison.intersection(numbers))} cannot be processed")
        split = random.randint(1, len(numbers)) if len(numbers) > 1 and random.random() < 0.5 else len(numbers)
        adds = []
        for part in (numbers[:split], numbers[split:])[:_FILES_MAX]:
            if part:
                name, data = f"{prefix}{self.world.uuid4()}.parquet", json.dumps(part).encode()
                self.files(table_path).write_volatile(name, data)
                stats = json.dumps({"numRecords": len(part)})
                adds.append(
                    {
                        "path": name,
                        "partitionValues": {},
                        "size": len(data),
                        "modificationTime": 0,
                        "dataChange": True,
                        "stats": stats,
                    }
                )
        return adds


class TableDirectory(SimulatedFiles):
    """The directory of a table. A sweep lists it in one step, and deletes each file in one step."""

    def paths(self, directory: str = "") -> list[str]:
        self._point("list", directory)
        return [path.removeprefix(f"{self._root}/") for path in self._disk.below(self._root)]

    def size_bytes(self, path: str) -> int | None:
        self._point("stat", path)
        return super().size_bytes(path)

    def delete(self, path: str) -> None:
        self._point("delete", path)
        if self._disk.get(self._path(path)) is not None:
            self._disk.remove(self._path(path))
            self._disk.watcher.deleted(self._path(path))


class Frame:
    """The result of a stage. Spark's writer starts a query from it."""

    def __init__(self, site: Site, log: SparkLog, bounds: Sequence[Bound], passed_over: frozenset[str] = frozenset()) -> None:
        self.sparkSession = SimpleNamespace(conf=SimpleNamespace(set=lambda key, value: None, get=lambda key: "true"))
        self._site, self._log, self._bounds, self._passed_over = site, log, bounds, passed_over
        self._writer: Any = None
        self._trigger: Mapping[str, Any] = {}

    @property
    def writeStream(self) -> "Frame":
        return Frame(self._site, self._log, self._bounds, self._passed_over)

    def queryName(self, name: str) -> "Frame":
        return self

    def option(self, key: str, value: str) -> "Frame":
        return self

    def outputMode(self, mode: str) -> "Frame":
        return self

    def foreachBatch(self, writer: Any) -> "Frame":
        self._writer = writer
        return self

    def trigger(self, **trigger: Any) -> "Frame":
        self._trigger = trigger
        return self

    def start(self) -> "Query":
        return Query(self._site, self._log, self._bounds, self._writer, self._trigger, self._passed_over)


class Query:
    """A running query: Spark's micro-batches in an actor of their own."""

    def __init__(
        self,
        site: Site,
        log: SparkLog,
        bounds: Sequence[Bound],
        writer: Any,
        trigger: Mapping[str, Any],
        passed_over: frozenset[str],
    ) -> None:
        self._site, self._log, self._bounds, self._writer, self._trigger = site, log, bounds, writer, trigger
        self._passed_over = passed_over
        self._files = site.files(f"{log.files.url.removeprefix('file://')}/{log.directory}")
        self._windows = Windows(log, site.windows)
        self._failure: BaseException | None = None
        self._thread = SimulatedThread(site.world, target=self._run, name=f"query-{log.directory.split('/')[1]}")
        self._thread.start()

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    def awaitTermination(self, timeout: int) -> bool:
        ended = self._site.world.until(lambda: not self._thread.is_alive(), timeout)
        if self._failure is not None:
            raise StreamingQueryException(str(self._failure)) from self._failure
        return ended

    def stop(self) -> None:
        self._thread.interrupt()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001 - any error of a batch: Spark's edge
            self._failure = error

    def _work(self) -> None:
        if self._log.query_id() is None:
            self._log.begin(str(self._site.world.uuid4()))
        last = self._log.last_commit()
        if last >= 0:
            self._positions(last)  # a query that starts plans its last batch again
        available = self._newest() if "availableNow" in self._trigger else None
        while True:
            last, batch = self._log.last_commit(), self._log.last_offsets()
            if batch <= last:
                lines = self._plan(last, available)
                if lines is None and self._windows.lets_go(last):
                    lines = list(self._lines(last))
                if lines is None and "processingTime" not in self._trigger:
                    return
                if lines is None:
                    self._site.world.sleep(0.1)
                    continue
                batch = BatchId(last + 1)
                entry = OffsetEntry(OFFSETS_VERSION, {"batchWatermarkMs": self._windows.watermark(last)}, tuple(lines))
                self._files.write_volatile(f"offsets/{batch}", entry.to_bytes())
            rows, commit = self._windows.result(batch, self._rows(batch))
            self._writer(Rows(rows, SimpleNamespace()), batch)
            self._files.write_volatile(f"commits/{batch}", f"v2\n{json.dumps(commit)}".encode())
            if "once" in self._trigger:
                return

    def _lines(self, batch: int) -> Sequence[str]:
        return [NO_OFFSET] * len(self._bounds) if batch < 0 else self._log.offsets(BatchId(batch)).sources

    def _newest(self) -> list[tuple[int, int]]:
        return [self._end_of(bound) for bound in self._bounds]

    def _end_of(self, bound: Bound) -> tuple[int, int]:
        """Returns the position after the last row or version that an input has now."""
        return (self._versions(bound)[-1] + 1 if self._versions(bound) else 0, -1)

    def _versions(self, bound: Bound) -> list[int]:
        if not isinstance(bound, ChannelBound):
            return list(range(self._site.input.rows))
        names = self._site.files(bound.log.url.removeprefix("file://")).names("_delta_log")
        return [int(name[:20]) for name in names if name.endswith(".json")]

    def _plan(self, last: int, available: Sequence[tuple[int, int]] | None) -> list[str] | None:
        """Returns the position at which the next batch ends; None if there is no new input."""
        lines = []
        before = self._lines(last)
        for number, (bound, line) in enumerate(zip(self._bounds, before, strict=True)):
            begin = _position(line)
            end = available[number] if available else self._end_of(bound)
            lines.append(line if end <= begin else self._line(bound, self._some(bound, begin, end)))
        return None if lines == list(before) else lines

    def _some(self, bound: Bound, begin: tuple[int, int], end: tuple[int, int]) -> tuple[int, int]:
        """Returns a position within the new input, as a limit on batches would choose it."""
        random = self._site.world.random
        version = random.randint(begin[0] + 1, end[0])
        if (
            isinstance(bound, ChannelBound)
            and version < end[0]
            and random.random() < 0.2
            and len(self._paths(bound, version)) > 1
        ):
            return version, 0
        return version, -1

    def _line(self, bound: Bound, position: tuple[int, int]) -> str:
        table = bound.log.table_id if isinstance(bound, ChannelBound) else SOURCE_TABLE
        line: dict[str, Any] = json.loads(delta_offset(table, position[0]))
        return json.dumps(line | {"index": position[1]})

    def _rows(self, batch: int) -> tuple[int, ...]:
        """Returns the rows of a batch, read from the source or the staged files."""
        found: list[int] = []
        for path in self._positions(batch):
            if isinstance(path, int):
                found.append(path)
                continue
            directory, _, name = unquote(urlsplit(path).path).rpartition("/")
            if name in self._passed_over:
                continue
            found += json.loads(self._site.files(directory).read(name))
        return tuple(found)

    def _positions(self, batch: int) -> list[int | str]:
        """Returns the input of a batch: the numbers of the source's rows, and the files of its channels."""
        found: list[int | str] = []
        for bound, before, line in zip(self._bounds, self._lines(batch - 1), self._lines(batch), strict=True):
            begin, end = _position(before), _position(line)
            for version in range(begin[0], end[0] + (end[1] >= 0)):
                if not isinstance(bound, ChannelBound):
                    found.append(version)
                    continue
                first = begin[1] + 1 if version == begin[0] else 0
                stop = end[1] + 1 if version == end[0] else None
                found += self._paths(bound, version)[first:stop]
        return found

    def _paths(self, bound: ChannelBound, version: int) -> list[str]:
        data = self._site.files(bound.log.url.removeprefix("file://")).read(f"_delta_log/{version:020d}.json")
        actions = [json.loads(line) for line in data.decode().splitlines()]
        return [action["add"]["path"] for action in actions if "add" in action]


def _position(line: str) -> tuple[int, int]:
    position = channel_position(line)
    return (0, -1) if position is None else (position.version, position.index)


def build_stage(
    site: Site,
    stage: Stage,
    round_site: RoundSite,
    outputs: Mapping[StageName, StageOutput],
    earlier: StageRun | None = None,
    ended: frozenset[str] = frozenset(),
    recorded: BatchId = NO_BATCH,
) -> StageRun:
    """Replaces :func:`spark_jobs.runtime.stages.build.build_stage`, for stages that hand on their input unchanged."""
    if ended:
        raise NotImplementedError("no input ends beside one that does not")
    work = round_site.work
    log = earlier.spark_log if earlier else SparkLog(work, checkpoint_directory(stage.name))
    bounds = [_bound(site, node, number, log, round_site, outputs) for number, node in enumerate(stage.inputs.values())]
    passed_over = units_of([loss for loss in round_site.losses if loss.stage == stage.name])
    frame = cast(
        DataFrame, Frame(site, log, bounds, frozenset(unit.file for unit in passed_over if isinstance(unit, StagedFile)))
    )
    outlet = _outlet(site, stage, round_site, frame)
    if earlier is None:
        log_of_stage = PrivateLog(work, log_directory(stage.name), outlet.staged_in.uri)
        staged_for = outlet.public.staged_for if outlet.public else None
        log_of_stage.begin(outlet.staged_in.metadata, outlet.staged_in.protocol, staged_for)
        ended_event = cast(threading.Event, SimulatedEvent(site.world))
        output = StageOutput(stage.name, log_of_stage, None, None, False, ended_event)
    else:
        output = earlier.output
    if site.windows:  # Spark creates it with the first batch; no code looks for it before that
        site.disk.put(f"{local_path(work, log.directory)}/state/0/held", b"")
    return StageRun(
        stage=stage,
        query_name=stage.name,
        frame=frame,
        checkpoint_path=f"{work.url}/{log.directory}",
        outlet=outlet,
        directory=TableDirectory(site.disk, outlet.staged_in.path),
        file_prefix=file_prefix(round_site.incarnation, stage.name),
        spark_log=log,
        output=output,
        upstream=[outputs[node.name] for node in stage.inputs.values() if isinstance(node, Stage)],
        bounds=bounds,
        sources=(None,) * len(bounds),
        arguments=list(stage.inputs),
        ended=ended,
        watermarks={},
        has_timers=False,
        only_aggregates=True,
        undrained=(),
        heartbeat=round_site.heartbeat,
        cancellation=round_site.cancellation,
        gate=earlier.gate if earlier else Gate(),
    )


def _bound(
    site: Site, node: Any, number: int, log: SparkLog, round_site: RoundSite, outputs: Mapping[StageName, StageOutput]
) -> Bound:
    if isinstance(node, Stage):
        output = outputs[node.name]
        output.add_consumer(Consumer(log, number))
        return ChannelBound(output.producer, output.log, NO_BATCH)
    if not isinstance(node, Source):
        raise NotImplementedError(f"{node} is neither a source nor a stage")
    if not node.bounded:
        return Bound()
    pinned = round_site.rounds.pinned(round_site.round.round, node.name)
    if pinned is None:
        pin = DeltaPin(path="/events", table=SOURCE_TABLE, version=site.input.rows - 1)
        pinned = round_site.rounds.pin(round_site.round.round, PinnedInput(input=node.name, pins=(pin,)))
    (found,) = pinned.pins
    assert isinstance(found, DeltaPin)
    return DeltaBound(found)


def _outlet(site: Site, stage: Stage, round_site: RoundSite, frame: DataFrame) -> Outlet:
    uri = round_site.places[stage.sink.name].uri if stage.sink else f"{round_site.channels}/{stage.name}"
    place = unquote(urlsplit(uri).path)
    metadata = {"id": f"id-of-{place}", "schemaString": SCHEMA_TEXT, "partitionColumns": [], "configuration": {}}
    table = StagingTable(uri, StructType(), metadata, PROTOCOL, 0)
    if stage.sink is None:
        site.disk.put(f"{place}/_delta_log/00000000000000000000.json", b"{}")
        return Outlet(table, None, None, frame)
    site.tables.make(place)
    facts, publisher = check_publishable(table.uri, stage.sink.mode)
    return Outlet(table, PublicTable(table.uri, (), publisher, facts.table_id, facts.shape), None, frame)


NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=None)))
