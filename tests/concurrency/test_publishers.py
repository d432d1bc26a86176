"""Several publishers of one checkpoint at the same time: threads, processes, and closers against publishers."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.synchronize import Barrier as ProcessBarrier
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_jobs.protocol.documents import Manifest, Publish, SinkResult
from spark_jobs.protocol.errors import ConflictError, RejectedError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline

together: ProcessBarrier


def staged(pipeline: StagedPipeline, policy: Publish, checkpoints: int) -> Manifest:
    pipeline.make_table(HOURLY)
    pipeline.make_table(DAILY, partition_by=())
    made = [
        pipeline.checkpoint({HOURLY: [(number, "a"), (-number, "b")], DAILY: [(number, "a")]}, publish=policy)
        for number in range(1, checkpoints + 1)
    ]
    return made[-1]


def assert_public_once(pipeline: StagedPipeline, policy: Publish, checkpoints: int) -> None:
    numbers = range(1, checkpoints + 1)
    assert pipeline.rows(HOURLY) == sorted([(n, "a") for n in numbers] + [(-n, "b") for n in numbers], key=str)
    assert pipeline.rows(DAILY) == [(n, "a") for n in numbers]
    expected = [checkpoints] if policy is Publish.FINAL else list(numbers)
    assert pipeline.commits(HOURLY) == pipeline.commits(DAILY) == expected


@pytest.mark.parametrize("policy", [Publish.FINAL, Publish.EVERY_CHECKPOINT])
def test_many_threads_publish_each_checkpoint_once(tmp_path: Path, policy: Publish) -> None:
    pipeline = StagedPipeline(MemoryFiles(), tmp_path)
    staged(pipeline, policy, checkpoints=3)
    barrier = Barrier(6)

    def run(_: int) -> dict[SinkName, SinkResult]:
        barrier.wait()
        return publish(pipeline.files)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(run, range(6)))
    assert_public_once(pipeline, policy, checkpoints=3)
    assert all(result == results[0] for result in results)


def meet(barrier: ProcessBarrier) -> None:
    global together
    together = barrier


def publish_in_a_process(url: str) -> dict[SinkName, SinkResult]:
    together.wait()
    return publish(open_files(url))


def test_several_processes_publish_each_checkpoint_once(tmp_path: Path) -> None:
    pipeline = StagedPipeline(LocalFiles(str(tmp_path / "home")), tmp_path)
    staged(pipeline, Publish.EVERY_CHECKPOINT, checkpoints=5)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=context, initializer=meet, initargs=(context.Barrier(3),)) as pool:
        results = list(pool.map(publish_in_a_process, [pipeline.files.url] * 3))
    assert_public_once(pipeline, Publish.EVERY_CHECKPOINT, checkpoints=5)
    assert results[0] == results[1] == results[2]


def test_another_writer_that_appends_all_the_time_loses_and_doubles_no_row(tmp_path: Path) -> None:
    pipeline = StagedPipeline(MemoryFiles(), tmp_path)
    staged(pipeline, Publish.EVERY_CHECKPOINT, checkpoints=5)
    barrier = Barrier(2)

    def append() -> None:
        barrier.wait()
        for _ in range(20):
            write_deltalake(pipeline.tables[DAILY], pa.table({"id": [100], "day": ["x"]}), mode="append")

    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(append)
        barrier.wait()
        publish(pipeline.files)
        appending.result()
    assert sorted(number for number, _ in pipeline.rows(DAILY)) == [1, 2, 3, 4, 5] + [100] * 20
    assert pipeline.commits(DAILY) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("round_", range(5))
def test_an_incarnation_is_either_published_or_closed_unpublished(tmp_path: Path, round_: int) -> None:
    pipeline = StagedPipeline(MemoryFiles(), tmp_path)
    manifest = staged(pipeline, Publish.FINAL, checkpoints=1)
    barrier = Barrier(2)

    def close() -> bool:
        barrier.wait()
        try:
            pipeline.close(HOURLY, manifest.sinks[HOURLY].app, None)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(close)
        barrier.wait()
        try:
            publish(pipeline.files, sinks=[HOURLY])
            published = True
        except RejectedError:
            published = False
        closed = closing.result()
    assert published != closed
    assert len(pipeline.commits(HOURLY)) == 1
    assert len(pipeline.rows(HOURLY)) == (2 if published else 0)
