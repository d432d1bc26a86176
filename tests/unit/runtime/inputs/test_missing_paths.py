"""A mistyped input path is refused by name before Spark starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import PipelineName, RunId
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.inputs.missing_paths import check_paths
from spark_jobs.runtime.launch import launch, launch_requested, plan
from spark_jobs.storage.local import LocalFiles

Read = Callable[[Any, str], Any]


def pipeline_that(read: Read, path: object) -> Pipeline:
    pipeline = Pipeline("mistyped")

    @pipeline.source(bounded=True)
    def rows(spark: Any) -> Any:
        return read(spark.readStream, str(path))

    @pipeline.static(refresh="unpinned")
    def names(spark: Any) -> Any:
        return read(spark.read, str(path))

    @pipeline.stage(sink=DeltaSink("/warehouse/copied"))
    def copied(rows: Any, names: Any) -> Any:
        return rows

    return pipeline


def check(read: Read, path: object) -> None:
    pipeline = pipeline_that(read, path)
    check_paths(pipeline.graph(), pipeline.bind({}))


WAYS: dict[str, Read] = {
    "delta": lambda reader, path: reader.format("delta").option("maxFilesPerTrigger", 1).load(path),
    "a format's own method": lambda reader, path: reader.schema("n int").json(path),
    "an option": lambda reader, path: reader.format("csv").option("path", path).load(),
    "a URL": lambda reader, path: reader.format("parquet").load(f"file://{path}"),
    "and more": lambda reader, path: reader.load(path, format="delta").where("n > 1").select("n"),
    "and an error": lambda reader, path: reader.format("delta").load(path).where(1 / 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_path_is_refused_by_its_name(tmp_path: Path, way: str) -> None:
    missing = tmp_path / "evnets"
    with pytest.raises(InvalidPipelineError) as refused:
        check(WAYS[way], missing)
    for name in ("rows", "names"):
        assert f"Input '{name}' reads {missing}, which does not exist." in refused.value.failed
    missing.mkdir()
    check(WAYS[way], missing)


OTHER_WAYS: dict[str, Read] = {
    "a pattern": lambda reader, path: reader.format("text").load(f"{path}/*/day=?"),
    "a store": lambda reader, path: reader.format("delta").load(f"s3://bucket{path}"),
    "a table": lambda reader, path: reader.table("rows"),
    "another source": lambda reader, path: reader.format("kafka").option("subscribe", path).load(),
    "no path": lambda reader, path: reader.format("csv").load(),
}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_path_that_is_not_local_is_left_to_spark(tmp_path: Path, way: str) -> None:
    check(OTHER_WAYS[way], tmp_path / "nothing")


def no_spark() -> Any:
    pytest.fail("Spark was started")


def test_a_first_start_with_a_mistyped_path_leaves_nothing_and_starts_no_spark(tmp_path: Path) -> None:
    pipeline, home = pipeline_that(WAYS["delta"], tmp_path / "evnets"), LocalFiles(tmp_path / "home")
    with pytest.raises(InvalidPipelineError, match="evnets, which does not exist"):
        launch(pipeline, home, {}, StartOptions(), no_spark)
    with pytest.raises(InvalidPipelineError, match="evnets, which does not exist"):
        plan(pipeline, home, {}, StartOptions(), no_spark)
    assert list(tmp_path.iterdir()) == []


def test_a_requested_start_with_a_mistyped_path_is_answered_with_the_error(tmp_path: Path) -> None:
    pipeline, home = pipeline_that(WAYS["delta"], tmp_path / "evnets"), LocalFiles(tmp_path / "home")
    channel = Channel(home)
    channel.claim(PipelineName("mistyped"))
    request = channel.request_start(RunId("a task"), parameters={}).request
    with pytest.raises(InvalidPipelineError, match="evnets, which does not exist"):
        launch_requested(pipeline, home, request, no_spark)
    answer = channel.response(request)
    assert answer is not None
    assert answer.error is not None
    assert "evnets" in answer.error.failed
