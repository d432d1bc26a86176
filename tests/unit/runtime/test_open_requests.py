"""What a start does about requests that nobody has answered; stops are in ``test_application.py``."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.checkpoint.savepoint import default_target, export
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.errors import FencedError
from spark_jobs.protocol.ids import AttemptNumber, RequestId
from spark_jobs.protocol.masking import unmasked
from spark_jobs.runtime.open_requests import OpenRequests
from spark_jobs.storage.files import create_document
from tests.support.memory_files import MemoryFiles
from tests.support.savepoint_site import SavepointSite
from tests.support.staged_pipeline import NOW
from tests.unit.control.test_channel import attempt

LIVE = AttemptNumber(2)


def no_spark() -> SparkSession:
    raise AssertionError("nothing is to be published")


@pytest.fixture
def home() -> MemoryFiles:
    files = MemoryFiles()
    for wanted in Wanted:
        request = CheckpointRequest(request=RequestId(f"{wanted.value}-mine"), requested_at=NOW, wanted=wanted)
        create_document(files, f"requests/{request.request}.json", request)
    Attempts(files).create(attempt(int(LIVE)))
    return files


def test_a_pipeline_whose_inputs_all_end_turns_down_whatever_was_asked_of_it_before(home: MemoryFiles) -> None:
    OpenRequests(home, unmasked, no_spark).turn_down_all(LIVE, None)
    requests = CheckpointRequests(home)
    assert list(requests.open()) == []
    for wanted in Wanted:
        answer = requests.answer_of(RequestId(f"{wanted.value}-mine"))
        assert answer is not None
        assert answer.error is not None
        assert (answer.checkpoint, answer.error.error) == (None, "RejectedError")
        assert "all of its inputs end" in answer.error.failed


def test_a_later_attempt_may_do_what_a_stop_asks_for(home: MemoryFiles) -> None:
    Attempts(home).create(attempt(int(LIVE) + 1))
    with pytest.raises(FencedError):
        OpenRequests(home, unmasked, no_spark).turn_down_all(LIVE, None)
    assert len(CheckpointRequests(home).open()) == len(Wanted)


def test_who_has_asked_for_a_checkpoint_that_was_taken_gets_it_and_its_savepoint(tmp_path: Path) -> None:
    site = SavepointSite(tmp_path)
    asked = {wanted: RequestId(f"{wanted.value}-mine") for wanted in (Wanted.CHECKPOINT, Wanted.SAVEPOINT)}
    for wanted, name in asked.items():
        request = CheckpointRequest(request=name, requested_at=NOW, wanted=wanted)
        create_document(site.home, f"requests/{name}.json", request)
    first = site.complete([(1, "a")], request=asked[Wanted.SAVEPOINT])
    target = default_target(site.home, asked[Wanted.SAVEPOINT])
    export(site.home, first.checkpoint, target, request=asked[Wanted.SAVEPOINT])
    head = site.complete([(2, "a")], request=asked[Wanted.CHECKPOINT])
    Attempts(site.home).create(attempt(int(LIVE)))
    OpenRequests(site.home, unmasked, no_spark).turn_down_all(LIVE, head)
    answers = [CheckpointRequests(site.home).answer_of(name) for name in asked.values()]
    assert [answer and (answer.checkpoint, answer.savepoint) for answer in answers] == [(2, None), (1, target.url)]
