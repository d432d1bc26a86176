"""The lists of all pipelines, and of all savepoints, below some roots."""

from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spark_jobs.background import run_all
from spark_jobs.checkpoint.savepoint import export
from spark_jobs.cli.pipelines import look_at_all
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.errors import PermanentFailureError
from spark_jobs.protocol.ids import CheckpointId, RequestId
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files, open_place
from tests.support.command_line import UsedHome, document, spark_jobs
from tests.support.object_store import object_store
from tests.support.staged_pipeline import HOURLY


def used_home(directory: Path) -> UsedHome:
    directory.mkdir(parents=True)
    home = UsedHome(directory)
    home.begin()
    return home


def listed(*roots: Path) -> list[dict[str, Any]]:
    options = [part for root in roots for part in ("--root", root)]
    return list(document(spark_jobs("pipelines", *options, "--output", "json"))["pipelines"])


def test_every_pipeline_below_the_roots_is_listed_with_its_state_and_newest_checkpoint(tmp_path: Path) -> None:
    failed, lost = used_home(tmp_path / "one/a"), used_home(tmp_path / "two")
    failed.complete()
    channel = Channel(failed.files)
    channel.respond_failure(channel.request(RequestId("start-1")), PermanentFailureError("It has failed.", remedy="Mend it."))
    first, second = listed(tmp_path / "one", tmp_path / "two")
    assert (first["home"], first["pipeline"], first["state"], first["checkpoint"]) == (failed.url, "flights", "failed", 1)
    assert first["checkpoint_age_s"] > 0
    assert first["reasons"] == ["PermanentFailureError: It has failed. Mend it."]
    assert (second["home"], second["state"], second["checkpoint"], second["checkpoint_age_s"]) == (lost.url, "failed", None, None)
    assert "was lost" in second["reasons"][0]


def test_an_unreadable_home_hides_no_other_home(tmp_path: Path) -> None:
    broken, sound = used_home(tmp_path / "a"), used_home(tmp_path / "b")
    Path(broken.directory / "home/pipeline.json").write_text("{")
    first, second = listed(tmp_path)
    assert (first["home"], first["pipeline"]) == (broken.url, None)
    assert "pipeline.json" in first["problem"]
    assert (second["home"], second["problem"]) == (sound.url, None)
    shown = spark_jobs("pipelines", "--root", tmp_path)
    assert (shown.exit_code, "cannot be read" in shown.stdout) == (0, True)


def test_savepoints_are_listed_the_newest_first_also_those_in_homes(tmp_path: Path) -> None:
    home = used_home(tmp_path / "a")
    for name in ("home/savepoints/savepoint-1", "saved/mine"):
        manifest = home.staged.checkpoint({HOURLY: [(1, "a")]})
        export(home.files, manifest.checkpoint, open_files(str(home.directory / name)), request=RequestId("savepoint-1"))
    begun = LocalFiles(tmp_path / "a/saved/begun")
    begun.create("exporting.json", b"{}")
    answer = document(spark_jobs("savepoints", "--root", tmp_path, "--output", "json"))
    found = {each["savepoint"].rpartition("/")[2]: each for each in answer["savepoints"]}
    assert sorted(found) == ["begun", "mine", "savepoint-1"]
    assert (found["mine"]["pipeline"], found["mine"]["checkpoint"], found["mine"]["problem"]) == ("flights", 2, None)
    assert "incomplete" in found["begun"]["problem"]
    shown = spark_jobs("savepoints", "--root", tmp_path).stdout
    assert "flights" in shown
    assert "incomplete" in shown


def test_a_terminal_shows_the_number_of_pipelines_that_were_read(tmp_path: Path) -> None:
    homes = [used_home(tmp_path / name).files for name in ("a", "b", "c")]
    for is_terminal in (True, False):
        screen = StringIO()
        entries = look_at_all(homes, Console(file=screen, force_terminal=is_terminal))
        assert [entry.home for entry in entries] == [home.url for home in homes]
        assert ("3/3" in screen.getvalue()) == is_terminal


@pytest.mark.slow
@pytest.mark.parametrize("pipelines", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_many_pipelines_in_a_store_are_listed_with_hostile_names_and_errors_as_text(tmp_path: Path, pipelines: int) -> None:
    home = used_home(tmp_path / "a")
    home.complete()
    export(home.files, CheckpointId(1), open_files(f"{home.url}/savepoints/mine"), request=RequestId("savepoint-1"))
    hostile = "[bold]x[/bold] \x1b[31m \u202egnp.exe"
    channel = Channel(home.files)
    channel.respond_failure(channel.request(RequestId("start-1")), PermanentFailureError(hostile, remedy="Mend it."))
    (tmp_path / "\u202egnp.exe").mkdir()
    with object_store() as url:
        places = [open_place(f"{url}/homes/team/{number}") for number in range(pipelines)]
        written = [(path, home.files.read(path)) for path in home.files.paths() if path.endswith(".json")]
        run_all([partial(place.create, path, content) for place in places for path, content in written])
        roots = ("--root", tmp_path, "--root", f"{url}/homes")
        shown = spark_jobs("pipelines", *roots).stdout
        saved = spark_jobs("savepoints", *roots).stdout
    assert shown.count("[bold]x[/bold] ␛[31m �gnp.exe Mend it.") == pipelines + 1
    for place in places:
        assert place.url in shown
        assert f"{place.url}/savepoints/mine" in saved
    assert saved.count("/savepoints/mine") == pipelines + 1
    assert saved.count("█" * 10) == pipelines + 1
    assert " days ago" in shown
    for text in (shown, saved):
        assert not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize("command", ["pipelines", "savepoints"])
def test_a_root_without_pipelines_is_not_an_error(tmp_path: Path, command: str) -> None:
    shown = spark_jobs(command, "--root", tmp_path)
    assert shown.exit_code == 0
    assert f"There is no {command.removesuffix('s')} below {tmp_path}" in shown.stdout.replace("\n", "")
