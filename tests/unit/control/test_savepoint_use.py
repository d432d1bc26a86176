"""The requests and attempts that need a savepoint."""

from pathlib import Path

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.savepoint_use import needed_by
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.ids import AttemptNumber, IncarnationId, RequestId, RunId, start_request_id
from spark_jobs.protocol.start_requests import StartOptions, StartRequest
from spark_jobs.storage.files import Files, create_document
from spark_jobs.storage.open import open_place
from tests.support.staged_pipeline import NOW, a_manifest
from tests.support.start_decisions import attempt
from tests.support.systems import quick


@pytest.fixture
def home(tmp_path: Path) -> Files:
    return quick(tmp_path / "home")


@pytest.fixture
def savepoint(tmp_path: Path) -> Files:
    return quick(tmp_path / "savepoint")


def starts_from(home: Files, savepoint: Files) -> StartRequest:
    return Channel(home).request_start(
        RunId("tuesday"), parameters={}, options=StartOptions(restore=RestoreFrom(savepoint=savepoint.url))
    )


def asks(home: Files, target: str | None) -> None:
    request = CheckpointRequest(request=RequestId("stop-a"), requested_at=NOW, wanted=Wanted.STOP, target=target)
    create_document(home, "requests/stop-a.json", request)


def test_a_home_without_references_does_not_need_the_savepoint(home: Files, savepoint: Files) -> None:
    assert needed_by(home, savepoint) == []


def test_an_open_request_needs_the_savepoint_that_it_makes(home: Files, savepoint: Files) -> None:
    asks(home, savepoint.url)
    assert needed_by(home, savepoint) == ["stop-a, which is not answered yet"]
    assert needed_by(home, quick(Path("/elsewhere"))) == []
    CheckpointRequests(home).answer(
        CheckpointResponse(request=RequestId("stop-a"), attempt=AttemptNumber(1), checkpoint=None, answered_at=NOW)
    )
    assert needed_by(home, savepoint) == []


def test_a_place_in_an_object_store_is_the_same_however_it_is_spelled(home: Files) -> None:
    asks(home, "s3://bucket/savepoints/a")
    assert len(needed_by(home, open_place("s3a://bucket/savepoints/a/"))) == 1
    assert needed_by(home, open_place("s3://bucket/savepoints/b")) == []


def test_an_open_request_without_a_target_needs_the_savepoint_below_the_home(home: Files) -> None:
    asks(home, None)
    assert len(needed_by(home, home.below("savepoints/stop-a"))) == 1
    assert needed_by(home, home.below("savepoints/stop-b")) == []


@pytest.mark.parametrize("link_is_asked_for", [True, False])
def test_a_savepoint_that_is_reached_through_a_symbolic_link_is_the_same(
    home: Files, savepoint: Files, tmp_path: Path, link_is_asked_for: bool
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    through_link = quick(tmp_path / "link/savepoint")
    asked, disposed = (through_link, savepoint) if link_is_asked_for else (savepoint, through_link)
    asks(home, asked.url)
    starts_from(home, asked)
    assert needed_by(home, disposed) == ["stop-a, which is not answered yet", "start-1, which no driver has begun to answer"]


def test_a_start_needs_its_savepoint_until_it_has_a_checkpoint_of_its_own(home: Files, savepoint: Files) -> None:
    request = starts_from(home, savepoint)
    assert needed_by(home, savepoint) == ["start-1, which no driver has begun to answer"]
    Attempts(home).create(attempt(1, "tuesday", 1, "new"))
    CheckpointStore(home).complete(a_manifest(1, incarnation=IncarnationId("old")))
    assert needed_by(home, savepoint) == ["attempt 1, which began with it and has no checkpoint of its own yet"]
    assert needed_by(home, quick(Path("/elsewhere"))) == []
    CheckpointStore(home).complete(a_manifest(2, incarnation=IncarnationId("new"), parent=None))
    assert needed_by(home, savepoint) == []
    assert request.restore


def test_every_later_attempt_needs_the_savepoint_of_the_start_too(home: Files, savepoint: Files) -> None:
    starts_from(home, savepoint)
    Attempts(home).create(attempt(1, "tuesday", 1, "new"))
    Channel(home).request_start(RunId("wednesday"), parameters={})
    Attempts(home).create(attempt(2, "wednesday", 1, "new", begun_by=start_request_id(AttemptNumber(1))))
    assert needed_by(home, savepoint) == ["attempt 2, which began with it and has no checkpoint of its own yet"]


def test_a_start_of_changed_code_needs_the_savepoint_that_it_has_taken(home: Files, savepoint: Files) -> None:
    Channel(home).request_start(RunId("tuesday"), parameters={})
    Attempts(home).create(attempt(1, "tuesday", 1, "new", restore=RestoreFrom(savepoint=savepoint.url)))
    assert needed_by(home, savepoint) == ["attempt 1, which began with it and has no checkpoint of its own yet"]
    CheckpointStore(home).complete(a_manifest(1, incarnation=IncarnationId("new"), parent=None))
    assert needed_by(home, savepoint) == []
