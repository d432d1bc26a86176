"""The driver's answers to requests for a checkpoint."""

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.checkpoint.savepoint import _identity, places_of, verify
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.request_table import RequestEvent
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publish
from spark_jobs.protocol.errors import DeadlineExceededError, FencedError, RejectedError, StorageError
from spark_jobs.protocol.ids import AttemptNumber, IncarnationId, InputName, RequestId
from spark_jobs.protocol.known_sources import KnownFiles
from spark_jobs.protocol.masking import masking
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.checkpoints.subsume import Subsumption
from spark_jobs.storage.files import create_document
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from tests.support.attempts import attempt
from tests.support.memory_files import MemoryFiles
from tests.support.savepoint_site import SavepointSite
from tests.support.staged_pipeline import HOURLY, NOW, StagedPipeline, path_of

FIRST, SECOND = (CheckpointRequest(request=RequestId(f"checkpoint-{name}"), requested_at=NOW) for name in ("first", "second"))
SECRET = "hunter-twelve"


class Site:
    """The home of a pipeline with one sink and two open requests, and its driver."""

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


def test_the_driver_looks_at_the_home_at_intervals(site: Site) -> None:
    assert list(site.driver.open()) == [FIRST, SECOND]
    site.now_s = 9.0
    assert list(site.driver.open()) == []
    site.now_s = 10.0
    assert list(site.driver.open()) == [FIRST, SECOND]


def test_one_checkpoint_answers_all_open_requests(site: Site) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a"), (2, "b")]}, publish=Publish.EVERY_CHECKPOINT, request=FIRST.request)
    publish(site.files, by_policy=True)
    site.driver.completed([FIRST, SECOND], manifest)
    for answer in site.answers():
        assert answer is not None
        assert (answer.checkpoint, answer.error) == (1, None)
        assert (answer.sinks[HOURLY].version, answer.sinks[HOURLY].rows) == (1, 2)


def test_an_answer_has_no_version_for_staged_rows_and_for_a_missing_table(site: Site) -> None:
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


@pytest.mark.parametrize("place", ["taken", "warehouse/hourly/mine", "home/mine", "in/monday/mine"])
def test_a_savepoint_at_an_invalid_place_is_refused_before_its_checkpoint_is_taken(
    site: Site, tmp_path: Path, place: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/something").touch()
    others = places_of([site.staged.tables[HOURLY]], {InputName("rows"): (KnownFiles(path=f"file://{tmp_path}/in/*"),)})
    site.driver = RequestedCheckpoints(
        site.files, AttemptNumber(1), masking([]), others=others, interval_s=10.0, now_s=lambda: site.now_s
    )
    request = asks(site, Wanted.SAVEPOINT, str(tmp_path / place))
    assert list(site.driver.open()) == [FIRST, SECOND]
    answer = site.requests.answer_of(request.request)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "RejectedError"
    with pytest.raises(RejectedError):
        site.driver.check(asks(site, Wanted.STOP, str(tmp_path / place)))


def test_a_request_whose_savepoint_is_being_copied_is_neither_listed_as_open_nor_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/something").touch()
    request = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))
    assert list(site.driver.open({request.request, FIRST.request})) == [SECOND]
    assert site.requests.answer_of(request.request) is None


def test_a_savepoint_that_was_begun_for_the_same_request_may_be_completed(site: Site, tmp_path: Path) -> None:
    request = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=request.request)
    site.driver.save(request, manifest)
    site.driver.check(request)
    with pytest.raises(RejectedError):
        site.driver.check(asks(site, Wanted.STOP, str(tmp_path / "mine")))


def test_a_stop_whose_savepoint_is_impossible_is_answered_and_blocks_no_start(site: Site, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/something").touch()
    request = asks(site, Wanted.STOP, str(tmp_path / "taken"))
    site.driver.ended_with([request], site.staged.checkpoint({HOURLY: [(1, "a")]}, request=request.request))
    answer = site.requests.answer_of(request.request)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == "RejectedError"


@pytest.mark.parametrize("wanted", [Wanted.SAVEPOINT, Wanted.STOP])
def test_only_a_stop_waits_for_a_savepoint_that_another_try_may_make(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    def goes_away(*_: object) -> None:
        raise StorageError("the store is away")

    request = asks(site, wanted, str(tmp_path / "mine"))
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=request.request)
    monkeypatch.setattr(LocalFiles, "copy", goes_away)
    waits = wanted is Wanted.STOP
    with pytest.raises(StorageError) if waits else nullcontext():
        site.driver.ended_with([request], manifest)
    answer = site.requests.answer_of(request.request)
    assert (answer is None) is waits
    assert waits or (answer is not None and answer.error is not None)


def test_a_failed_try_is_the_answer_without_its_secrets(site: Site) -> None:
    site.driver.failed([FIRST], DeadlineExceededError(f"Not in time for {SECRET}.", stage=SECRET))
    answer, other = site.answers()
    assert other is None
    assert answer is not None
    assert answer.error is not None
    assert (answer.checkpoint, answer.error.error, answer.error.failed) == (None, "DeadlineExceededError", "Not in time for ***.")
    assert answer.error.evidence == {"stage": "***"}


def test_a_request_is_answered_with_its_checkpoint_although_the_publication_failed(site: Site) -> None:
    site.staged.checkpoint({HOURLY: [(1, "a")]}, request=FIRST.request)
    site.driver.failed([FIRST, SECOND], StorageError("The table's disk does not answer."))
    assert [answer and answer.checkpoint for answer in site.answers()] == [1, 1]


def test_an_attempt_answers_requests_that_the_previous_one_completed_and_leaves_the_others_open(site: Site) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=FIRST.request)
    site.start().resume(manifest)
    assert [answer and answer.checkpoint for answer in site.answers()] == [1, None]
    assert list(site.driver.open()) == [SECOND]


def test_a_head_that_was_not_requested_answers_no_request(site: Site) -> None:
    site.start().resume(site.staged.checkpoint({HOURLY: [(1, "a")]}))
    site.start().resume(None)
    assert site.answers() == [None, None]


class Away(MemoryFiles):
    """A storage that does not answer."""

    def names(self, directory: str) -> list[str]:
        raise StorageError("The disk is away.")

    def create(self, path: str, data: bytes) -> None:
        raise StorageError("The disk is away.")


def test_a_home_that_does_not_respond_does_not_end_the_attempt(site: Site) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    driver = RequestedCheckpoints(Away(), AttemptNumber(1), masking([]))
    assert list(driver.open()) == []
    driver.completed([FIRST], manifest)
    driver.failed([FIRST], DeadlineExceededError("Not in time."))


def test_requests_that_cannot_be_read_are_an_error_for_a_caller_that_needs_all(site: Site) -> None:
    assert [*site.driver.unanswered(), *site.driver.unanswered()] == [FIRST, SECOND] * 2
    with pytest.raises(StorageError):
        RequestedCheckpoints(Away(), AttemptNumber(1), masking([])).unanswered()


def test_a_fenced_attempt_rejects_requests_for_checkpoints_but_no_stop(site: Site) -> None:
    stop = asks(site, Wanted.STOP, "")
    Attempts(site.files).create(attempt(2))
    with pytest.raises(FencedError):
        site.driver.reject_or_log(RequestEvent.STOP_HAS_FAILED, [stop], DeadlineExceededError("Not in time."))
    site.driver.reject_or_log(RequestEvent.TRY_HAS_FAILED, [FIRST], DeadlineExceededError("Not in time."))
    assert (site.requests.answer_of(stop.request), site.answers()[0] is None) == (None, False)


def test_a_late_stop_is_left_to_the_attempt_that_has_begun_since(site: Site, tmp_path: Path) -> None:
    first = asks(site, Wanted.STOP, str(tmp_path / "mine"))
    late = first.model_copy(update={"request": RequestId("stop-late")})
    create_document(site.files, f"requests/{late.request}.json", late)
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=first.request, checkpoint_kind=CheckpointKind.STOP)
    Attempts(site.files).create(attempt(2))
    site.driver.ended_with([first], manifest)
    answer = site.requests.answer_of(first.request)
    assert answer is not None
    assert (answer.checkpoint, site.requests.answer_of(late.request)) == (1, None)


def test_a_directory_in_which_another_savepoint_was_begun_is_refused_before_its_checkpoint_is_taken(
    site: Site, tmp_path: Path
) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    mine = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))
    site.driver.save(mine, manifest)
    (tmp_path / "mine/savepoint.json").unlink()
    (tmp_path / "mine/exporting.json").write_bytes(_identity(manifest, mine.request))
    site.driver.check(mine)
    stop = asks(site, Wanted.STOP, str(tmp_path / "mine"))
    with pytest.raises(RejectedError, match="was begun there for savepoint-mine"):
        site.driver.check(stop)
    (tmp_path / "mine/exporting.json").write_text("torn")
    with pytest.raises(RejectedError, match="was begun there for somebody else"):
        site.driver.check(mine)


@pytest.mark.parametrize("target", ["mine", None], ids=["a named directory", "a directory in the home"])
def test_another_request_may_use_the_directory_of_a_failed_export(site: Site, tmp_path: Path, target: str | None) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    first = asks(site, Wanted.SAVEPOINT, str(tmp_path / target) if target else "")
    directory = tmp_path / "mine" if target else tmp_path / f"home/savepoints/{first.request}"
    (staged,) = path_of(site.staged.tables[HOURLY]).rglob("*part-*.parquet")
    staged.rename(tmp_path / "away")
    site.driver.completed([first], manifest)
    answer = site.requests.answer_of(first.request)
    assert answer is not None
    assert (answer.error is not None, directory.exists()) == (True, False)
    (tmp_path / "away").rename(staged)
    second = first.model_copy(update={"request": RequestId("savepoint-again")})
    site.driver.check(second)
    site.driver.completed([second], manifest)
    answer = site.requests.answer_of(second.request)
    assert answer is not None
    assert answer.savepoint is not None
    assert verify(open_files(answer.savepoint)).request == second.request


@pytest.mark.parametrize("wanted", [Wanted.SAVEPOINT, Wanted.STOP])
def test_another_request_may_use_a_directory_that_was_unavailable_when_an_export_failed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    first = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))

    def goes_away(*_: object) -> None:
        raise StorageError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "copy", goes_away)
        patch.setattr(LocalFiles, "delete", goes_away)
        site.driver.completed([first], manifest)
    answer = site.requests.answer_of(first.request)
    assert answer is not None
    assert answer.error is not None
    assert (tmp_path / "mine/exporting.json").exists()
    second = first.model_copy(update={"request": RequestId(f"{wanted.value}-again"), "wanted": wanted})
    site.driver.check(second)
    assert site.driver.save(second, manifest) == (tmp_path / "mine").as_uri()
    assert verify(open_files(str(tmp_path / "mine"))).request == second.request


def test_an_unfinished_savepoint_of_an_open_request_or_another_home_is_not_deleted(site: Site, tmp_path: Path) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    first = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))
    site.driver.save(first, manifest)
    (tmp_path / "mine/savepoint.json").unlink()
    begun = tmp_path / "mine/exporting.json"
    begun.write_bytes(_identity(manifest, first.request))
    second = asks(site, Wanted.STOP, str(tmp_path / "mine"))
    with pytest.raises(RejectedError, match="was begun there for savepoint-mine") as refused:
        site.driver.check(second)
    assert "spark-jobs dispose" in refused.value.remedy
    site.driver.failed([first], StorageError("the store is away"))
    begun.write_bytes(_identity(manifest.model_copy(update={"pipeline": "another"}), first.request))
    with pytest.raises(RejectedError, match="was begun there for savepoint-mine"):
        site.driver.check(second)
    assert begun.exists()
    begun.write_bytes(_identity(manifest, first.request))
    site.driver.check(second)
    assert not begun.exists()


def test_an_export_deletes_no_savepoint_that_it_has_not_begun(site: Site, tmp_path: Path) -> None:
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    theirs = asks(site, Wanted.SAVEPOINT, str(tmp_path / "theirs"))
    site.driver.save(theirs, manifest)
    before = sorted((tmp_path / "theirs").rglob("*"))
    site.driver.completed([theirs.model_copy(update={"request": RequestId("savepoint-other")})], manifest)
    assert sorted((tmp_path / "theirs").rglob("*")) == before
    (tmp_path / "theirs/savepoint.json").rename(tmp_path / "theirs/exporting.json")  # the owner of this file is unknown
    site.driver.completed([theirs.model_copy(update={"request": RequestId("savepoint-third")})], manifest)
    assert sorted((tmp_path / "theirs/checkpoints").rglob("*")) != []


@pytest.mark.parametrize("whole", [True, False])
def test_a_savepoint_that_was_begun_with_an_earlier_checkpoint_is_completed_with_that_checkpoint(
    site: Site, tmp_path: Path, *, whole: bool
) -> None:
    first = site.staged.checkpoint({HOURLY: [(1, "a")]})
    request = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))
    url = site.driver.save(request, first)
    if not whole:
        (tmp_path / "mine/savepoint.json").unlink()
        (tmp_path / "mine/exporting.json").write_bytes(_identity(first, request.request))
    head = site.staged.checkpoint({HOURLY: [(2, "b")]}, request=FIRST.request)
    site.start().resume(head)
    answer = site.requests.answer_of(request.request)
    assert answer is not None
    assert (answer.checkpoint, answer.savepoint, answer.sinks[HOURLY].rows) == (first.checkpoint, url, 1)
    assert verify(open_files(url)).checkpoint == first.checkpoint
    assert [answer and answer.checkpoint for answer in site.answers()] == [head.checkpoint, None]


def test_a_savepoint_that_was_begun_from_another_home_answers_no_request(site: Site, tmp_path: Path) -> None:
    request = asks(site, Wanted.SAVEPOINT, str(tmp_path / "mine"))
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]})
    site.driver.save(request, manifest)
    (tmp_path / "mine/savepoint.json").unlink()
    elsewhere = manifest.model_copy(update={"pipeline": "another"})
    (tmp_path / "mine/exporting.json").write_bytes(_identity(elsewhere, request.request))
    site.start().resume(manifest)
    assert site.requests.answer_of(request.request) is None


def test_requests_before_a_stop_get_its_checkpoint_and_later_requests_are_rejected(site: Site, tmp_path: Path) -> None:
    stop = asks(site, Wanted.STOP, str(tmp_path / "stopped"))
    manifest = site.staged.checkpoint({HOURLY: [(1, "a")]}, request=stop.request)

    def asked(name: str, after: timedelta) -> CheckpointRequest:
        words: dict[str, Any] = {
            "wanted": Wanted.SAVEPOINT,
            "target": str(tmp_path / name),
            "requested_at": manifest.began_at + after,
        }
        request = CheckpointRequest(request=RequestId(f"savepoint-{name}"), **words)
        create_document(site.files, f"requests/{request.request}.json", request)
        return request

    before, after = asked("before", timedelta()), asked("after", timedelta(seconds=1))
    ahead = asked("ahead", timedelta(hours=1))  # by its host's clock
    site.driver.save(ahead, manifest)
    site.driver.ended_with([stop], manifest)
    found = [site.requests.answer_of(each.request) for each in (stop, before, ahead, after)]
    assert [each and each.checkpoint for each in found] == [1, 1, 1, None]
    assert [answer and answer.checkpoint for answer in site.answers()] == [1, 1]
    assert (tmp_path / "before/savepoint.json").exists()
    assert not (tmp_path / "after").exists()


@pytest.mark.parametrize("in_flight", [["x.parquet"], []], ids=["rows in flight", "no rows in flight"])
def test_a_savepoint_that_was_begun_before_a_fresh_start_is_completed_with_its_own_checkpoint(
    tmp_path: Path, in_flight: list[str]
) -> None:
    """The sweep after the first checkpoint of the new incarnation comes before the open requests are answered."""
    site = SavepointSite(tmp_path)
    request = CheckpointRequest(request=RequestId("savepoint-mine"), requested_at=NOW, wanted=Wanted.SAVEPOINT)
    create_document(site.home, f"requests/{request.request}.json", request)
    first = site.complete([(1, "a")], in_flight, request=request.request)
    target = tmp_path / f"home/savepoints/{request.request}"
    target.mkdir(parents=True)
    (target / "exporting.json").write_bytes(_identity(first, request.request))
    for number, incarnation in ((1, first.incarnation), (2, IncarnationId("second"))):
        Attempts(site.home).begin(attempt(number).model_copy(update={"incarnation": incarnation}), known=[AttemptNumber(1)])

    def checkpoint(number: int, asked: RequestId | None) -> Manifest:
        fields: dict[str, Any] = {"checkpoint_kind": CheckpointKind.SAVEPOINT, "attempt": AttemptNumber(number), "request": asked}
        manifest = site.pipeline.checkpoint({}, incarnation=IncarnationId("second"), **fields)
        Subsumption(site.home, MemoryFiles(), 1).after(manifest, [], {})
        return manifest

    second = checkpoint(2, request.request)
    RequestedCheckpoints(site.home, AttemptNumber(2), masking([])).completed([request], second)
    answer = CheckpointRequests(site.home).answer_of(request.request)
    assert answer is not None
    assert (answer.error, answer.checkpoint, answer.savepoint) == (None, first.checkpoint, target.as_uri())
    saved = {file.path for file in verify(open_files(target.as_uri())).files}
    assert {f"staged/copied/{name}" for name in ("_delta_log/00000000000000000000.json", *in_flight)} <= saved
    Attempts(site.home).begin(
        attempt(3).model_copy(update={"incarnation": second.incarnation}), known=[AttemptNumber(1), AttemptNumber(2)]
    )
    checkpoint(3, None)
    assert not site.channel.exists()
