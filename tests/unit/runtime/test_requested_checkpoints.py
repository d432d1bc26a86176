"""How a driver answers those who ask for a checkpoint."""

from pathlib import Path

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.errors import DeadlineExceededError, FencedError, RejectedError, StorageError
from spark_jobs.protocol.ids import AttemptNumber, RequestId
from spark_jobs.protocol.masking import masking
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.requested_checkpoints import RequestedCheckpoints
from spark_jobs.storage.files import create_document
from spark_jobs.storage.local import LocalFiles
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import HOURLY, NOW, StagedPipeline, path_of
from tests.unit.control.test_channel import attempt

FIRST, SECOND = (CheckpointRequest(request=RequestId(f"checkpoint-{name}"), requested_at=NOW) for name in ("first", "second"))
SECRET = "hunter-twelve"


class Site:
    """The home of a pipeline with one sink, in which two requests are open, and its driver."""

    def __init__(self, directory: Path) -> None:
        self.files = LocalFiles(directory / "home")
        (directory / "warehouse").mkdir()
        self.staged = StagedPipeline(self.files, directory / "warehouse")
        self.staged.make_table()
        self.requests = CheckpointRequests(self.files)
        self.now_s = 0.0
        for request in (FIRST, SECOND):
            create_document(self.files, f"requests/{request.request}.json", request)
        self.driver = self.start()

    def start(self) -> RequestedCheckpoints:
        return RequestedCheckpoints(self.files, AttemptNumber(1), masking([SECRET]), interval_s=10.0, now_s=lambda: self.now_s)

    def answers(self) -> list[CheckpointResponse | None]:
        return [self.requests.answer_of(request.request) for request in (FIRST, SECOND)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_it_looks_at_the_home_once_in_a_while(site: Site) -> None:
    assert list(site.driver.open()) == [FIRST, SECOND]
    site.now_s = 9.0
    assert list(site.driver.open()) == []
    site.now_s = 10.0
    assert list(site.driver.open()) == [FIRST, SECOND]


def test_one_checkpoint_answers_all_who_had_asked(site: Site) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a"), (2, "b")]}, publish=Publish.EVERY_CHECKPOINT, request=FIRST.request)
    publish(site.files, by_policy=True)
    site.driver.completed([FIRST, SECOND], manifest)
    for answer in site.answers():
        assert answer is not None
        assert (answer.checkpoint, answer.error) == (1, None)
        assert (answer.sinks[HOURLY].version, answer.sinks[HOURLY].rows) == (1, 2)


def test_rows_that_are_only_staged_have_no_version_nor_have_those_of_a_table_that_is_gone(site: Site) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    site.driver.completed([FIRST], manifest)
    path_of(site.staged.tables[HOURLY]).rename(path_of(site.staged.tables[HOURLY]).with_name("gone"))
    site.driver.completed([SECOND], manifest)
    assert [answer and answer.sinks[HOURLY].version for answer in site.answers()] == [None, None]
    assert [answer and answer.checkpoint for answer in site.answers()] == [1, 1]


def asks(site: Site, wanted: Wanted, target: str) -> CheckpointRequest:
    request = CheckpointRequest(request=RequestId(f"{wanted.value}-mine"), requested_at=NOW, wanted=wanted, target=target)
    create_document(site.files, f"requests/{request.request}.json", request)
    return request


@pytest.mark.parametrize("place", ["taken", "warehouse/hourly/mine", "home/mine"])
def test_a_savepoint_that_cannot_be_is_refused_before_its_checkpoint_is_taken(site: Site, tmp_path: Path, place: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/something").touch()
    site.driver = RequestedCheckpoints(
        site.files, AttemptNumber(1), masking([]), tables=[site.staged.tables[HOURLY]], interval_s=10.0, now_s=lambda: site.now_s
    )
    request = asks(site, Wanted.SAVEPOINT, str(tmp_path / place))
    assert list(site.driver.open()) == [FIRST, SECOND]
    answer = site.requests.answer_of(request.request)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "RejectedError"
    with pytest.raises(RejectedError):
        site.driver.check(asks(site, Wanted.STOP, str(tmp_path / place)))


def test_a_savepoint_that_was_begun_for_a_request_may_be_ended(site: Site, tmp_path: Path) -> None:
    request = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=request.request)
    site.driver.save(request, manifest)
    site.driver.check(request)
    with pytest.raises(RejectedError):
        site.driver.check(asks(site, Wanted.STOP, str(tmp_path / "mine")))


def test_a_stop_whose_savepoint_can_never_be_is_answered_and_bars_no_start(site: Site, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/something").touch()
    request = asks(site, Wanted.STOP, str(tmp_path / "taken"))
    site.driver.stopped([request], site.staged.checkpoint({HOURLY: [(1, "a")]}, request=request.request))
    answer = site.requests.answer_of(request.request)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "RejectedError"


def test_a_failed_try_is_the_answer_without_its_secrets(site: Site) -> None:
    site.driver.failed([FIRST], DeadlineExceededError(f"Not in time for {SECRET}.", stage=SECRET))
    answer, other = site.answers()
    assert other is None
    assert answer is not None
    assert answer.error is not None
    assert (answer.checkpoint, answer.error.error, answer.error.failed) == (None, "DeadlineExceededError", "Not in time for ***.")
    assert answer.error.evidence == {"stage": "***"}


def test_where_only_publication_has_failed_the_checkpoint_is_the_answer(site: Site) -> None:
    site.staged.checkpoint({HOURLY: [(1, "a")]}, request=FIRST.request)
    site.driver.failed([FIRST, SECOND], StorageError("The table's disk does not answer."))
    assert [answer and answer.checkpoint for answer in site.answers()] == [1, 1]


def test_an_attempt_answers_what_the_one_before_has_completed_and_leaves_the_rest_open(site: Site) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=FIRST.request)
    site.start().resume(manifest)
    assert [answer and answer.checkpoint for answer in site.answers()] == [1, None]
    assert list(site.driver.open()) == [SECOND]


def test_a_head_that_nobody_has_asked_for_answers_nobody(site: Site) -> None:
    site.start().resume(site.staged.checkpoint({HOURLY: [(1, "a")]}))
    site.start().resume(None)
    assert site.answers() == [None, None]


class Away(MemoryFiles):
    """A storage that does not answer."""

    def names(self, directory: str) -> list[str]:
        raise StorageError("The disk is away.")

    def create(self, path: str, data: bytes) -> None:
        raise StorageError("The disk is away.")


def test_a_home_that_does_not_answer_ends_no_attempt(site: Site) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    driver = RequestedCheckpoints(Away(), AttemptNumber(1), masking([]))
    assert list(driver.open()) == []
    driver.completed([FIRST], manifest)
    driver.failed([FIRST], DeadlineExceededError("Not in time."))


def test_who_must_not_miss_a_request_is_told_that_they_cannot_be_read(site: Site) -> None:
    assert [*site.driver.unanswered(), *site.driver.unanswered()] == [FIRST, SECOND] * 2
    with pytest.raises(StorageError):
        RequestedCheckpoints(Away(), AttemptNumber(1), masking([])).unanswered()


def test_a_fenced_attempt_turns_down_checkpoints_and_no_stop(site: Site) -> None:
    stop = asks(site, Wanted.STOP, "")
    Attempts(site.files).create(attempt(2))
    with pytest.raises(FencedError):
        site.driver.refused([stop], DeadlineExceededError("Not in time."))
    site.driver.refused([FIRST], DeadlineExceededError("Not in time."))
    assert (site.requests.answer_of(stop.request), site.answers()[0] is None) == (None, False)


def test_a_stop_that_comes_late_is_left_to_the_attempt_that_has_begun_since(site: Site, tmp_path: Path) -> None:
    first = asks(site, Wanted.STOP, str(tmp_path / "mine"))
    late = first.model_copy(update={"request": RequestId("stop-late")})
    create_document(site.files, f"requests/{late.request}.json", late)
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=first.request)
    Attempts(site.files).create(attempt(2))
    site.driver.stopped([first], manifest)
    answer = site.requests.answer_of(first.request)
    assert answer is not None
    assert (answer.checkpoint, site.requests.answer_of(late.request)) == (1, None)
