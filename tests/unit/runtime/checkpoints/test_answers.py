"""The time at which a request with a complete checkpoint is answered."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import Manifest, SinkMode
from spark_jobs.protocol.errors import FencedError
from spark_jobs.protocol.ids import RequestId, SinkName
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.runtime.checkpoints import answers
from spark_jobs.runtime.checkpoints.answers import Answers
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from tests.support.staged_pipeline import NOW, a_manifest, a_sink_cut

CHECKPOINT, SAVEPOINT = (
    CheckpointRequest(request=RequestId(f"{wanted.value}-a"), requested_at=NOW, wanted=wanted)
    for wanted in (Wanted.CHECKPOINT, Wanted.SAVEPOINT)
)


class Requests:
    """Requests whose answers are written when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answered: list[tuple[list[str], int]] = []
        self.under_way: list[tuple[Future[None], Callable[[], None]]] = []
        self.error: Exception | None = None
        monkeypatch.setattr(answers, "run_in_background", self._begin)
        self.answers = Answers(cast(RequestedCheckpoints, self))

    def completed(self, asked: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        self.answered.append(([request.request for request in asked], manifest.checkpoint))

    def end(self) -> None:
        future, work = self.under_way.pop()
        work()
        if self.error is None:
            future.set_result(None)
        else:
            future.set_exception(self.error)

    def _begin(self, work: Callable[[], None]) -> Future[None]:
        self.under_way.append((Future(), work))
        return self.under_way[-1][0]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


def test_an_answer_waits_until_its_checkpoint_is_public_and_earlier_requests_are_answered(requests: Requests) -> None:
    public = 0
    found = requests.answers
    found.add([], a_manifest(1))
    found.add([CHECKPOINT], a_manifest(2))
    found.add([SAVEPOINT], a_manifest(3))

    def look() -> None:
        found.advance(lambda manifest: manifest.checkpoint <= public)

    look()
    assert not requests.under_way
    assert sorted(found.checkpoints) == [2, 3]
    public = 3
    look()
    look()
    assert len(requests.under_way) == 1
    requests.end()
    look()
    assert requests.answered == [([CHECKPOINT.request], 2)]
    assert (found.waiting, sorted(found.checkpoints)) == ([SAVEPOINT], [3])
    requests.end()
    look()
    assert requests.answered[1:] == [([SAVEPOINT.request], 3)]
    assert found.waiting == []


def test_an_answer_that_notices_a_later_attempt_ends_its_own_attempt(requests: Requests) -> None:
    requests.error = FencedError("A later attempt is live.")
    requests.answers.add([CHECKPOINT], a_manifest(1))
    requests.answers.advance(lambda manifest: True)
    requests.end()
    with pytest.raises(FencedError):
        requests.answers.advance(lambda manifest: True)


def test_the_end_waits_for_a_running_answer_and_leaves_other_requests_to_the_last_checkpoint(requests: Requests) -> None:
    for number, asked in enumerate((CHECKPOINT, SAVEPOINT), start=1):
        requests.answers.add([asked], a_manifest(number))
    requests.answers.advance(lambda manifest: True)
    requests.end()
    requests.answers.end()
    assert (requests.answers.waiting, requests.under_way) == ([SAVEPOINT], [])


@pytest.mark.parametrize(
    ("asked", "tombstones", "expected"),
    [(SAVEPOINT, "file:///deleted", True), (SAVEPOINT, None, False), (CHECKPOINT, "file:///deleted", False)],
)
def test_deleted_keys_count_as_being_copied_while_their_savepoint_is_made(
    requests: Requests, asked: CheckpointRequest, tombstones: str | None, expected: bool
) -> None:
    merge: Any = MergeCut(keys=("id",), sequence_by=None, apply_as_deletes="gone", staged_in="file:///t", tombstones=tombstones)
    cut = a_sink_cut("kept", mode=SinkMode.UPSERT, merge=merge)
    requests.answers.add([asked], a_manifest(1, sinks={SinkName("kept"): cut}))
    assert not requests.answers.copies_deleted_keys
    requests.answers.advance(lambda manifest: True)
    assert requests.answers.copies_deleted_keys is expected
    requests.end()
    requests.answers.advance(lambda manifest: True)
    assert not requests.answers.copies_deleted_keys
