"""A round of bounded inputs is interrupted in its middle: by a stop, a drain, a cancel or the loss of everything but home and tables."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import CheckpointResponse, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest, OnEnd, RestoreFrom
from spark_jobs.protocol.ids import StageName
from spark_jobs.runtime.launch import RunOptions
from spark_jobs.runtime.stages.gate import Gate
from tests.spark.conftest import Site
from tests.support.running import Running, lose

pytestmark = pytest.mark.spark

PARTS = 6
ROWS_A_PART = 40
KEYS = 11
FIRST = datetime(2026, 3, 2, tzinfo=UTC)


def rows_of(part: int) -> pd.DataFrame:
    """The rows of one file of the input: changes of a few keys, some of them deletes, a second apart."""
    ids = range(part * ROWS_A_PART, (part + 1) * ROWS_A_PART)
    found = pd.DataFrame({"id": list(ids), "part": part})
    return found.assign(
        key=found["id"] % KEYS, gone=found["id"] % 13 == 0, at=[FIRST + timedelta(seconds=7 * number) for number in ids]
    )


class Changes:
    """The input: a Delta table with a file for each part. A batch of a part that is not admitted waits."""

    def __init__(self, root: Path) -> None:
        self.path, self.admitted = root / "changes", root / "admitted"
        self.admitted.mkdir()
        self.parts = 0
        self.deliver(PARTS)

    def deliver(self, parts: int) -> None:
        for part in range(self.parts, self.parts + parts):
            write_deltalake(str(self.path), pa.Table.from_pandas(rows_of(part), preserve_index=False), mode="append")
        self.parts += parts

    def admit(self, parts: int) -> None:
        """Lets the batches of the first parts go on."""
        for part in range(parts):
            (self.admitted / str(part)).touch()

    def all(self) -> pd.DataFrame:
        return pd.concat([rows_of(part) for part in range(self.parts)])


@pytest.fixture
def changes(tmp_path: Path) -> Changes:
    return Changes(tmp_path)


def orders(site: Site, changes: Changes, *, interval: str = "1 hour", on_end: str = "drain") -> Pipeline:
    """Changes that wait to be admitted, in a stage without a sink; of those the windows of ten minutes, and the newest row of each key."""
    pipeline = Pipeline("orders", checkpoint=CheckpointSettings(interval=interval), on_end=on_end)  # type: ignore[arg-type]
    path, admitted = str(changes.path), str(changes.admitted)

    @pipeline.source(bounded=True, event_time="at", watermark_delay="1 second")
    def changed(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(path)

    def wait(part):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        while not Path(admitted, str(part)).exists():
            time.sleep(0.02)
        return part

    @pipeline.stage
    def admit(changed: DataFrame) -> DataFrame:
        return changed.withColumn("part", F.udf(wait, "long", useArrow=False)("part"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "windows")))
    def windows(admit: DataFrame) -> DataFrame:
        counts = admit.groupBy(F.window("at", "10 minutes").alias("window")).agg(
            F.count("*").alias("rows"), F.sum("id").alias("ids")
        )
        return counts.select(F.col("window.start").alias("begin"), "rows", "ids")

    @pipeline.stage(
        sink=DeltaSink(str(site.tables / "newest"), mode="upsert", keys=("key",), sequence_by="id", apply_as_deletes="gone")
    )
    def newest(admit: DataFrame) -> DataFrame:
        return admit.select("key", "id", "gone", "part")

    return pipeline


def expected(changes: Changes, parts: int | None = None) -> dict[str, list[tuple[Any, ...]]]:
    """What a batch query gives over the rows of the first parts."""
    rows = changes.all()
    rows = rows[rows["part"] < (changes.parts if parts is None else parts)]
    begin = rows["at"].dt.floor("10min")
    windows = rows.groupby(begin)["id"].agg(["count", "sum"]).itertuples()
    newest = rows.sort_values("id").groupby("key").tail(1)
    return {
        "windows": sorted((begin.to_pydatetime(), int(count), int(ids)) for begin, count, ids in windows),
        "newest": sorted((int(row.key), int(row.id), int(row.part)) for row in newest.itertuples() if not row.gone),
    }


def shown(tables: Path) -> dict[str, list[tuple[Any, ...]]]:
    columns = {"windows": ("begin", "rows", "ids"), "newest": ("key", "id", "part")}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name, names in columns.items():
        if not DeltaTable.is_deltatable(str(tables / name)):
            found[name] = []
            continue
        table = DeltaTable(str(tables / name)).to_pyarrow_table()
        found[name] = sorted(zip(*(table[column].to_pylist() for column in names), strict=True))
    return found


@contextmanager
def at_part(site: Site, pipeline: Pipeline, changes: Changes, part: int, **options: Any) -> Iterator[Running]:
    """A run whose first stage has done the batches before ``part``, and waits in that one."""
    changes.admit(part)
    with Running(site.spark, pipeline, site.home, **options) as running:
        running.until(lambda: running.status and running.status.stages["admit"].rows_in >= part * ROWS_A_PART)  # type: ignore[index]
        yield running


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set once a stage is held: no batch begins after the one that it is in."""
    seen, close = Event(), Gate.close

    def closes(gate: Gate) -> None:
        close(gate)
        seen.set()

    monkeypatch.setattr(Gate, "close", closes)
    return seen


def asked(running: Running, changes: Changes, held: Event, wanted: Wanted, *, drain: bool = False) -> CheckpointResponse:
    """Asks in the middle of the third batch; the answer. A stop waits for the end of that batch, a checkpoint does not."""
    held.clear()
    requests, request = CheckpointRequests(running.files), request_id("mine", wanted)
    assert requests.ask(request, drain=drain) is None
    if wanted is Wanted.STOP:
        running.until(held.is_set)
        changes.admit(4 if drain else 3)  # a drain does the batch that is planned, too
    running.until(lambda: requests.answer_of(request))
    found = requests.answer_of(request)
    assert found is not None
    assert found.error is None, found.error
    return found


def ends(site: Site, pipeline: Pipeline, changes: Changes, run: str = "last", options: RunOptions | None = None) -> Manifest:
    """Runs the rest; the final checkpoint."""
    changes.admit(changes.parts)
    with Running(site.spark, pipeline, site.home, run=run, options=options) as running:
        running.stopped()
        return running.head()


def test_a_short_run_takes_one_checkpoint_in_all(site: Site, changes: Changes) -> None:
    manifest = ends(site, orders(site, changes), changes)
    assert (manifest.checkpoint, manifest.checkpoint_kind, manifest.drained) == (1, CheckpointKind.FINAL, True)
    assert shown(site.tables) == expected(changes)


@pytest.mark.parametrize("work_is_lost", [False, True], ids=["in place", "with home and tables alone"])
def test_a_round_that_is_cancelled_goes_on_from_its_newest_checkpoint(
    site: Site, changes: Changes, held: Event, work_is_lost: bool
) -> None:
    pipeline = orders(site, changes)
    with at_part(site, pipeline, changes, 2) as running:
        assert asked(running, changes, held, Wanted.CHECKPOINT).checkpoint == 1
        assert running.head().checkpoint_kind is CheckpointKind.PERIODIC
        assert shown(site.tables) == {"windows": [], "newest": []}
    if work_is_lost:
        lose(site.home / "work")
    manifest = ends(site, pipeline, changes)
    assert (manifest.checkpoint, manifest.parent, manifest.checkpoint_kind) == (2, 1, CheckpointKind.FINAL)
    assert shown(site.tables) == expected(changes)


def test_checkpoints_come_at_the_interval_and_make_nothing_public(site: Site, changes: Changes) -> None:
    pipeline = orders(site, changes, interval="500 milliseconds")
    with at_part(site, pipeline, changes, 1) as running:
        for part in range(2, 5):
            changes.admit(part)
            running.checkpointed()
        assert running.head().checkpoint_kind is CheckpointKind.PERIODIC
        assert shown(site.tables) == {"windows": [], "newest": []}
        changes.admit(PARTS)
        running.stopped()
    assert shown(site.tables) == expected(changes)


@pytest.mark.parametrize("work_is_lost", [False, True], ids=["in place", "with home and tables alone"])
def test_a_stop_interrupts_the_round_and_the_next_start_goes_on_with_it(
    site: Site, changes: Changes, held: Event, work_is_lost: bool
) -> None:
    pipeline = orders(site, changes)
    with at_part(site, pipeline, changes, 2) as running:
        answer = asked(running, changes, held, Wanted.STOP)
        running.stopped()
        assert (running.head().checkpoint_kind, answer.drained) == (CheckpointKind.STOP, False)
    assert shown(site.tables) == {"windows": [], "newest": []}
    changes.deliver(1)  # after the round has begun: it is of no concern to it
    changes.parts -= 1
    if work_is_lost:
        lose(site.home / "work")
    manifest = ends(site, pipeline, changes)
    assert (manifest.round, manifest.checkpoint_kind) == (1, CheckpointKind.FINAL)
    assert shown(site.tables) == expected(changes)


def test_a_drain_ends_the_round_where_it_is(site: Site, changes: Changes, held: Event) -> None:
    pipeline = orders(site, changes)
    with at_part(site, pipeline, changes, 2) as running:
        answer = asked(running, changes, held, Wanted.STOP, drain=True)
        running.stopped()
        assert (answer.drained, running.head().checkpoint_kind) == (True, CheckpointKind.STOP)
        read = running.head().stages[StageName("admit")].batch + 1
    assert 3 <= read < PARTS
    assert shown(site.tables) == expected(changes, parts=read)


@pytest.mark.parametrize("work_is_lost", [False, True], ids=["in place", "with home and tables alone"])
def test_the_next_round_of_a_suspended_pipeline_has_all_of_its_state(site: Site, changes: Changes, work_is_lost: bool) -> None:
    pipeline = orders(site, changes, on_end="suspend")
    ends(site, pipeline, changes, run="monday")
    assert len(shown(site.tables)["windows"]) == len(expected(changes)["windows"]) - 1, "the last window is open"
    if work_is_lost:
        lose(site.home / "work")
    changes.deliver(2)
    manifest = ends(site, pipeline, changes, run="tuesday", options=RunOptions(on_end=OnEnd.DRAIN))
    assert (manifest.round, manifest.checkpoint) == (2, 2)
    assert shown(site.tables) == expected(changes)


def test_a_savepoint_of_a_round_is_forked_into_other_tables_with_other_partitions(
    site: Site, changes: Changes, held: Event, tmp_path: Path
) -> None:
    with at_part(site, orders(site, changes), changes, 2) as running:
        savepoint = asked(running, changes, held, Wanted.SAVEPOINT).savepoint
    assert savepoint is not None
    fork = Site(site.spark, tmp_path / "fork")
    options = RunOptions(restore=RestoreFrom(savepoint=savepoint), state_partitions=3)
    ends(fork, orders(fork, changes), changes, options=options)
    assert shown(fork.tables) == expected(changes)
    ends(site, orders(site, changes), changes)
    assert shown(site.tables) == expected(changes), "the pipeline that was forked goes on"
