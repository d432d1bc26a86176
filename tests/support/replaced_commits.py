"""Publications whose commit is replaced by another writer's commit, and the reaction of the publisher."""

import json

import pytest

from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.documents import Publish, Publisher
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.table_uris import table_files
from tests.support.foreign_writers import STRANGER
from tests.support.publication_schedules import OF_ANOTHER, PUBLISHED, begin_published, pending, stage_pending
from tests.support.sink_kinds import Kind, Reference, graves_in
from tests.support.staged_pipeline import HOURLY, Row, StagedPipeline


def assert_made_again_at_once(pipeline: StagedPipeline, publisher: Publisher, kind: Kind, publishers: Publishers) -> None:
    """Checks a publication whose first commit is replaced right after it was made."""
    begin_published(pipeline)
    cut = stage_pending(pipeline, publisher, kind)
    with observed_by(_ReplacesCommit(pipeline)):
        results = publish(pipeline.files, publishers=publishers)
    assert results[HOURLY].version is not None
    expected = _expected(kind, 2, stranger_after=0)
    assert pipeline.rows(HOURLY) == sorted(expected.rows, key=str)
    assert graves_in(cut) == expected.graves
    assert pipeline.commits(HOURLY) == [1, 2, 3]


def assert_found_out_later(pipeline: StagedPipeline, publisher: Publisher, kind: Kind, publishers: Publishers) -> None:
    """Checks a publication whose last commit is replaced later.

    The next checkpoint is refused, and the lost one can be published again.
    """
    begin_published(pipeline)
    cut = stage_pending(pipeline, publisher, kind)
    publish(pipeline.files, publishers=publishers)
    _replace_newest_commit(pipeline, STRANGER)
    known = CheckpointId(3)
    pipeline.checkpoint({HOURLY: [(9, "a")]}, publish=Publish.EVERY_CHECKPOINT, known_published=known, cut=cut)
    with pytest.raises(RejectedError, match="had 3 when checkpoint 4 was taken"):
        publish(pipeline.files, publishers=publishers)
    assert pipeline.rows(HOURLY) == sorted(_expected(kind, 1, stranger_after=1).rows, key=str)
    assert pipeline.commits(HOURLY) == [1, 2]
    publish(pipeline.files, known, publishers=publishers)
    expected = _expected(kind, 2, stranger_after=1)
    assert pipeline.rows(HOURLY) == sorted(expected.rows, key=str)
    assert graves_in(cut) == expected.graves
    assert pipeline.commits(HOURLY) == [1, 2, 3]


def _expected(kind: Kind, checkpoints: int, *, stranger_after: int) -> Reference:
    """Returns the expected rows when ``checkpoints`` pending ones are public. The other writer's row came after some of them."""
    reference = Reference(kind, [*PUBLISHED, OF_ANOTHER])
    for number, rows in enumerate([*pending(kind)[:checkpoints], []]):
        if number == stranger_after:
            reference.rows.append(STRANGER)
        if number < checkpoints:
            reference.publish(rows)
    return reference


def _replace_newest_commit(pipeline: StagedPipeline, row: Row) -> None:
    """Replaces the newest commit by another one, like a writer that finds no file of its version and renames its own too late.

    Spark does so on a local file system and in S3 with its default log store, see docs/reference/concurrent-writers.md.
    """
    files = table_files(pipeline.tables[HOURLY])
    newest = max(name for name in files.names(DELTA_LOG) if name.endswith(".json"))
    info = {"commitInfo": {"timestamp": 0, "operation": "WRITE", "operationParameters": {}}}
    actions = [info, *({"add": line["add"]} for line in pipeline.stage(HOURLY, [row]))]
    # Hadoop's checksum of a file is renamed with it. A checksum of other content would make the file unreadable for Spark.
    files.delete(f"{DELTA_LOG}/.{newest}.crc")
    files.replace(f"{DELTA_LOG}/{newest}", "".join(json.dumps(action) + "\n" for action in actions).encode())


class _ReplacesCommit:
    """Replaces the commit of the first publication by another writer's right after it was made."""

    def __init__(self, pipeline: StagedPipeline) -> None:
        self._pipeline, self._left = pipeline, 1

    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        if step is Step.PUBLISH_SINK and self._left:
            self._left = 0
            _replace_newest_commit(self._pipeline, STRANGER)
