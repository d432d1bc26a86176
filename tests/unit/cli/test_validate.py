import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from typer.testing import Result

from spark_jobs.api.load import load_pipeline
from spark_jobs.protocol.documents import CheckpointKind, Publish
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.start.drain_marks import take_over
from spark_jobs.runtime.start.work_directory import boot_id
from spark_jobs.storage.local import LocalFiles
from tests.support.command_line import FLIGHTS, UsedHome, document, spark_jobs
from tests.support.savepoint_site import SavepointSite
from tests.support.savepoint_start import saved
from tests.support.staged_pipeline import SCHEMA, Row, path_of


def validate(*arguments: object) -> Result:
    """Runs ``spark-jobs validate`` without Spark. The functions of these pipelines do nothing."""
    return spark_jobs("validate", *arguments, "--no-spark")


def outlook(home: UsedHome, *options: str) -> dict[str, object]:
    shown = validate(home.entry, *home.params, "--home", home.url, "--output", "json", *options)
    assert shown.exit_code == 0, shown.stderr
    found: dict[str, object] = document(shown)["outlook"]
    return found


def fates(found: dict[str, object]) -> dict[str, str]:
    return {each["stage"]: each["fate"] for each in cast(list[dict[str, str]], found["stages"])}


def savepoint_of(home: UsedHome, stages: dict[str, Any], rows: Sequence[Row] = ()) -> Path:
    """Creates a savepoint of the pipeline with other stages."""
    (home.directory / "site").mkdir()
    site = SavepointSite(home.directory / "site")
    saved(site, site.complete(rows, graph=home.graph | {"stages": stages}))
    return site.root / "savepoint"


def test_the_graph_is_shown_as_a_tree(unused: UsedHome) -> None:
    shown = validate(unused.entry, *unused.params)
    assert shown.exit_code == 0
    lines = [re.sub(r"[│├└─]", " ", line).rstrip() for line in shown.stdout.splitlines()]
    depth = {name: len(line) - len(line.lstrip()) for line in lines for name in [(line.split() or [""])[0]]}
    assert depth["flights,"] < depth["events"] < depth["hourly"] < depth["daily"]
    assert "hourly (above)" in shown.stdout
    assert "by day, publish=final, new" in shown.stdout
    assert "Pipeline flights is valid as declared" in shown.stdout


def test_validate_writes_nothing(unused: UsedHome) -> None:
    def files() -> list[Path]:  # all files except the bytecode that Python caches
        return sorted(path for path in unused.directory.rglob("*") if "__pycache__" not in path.parts)

    before = files()
    assert outlook(unused)["decision"] == "begin_incarnation"
    assert files() == before


@pytest.mark.parametrize(("home", "how"), [("warehouse/hourly", "is also"), ("warehouse/daily/home", "is inside")])
def test_a_home_at_the_place_of_a_table_is_refused(unused: UsedHome, home: str, how: str) -> None:
    refused = validate(unused.entry, *unused.params, "--home", unused.directory / home, "--output", "json")
    assert refused.exit_code == 2
    failed = document(refused)["error"]["failed"]
    assert f"/{home} {how} the table of sink '{home.split('/')[1]}', {unused.directory.as_uri()}/warehouse/" in failed


def test_a_table_in_another_home_is_refused_without_a_home_too(unused: UsedHome) -> None:
    LocalFiles(unused.directory / "warehouse").create("pipeline.json", b"")
    refused = validate(unused.entry, *unused.params)
    assert refused.exit_code == 2
    assert "is inside the home" in " ".join(refused.stderr.split())


def test_no_outlook_is_shown_without_a_home(unused: UsedHome) -> None:
    answer = document(validate(unused.entry, *unused.params, "--output", "json"))
    assert (answer["home"], answer["outlook"]) == (None, None)
    assert answer["tables"]["hourly"] == f"{unused.directory}/warehouse/hourly"
    assert answer["parameters"] == {"warehouse": f"{unused.directory}/warehouse", "days": 1}


def test_the_outlook_of_an_interrupted_round_is_to_continue_it(interrupted: UsedHome) -> None:
    found = outlook(interrupted)
    assert (found["decision"], found["round"], found["checkpoint"]) == ("continue", 1, None)
    assert fates(found) == {"hourly": "continues", "daily": "continues"}


def leave_work_directory(home: UsedHome) -> None:
    """Creates the work directory of an earlier attempt, in which its stages can continue."""
    for stage in ("hourly", "daily"):
        home.files.create(f"work/work/stages/{stage}/checkpoint/commits/3", b"")
    take_over(home.files.below("work/work"))


def unbounded(home: UsedHome) -> UsedHome:
    """The home, with an unbounded input."""
    Path(home.entry).write_text(FLIGHTS.replace("bounded=True", 'bounded=False, watermark_delay="1 hour"'))
    home.graph = load_pipeline(home.entry).graph().describe()
    return home


@pytest.mark.parametrize(
    ("boot", "present", "options", "why"),
    [
        (boot_id(), True, [], None),
        (boot_id(), False, [], "it is gone"),
        ("another", True, [], "its host was rebooted, or it belongs to another host"),
        (boot_id(), True, ["--state-partitions", "8"], "its state gets 8 partitions"),
    ],
    ids=["in place", "work directory gone", "host went down", "other partitions"],
)
@pytest.mark.parametrize("taken", [True, False], ids=["with a checkpoint", "without a checkpoint"])
def test_the_outlook_says_whether_a_start_would_continue_in_place_or_from_which_checkpoint(
    unused: UsedHome, boot: str | None, present: bool, options: list[str], why: str | None, taken: bool
) -> None:
    home = unbounded(unused)
    home.begin(boot=boot)
    leave_work_directory(home)
    if taken:
        home.complete(drained=False, checkpoint_kind=CheckpointKind.PERIODIC, publish=Publish.EVERY_CHECKPOINT)
    if not present:
        home.files.delete("work/work")
    found = outlook(home, *options)
    head = 1 if taken else None
    assert (found["decision"], found["checkpoint"], found["in_place"], found["why_not_in_place"]) == (
        "continue", head, why is None, why,
    )  # fmt: skip
    told = validate(home.entry, *home.params, "--home", home.url, *options).stdout
    if why is None:
        assert "It would go on in place: nothing that is staged would be computed again." in told
    else:
        rebuilt = "A new one would be built from checkpoint 1," if taken else "a new one would begin empty,"
        assert f"would not be continued: {why}." in told
        assert rebuilt in told


def test_the_outlook_says_whether_the_next_round_would_continue_in_place(interrupted: UsedHome) -> None:
    interrupted.complete(drained=False)
    leave_work_directory(interrupted)
    found = outlook(interrupted)
    assert (found["in_place"], found["checkpoint"]) == (True, 1)
    rescaled = outlook(interrupted, "--state-partitions", "8")
    assert (rescaled["in_place"], rescaled["why_not_in_place"]) == (False, "its state gets 8 partitions")
    interrupted.files.delete("work/work")
    found = outlook(interrupted)
    assert (found["in_place"], found["checkpoint"], found["why_not_in_place"]) == (False, 1, "it is gone")


def test_the_outlook_of_a_first_start_says_nothing_about_a_work_directory(unused: UsedHome) -> None:
    assert outlook(unused)["in_place"] is None


def test_the_outlook_of_a_drained_pipeline_is_its_answer(drained: UsedHome) -> None:
    found = outlook(drained)
    assert (found["decision"], found["checkpoint"], found["in_place"]) == ("answer", 1, None)
    assert "drained" in str(found["explanation"])


def test_the_outlook_of_an_answered_run_is_the_same_answer(interrupted: UsedHome) -> None:
    interrupted.complete(drained=False)
    assert outlook(interrupted, "--run-id", "monday")["decision"] == "answer"


def test_the_outlook_after_a_suspended_round_is_the_next_round(interrupted: UsedHome) -> None:
    interrupted.complete(drained=False)
    leave_work_directory(interrupted)
    found = outlook(interrupted)
    assert (found["decision"], found["round"], found["checkpoint"]) == ("begin", 2, 1)


def test_the_outlook_of_a_fresh_start_is_a_new_incarnation(drained: UsedHome) -> None:
    assert outlook(drained, "--fresh")["decision"] == "begin_incarnation"
    spark_jobs("publish", "--home", drained.url)
    arguments = ["validate", "--no-spark", drained.entry, *drained.params, "--home", drained.url, "--fresh"]
    refused = spark_jobs(*arguments)
    assert refused.exit_code == 2
    assert "--on-rewind keep" in refused.stderr
    assert "replace" in str(outlook(drained, "--fresh", "--on-rewind", "replace")["explanation"])


def test_other_parameters_than_the_interrupted_rounds_are_refused_once_a_batch_was_planned(interrupted: UsedHome) -> None:
    asked = ["validate", "--no-spark", interrupted.entry, *interrupted.params, "--param", "days=2", "--home", interrupted.url]
    assert spark_jobs(*asked).exit_code == 0
    interrupted.files.create("work/work/stages/hourly/checkpoint/offsets/0", b"v1")
    refused = validate(interrupted.entry, *interrupted.params, "--param", "days=2", "--home", interrupted.url, "--output", "json")
    assert refused.exit_code == 2
    assert "days" in document(refused)["error"]["failed"]


def test_another_pipelines_home_is_refused(interrupted: UsedHome) -> None:
    other = Path(interrupted.entry).with_name("trains.py")
    other.write_text(FLIGHTS.replace('"flights"', '"trains"'))
    refused = validate(other, *interrupted.params, "--home", interrupted.url)
    assert refused.exit_code == 2
    assert "the home of pipeline 'flights'" in refused.stderr


def test_missing_and_unknown_parameters_are_refused(unused: UsedHome) -> None:
    refused = validate(unused.entry, "--param", "dayz=1")
    assert refused.exit_code == 2
    assert "warehouse" in refused.stderr
    assert "dayz" in refused.stderr


def test_a_table_that_rejects_publications_is_refused(unused: UsedHome) -> None:
    DeltaTable.create(
        (unused.directory / "warehouse" / "daily").as_uri(),
        SCHEMA,
        configuration={"delta.setTransactionRetentionDuration": "interval 1 days"},
    )
    refused = validate(unused.entry, *unused.params)
    assert refused.exit_code == 2
    assert "daily" in refused.stderr


def test_the_outlook_of_changed_code_names_the_fate_of_each_stage(unused: UsedHome) -> None:
    stages = unused.graph["stages"]
    savepoint = savepoint_of(unused, {"hourly": stages["hourly"], "weekly": stages["daily"]})
    refused = validate(unused.entry, *unused.params, "--home", unused.url, "--restore", savepoint)
    assert refused.exit_code == 2
    assert "the pipeline no longer has: weekly" in refused.stderr
    found = outlook(unused, "--restore", str(savepoint), "--allow-dropped")
    assert found["decision"] == "begin_incarnation"
    assert fates(found) == {"hourly": "continues", "daily": "starts empty", "weekly": "is dropped"}
    shown = validate(unused.entry, *unused.params, "--home", unused.url, "--restore", savepoint, "--allow-dropped").stdout
    assert "begin round 1 with the savepoint" in shown
    assert "starts empty" in shown


def test_the_outlook_counts_staged_rows_of_a_savepoint_that_a_start_would_leave_behind(unused: UsedHome) -> None:
    savepoint = savepoint_of(unused, unused.graph["stages"], rows=[(1, "a"), (2, "b")])
    told = str(outlook(unused, "--restore", str(savepoint))["explanation"])
    assert told.endswith(
        "2 rows of sink hourly were staged but not known to be public when it was taken: they would stay behind."
    )


def test_a_savepoint_whose_table_has_later_rows_is_refused_as_by_a_start(unused: UsedHome) -> None:
    (unused.directory / "site").mkdir()
    site = SavepointSite(unused.directory / "site")
    savepoint = saved(site, site.complete([(1, "a")], graph=unused.graph)).files.url
    warehouse = ["--param", f"warehouse={path_of(site.table).parent}"]
    options = [unused.entry, *warehouse, "--home", unused.url, "--restore", savepoint]
    publish(site.home, by_policy=True)
    assert validate(*options).exit_code == 0
    site.complete([(2, "b")], graph=unused.graph)
    publish(site.home, by_policy=True)
    refused = validate(*options)
    assert refused.exit_code == 2
    assert "and they would be computed again" in " ".join(refused.stderr.split())
    assert validate(*options, "--on-rewind", "keep").exit_code == 0
    assert unused.files.names("") == []


def test_a_savepoint_whose_stage_cannot_continue_is_refused_with_the_reason(unused: UsedHome) -> None:
    stages = unused.graph["stages"]
    savepoint = savepoint_of(unused, stages | {"daily": stages["daily"] | {"event_time": "then"}})
    refused = validate(unused.entry, *unused.params, "--home", unused.url, "--restore", savepoint)
    assert refused.exit_code == 2
    assert "daily cannot go on: event_time was 'then'" in " ".join(refused.stderr.split())


def test_a_savepoint_without_a_home_is_refused(unused: UsedHome) -> None:
    refused = validate(unused.entry, *unused.params, "--restore", unused.directory)
    assert refused.exit_code == 2
    assert "Add --home" in refused.stderr


def test_the_refusal_of_changed_stages_names_their_fates_after_a_savepoint(interrupted: UsedHome) -> None:
    changed = FLIGHTS.replace("def daily(", "def weekly(")
    assert changed != FLIGHTS
    Path(interrupted.entry).write_text(changed)
    interrupted.files.create("work/work/stages/hourly/checkpoint/offsets/0", b"")  # a batch was planned
    refused = validate(interrupted.entry, *interrupted.params, "--home", interrupted.url)
    assert refused.exit_code == 2
    assert "weekly starts empty; daily is dropped" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("file", ["warehouse/hourly", "elsewhere"], ids=["at the place of the table", "above the table"])
@pytest.mark.parametrize("command", [["validate", "--no-spark"], ["run", "--home", "{home}"]], ids=["validate", "run"])
def test_a_file_at_the_place_of_a_table_is_refused_before_anything_is_written(
    unused: UsedHome, command: list[str], file: str
) -> None:
    (unused.directory / file).write_text("departures")
    warehouse = unused.directory / file.split("/")[0]
    name, *options = [each.format(home=unused.url) for each in command]
    refused = spark_jobs(name, unused.entry, "--param", f"warehouse={warehouse}", *options)
    assert refused.exit_code == 2
    assert f"{warehouse}/hourly cannot be a table's directory: {unused.directory / file} is a file." in refused.stderr
    assert unused.files.names("") == []


def test_one_error_names_all_mistakes_of_the_declarations(tmp_path: Path) -> None:
    entry = tmp_path / "flights.py"
    text = FLIGHTS.replace('bounded=True, event_time="at"', "bounded=True, watermark_delay='1 hour'").replace(
        '"{warehouse}/daily")', '"{warehouse}/daily"), output_mode="sometimes"'
    )
    entry.write_text(text)
    shown = validate(entry, "--param", "warehouse=w", "--output", "json")
    assert shown.exit_code == 2
    mistakes = document(shown)["error"]["evidence"]["mistakes"]
    assert [mistake["part"] for mistake in mistakes] == ["source events", "stage daily"]
    assert all(mistake["remedy"] for mistake in mistakes)


def test_one_error_names_mistakes_of_declarations_graph_parameters_and_home(tmp_path: Path) -> None:
    entry = tmp_path / "flights.py"
    text = FLIGHTS.replace("def daily(hourly)", "def daily(hourlies)").replace("def hourly(events,", "def hourly(event,")
    entry.write_text(text.replace('bounded=True, event_time="at"', "bounded=True, watermark_delay='1 hour'"))
    shown = validate(entry, "--param", "days=many", "--restore", "x", "--output", "json")
    assert shown.exit_code == 2
    failed = [mistake["failed"] for mistake in document(shown)["error"]["evidence"]["mistakes"]]
    told = ["without event_time", "'event'", "'hourlies'", "days", "--restore"]
    assert [words in failed[number] for number, words in enumerate(told)] == [True] * 5


def test_a_pipeline_with_a_mistake_has_no_outlook(interrupted: UsedHome) -> None:
    interrupted.files.create("work/work/stages/hourly/checkpoint/offsets/0", b"")  # a batch was planned
    Path(interrupted.entry).write_text(FLIGHTS.replace("def daily(hourly)", "def daily(hourlies)"))
    shown = validate(interrupted.entry, *interrupted.params, "--home", interrupted.url, "--output", "json")
    assert shown.exit_code == 2
    assert document(shown)["error"]["failed"].startswith("Pipeline 'flights', stage 'daily': it reads 'hourlies'")


def test_the_error_names_every_table_that_rejects_publications(unused: UsedHome) -> None:
    for sink in ("hourly", "daily"):
        (unused.directory / "warehouse" / sink).write_text("a file")
    shown = validate(unused.entry, *unused.params, "--output", "json")
    assert shown.exit_code == 2
    assert len(document(shown)["error"]["evidence"]["mistakes"]) == 2
