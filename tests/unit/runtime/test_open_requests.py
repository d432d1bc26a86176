"""What a start does about requests that nobody has answered; stops are in ``test_application.py``."""

import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.errors import FencedError
from spark_jobs.protocol.ids import AttemptNumber, RequestId
from spark_jobs.protocol.masking import unmasked
from spark_jobs.runtime.open_requests import OpenRequests
from spark_jobs.storage.files import create_document
from tests.support.memory_files import MemoryFiles
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
    OpenRequests(home, unmasked, no_spark).turn_down_all(LIVE)
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
        OpenRequests(home, unmasked, no_spark).turn_down_all(LIVE)
    assert len(CheckpointRequests(home).open()) == len(Wanted)
