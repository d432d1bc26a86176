"""Requests that an attempt left open after its final checkpoint. Stops are in ``test_application.py``."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.home.layout import savepoint_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import CheckpointKind, HoldLimits, Publish
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.protocol.ids import AttemptNumber, RequestId, RunId, start_request_id
from spark_jobs.protocol.masking import unmasked
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.publication import publisher
from spark_jobs.runtime.checkpoints import blocked_publication
from spark_jobs.runtime.open_requests import OpenRequests
from spark_jobs.storage.files import create_document
from tests.support.attempts import attempt
from tests.support.savepoint_site import SavepointSite
from tests.support.staged_pipeline import HOURLY, NOW

LIVE = AttemptNumber(2)


def no_spark() -> SparkSession:
    raise AssertionError("nothing is to be published")


def refusing(*_: Any, **__: Any) -> None:
    raise UnsupportedTableError("It refuses.")


FINAL = {"checkpoint_kind": CheckpointKind.FINAL, "publish": Publish.FINAL}


class Ended:
    """A home whose only attempt died after its final checkpoint and before it answered any request."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.site = SavepointSite(root)
        Attempts(self.site.home).create(attempt(1))
        self.head = self.site.complete([(1, "a")], **(FINAL | changes))
        self.requests = CheckpointRequests(self.site.home)

    def ask(self, wanted: Wanted, *, drain: bool = False, after: bool = False) -> RequestId:
        name = RequestId(f"{wanted.value}-mine")
        at = self.head.began_at + timedelta(seconds=1 if after else -1)
        request = CheckpointRequest(request=name, requested_at=at, wanted=wanted, drain=drain)
        create_document(self.site.home, f"requests/{name}.json", request)
        return name

    def start(self, *, fresh: bool = False) -> None:
        """Does the first steps of the next start."""
        start = StartRequest(request=start_request_id(LIVE), attempt=LIVE, run=RunId("next"), requested_at=NOW, fresh=fresh)
        requests = OpenRequests(self.site.home, unmasked, no_spark)
        unfinished = requests.roll_forward(self.head, start)
        if unfinished is not None:
            requests.abandon_stop(unfinished)

    def answer(self, name: RequestId) -> CheckpointResponse:
        answer = self.requests.answer_of(name)
        assert answer is not None
        return answer


@pytest.mark.parametrize("wanted", [Wanted.CHECKPOINT, Wanted.SAVEPOINT, Wanted.STOP])
def test_a_request_that_was_open_at_the_final_checkpoint_is_answered_with_this_checkpoint(tmp_path: Path, wanted: Wanted) -> None:
    ended = Ended(tmp_path)
    name = ended.ask(wanted)
    ended.start()
    answer = ended.answer(name)
    assert (answer.checkpoint, answer.error) == (ended.head.checkpoint, None)
    target = ended.site.home.below(savepoint_path(name)).url
    assert answer.savepoint == (None if wanted is Wanted.CHECKPOINT else target)


@pytest.mark.parametrize("drained", [False, True])
def test_a_drain_is_answered_with_a_drained_final_checkpoint_and_rejected_with_any_other(tmp_path: Path, drained: bool) -> None:
    ended = Ended(tmp_path, drained=drained)
    name = ended.ask(Wanted.STOP, drain=True)
    ended.start()
    assert (ended.answer(name).error is None) is drained


def test_a_stop_with_a_blocked_publication_is_complete_and_its_answer_names_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(tmp_path, checkpoint_kind=CheckpointKind.STOP, publish=Publish.EVERY_CHECKPOINT, request="stop-mine")
    name = ended.ask(Wanted.STOP)
    monkeypatch.setattr(publisher, "prepare", refusing)
    monkeypatch.setattr(blocked_publication, "staged_rows", lambda *_: None)  # the sample's rows are from 2023
    ended.start()
    answer = ended.answer(name)
    assert (answer.checkpoint, answer.error, answer.sinks[HOURLY].version) == (ended.head.checkpoint, None, None)
    assert answer.savepoint is not None
    assert answer.blocked is not None
    assert (answer.blocked.waiting, answer.blocked.error.failed) == ((HOURLY,), "It refuses.")


STOPPED: dict[str, Any] = {"checkpoint_kind": CheckpointKind.STOP, "publish": Publish.EVERY_CHECKPOINT}
HELD: dict[str, Any] = {"cut": {"hold": HoldLimits(time_ms=10**12, size_bytes=None)}}


@pytest.mark.parametrize("changes", [STOPPED | {"drained": True}, STOPPED | {"drained": True} | HELD, {}])
def test_a_drain_and_an_ended_run_are_answered_once_their_rows_are_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """No later publication would include these rows, or a caller relies on them."""
    ended = Ended(tmp_path, request="stop-mine", **changes)
    name = ended.ask(Wanted.STOP, drain=True)
    monkeypatch.setattr(publisher, "prepare", refusing)
    monkeypatch.setattr(blocked_publication, "staged_rows", lambda *_: None)  # the sample's rows are from 2023
    with pytest.raises(UnsupportedTableError):
        ended.start()
    assert ended.requests.answer_of(name) is None


def test_a_fresh_start_answers_an_abandoned_stop_and_leaves_a_savepoint_to_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(tmp_path, request="stop-mine", **STOPPED | {"drained": True})
    stop, savepoint = ended.ask(Wanted.STOP, drain=True), ended.ask(Wanted.SAVEPOINT)
    monkeypatch.setattr(publisher, "prepare", refusing)
    monkeypatch.setattr(blocked_publication, "staged_rows", lambda *_: None)  # the sample's rows are from 2023
    ended.start(fresh=True)
    error = ended.answer(stop).error
    assert error is not None
    assert (error.failed, ended.requests.answer_of(savepoint)) == ("It refuses.", None)


def test_a_request_after_the_final_checkpoint_is_rejected(tmp_path: Path) -> None:
    ended = Ended(tmp_path)
    name = ended.ask(Wanted.CHECKPOINT, after=True)
    ended.start()
    error = ended.answer(name).error
    assert error is not None
    assert error.failed == f"The run has ended, with checkpoint {ended.head.checkpoint}."


def test_a_later_attempt_answers_requests_that_are_open_after_an_earlier_final_checkpoint(tmp_path: Path) -> None:
    ended = Ended(tmp_path)
    Attempts(ended.site.home).create(attempt(2))
    name = ended.ask(Wanted.CHECKPOINT)
    ended.start()
    assert ended.requests.answer_of(name) is None
