"""The Delta jars that an earlier start has found. No session is started."""

import os
from pathlib import Path

import pytest

from spark_jobs.runtime.spark.delta_jars import DeltaJars


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    """Jars in files as Ivy names them."""
    found = [
        tmp_path / "jars of ivy" / name for name in ("io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage.jar")
    ]
    found[0].parent.mkdir()
    for jar in found:
        jar.touch()
    return found


def setting(*jars: Path) -> str:
    return ",".join(jar.as_uri() for jar in jars)


def test_the_next_start_uses_the_jars_that_an_earlier_start_has_found(tmp_path: Path, jars: list[Path]) -> None:
    DeltaJars({}, [], tmp_path / "cache").remember(setting(*jars))
    assert DeltaJars({}, [], tmp_path / "cache").setting() == f"{jars[0]},{jars[1]}"


def test_jars_of_the_user_are_used_too_and_not_remembered(tmp_path: Path, jars: list[Path]) -> None:
    DeltaJars({"spark.jars": "/own.jar"}, [], tmp_path).remember(setting(Path("/own.jar"), *jars))
    assert DeltaJars({"spark.jars": "/other.jar"}, [], tmp_path).setting() == f"/other.jar,{jars[0]},{jars[1]}"


def test_ivy_is_used_if_no_jars_are_remembered(tmp_path: Path) -> None:
    assert DeltaJars({}, [], tmp_path / "cache").setting() is None


def test_ivy_is_used_again_if_a_jar_is_gone(tmp_path: Path, jars: list[Path]) -> None:
    DeltaJars({}, [], tmp_path).remember(setting(*jars))
    jars[1].unlink()
    assert DeltaJars({}, [], tmp_path).setting() is None


@pytest.mark.parametrize(
    ("settings", "packages"), [({}, ["org.example:thing:1.0"]), ({"spark.jars.repositories": "https://example.org"}, [])]
)
def test_ivy_is_used_if_packages_or_repositories_could_change_its_result(
    tmp_path: Path, jars: list[Path], settings: dict[str, str], packages: list[str]
) -> None:
    DeltaJars({}, [], tmp_path).remember(setting(*jars))
    other = DeltaJars(settings, packages, tmp_path)
    assert other.setting() is None
    other.remember(setting(jars[0]))
    assert DeltaJars({}, [], tmp_path).setting() == f"{jars[0]},{jars[1]}"


def test_a_start_without_jars_of_delta_leaves_no_list(tmp_path: Path) -> None:
    DeltaJars({}, [], tmp_path / "cache").remember("")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_or_read_is_no_error(tmp_path: Path, jars: list[Path]) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    DeltaJars({}, [], blocked).remember(setting(*jars))
    assert DeltaJars({}, [], blocked).setting() is None


def test_the_list_is_in_the_users_cache(tmp_path: Path, jars: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    DeltaJars({}, []).remember(setting(*jars))
    assert [path.parent.name for path in (tmp_path / "cache").rglob("*.jars")] == ["spark-jobs"]


@pytest.mark.parametrize(
    ("place", "mode"), [("list", 0o020), ("list", 0o002), ("directory", 0o020), ("directory", 0o002), ("jar", 0o002)]
)
def test_a_list_that_others_may_write_is_ignored(tmp_path: Path, jars: list[Path], place: str, mode: int) -> None:
    cache = tmp_path / "cache"
    DeltaJars({}, [], cache).remember(setting(*jars))
    (remembered,) = cache.iterdir()
    assert remembered.stat().st_mode & 0o777 == 0o600
    writable = {"list": remembered, "directory": cache, "jar": jars[0]}[place]
    writable.chmod(writable.stat().st_mode | mode)
    assert DeltaJars({}, [], cache).setting() is None


def test_a_list_of_another_user_is_ignored(tmp_path: Path, jars: list[Path]) -> None:
    DeltaJars({}, [], tmp_path / "cache").remember(setting(*jars))
    for owned in (tmp_path / "cache", *(tmp_path / "cache").iterdir(), *jars):
        if owned.stat().st_uid == 0:  # root owns the files if root runs the test
            os.chown(owned, 54_321, -1)
    assert DeltaJars({}, [], tmp_path / "cache", user=12_345).setting() is None


@pytest.mark.parametrize("other", ["link", "pipe", "large"])
def test_a_list_that_is_large_or_not_a_file_is_not_read(tmp_path: Path, jars: list[Path], other: str) -> None:
    cache = tmp_path / "cache"
    DeltaJars({}, [], cache).remember(setting(*jars))
    (remembered,) = cache.iterdir()
    remembered.rename(tmp_path / "elsewhere")
    if other == "link":
        remembered.symlink_to(tmp_path / "elsewhere")
    elif other == "pipe":
        os.mkfifo(remembered, 0o600)
    else:
        remembered.write_text(f"{jars[0]}\n" * 100_000)
    assert DeltaJars({}, [], cache).setting() is None
