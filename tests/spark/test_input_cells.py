"""Each cell of the table of inputs: a round is interrupted, its source changes, and the same run is started again.

The public rows at the end are compared with a batch query over the source.
"""

import csv
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import orc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, InterruptedRunError, Pipeline, RestartStrategy
from spark_jobs.protocol.errors import RejectedError, StreamPipelineError
from spark_jobs.protocol.start_requests import StartOptions
from tests.spark.conftest import Site
from tests.spark.failing import failing_from
from tests.spark.rows import public, public_count
from tests.support.input_cells import CELLS, LIVE_CELLS, NEXT_ROUND, Cell, Event, Outcome, Remedy, Source
from tests.support.kafka_broker import KafkaBroker, kafka_options
from tests.support.running import Running

pytestmark = pytest.mark.spark

_TOPICS = itertools.count()
UNITS = 4
"""The number of units of ten rows each. A unit is a batch: a version, a file, or ten records."""


def rows_of(units: Iterable[int]) -> set[int]:
    return {10 * unit + n for unit in units for n in range(10)}


class Delta:
    """A table with one version per unit."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.root: Path = request.getfixturevalue("tmp_path")
        self.path = self.root / "in"

    def begin(self) -> None:
        write_deltalake(str(self.path), pa.table({"n": pa.array([], pa.int64())}))

    def add(self, unit: int) -> None:
        write_deltalake(str(self.path), pa.table({"n": pa.array(sorted(rows_of([unit])), pa.int64())}), mode="append")

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(self.path))

    def batch(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(self.path))

    def happen(self, event: Event) -> set[int]:
        """Lets the event happen. Returns the rows that are lost with it."""
        table, away = DeltaTable(str(self.path)), self.root / "away"
        match event:
            case Event.MADE_ANEW:
                shutil.rmtree(self.path)
                for unit in (50, 51):
                    self.add(unit)
            case Event.MOVED:
                self.path = self.path.rename(away)
            case Event.SHRUNK:
                table.delete("n >= 30")
            case Event.EXPIRED:
                self.add(50)
                DeltaTable(str(self.path)).create_checkpoint()
                for version in range(UNITS):
                    (self.path / "_delta_log" / f"{version:020}.json").unlink()
                return rows_of([2, 3])
            case Event.VACUUMED:
                files = {
                    path: path.read_bytes() for path in self.path.glob("*.parquet") if pq.read_table(path)["n"][0].as_py() != 30
                }
                table.optimize.compact()
                DeltaTable(str(self.path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
                for path, data in files.items():
                    path.write_bytes(data)
                return rows_of([3])
            case Event.RESTORED:
                table.restore(1)
            case Event.TRUNCATED:
                table.delete()
            case Event.OVERWRITTEN:
                write_deltalake(str(self.path), pa.table({"n": pa.array([500], pa.int64())}), mode="overwrite")
            case Event.SCHEMA_CHANGED:
                rows = pa.table({"n": pa.array([500], pa.int64()), "more": ["of a later day"]})
                write_deltalake(str(self.path), rows, mode="append", schema_mode="merge")
            case Event.ROWS_UPDATED:
                table.update(updates={"n": "n + 500"}, predicate="n >= 35")
                self.add(50)
                return set(range(530, 540))  # also the rows that the update has rewritten
            case Event.ROWS_REPLACED:
                rows = pa.table({"n": pa.array([500], pa.int64())})
                write_deltalake(str(self.path), rows, mode="overwrite", schema_mode="overwrite")
            case Event.MISSING:
                self.path.rename(away)
            case Event.PERMISSION_LOST:
                self.path.chmod(0)
        return set()

    def put_back(self) -> None:
        if self.path.exists():
            self.path.chmod(0o755)
        else:
            (self.root / "away").rename(self.path)


class Files:
    """A folder with one file per unit."""

    ending: str
    schema = "n long"
    options: Mapping[str, str] = {}

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.root: Path = request.getfixturevalue("tmp_path")
        self.path = self.root / "in"

    def begin(self) -> None:
        self.path.mkdir(exist_ok=True)

    def write(self, path: Path, rows: Iterable[int]) -> None:
        raise NotImplementedError

    def write_wider(self, path: Path) -> None:
        """Writes a file with a row that has one more column."""
        raise NotImplementedError

    def file(self, unit: int) -> Path:
        return Path(self.path, f"{unit}.{self.ending}")

    def add(self, unit: int) -> None:
        self.begin()
        unfinished = self.root / "unfinished"
        self.write(unfinished, sorted(rows_of([unit])))
        os.utime(unfinished, (1_700_000_000 + unit,) * 2)  # Spark reads the oldest first
        unfinished.rename(self.file(unit))

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).options(**self.options)
        return self.numbers(reader.format(self.ending).load(str(self.path)))

    def batch(self, spark: SparkSession) -> DataFrame:
        return self.numbers(spark.read.schema(self.schema).options(**self.options).format(self.ending).load(str(self.path)))

    def numbers(self, frame: DataFrame) -> DataFrame:
        return frame.select("n")

    def happen(self, event: Event) -> set[int]:
        away = self.root / "away"
        shutil.copytree(self.path, self.root / "copy")
        match event:
            case Event.MADE_ANEW:
                shutil.rmtree(self.path)
                for unit in range(UNITS):
                    self.add(unit)
                    os.utime(self.file(unit))
                return rows_of([2, 3])
            case Event.MOVED:
                self.path = self.path.rename(away)
            case Event.SHRUNK:
                self.file(3).unlink()
                return rows_of([3])
            case Event.EXPIRED:
                for unit in (0, 2):
                    self.file(unit).unlink()
                return rows_of([2])
            case Event.TRUNCATED:
                for unit in range(UNITS):
                    self.write(self.file(unit), sorted(rows_of([unit]))[:5])
            case Event.OVERWRITTEN:
                for unit in range(UNITS):
                    self.write(self.file(unit), sorted(rows_of([unit + 50])))
            case Event.SCHEMA_CHANGED:
                self.write_wider(self.file(50))
            case Event.LATE:
                self.add(50)
                os.utime(self.file(50), (1_700_000_000 - 30 * 86_400,) * 2)
            case Event.MISSING:
                shutil.rmtree(self.path)
            case Event.PERMISSION_LOST:
                for unit in range(UNITS):
                    self.file(unit).chmod(0)
        return set()

    def put_back(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.root / "copy", self.path)


class Parquet(Files):
    ending = "parquet"

    def write(self, path: Path, rows: Iterable[int]) -> None:
        pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), path)

    def write_wider(self, path: Path) -> None:
        pq.write_table(pa.table({"n": pa.array([500], pa.int64()), "more": ["of a later day"]}), path)


class Csv(Files):
    """CSV files with a header, and a second column that no stage reads."""

    ending = "csv"
    schema = "n long, other long"
    options: Mapping[str, str] = {"header": "true"}

    def write(self, path: Path, rows: Iterable[int]) -> None:
        with path.open("w") as file:
            csv.writer(file).writerows([["n", "other"], *([n, -n] for n in rows)])

    def write_wider(self, path: Path) -> None:
        path.write_text("n,other,more\n500,-500,of a later day\n")

    def happen(self, event: Event) -> set[int]:
        if event is Event.MOVED_COLUMNS:
            self.file(50).write_text("other,n\n-500,500\n")
        return super().happen(event)

    def write_anew(self) -> None:
        self.file(50).unlink()
        self.add(51)


class Json(Files):
    ending = "json"

    def write(self, path: Path, rows: Iterable[int]) -> None:
        path.write_text("".join(json.dumps({"n": n}) + "\n" for n in rows))

    def write_wider(self, path: Path) -> None:
        path.write_text(json.dumps({"n": 500, "more": "of a later day"}) + "\n")


class Orc(Files):
    ending = "orc"

    def write(self, path: Path, rows: Iterable[int]) -> None:
        orc.write_table(pa.table({"n": pa.array(rows, pa.int64())}), path)

    def write_wider(self, path: Path) -> None:
        orc.write_table(pa.table({"n": pa.array([500], pa.int64()), "more": ["of a later day"]}), path)


class Avro(Files):
    ending = "avro"

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._spark: SparkSession = request.getfixturevalue("spark")

    def write(self, path: Path, rows: Iterable[int]) -> None:
        self._write(path, [(n,) for n in rows], "n long")

    def write_wider(self, path: Path) -> None:
        self._write(path, [(500, "of a later day")], "n long, more string")

    def _write(self, path: Path, rows: Sequence[tuple[object, ...]], schema: str) -> None:
        written = self.root / "written"
        self._spark.createDataFrame(rows, schema).coalesce(1).write.mode("overwrite").format("avro").save(str(written))
        (part,) = written.glob("*.avro")
        part.rename(path)


class Text(Files):
    """Text files with one number per line."""

    ending, schema = "text", "value string"

    def write(self, path: Path, rows: Iterable[int]) -> None:
        path.write_text("".join(f"{n}\n" for n in rows))

    def numbers(self, frame: DataFrame) -> DataFrame:
        return frame.select(F.col("value").cast("long").alias("n"))


class Xml(Files):
    ending = "xml"
    options: Mapping[str, str] = {"rowTag": "row"}

    def write(self, path: Path, rows: Iterable[int]) -> None:
        path.write_text(f"<rows>{''.join(f'<row><n>{n}</n></row>' for n in rows)}</rows>")

    def write_wider(self, path: Path) -> None:
        path.write_text("<rows><row><n>500</n><more>of a later day</more></row></rows>")


class Binary(Files):
    """Binary files. Each file is a row, with one number per line."""

    ending = "binaryFile"
    schema = "path string, modificationTime timestamp, length long, content binary"

    def write(self, path: Path, rows: Iterable[int]) -> None:
        path.write_text("\n".join(map(str, rows)))

    def numbers(self, frame: DataFrame) -> DataFrame:
        lines = F.split(F.col("content").cast("string"), "\n")
        return frame.select(F.explode(lines).alias("n")).select(F.col("n").cast("long"))


class Kafka:
    """A topic of one partition, with ten records per unit."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.kafka: KafkaBroker = request.getfixturevalue("kafka")
        self._missing = False
        self.begin()

    def begin(self) -> None:
        self.name = f"cells-{next(_TOPICS)}"
        self.kafka.create_topic(self.name, 1)

    def add(self, unit: int) -> None:
        self.kafka.send(self.name, [str(n).encode() for n in sorted(rows_of([unit]))])

    def stream(self, spark: SparkSession) -> DataFrame:
        options = kafka_options(self.kafka, self.name, maxOffsetsPerTrigger=10)
        return self._numbers(spark.readStream.format("kafka").options(**options).load())

    def batch(self, spark: SparkSession) -> DataFrame:
        return self._numbers(spark.read.format("kafka").options(**kafka_options(self.kafka, self.name)).load())

    def _numbers(self, frame: DataFrame) -> DataFrame:
        return frame.select(F.col("value").cast("string").cast("long").alias("n"))

    def happen(self, event: Event) -> set[int]:
        match event:
            case Event.MADE_ANEW:
                self.kafka.delete_topic(self.name)
                self.kafka.create_topic(self.name, 1)
                for unit in range(50, 55):
                    self.add(unit)
            case Event.MOVED:
                self.begin()
                for unit in range(UNITS):
                    self.add(unit)
            case Event.EXPIRED:
                self.kafka.expire(self.name, 0, before=30)
                return rows_of([2])
            case Event.TRUNCATED:
                self.kafka.expire(self.name, 0, before=40)
                return rows_of([2, 3])
            case Event.MISSING:
                self.kafka.delete_topic(self.name)
                self._missing = True
            case Event.PERMISSION_LOST:
                self.kafka.forbid(self.name)
        return set()

    def put_back(self) -> None:
        if not self._missing:
            self.kafka.permit(self.name)
            return
        self.kafka.create_topic(self.name, 1)
        for unit in range(UNITS):
            self.add(unit)


SOURCES: dict[Source, Any] = {
    Source.DELTA: Delta,
    Source.PARQUET: Parquet,
    Source.CSV: Csv,
    Source.JSON: Json,
    Source.ORC: Orc,
    Source.AVRO: Avro,
    Source.TEXT: Text,
    Source.XML: Xml,
    Source.BINARY: Binary,
    Source.KAFKA: Kafka,
}
_LIVE_BY_DAY = {
    (Source.DELTA, Event.EMPTY),
    (Source.DELTA, Event.VACUUMED),
    (Source.JSON, Event.EXPIRED),
    (Source.KAFKA, Event.TRUNCATED),
}
_AT_NIGHT = (Source.PARQUET, Source.CSV, Source.ORC, Source.AVRO, Source.TEXT, Source.XML, Source.BINARY)
_DELTA_AT_NIGHT = (
    *(
        Event.SHRUNK,
        Event.RESTORED,
        Event.TRUNCATED,
        Event.OVERWRITTEN,
        Event.ROWS_REPLACED,
    ),  # as by updated rows, versions are changed
    *(Event.PERMISSION_LOST, Event.MISSING),  # JSON files and Kafka have them by day
)


def is_of_the_day(cell: Cell) -> bool:
    return cell.source not in _AT_NIGHT and not (cell.source is Source.DELTA and cell.event in _DELTA_AT_NIGHT)


def batch_rows(site: Site, source: Any) -> list[int]:
    return sorted(row["n"] for row in source.batch(site.spark).collect())


def copied(site: Site) -> list[int]:
    return sorted(row[0] for row in public(site.tables / "copy").elements())


def batches(site: Site) -> list[str]:
    return sorted(str(path) for path in site.home.glob("work/*/stages/*/checkpoint/offsets/[0-9]*"))


def followed(cell: Cell, source: Any) -> dict[str, Any]:
    """Follows a cell's remedy; returns the options of the next start."""
    if cell.event is Event.MOVED_COLUMNS:
        source.write_anew()
    elif cell.remedy is Remedy.BACK or (cell.remedy is Remedy.NEW and cell.event is Event.MISSING):
        source.put_back()
    options = {Remedy.ACCEPT: "accept_data_loss", Remedy.NEW: "new_sources"}
    return {options[cell.remedy]: ("rows",)} if cell.remedy in options else {}


def copying(site: Site, source: Any, *, bounded: bool = True) -> Pipeline:
    live = {"checkpoint": CheckpointSettings(interval="1 second"), "restart": RestartStrategy.none()}
    settings: dict[str, Any] = {"on_end": "suspend"} if bounded else live
    pipeline, flag = Pipeline("copy", **settings), site.home.parent / "fail"
    pipeline.source(name="rows", bounded=bounded)(lambda spark: source.stream(spark))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select(failing_from(20, flag)("n").alias("n"))

    return pipeline


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=str(cell), marks=[] if is_of_the_day(cell) else [pytest.mark.nightly])
        for cell in CELLS
        if cell.event is not Event.EMPTY
    ],
)
def test_an_interrupted_round_handles_each_change_of_its_source_as_documented(
    site: Site, request: pytest.FixtureRequest, cell: Cell
) -> None:
    source, flag = SOURCES[cell.source](request), site.home.parent / "fail"
    pipeline = copying(site, source)
    for unit in range(UNITS):
        source.add(unit)
    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="day 1")
    flag.unlink()
    pinned = batch_rows(site, source)
    assert pinned == sorted(rows_of(range(UNITS)))
    run, was_public = "day 1", 0
    if cell.event in NEXT_ROUND:
        site.run(pipeline, run_id=run)
        run, was_public = "day 2", len(pinned)
    lost, before = source.happen(cell.event), batches(site)
    if cell.outcome is Outcome.RIGHT:
        site.run(pipeline, run_id=run)
        assert copied(site) == (batch_rows(site, source) if cell.event in NEXT_ROUND else pinned)
        return
    with pytest.raises(StreamPipelineError) as error:
        site.run(pipeline, run_id=run)
    assert isinstance(error.value, RejectedError) == (cell.outcome is Outcome.REFUSED), error.value
    assert (public_count(site.tables / "copy") or 0) == was_public
    if cell.outcome is Outcome.REFUSED:
        assert batches(site) == before
    options = followed(cell, source)
    for option in options:
        if cell.event is not Event.MISSING:
            assert option in error.value.remedy or f"--{option.replace('_', '-')}" in error.value.remedy
    site.run(pipeline, run_id=run, **options)
    now = batch_rows(site, source)
    if cell.remedy is Remedy.ACCEPT:
        expected = sorted({*pinned, *(now if was_public else ())} - lost)
    elif cell.remedy is Remedy.NEW:
        expected = sorted([*(pinned if was_public else ()), *now])
    else:
        expected = now if cell.remedy is Remedy.WRITTEN else pinned
    assert copied(site) == expected
    assert bool(site.manifest().losses) == (cell.remedy is Remedy.ACCEPT)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=str(cell), marks=[] if (cell.source, cell.event) in _LIVE_BY_DAY else [pytest.mark.nightly])
        for cell in LIVE_CELLS
        if cell.event is not Event.EMPTY
    ],
)
def test_a_live_pipeline_that_starts_again_handles_each_change_of_its_source_as_documented(
    site: Site, request: pytest.FixtureRequest, cell: Cell
) -> None:
    source, flag = SOURCES[cell.source](request), site.home.parent / "fail"
    pipeline = copying(site, source, bounded=False)
    for unit in (0, 1):
        source.add(unit)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: public_count(site.tables / "copy") == 20)
        flag.touch()
        for unit in (2, 3):
            source.add(unit)
        assert "as told" in str(running.ends())
    flag.unlink()
    before, was_there = batches(site), batch_rows(site, source)
    lost, options = source.happen(cell.event), dict[str, Any]()
    if cell.outcome is not Outcome.RIGHT:
        with Running(site.spark, pipeline, site.home) as running:
            error = running.ends()
        assert isinstance(error, RejectedError if cell.outcome is Outcome.REFUSED else StreamPipelineError), error
        assert cell.outcome is Outcome.FAILS or batches(site) == before
        found = copied(site)
        assert found == sorted({*rows_of((0, 1)), *found} & set(was_there)), "some of the rows, each once"
        options = followed(cell, source)
    now = batch_rows(site, source)
    if cell.remedy is Remedy.NEW:
        expected = sorted([*rows_of((0, 1)), *now])
    elif cell.remedy is Remedy.BACK:
        expected = now
    else:
        expected = sorted({*was_there, *now} - lost)
    with Running(site.spark, pipeline, site.home, options=StartOptions(**options)) as running:
        running.until(lambda: public_count(site.tables / "copy") == len(expected))
        running.until(lambda: bool(running.head().losses) == (cell.remedy is Remedy.ACCEPT))
        assert copied(site) == expected


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=str(cell), marks=[pytest.mark.nightly] if cell.source in _AT_NIGHT else [])
        for cell in CELLS
        if cell.event is Event.EMPTY
    ],
)
def test_a_bounded_source_may_be_empty_at_first(site: Site, request: pytest.FixtureRequest, cell: Cell) -> None:
    source = SOURCES[cell.source](request)
    pipeline = copying(site, source)
    source.begin()
    site.run(pipeline, run_id="day 1")
    for unit in range(UNITS):
        source.add(unit)
    site.run(pipeline, run_id="day 2")
    assert copied(site) == batch_rows(site, source) == sorted(rows_of(range(UNITS)))


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=str(cell), marks=[] if (cell.source, cell.event) in _LIVE_BY_DAY else [pytest.mark.nightly])
        for cell in LIVE_CELLS
        if cell.event is Event.EMPTY
    ],
)
def test_a_live_source_may_be_empty_at_first(site: Site, request: pytest.FixtureRequest, cell: Cell) -> None:
    source = SOURCES[cell.source](request)
    source.begin()
    with Running(site.spark, copying(site, source, bounded=False), site.home) as running:
        running.checkpointed()
        for unit in range(UNITS):
            source.add(unit)
        running.until(lambda: public_count(site.tables / "copy") == len(rows_of(range(UNITS))))
        assert copied(site) == batch_rows(site, source) == sorted(rows_of(range(UNITS)))
