"""Whether a run is expected to be short, by the last one or by its inputs."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.cli import short_runs
from spark_jobs.cli.short_runs import FEW_BYTES, FEW_ROWS, SHORT, expects_short_run
from spark_jobs.home.layout import attempt_path
from spark_jobs.protocol.documents import CheckpointKind, RestoreFrom
from spark_jobs.protocol.ids import CheckpointId, InputName, LossId, RunId, StageName
from spark_jobs.protocol.start_requests import StartOptions
from tests.support.aged_home import GRAPH, ask, begin
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import a_manifest, a_stage_cut


def after_a_run(took: timedelta = SHORT, rows: int = FEW_ROWS, kind: CheckpointKind = CheckpointKind.FINAL) -> MemoryFiles:
    """Returns a home whose last run took so long, and whose two stages have read so many rows in all."""
    files = MemoryFiles()
    attempt = begin(files, ask(files, RunId("monday")))
    cuts = {
        StageName("hourly"): a_stage_cut(3, input_rows={"events": rows - 1}),
        StageName("daily"): a_stage_cut(3, input_rows={"hourly": 1}),
    }
    manifest = a_manifest(
        CheckpointId(1),
        checkpoint_kind=kind,
        incarnation=attempt.incarnation,
        attempt=attempt.attempt,
        stages=cuts,
        completed_at=attempt.started_at + took,
    )
    CheckpointStore(files).complete(manifest)
    return files


def expected(files: MemoryFiles, pipeline: Pipeline | None = None, **options: Any) -> bool:
    graph = pipeline.graph() if pipeline else GRAPH
    return expects_short_run(files, graph, BoundParameters(None, {}), StartOptions(**options))


def reading(read: Callable[[Any], Any], beside: Callable[[Any], Any] = lambda spark: spark.read.json("/dev/null")) -> Pipeline:
    """Returns a pipeline with a source that reads so, and with a static table that reads something else."""
    pipeline = Pipeline("first")

    @pipeline.source(bounded=True)
    def events(spark: Any) -> Any:
        return read(spark)

    @pipeline.static(refresh="unpinned")
    def names(spark: Any) -> Any:
        return beside(spark)

    @pipeline.stage(sink=DeltaSink("/warehouse/copied"))
    def copied(events: Any, names: Any) -> Any:
        return events

    return pipeline


def sparse(path: Path, size_bytes: int) -> Path:
    """Makes a file of a size that needs no space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


def test_a_short_run_is_expected_after_a_short_run_over_few_rows() -> None:
    assert expected(after_a_run())


@pytest.mark.parametrize(
    "last",
    [
        pytest.param({"took": SHORT + timedelta(seconds=1)}, id="a long run"),
        pytest.param({"rows": FEW_ROWS + 1}, id="a run over many rows"),
        pytest.param({"kind": CheckpointKind.STOP}, id="a stopped run"),
    ],
)
def test_no_short_run_is_expected_after_any_other_run(last: dict[str, Any]) -> None:
    assert not expected(after_a_run(**last))


@pytest.mark.parametrize(
    "options",
    [
        {"fresh": True},
        {"restore": RestoreFrom(savepoint="file:///savepoint")},
        {"new_sources": (InputName("events"),)},
        {"backfill": (LossId("1"),)},
        {"full_refresh": ("hourly",)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_run_that_reads_old_rows_is_not_expected_to_be_short(options: dict[str, Any]) -> None:
    assert not expected(after_a_run(), **options)


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "a directory": lambda spark, root: spark.readStream.schema("n int").json(str(root)),
    "a table": lambda spark, root: spark.readStream.format("delta").load(f"file://{root}"),
    "a pattern": lambda spark, root: spark.readStream.format("text").load(f"{root}/day=*/*.txt").where("value > ''"),
    "two readers": lambda spark, root: (
        spark.readStream.format("delta")
        .load(str(root / "day=1"))
        .union(spark.readStream.format("delta").load(str(root / "day=2")))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_first_run_over_small_files_is_expected_to_be_short(tmp_path: Path, way: str) -> None:
    first = reading(lambda spark: WAYS[way](spark, tmp_path))
    sparse(tmp_path / "day=1" / "a.txt", FEW_BYTES - 1)
    second = sparse(tmp_path / "day=2" / "b.txt", 1)
    assert expected(MemoryFiles(), first)
    assert expected(after_a_run(took=2 * SHORT), first, fresh=True)
    sparse(second, 2)
    assert not expected(MemoryFiles(), first)


def test_the_static_tables_of_a_first_run_count_too(tmp_path: Path) -> None:
    half = sparse(tmp_path / "half" / "a.txt", FEW_BYTES // 2)
    more = sparse(tmp_path / "more.txt", FEW_BYTES // 2 + 1)
    assert expected(MemoryFiles(), reading(lambda spark: spark.readStream.text(str(half.parent))))
    assert not expected(
        MemoryFiles(), reading(lambda spark: spark.readStream.text(str(half.parent)), lambda spark: spark.read.text(str(more)))
    )


def test_a_first_run_over_very_many_files_is_not_expected_to_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_runs, "FEW_FILES", 3)
    first = reading(lambda spark: spark.readStream.text(str(tmp_path)))
    for number in range(2):
        sparse(tmp_path / f"{number}.txt", 1)
    assert expected(MemoryFiles(), first)
    sparse(tmp_path / "3.txt", 1)
    assert not expected(MemoryFiles(), first)


UNKNOWN: dict[str, Callable[[Any, Path], Any]] = {
    "in a store": lambda spark, root: spark.readStream.format("delta").load("s3://bucket/events"),
    "of a catalog": lambda spark, root: spark.readStream.table("events"),
    "of a broker": lambda spark, root: spark.readStream.format("kafka").option("subscribe", "events").load(),
    "that also reads what is not recorded": lambda spark, root: spark.readStream.text(str(root)).union(spark.sql("SELECT 1")),
    "that is missing": lambda spark, root: spark.readStream.text(str(root / "nothing")),
    "behind a link": lambda spark, root: spark.readStream.text(str(root / "linked")),
    "that returns nothing": lambda spark, root: None,
}


@pytest.mark.parametrize("way", UNKNOWN)
def test_a_first_run_over_an_input_of_unknown_size_is_not_expected_to_be_short(tmp_path: Path, way: str) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "round").symlink_to(tmp_path)
    assert not expected(MemoryFiles(), reading(lambda spark: UNKNOWN[way](spark, tmp_path)))


def test_no_short_run_is_expected_of_an_unbounded_pipeline() -> None:
    (events,) = GRAPH.sources.values()
    endless = replace(GRAPH, sources={InputName("events"): replace(events, bounded=False)})
    assert not expects_short_run(after_a_run(), endless, BoundParameters(None, {}), StartOptions())


def test_no_short_run_is_expected_after_a_run_whose_attempt_is_forgotten() -> None:
    files = after_a_run()
    files.delete(attempt_path(CheckpointStore(files).manifest(CheckpointId(1)).attempt))
    assert not expected(files)
