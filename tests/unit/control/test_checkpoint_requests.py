"""Requests for a checkpoint of a running pipeline."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import ANSWERS_KEPT, CheckpointRequests, request_id
from spark_jobs.control.liveness import holding
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import ANSWERED, ANSWERS, DRIVER_LOCK, REQUESTS, answer_path, request_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.documents import ErrorReport, OnEnd, RoundDocument, StartResponse
from spark_jobs.protocol.errors import InvalidParameterError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, RequestId, RoundNumber, RunId, publication_request_id
from spark_jobs.storage.files import Files, create_document
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.memory_files import Death, DyingFiles, MemoryFiles
from tests.support.responses import NOW, response
from tests.support.staged_pipeline import a_manifest

PLAIN = ANSWERS_KEPT[Wanted.CHECKPOINT]
OF_DRIVERS = [wanted for wanted in Wanted if wanted is not Wanted.PUBLISH]


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


def begin_round(files: LocalFiles, *bounded: bool) -> None:
    """Begins a round with these sources, each bounded or not."""
    Attempts(files).create(attempt(1))
    Rounds(files).begin(
        RoundDocument(
            round=RoundNumber(1),
            run=RunId("a"),
            incarnation=IncarnationId("first"),
            on_end=OnEnd.DRAIN,
            publish=None,
            parameters={},
            graph={"sources": {f"s{number}": {"bounded": end} for number, end in enumerate(bounded)}},
            begun_at=NOW,
        )
    )


@pytest.fixture
def running(files: LocalFiles, tmp_path: Path) -> Iterator[CheckpointRequests]:
    """The home of a running pipeline with one unbounded input."""
    begin_round(files, True, False)
    with holding(tmp_path / DRIVER_LOCK, "start-1"):
        yield CheckpointRequests(files)


def ids(requests: CheckpointRequests) -> list[RequestId]:
    return [asked.request for asked in requests.open()]


def test_a_request_is_open_until_it_is_answered(running: CheckpointRequests) -> None:
    asked = request_id("nightly")
    assert running.ask(asked) is None
    assert ids(running) == [asked]
    running.answer(response(asked))
    assert ids(running) == []


def test_a_repeated_request_id_is_requested_once_and_gets_the_same_answer(running: CheckpointRequests, files: LocalFiles) -> None:
    asked = request_id("nightly")
    assert [running.ask(asked), running.ask(asked)] == [None, None]
    assert files.names("requests") == ["checkpoint-nightly.json"]
    first = running.answer(response(asked))
    assert running.answer(response(asked, checkpoint=2)) == first
    assert running.ask(asked) == first


def test_a_request_id_is_the_same_with_and_without_its_prefix() -> None:
    assert request_id("nightly") == request_id("checkpoint-nightly") == "checkpoint-nightly"
    assert request_id() != request_id()


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 101])
def test_a_request_id_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError):
        request_id(name)


def test_open_requests_are_listed_in_the_order_in_which_they_were_made(files: LocalFiles) -> None:
    for name, second in (("b", 0), ("c", 2), ("a", 1)):
        document = CheckpointRequest(request=request_id(name), requested_at=NOW + timedelta(seconds=second))
        create_document(files, f"requests/checkpoint-{name}.json", document)
    assert ids(CheckpointRequests(files)) == ["checkpoint-b", "checkpoint-a", "checkpoint-c"]


def test_a_torn_request_is_still_open(files: LocalFiles) -> None:
    files.create("requests/checkpoint-torn.json", b"{")
    files.create("requests/start-1.json", b"{")
    assert ids(CheckpointRequests(files)) == ["checkpoint-torn"]


def test_no_request_is_made_while_no_driver_is_at_work(files: LocalFiles) -> None:
    begin_round(files, False)
    with pytest.raises(RejectedError, match="No attempt is running"):
        CheckpointRequests(files).ask(request_id())
    assert files.names("requests") == []


@pytest.mark.parametrize("wanted", Wanted)
def test_a_running_bounded_run_accepts_requests(files: LocalFiles, tmp_path: Path, wanted: Wanted) -> None:
    begin_round(files, True, True)
    with holding(tmp_path / DRIVER_LOCK, "start-1"):
        assert CheckpointRequests(files).ask(request_id("a", wanted)) is None
    assert files.names("requests") == [f"{wanted.value}-a.json"]


FAILED = ErrorReport(error="InterruptedRunError", retry="with_backoff", failed="Stage 'hourly' failed in batch 3.")


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (None, "has ended without an answer; the next start goes on where it was."),
        ({"error": FAILED}, "has failed: InterruptedRunError: Stage 'hourly' failed in batch 3."),
        ({"checkpoint": CheckpointId(1)}, "has ended with checkpoint 1."),
        ({"checkpoint": CheckpointId(2)}, "has ended with checkpoint 2, and the pipeline is drained."),
        ({"checkpoint": CheckpointId(3)}, "has ended with checkpoint 3."),
    ],
    ids=["lost", "failed", "suspended", "drained", "unreadable"],
)
@pytest.mark.parametrize("wanted", OF_DRIVERS)
def test_the_error_of_a_request_after_the_end_of_a_run_says_how_it_ended(
    files: LocalFiles, ending: dict[str, Any] | None, told: str, wanted: Wanted
) -> None:
    begin_round(files, True, True)
    create_document(files, "manifests/1.json", a_manifest(1))
    create_document(files, "manifests/2.json", a_manifest(2, drained=True))
    files.create("manifests/3.json", b"{")
    if ending is not None:
        begun = attempt(1)
        words: dict[str, Any] = {"checkpoint": None, "sinks": {}} | ending
        Channel(files).respond(
            StartResponse(request=begun.request, attempt=begun.attempt, run=begun.run, answered_at=NOW, **words)
        )
    with pytest.raises(RejectedError, match="No attempt is running") as refused:
        CheckpointRequests(files).ask(request_id(wanted=wanted))
    assert refused.value.exists == f"The last run, {attempt(1).run}, {told}"
    assert files.names("requests") == []


def test_an_answer_can_be_read_also_after_the_driver_has_ended(files: LocalFiles, running: CheckpointRequests) -> None:
    asked = request_id("nightly")
    given = running.answer(response(asked))
    begun_elsewhere = CheckpointRequests(LocalFiles(files.url.removeprefix("file://")))
    assert begun_elsewhere.ask(asked) == given


def fill(files: Files, answered: int, wanted: Wanted = Wanted.CHECKPOINT) -> CheckpointRequests:
    """A home with this many answered requests, a minute apart, and one open request."""
    requests = CheckpointRequests(files)
    for number in range(answered + 1):
        asked = request_id(f"r{number}", wanted)
        create_document(files, request_path(asked), CheckpointRequest(request=asked, requested_at=NOW, wanted=wanted))
        if number < answered:
            requests.answer(response(asked, at=NOW + timedelta(minutes=number)))
    return requests


@pytest.mark.slow
@pytest.mark.parametrize("wanted", list(Wanted))
def test_the_newest_answers_and_all_open_requests_are_kept(files: LocalFiles, wanted: Wanted) -> None:
    kept = ANSWERS_KEPT[wanted]
    requests = fill(files, kept + 20, wanted)
    requests.forget_old(NOW + timedelta(days=1))
    assert len(files.names(ANSWERS)) == len(files.names(ANSWERED)) == kept
    assert requests.answer_of(request_id("r19", wanted)) is None
    assert requests.answer_of(request_id("r20", wanted)) is not None
    assert files.names(REQUESTS) == [f"{wanted.value}-r{kept + 20}.json"]
    assert ids(requests) == ([] if wanted is Wanted.PUBLISH else [f"{wanted.value}-r{kept + 20}"])


def test_old_answers_of_one_kind_push_out_none_of_another(files: LocalFiles) -> None:
    fill(files, 1, Wanted.STOP)
    requests = fill(files, PLAIN + 20)
    requests.forget_old(NOW + timedelta(days=1))
    assert requests.answer_of(request_id("r0", Wanted.STOP)) is not None


def test_an_answered_request_that_a_crash_has_left_is_deleted_with_the_next_answer(files: LocalFiles) -> None:
    requests, asked = CheckpointRequests(files), request_id("cut-short")
    create_document(files, request_path(asked), CheckpointRequest(request=asked, requested_at=NOW))
    create_document(files, answer_path(asked), response(asked))
    assert requests.open() == ()
    assert files.names(REQUESTS) == ["checkpoint-cut-short.json"], "who only looks deletes nothing"
    requests.forget_old(NOW)
    assert files.names(REQUESTS) == []
    assert len(files.names(ANSWERED)) == 1, "else the answer would never be forgotten"


@pytest.mark.parametrize("changes", [0, 1])
def test_an_answer_that_was_deleted_in_part_is_deleted_by_the_next_call(changes: int) -> None:
    files = MemoryFiles()
    requests = fill(files, PLAIN + 1)
    with pytest.raises(Death):
        CheckpointRequests(DyingFiles(files.contents, changes)).forget_old(NOW + timedelta(days=1))
    requests.forget_old(NOW + timedelta(days=1))
    assert len(files.names(ANSWERS)) == len(files.names(ANSWERED)) == PLAIN


@pytest.mark.parametrize("changes", range(4))
def test_a_request_is_open_until_it_is_answered_wherever_its_driver_dies(changes: int) -> None:
    files, asked = MemoryFiles(), request_id("nightly", Wanted.STOP)
    create_document(
        files, request_path(asked), CheckpointRequest(request=asked, requested_at=NOW, wanted=Wanted.STOP, target="/s")
    )
    with suppress(Death):
        CheckpointRequests(DyingFiles(files.contents, changes)).answer(response(asked))
    requests = CheckpointRequests(files)
    assert ids(requests) == ([asked] if requests.answer_of(asked) is None else [])
    answer = requests.answer(response(asked, checkpoint=2))
    assert (answer.checkpoint, answer.target) == (1 if changes else 2, "/s")
    assert (files.names(REQUESTS), len(files.names(ANSWERED))) == ([], 1)


def test_a_publication_can_be_requested_while_no_driver_is_at_work_and_no_driver_answers_it(files: LocalFiles) -> None:
    requests = CheckpointRequests(files)
    assert requests.ask(publication_request_id(CheckpointId(3), 1)) is None
    assert (files.names(REQUESTS), requests.open()) == (["publish-3-1.json"], ())


def test_an_answer_that_a_caller_may_still_wait_for_is_kept(files: LocalFiles) -> None:
    requests = fill(files, PLAIN + 20)
    requests.forget_old(NOW + timedelta(minutes=70))
    assert requests.answer_of(request_id("r9")) is None
    assert requests.answer_of(request_id("r10")) is not None


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [Wanted.STOP, Wanted.SAVEPOINT])
def test_a_stop_or_savepoint_that_is_repeated_years_later_gets_its_answer_and_makes_no_request(
    running: CheckpointRequests, files: LocalFiles, wanted: Wanted
) -> None:
    fill(files, ANSWERS_KEPT[wanted], wanted)
    fill(files, PLAIN + 20)
    first = request_id("r0", wanted)
    given = running.answer_of(first)
    running.forget_old(NOW + timedelta(days=1000))
    asked = files.names("requests")
    assert given is not None
    assert running.ask(first) == given
    assert files.names("requests") == asked


def test_a_request_is_read_as_it_was_written(running: CheckpointRequests) -> None:
    running.ask(request_id("nightly", Wanted.STOP), drain=True, target="/savepoints/nightly")
    running.ask(request_id("weekly", Wanted.SAVEPOINT))
    assert [(asked.wanted, asked.drain, asked.target) for asked in running.open()] == [
        (Wanted.STOP, True, "/savepoints/nightly"),
        (Wanted.SAVEPOINT, False, None),
    ]


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_id_cannot_be_used_with_other_options(running: CheckpointRequests, *, answered: bool) -> None:
    asked = request_id("nightly", Wanted.STOP)
    running.ask(asked)
    if answered:
        running.answer(response(asked))
    for words in ({"drain": True}, {"target": "/elsewhere"}):
        with pytest.raises(InvalidParameterError, match="with other options"):
            running.ask(asked, **words)
    assert running.ask(asked) == (response(asked) if answered else None) or answered


def test_a_torn_stop_request_is_a_stop_without_a_drain(files: LocalFiles) -> None:
    files.create("requests/stop-torn.json", b"{")
    assert [(asked.wanted, asked.drain) for asked in CheckpointRequests(files).open()] == [(Wanted.STOP, False)]


def test_the_error_of_a_request_to_a_stopped_pipeline_names_the_stop(files: LocalFiles) -> None:
    begin_round(files, False)
    requests = CheckpointRequests(files)
    stop = request_id("nightly", Wanted.STOP)
    requests.answer(response(stop, checkpoint=2).model_copy(update={"savepoint": "file:///savepoints/nightly"}))
    create_document(files, "manifests/1.json", a_manifest(1))
    create_document(files, "manifests/2.json", a_manifest(2, request=stop))
    files.create("checkpoints/3.hourly.0123456789abcdef.actions", b"of a try that has failed")
    with pytest.raises(
        RejectedError, match="stop-nightly has stopped it at checkpoint 2; its savepoint is file:///savepoints/nightly"
    ):
        requests.ask(request_id("again", Wanted.STOP))
