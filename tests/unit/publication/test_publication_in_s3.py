"""A publication with home and table in S3: the requests that it makes, counted at the server, and the staged files that it refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from spark_jobs.checkpoint.named_files import make_durable
from spark_jobs.protocol.documents import Manifest, Publish
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication import pending
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.publisher import WITHOUT_SPARK, plan_publication, publish
from spark_jobs.storage.files import Files
from tests.support.object_store import Requests, object_store
from tests.support.staged_in_s3 import PipelineInS3
from tests.support.staged_pipeline import DAILY, HOURLY

FILES = 5


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def pipeline(tmp_path: Path, requests: Requests) -> Iterator[PipelineInS3]:
    with object_store(requests=requests) as store:
        yield PipelineInS3(f"{store}/{uuid4()}", tmp_path)


def checkpoint(pipeline: PipelineInS3, *sinks: SinkName) -> Manifest:
    for sink in sinks:
        pipeline.make_table(sink)
    rows = {sink: [(number, "a") for number in range(FILES)] for sink in sinks}
    return pipeline.checkpoint(rows, publish=Publish.EVERY_CHECKPOINT)


def publish_as_a_driver(pipeline: PipelineInS3, manifest: Manifest) -> None:
    """Checks all sinks, and then publishes each."""
    plan_publication(pipeline.files, manifest.checkpoint, by_policy=True, at_once=True).check(WITHOUT_SPARK)
    for sink in manifest.sinks:
        publish(pipeline.files, manifest.checkpoint, sinks=[sink], by_policy=True)


def looks(requests: Requests) -> int:
    """Returns the number of requests for staged files. The publication reads none of them."""
    served = [each.method for each in requests.served if "part-" in each.path]
    assert set(served) == {"HEAD"}
    return len(served)


@pytest.mark.parametrize(("sinks", "looks_at_each"), [([DAILY], 1), ([HOURLY, DAILY], 2)])
def test_each_staged_file_is_looked_at_before_its_commit_and_before_the_first_of_several(
    pipeline: PipelineInS3, requests: Requests, sinks: list[SinkName], looks_at_each: int
) -> None:
    manifest = checkpoint(pipeline, *sinks)
    requests.served.clear()
    publish_as_a_driver(pipeline, manifest)
    assert looks(requests) == FILES * len(sinks) * looks_at_each
    others = [each.method for each in requests.served if "part-" not in each.path]
    assert others.count("HEAD") == 0, "what is read needs no look"


def gone(files: Files, path: str) -> None:
    files.delete(path)


def torn(files: Files, path: str) -> None:
    files.replace(path, files.read(path)[:-1])


@pytest.mark.parametrize("damage", [gone, torn])
@pytest.mark.parametrize("by_driver", [True, False])
def test_a_damaged_staged_file_is_found_before_the_commit(
    pipeline: PipelineInS3, damage: Callable[[Files, str], None], by_driver: bool
) -> None:
    manifest = checkpoint(pipeline, DAILY)
    files, staged = pipeline.staged(DAILY)
    damage(files, staged[-1])
    with pytest.raises(NotFoundError, match="1 staged files .* are missing or truncated"):
        publish_as_a_driver(pipeline, manifest) if by_driver else publish(pipeline.files)
    assert version(pipeline, DAILY) == 0


@pytest.mark.parametrize("by_driver", [True, False])
@pytest.mark.parametrize("damaged", [HOURLY, DAILY])
def test_a_damaged_staged_file_of_one_table_is_found_before_a_commit_to_another(
    pipeline: PipelineInS3, damaged: SinkName, by_driver: bool
) -> None:
    manifest = checkpoint(pipeline, HOURLY, DAILY)
    files, staged = pipeline.staged(damaged)
    torn(files, staged[0])
    with pytest.raises(NotFoundError, match="missing or truncated"):
        publish_as_a_driver(pipeline, manifest) if by_driver else publish(pipeline.files)
    assert (version(pipeline, HOURLY), version(pipeline, DAILY)) == (0, 0)


def test_a_damaged_staged_file_of_a_later_transaction_is_found_before_the_first_commit(pipeline: PipelineInS3) -> None:
    checkpoint(pipeline, DAILY)
    before = set(pipeline.staged(DAILY)[1])
    pipeline.checkpoint({DAILY: [(9, "b")]}, publish=Publish.EVERY_CHECKPOINT)
    files, staged = pipeline.staged(DAILY)
    gone(files, (set(staged) - before).pop())
    with pytest.raises(NotFoundError, match="missing or truncated"):
        publish(pipeline.files)
    assert version(pipeline, DAILY) == 0


def test_a_damaged_staged_file_is_found_before_spark_reads_it_for_a_constraint(
    pipeline: PipelineInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(pipeline, DAILY)
    files, staged = pipeline.staged(DAILY)
    torn(files, staged[0])
    monkeypatch.setattr(pending, "conditions_now", lambda *_: {"positive": "id > 0"})
    with pytest.raises(NotFoundError, match="missing or truncated"):
        plan_publication(pipeline.files, at_once=True)


def test_a_damaged_staged_file_is_found_by_a_plan_that_waits_for_other_plans(pipeline: PipelineInS3) -> None:
    checkpoint(pipeline, DAILY)
    files, staged = pipeline.staged(DAILY)
    torn(files, staged[0])
    plan_publication(pipeline.files, at_once=True)
    with pytest.raises(NotFoundError, match="missing or truncated"):
        plan_publication(pipeline.files)


def test_a_file_is_read_once_when_it_is_staged_and_a_missing_one_is_found(pipeline: PipelineInS3, requests: Requests) -> None:
    pipeline.make_table(DAILY)
    adds = [line["add"] for line in pipeline.stage(DAILY, [(number, "a") for number in range(FILES)])]
    files, staged = pipeline.staged(DAILY)
    requests.served.clear()
    assert make_durable(files, adds) == adds, "they have their hashes already"
    assert [each.method for each in requests.served] == ["GET"] * FILES
    gone(files, staged[0])
    with pytest.raises(NotFoundError):
        make_durable(files, adds)


def version(pipeline: PipelineInS3, sink: SinkName) -> int:
    return open_table(pipeline.tables[sink]).facts.version
