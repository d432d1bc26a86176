import re
from pathlib import Path

from deltalake import DeltaTable

from tests.support.command_line import FLIGHTS, UsedHome, document, spark_jobs
from tests.support.staged_pipeline import SCHEMA


def outlook(home: UsedHome, *options: str) -> dict[str, object]:
    shown = spark_jobs("validate", home.entry, *home.params, "--home", home.url, "--output", "json", *options)
    assert shown.exit_code == 0, shown.stderr
    found: dict[str, object] = document(shown)["outlook"]
    return found


def test_the_graph_is_shown_as_a_tree(unused: UsedHome) -> None:
    shown = spark_jobs("validate", unused.entry, *unused.params)
    assert shown.exit_code == 0
    lines = [re.sub(r"[│├└─]", " ", line).rstrip() for line in shown.stdout.splitlines()]
    depth = {name: len(line) - len(line.lstrip()) for line in lines for name in [(line.split() or [""])[0]]}
    assert depth["flights,"] < depth["events"] < depth["hourly"] < depth["daily"]
    assert "hourly (above)" in shown.stdout
    assert "by day, publish=final, new" in shown.stdout
    assert "Pipeline flights is valid as it is declared" in shown.stdout


def test_nothing_is_written(unused: UsedHome) -> None:
    before = sorted(unused.directory.rglob("*"))
    assert outlook(unused)["decision"] == "begin_incarnation"
    after = [path for path in sorted(unused.directory.rglob("*")) if "__pycache__" not in path.parts]
    assert after == before


def test_without_a_home_nothing_is_foretold(unused: UsedHome) -> None:
    answer = document(spark_jobs("validate", unused.entry, *unused.params, "--output", "json"))
    assert (answer["home"], answer["outlook"]) == (None, None)
    assert answer["tables"]["hourly"] == f"{unused.directory}/warehouse/hourly"
    assert answer["parameters"] == {"warehouse": f"{unused.directory}/warehouse", "days": 1}


def test_an_interrupted_round_would_be_continued(interrupted: UsedHome) -> None:
    assert outlook(interrupted) | {"explanation": ""} == {
        "decision": "continue",
        "explanation": "",
        "round": 1,
        "checkpoint": None,
    }


def test_a_drained_pipeline_would_do_nothing(drained: UsedHome) -> None:
    found = outlook(drained)
    assert (found["decision"], found["checkpoint"]) == ("answer", 1)
    assert "drained" in str(found["explanation"])


def test_a_run_that_has_its_answer_would_be_given_it_again(interrupted: UsedHome) -> None:
    interrupted.complete(drained=False)
    assert outlook(interrupted, "--run-id", "monday")["decision"] == "answer"


def test_after_a_suspended_round_the_next_one_would_begin(interrupted: UsedHome) -> None:
    interrupted.complete(drained=False)
    found = outlook(interrupted)
    assert (found["decision"], found["round"], found["checkpoint"]) == ("begin", 2, 1)


def test_a_fresh_start_would_begin_anew(drained: UsedHome) -> None:
    assert outlook(drained, "--fresh")["decision"] == "begin_incarnation"
    spark_jobs("publish", "--home", drained.url)
    arguments = ["validate", drained.entry, *drained.params, "--home", drained.url, "--fresh"]
    refused = spark_jobs(*arguments)
    assert refused.exit_code == 2
    assert "--on-rewind keep" in refused.stderr
    assert "replace" in str(outlook(drained, "--fresh", "--on-rewind", "replace")["explanation"])


def test_other_parameters_than_the_interrupted_rounds_are_refused_once_a_batch_was_planned(interrupted: UsedHome) -> None:
    asked = ["validate", interrupted.entry, *interrupted.params, "--param", "days=2", "--home", interrupted.url]
    assert spark_jobs(*asked).exit_code == 0
    interrupted.files.create("work/work/stages/hourly/checkpoint/offsets/0", b"v1")
    refused = spark_jobs(
        "validate", interrupted.entry, *interrupted.params, "--param", "days=2", "--home", interrupted.url, "--output", "json"
    )
    assert refused.exit_code == 2
    assert "days" in document(refused)["error"]["failed"]


def test_another_pipelines_home_is_refused(interrupted: UsedHome) -> None:
    other = Path(interrupted.entry).with_name("trains.py")
    other.write_text(FLIGHTS.replace('"flights"', '"trains"'))
    refused = spark_jobs("validate", other, *interrupted.params, "--home", interrupted.url)
    assert refused.exit_code == 2
    assert "the home of pipeline 'flights'" in refused.stderr


def test_missing_and_unknown_parameters_are_refused(unused: UsedHome) -> None:
    refused = spark_jobs("validate", unused.entry, "--param", "dayz=1")
    assert refused.exit_code == 2
    assert "warehouse" in refused.stderr
    assert "dayz" in refused.stderr


def test_a_table_that_cannot_be_published_into_is_refused(unused: UsedHome) -> None:
    DeltaTable.create(
        (unused.directory / "warehouse" / "daily").as_uri(),
        SCHEMA,
        configuration={"delta.setTransactionRetentionDuration": "interval 1 days"},
    )
    refused = spark_jobs("validate", unused.entry, *unused.params)
    assert refused.exit_code == 2
    assert "daily" in refused.stderr
