"""The work directory in which an attempt continues, also after an interrupted drain."""

from pathlib import Path

import pytest

from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.errors import AlreadyExistsError
from spark_jobs.runtime.spark.spark_facts import SPARK_MINOR, SPARK_VERSION
from spark_jobs.runtime.start.decision import HomeFacts
from spark_jobs.runtime.start.drain_marks import begin_drain, drain_begun, is_taken_over, take_over
from spark_jobs.runtime.start.work_directory import why_not_in_place, why_rebuilt
from spark_jobs.storage.files import create_document
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.memory_files import MemoryFiles
from tests.support.responses import response
from tests.support.staged_pipeline import NOW, a_manifest
from tests.support.start_decisions import request
from tests.support.state_site import HOURLY, cut

STOP = request_id("nightly", Wanted.STOP)


@pytest.fixture
def home(tmp_path: Path) -> LocalFiles:
    """A home whose newest attempt has used its work directory."""
    files = LocalFiles(tmp_path)
    files.create(f"{attempt(1).work_directory.path}/stages/copied", b"")
    take_over(files.below(attempt(1).work_directory.path))
    create_document(
        files, f"requests/{STOP}.json", CheckpointRequest(request=STOP, requested_at=NOW, wanted=Wanted.STOP, drain=True)
    )
    return files


def test_a_drain_continues_in_place_as_long_as_its_request_is_open(home: LocalFiles) -> None:
    work = home.below(attempt(1).work_directory.path)
    assert (drain_begun(work), why_not_in_place(home, attempt(1), None, None)) == (None, None)
    begin_drain(work, STOP)
    assert (drain_begun(work), why_not_in_place(home, attempt(1), None, None)) == (STOP, None)
    CheckpointRequests(home).answer(response(STOP))
    assert why_not_in_place(home, attempt(1), None, None) == "its stages were being drained for a request that is no longer open"


def test_a_work_directory_in_a_store_is_used_by_one_attempt_only(home: LocalFiles) -> None:
    store = MemoryFiles()
    for path in home.paths():
        store.create(path, home.read(path))
    assert why_not_in_place(store, attempt(1), None, None) == "it is in a store, where each attempt has its own"


def test_a_work_directory_whose_attempt_died_during_its_start_is_used_again(home: LocalFiles) -> None:
    work = home.below(attempt(1).work_directory.path)
    work.delete("taken_over.json")
    assert not is_taken_over(work)
    assert why_not_in_place(home, attempt(1), None, None) is None
    take_over(work)
    take_over(work)
    assert is_taken_over(work)
    assert why_not_in_place(home, attempt(1), None, None) is None


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (None, "its stages were being drained for an unknown request"),
        (b"", "its stages were being drained for an unknown request"),
        (b'{"requ', "its stages were being drained for an unknown request"),
        (b"{}", "its stages were being drained for an unknown request"),
        (b"7", "its stages were being drained for an unknown request"),
        (b'{"request": "stop-another"}', "its stages were being drained for a request that is no longer open"),
    ],
)
def test_a_work_directory_with_a_lost_or_damaged_mark_of_a_drain_is_not_used(
    home: LocalFiles, left: bytes | None, why: str
) -> None:
    """The watermarks are at the end of time, and would make all later rows late."""
    work = home.below(attempt(1).work_directory.path)
    begin_drain(work, STOP)
    work.delete("draining.json")
    if left is not None:
        work.create("draining.json", left)
    assert why_not_in_place(home, attempt(1), None, None) == why


def test_the_next_attempt_continues_a_drain_whose_attempt_died_at_its_beginning(home: LocalFiles) -> None:
    work = home.below(attempt(1).work_directory.path)
    begin_drain(work, STOP)
    work.delete("taken_over.json")
    take_over(work)
    assert (drain_begun(work), why_not_in_place(home, attempt(1), None, None)) == (STOP, None)


def test_a_work_directory_that_has_lost_batches_of_the_checkpoint_is_not_continued(home: LocalFiles) -> None:
    """The stages would start again with batch numbers that the checkpoint already has."""
    head = a_manifest(work_directory=attempt(1).work_directory.id, stages={HOURLY: cut(2, ())})
    commits = f"{attempt(1).work_directory.path}/stages/{HOURLY}/checkpoint/commits"
    home.create(f"{commits}/1", b"")
    assert why_not_in_place(home, attempt(1), head, None) == "it has lost batches of stage 'hourly' that checkpoint 1 has"
    home.create(f"{commits}/2", b"")
    assert why_not_in_place(home, attempt(1), head, None) is None


def test_a_work_directory_is_drained_for_only_one_request(home: LocalFiles) -> None:
    work = home.below(attempt(1).work_directory.path)
    begin_drain(work, STOP)
    begin_drain(work, STOP)
    with pytest.raises(AlreadyExistsError):
        begin_drain(work, request_id("other", Wanted.STOP))


@pytest.mark.parametrize(("version", "rebuilt"), [("3.9.1", True), ("99.0.0", True), (SPARK_VERSION, False)])
def test_a_work_directory_continues_only_with_the_spark_version_that_has_written_it(
    home: LocalFiles, version: str, rebuilt: bool
) -> None:
    """A batch that one version of Spark has planned never runs with another. It is planned again, from the checkpoint."""
    before = attempt(1).model_copy(update={"versions": {"pyspark": version}})
    past = HomeFacts(before, None, lambda run: None, dict)
    why = why_rebuilt(home, request("a", 2), past, None, SPARK_MINOR)
    assert (why is not None and f"Spark {version[: version.rindex('.')]} has written it" in why) is rebuilt
