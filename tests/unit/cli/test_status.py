import pytest

from spark_jobs.protocol.documents import RunState
from tests.support.command_line import UsedHome, document, spark_jobs


def test_a_home_that_is_none_is_refused(unused: UsedHome) -> None:
    for name in ("status", "checkpoints", "inspect", "publish"):
        refused = spark_jobs(name, "--home", unused.url)
        assert refused.exit_code == 2
        assert "is not the home of a pipeline" in refused.stderr
    assert unused.files.names("") == []


def test_a_home_on_an_unknown_store_is_refused() -> None:
    refused = spark_jobs("status", "--home", "s3://bucket/home", "--output", "json")
    assert refused.exit_code == 2
    assert document(refused)["error"]["error"] == "InvalidParameterError"


def test_a_run_that_was_interrupted_says_how_to_go_on(interrupted: UsedHome) -> None:
    interrupted.beat(RunState.RUNNING)
    shown = spark_jobs("status", "--home", interrupted.url)
    assert shown.exit_code == 0
    assert "run it again to go on" in shown.stdout
    assert "12,345 rows" in shown.stdout
    assert "50%" in shown.stdout
    assert "7 late" in shown.stdout
    assert "none yet" in shown.stdout


def test_a_finished_pipeline_says_so(drained: UsedHome) -> None:
    drained.beat()
    shown = spark_jobs("status", "--home", drained.url)
    assert "1, the pipeline is drained" in shown.stdout
    assert "again" not in shown.stdout


def test_stages_are_shown_in_the_order_of_the_graph(interrupted: UsedHome) -> None:
    interrupted.beat()
    assert list(document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["status"]["stages"]) == [
        "hourly",
        "daily",
    ]


def test_a_program_reads_the_newest_attempt_round_and_checkpoint(drained: UsedHome) -> None:
    answer = document(spark_jobs("status", "--home", drained.url, "--output", "json"))
    assert (answer["pipeline"], answer["at_work"], answer["round"], answer["checkpoint"]) == ("flights", False, 1, 1)
    assert answer["attempt"]["run"] == "monday"
    assert answer["status"] is None


def test_watching_ends_with_the_driver(interrupted: UsedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, False, False])
    monkeypatch.setattr("spark_jobs.cli.status.driver_at_work", lambda files: next(looks))
    monkeypatch.setattr("spark_jobs.cli.status._WATCH_INTERVAL_S", 0.0)
    interrupted.beat(RunState.RUNNING)
    shown = spark_jobs("status", "--home", interrupted.url, "--watch")
    assert shown.exit_code == 0
    assert next(looks, None) is None
