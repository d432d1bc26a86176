from pathlib import Path

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
