import json
from pathlib import Path

import pytest

from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import publication_lock_path
from spark_jobs.protocol.errors import InterruptedRunError
from spark_jobs.protocol.ids import CheckpointId, RequestId
from spark_jobs.publication.requests import answering, ask_publication
from spark_jobs.storage.files import local_path
from spark_jobs.waits.requests import RequestWait, answer_to
from tests.support.command_line import UsedHome, document, spark_jobs
from tests.support.staged_pipeline import DAILY, HOURLY, path_of


def test_staged_rows_become_public(drained: UsedHome) -> None:
    shown = spark_jobs("publish", "--home", drained.url)
    assert shown.exit_code == 0
    assert "published into 2 of 2 sinks" in shown.stdout
    assert "version 1" in shown.stdout
    assert len(drained.staged.rows(HOURLY)) == len(drained.staged.rows(DAILY)) == 3


def test_a_repeated_publication_changes_nothing_and_says_so(drained: UsedHome) -> None:
    first = document(spark_jobs("publish", "--home", drained.url, "--output", "json"))
    again = document(spark_jobs("publish", "--home", drained.url, "--output", "json"))
    assert first["newly_published"] == ["hourly", "daily"]
    assert again["newly_published"] == []
    assert first["sinks"] == again["sinks"]
    assert drained.staged.commits(HOURLY) == [1]
    assert "was public already" in spark_jobs("publish", "--home", drained.url).stdout


def test_one_sink_can_be_published_alone(drained: UsedHome) -> None:
    answer = document(spark_jobs("publish", "--home", drained.url, "--sink", "daily", "--output", "json"))
    assert list(answer["sinks"]) == answer["newly_published"] == ["daily"]
    assert (drained.staged.rows(HOURLY), len(drained.staged.rows(DAILY))) == ([], 3)


def test_an_older_checkpoint_can_be_published_before_the_newest_one(drained: UsedHome) -> None:
    drained.begin(2, run="tuesday")
    drained.complete(run="tuesday")
    assert spark_jobs("publish", "--home", drained.url, "--checkpoint", 1).exit_code == 0
    assert len(drained.staged.rows(HOURLY)) == 3
    assert document(spark_jobs("publish", "--home", drained.url, "--output", "json"))["checkpoint"] == 2
    assert drained.staged.commits(HOURLY) == [1, 2]


def test_an_unknown_sink_or_checkpoint_is_refused(drained: UsedHome) -> None:
    unknown = spark_jobs("publish", "--home", drained.url, "--sink", "weekly", "--output", "json")
    assert unknown.exit_code == 2
    assert document(unknown)["error"]["evidence"]["sink"] == "weekly"
    assert spark_jobs("publish", "--home", drained.url, "--checkpoint", 3).exit_code == 2
    assert drained.staged.rows(HOURLY) == []


def test_a_home_without_a_checkpoint_has_nothing_to_publish(interrupted: UsedHome) -> None:
    refused = spark_jobs("publish", "--home", interrupted.url)
    assert refused.exit_code == 2
    assert "Run the pipeline to its end first" in refused.stderr


def test_a_missing_staged_file_is_an_error_without_a_retry(drained: UsedHome) -> None:
    for staged in path_of(drained.staged.tables[DAILY]).glob("*.parquet"):
        Path(staged).unlink()
    failed = spark_jobs("publish", "--home", drained.url, "--output", "json")
    assert failed.exit_code == 3
    assert document(failed)["error"]["retry"] == "never"
    assert drained.staged.rows(HOURLY) == []


class Killed(BaseException):
    """The process was killed."""


def test_a_request_is_answered_with_what_is_public(drained: UsedHome) -> None:
    request = ask_publication(drained.files, CheckpointId(1))
    assert spark_jobs("publish", "--home", drained.url, "--request", request).exit_code == 0
    answer = answer_to(drained.files, request)
    assert (request, answer.checkpoint, answer.attempt) == ("publish-1-1", 1, None)
    assert {name: (sink.version, sink.rows) for name, sink in answer.sinks.items()} == {"hourly": (1, 3), "daily": (1, 3)}
    assert drained.files.names("requests") == ["start-1.json"]
    assert ask_publication(drained.files, CheckpointId(1)) == "publish-1-2"


def test_everybody_who_wants_the_same_publication_shares_its_request(drained: UsedHome) -> None:
    assert {ask_publication(drained.files, CheckpointId(1)) for _ in range(3)} == {"publish-1-1"}


def test_a_refusal_is_an_answer(drained: UsedHome) -> None:
    for staged in path_of(drained.staged.tables[DAILY]).glob("*.parquet"):
        Path(staged).unlink()
    request = ask_publication(drained.files, CheckpointId(1))
    shown = spark_jobs("publish", "--home", drained.url, "--request", request, "--output", "json")
    assert shown.exit_code == 3
    answer = CheckpointRequests(drained.files).answer_of(request)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.model_dump(mode="json") == json.loads(shown.stdout)["error"]
    assert answer.checkpoint is None


@pytest.mark.parametrize("published", [False, True])
def test_a_request_stays_open_if_its_process_is_killed_and_the_next_one_publishes_nothing_twice(
    drained: UsedHome, *, published: bool
) -> None:
    request = ask_publication(drained.files, CheckpointId(1))
    if published:
        spark_jobs("publish", "--home", drained.url)
    with pytest.raises(Killed), answering(drained.files, request):
        raise Killed
    assert CheckpointRequests(drained.files).answer_of(request) is None
    assert spark_jobs("publish", "--home", drained.url, "--request", request).exit_code == 0
    assert answer_to(drained.files, request).sinks
    assert drained.staged.commits(HOURLY) == [1]


def test_of_two_processes_for_one_request_one_answers_it(drained: UsedHome) -> None:
    request = ask_publication(drained.files, CheckpointId(1))
    wait = RequestWait(drained.files, request, restart_timeout_s=0.0)
    with holding(local_path(drained.files, publication_lock_path(request)), request):
        second = spark_jobs("publish", "--home", drained.url, "--request", request, "--output", "json")
        assert wait.judge(wait.look(), 0.0) is None
    assert (second.exit_code, document(second)["error"]["error"]) == (3, "ConflictError")
    assert drained.staged.rows(HOURLY) == []
    with pytest.raises(InterruptedRunError, match="has ended without an answer"):
        wait.judge(wait.look(), 0.0)
    spark_jobs("publish", "--home", drained.url, "--request", request)
    assert wait.judge(wait.look(), 0.0) == {}


@pytest.mark.parametrize(
    "words", [("--request", "publish-1-9"), ("--request", "stop-1"), ("--request", "publish-1-1", "--sink", "daily")]
)
def test_a_request_that_nobody_has_made_is_refused(drained: UsedHome, words: tuple[str, ...]) -> None:
    ask_publication(drained.files, CheckpointId(1))
    assert spark_jobs("publish", "--home", drained.url, *words).exit_code == 2
    assert CheckpointRequests(drained.files).answer_of(RequestId("publish-1-1")) is None
    assert drained.staged.rows(HOURLY) == []
