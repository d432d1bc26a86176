"""Homes and savepoints are found by their markers. The search does not enter a home, a savepoint or a table."""

from pathlib import Path

import pytest

from spark_jobs.home import search
from spark_jobs.home.search import find_things
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from tests.support.object_store import object_store


def mark(root: Files, *paths: str) -> None:
    for path in paths:
        root.create(path, b"{}")


def below(root: Files, places: tuple[Files, ...]) -> list[str]:
    return sorted(place.url.removeprefix(f"{root.url}/") for place in places)


THINGS = (
    "shop/pipeline.json",
    "team/stage/orders/pipeline.json",
    "team/stage/orders/savepoints/first/savepoint.json",
    "shop/work/inner/pipeline.json",
    "tables/hourly/_delta_log/00000000000000000000.json",
    "tables/hourly/hidden/pipeline.json",
    "saved/monday/savepoint.json",
    "saved/monday/inner/pipeline.json",
    "saved/begun/exporting.json",
    "a/b/c/too-deep/pipeline.json",
    ".trash/old/pipeline.json",
)


def check(root: Files) -> None:
    mark(root, *THINGS)
    found = find_things(root)
    assert below(root, found.homes) == ["shop", "team/stage/orders"]
    assert below(root, found.savepoints) == ["saved/begun", "saved/monday", "team/stage/orders/savepoints/first"]
    assert found.left_out == 0


def test_homes_and_savepoints_below_a_directory_are_found(tmp_path: Path) -> None:
    check(LocalFiles(tmp_path))


def test_homes_and_savepoints_below_a_prefix_of_a_store_are_found() -> None:
    with object_store() as url:
        check(open_place(f"{url}/homes"))


def test_the_search_stops_at_a_limit_of_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PLACES_MAX", 3)
    root = LocalFiles(tmp_path)
    mark(root, *(f"{name}/pipeline.json" for name in "abcd"))
    found = find_things(root)
    assert (below(root, found.homes), found.left_out) == (["a", "b"], 2)


@pytest.mark.parametrize("name", ["\u202egnp.exe", "\x1b[31mred", "[bold]", "two\nlines", "100%", "'\"#?"])
def test_a_directory_with_an_invalid_name_hides_no_other_home(tmp_path: Path, name: str) -> None:
    root = LocalFiles(tmp_path)
    mark(root, "a/pipeline.json", "b/pipeline.json", "b/savepoints/first/savepoint.json")
    for parent in (tmp_path, tmp_path / "b/savepoints"):
        (parent / name).mkdir()
        (parent / name / "pipeline.json").write_text("{}")
    found = find_things(root)
    assert {"a", "b"} <= set(below(root, found.homes))
    assert "b/savepoints/first" in below(root, found.savepoints)


def test_a_directory_that_may_not_be_listed_hides_no_other_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = LocalFiles(tmp_path)
    mark(root, "a/pipeline.json", "b/pipeline.json")
    (tmp_path / "a").chmod(0)
    try:
        homes = below(root, find_things(root).homes)
    finally:
        (tmp_path / "a").chmod(0o700)
    assert "b" in homes  # the user who runs the test may be allowed to read every directory
