"""``spark-jobs`` inspects savepoints, starts from them and disposes of them."""

from pathlib import Path

import pytest

from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.ids import PipelineName, RunId
from spark_jobs.protocol.start_requests import StartOptions
from tests.support.command_line import document, spark_jobs
from tests.support.savepoint_site import SavepointSite
from tests.support.savepoint_start import saved


@pytest.fixture
def site(tmp_path: Path) -> SavepointSite:
    site = SavepointSite(tmp_path)
    Channel(site.home).claim(PipelineName("flights"))
    saved(site, site.complete([(1, "a")], in_flight=["x.parquet"]))
    return site


def test_a_savepoint_is_shown_after_every_file_was_compared(site: SavepointSite) -> None:
    shown = spark_jobs("inspect", site.root / "savepoint")
    assert shown.exit_code == 0
    for text in ("flights", "savepoint-a", "hourly", "copied", "Every file is there"):
        assert text in shown.stdout


def test_the_json_answer_has_the_facts_of_the_savepoint(site: SavepointSite) -> None:
    found = document(spark_jobs("inspect", site.root / "savepoint", "--output", "json"))
    assert (found["pipeline"], found["checkpoint"], found["request"], found["drained"]) == ("flights", 1, "savepoint-a", False)
    files = [path for path in (site.root / "savepoint").rglob("*") if path.is_file()]
    assert found["files"] == len(files) - 1
    assert found["stages"]["copied"]["in_flight_rows"] == 2
    assert found["stages"]["hourly"]["state_bytes"] > 0
    assert found["tables"] == {"hourly": site.table}


def test_an_altered_file_is_named(site: SavepointSite) -> None:
    path = next((site.root / "savepoint/state").rglob("metadata"))
    path.write_bytes(b"{}")
    refused = spark_jobs("inspect", site.root / "savepoint", "--output", "json")
    assert refused.exit_code == 2
    assert document(refused)["error"]["evidence"]["path"] == f"file://{path}"


@pytest.mark.parametrize("arguments", [[], ["savepoint", "--home", "home"], ["savepoint", "--checkpoint", 1]])
def test_inspect_needs_exactly_one_of_a_savepoint_and_a_home(arguments: list[object]) -> None:
    refused = spark_jobs("inspect", *arguments)
    assert refused.exit_code == 2
    assert "exactly one of a savepoint and a home" in refused.stderr


def test_dispose_deletes_a_savepoint(site: SavepointSite) -> None:
    done = spark_jobs("dispose", site.root / "savepoint", "--home", site.root / "home")
    assert (done.exit_code, (site.root / "savepoint").exists()) == (0, False)
    again = spark_jobs("dispose", site.root / "savepoint", "--home", site.root / "home")
    assert (again.exit_code, "There is nothing at" in again.stdout) == (0, True)


def test_dispose_is_refused_while_a_start_needs_the_savepoint(site: SavepointSite) -> None:
    savepoint = RestoreFrom(savepoint=(site.root / "savepoint").as_uri())
    Channel(site.home).request_start(RunId("tuesday"), parameters={}, options=StartOptions(restore=savepoint))
    refused = spark_jobs("dispose", site.root / "savepoint", "--home", site.root / "home")
    assert refused.exit_code == 2
    assert "needed by start-1" in refused.stderr
    assert (site.root / "savepoint/savepoint.json").exists()


def test_dispose_is_refused_if_the_given_home_is_not_a_home(site: SavepointSite) -> None:
    refused = spark_jobs("dispose", site.root / "savepoint", "--home", site.root / "tables")
    assert refused.exit_code == 2
    assert "not the home of a pipeline" in refused.stderr
