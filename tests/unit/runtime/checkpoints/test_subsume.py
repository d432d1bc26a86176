"""The files that a completed checkpoint makes unnecessary, and the files that it keeps."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.home.layout import request_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publish, SinkCut, WorkDirectory
from spark_jobs.protocol.ids import (
    AppId,
    AttemptNumber,
    BatchId,
    CheckpointId,
    IncarnationId,
    SinkName,
    StageName,
    WorkDirectoryId,
)
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.runtime.checkpoints.subsume import Subsumption
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.storage.files import create_document
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.private_logs import begun, staged
from tests.support.staged_pipeline import NOW, a_channel, a_manifest, a_stage_cut
from tests.support.systems import quick

PREFIX, PASSED = "0123456789abcdef-", StageName("passed")
OURS = IncarnationId("i")


@dataclass
class Passed:
    """A stage without a sink, whose only consumer is two batches behind. Checkpoint ``k`` is cut at batch ``2k``."""

    root: Path
    retained: int = 1
    home: LocalFiles = field(init=False)
    log: PrivateLog = field(init=False)
    directory: Path = field(init=False)
    subsumption: Subsumption = field(init=False)

    def __post_init__(self) -> None:
        self.home, self.directory = quick(self.root / "home"), self.root / "channel"
        self.directory.mkdir()
        self.subsumption = Subsumption(self.home, quick(self.root / "work"), self.retained)
        self.log = begun(self.home, "work/stages/passed/log")
        self.began(attempt(1))

    def began(self, document: Any) -> None:
        Attempts(self.home).begin(document, known=Attempts(self.home).numbers())

    def stage(self, batch: int, *, dies: bool = False) -> Path:
        path = self.directory / f"{PREFIX}{batch}-{'left' if dies else 'named'}.parquet"
        path.write_bytes(b"rows")
        if not dies:
            self.log.append(staged(batch, path.name))
        return path

    def complete(self, k: int, **changes: Any) -> None:
        for batch in range(2 * k - 1, 2 * k + 1):
            self.stage(batch)
        manifest = self.manifest(k, **changes)
        CheckpointStore(self.home).complete(manifest)
        self.subsumption.after(manifest, [self.run], dict.fromkeys(manifest.sinks, manifest.checkpoint))

    def manifest(self, k: int, **changes: Any) -> Manifest:
        stored = f"state/passed/{k}-1-1/1.delta"
        self.home.create(stored, b"state")
        channel = a_channel(2 * k, first=BatchId(2 * k - 2), in_flight_rows=1, in_flight_size_bytes=1)
        state = StateFile(path="1.delta", stored=stored, size_bytes=5, sha256="")
        cut = a_stage_cut(2 * k, channel=channel, files=(state,))
        fields = {"checkpoint_kind": CheckpointKind.PERIODIC, "incarnation": OURS, "stages": {PASSED: cut}}
        return a_manifest(k, **(fields | changes))

    def batches(self) -> list[int]:
        """Returns the batches that have files."""
        return sorted({int(path.name.removeprefix(PREFIX).partition("-")[0]) for path in self.directory.iterdir()})

    @property
    def run(self) -> StageRun:
        consumer = SimpleNamespace(reads_from=lambda: self.log.latest() - 1)
        fakes = {
            "stage": SimpleNamespace(name=PASSED, sink=None),
            "log": self.log,
            "table": SimpleNamespace(path=self.directory),
            "file_prefix": PREFIX,
            "directory": quick(self.directory),
            "output": SimpleNamespace(consumers=[consumer]),
            "outlet": SimpleNamespace(is_own=True),
        }
        return cast(StageRun, SimpleNamespace(**fakes))


@pytest.fixture
def passed(tmp_path: Path) -> Passed:
    found = Passed(tmp_path)
    found.stage(0)
    return found


@pytest.mark.parametrize(("retained", "first"), [(1, 6), (2, 6), (3, 4), (9, 0)])
def test_a_retained_checkpoint_keeps_the_files_that_are_in_flight_in_it(tmp_path: Path, retained: int, first: int) -> None:
    """The parent of the head replaces it if the head is corrupt. The parent is always retained."""
    passed = Passed(tmp_path, retained)
    passed.stage(0)
    for k in range(1, 6):
        passed.complete(k)
    assert CheckpointStore(passed.home).taken()[0] == max(1, min(4, 6 - retained))
    assert set(range(first, 11)) <= set(passed.batches())
    assert passed.batches()[0] >= first - 1, "a segment goes as a whole"


def test_files_of_a_failed_batch_are_deleted_with_the_checkpoint_that_has_its_next_try(passed: Passed) -> None:
    for k in range(1, 5):
        left = passed.stage(2 * k, dies=True)
        passed.complete(k)
        assert not left.exists(), k


def test_files_that_an_attempt_had_staged_far_past_the_restored_checkpoint_are_deleted_in_the_end(passed: Passed) -> None:
    ahead = [passed.stage(batch, dies=True) for batch in range(3, 10)]
    for k in range(1, 7):
        passed.complete(k)
    assert not any(path.exists() for path in ahead)
    assert passed.batches()[0] >= 7


def test_the_first_checkpoint_of_an_incarnation_deletes_checkpoints_and_state_of_the_closed_one(
    passed: Passed,
) -> None:
    before: dict[str, Any] = {"incarnation": IncarnationId("before")}
    shutil.rmtree(passed.root / "home/attempts")
    passed.began(attempt(1).model_copy(update=before))
    for k in (1, 2, 3):
        passed.complete(k, **before)
    assert CheckpointStore(passed.home).taken() == [2, 3]
    work = WorkDirectory(id=WorkDirectoryId("next"), path="work/next", host="h")
    passed.began(attempt(2).model_copy(update={"work_directory": work}))
    passed.complete(4, parent=None, attempt=AttemptNumber(2))
    assert CheckpointStore(passed.home).taken() == [CheckpointId(4)]
    assert passed.home.names("state/passed") == ["4-1-1"]


def test_a_checkpoint_with_a_pending_savepoint_keeps_the_rows_that_were_not_public(passed: Passed) -> None:
    """An upsert's files are in a channel and are deleted after their merge. The savepoint contains them also if they are merged by then."""
    request = request_id("somebody", Wanted.SAVEPOINT)
    create_document(
        passed.home, request_path(request), CheckpointRequest(request=request, requested_at=NOW, wanted=Wanted.SAVEPOINT)
    )
    for k in range(1, 6):
        passed.complete(k, **an_upsert(passed, k, known_published=None), request=request if k == 2 else None)
    assert CheckpointId(2) in CheckpointStore(passed.home).taken()
    assert {1, 2, 3, 4} <= set(passed.batches())
    CheckpointRequests(passed.home).answer(
        CheckpointResponse(request=request, attempt=AttemptNumber(1), checkpoint=CheckpointId(2), answered_at=NOW)
    )
    passed.complete(6, **an_upsert(passed, 6, CheckpointId(5)))
    assert CheckpointId(2) not in CheckpointStore(passed.home).taken()
    assert passed.batches()[0] >= 7


def an_upsert(passed: Passed, k: int, known_published: CheckpointId | None) -> dict[str, Any]:
    """Returns fields of a checkpoint in which only the last batch is in flight."""
    lines = [
        {"add": {"path": f"{PREFIX}{batch}-named.parquet", "size": 4, "stats": '{"numRecords": 1}'}, "batch": batch}
        for batch in (2 * k - 1, 2 * k)
    ]
    actions = CheckpointStore(passed.home).write_actions(CheckpointId(k), SinkName("passed"), lines)
    sink = SinkCut(
        stage=PASSED, table="file:///t", table_id="t", staged_for=(), partition_by=(), app=AppId("a"),
        actions=actions, publish=Publish.EVERY_CHECKPOINT, known_published=known_published,
    )  # fmt: skip
    return {"sinks": {SinkName("passed"): sink}, "stages": {PASSED: a_stage_cut(2 * k, channel=a_channel(2 * k))}}
