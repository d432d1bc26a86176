"""The JVM options of a Spark start. No JVM is started."""

import os
import sys
from pathlib import Path

import pytest

from spark_jobs.runtime.spark.class_archive import archive_path, making, using
from spark_jobs.runtime.spark.session import has_class_archive
from tests.support.command_line import session_of_java

OPTIONS = "SPARK_SUBMIT_OPTS"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "packages with a space" / "spark.jsa"


def kept(archive: Path) -> Path:
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"classes")
    return archive


def test_the_path_of_the_archive_depends_on_environment_and_java_version(tmp_path: Path) -> None:
    paths = [archive_path(java, tmp_path) for java in ("17.0.2", "21.0.1")]
    assert len(set(paths)) == 2
    assert all(path.is_relative_to(tmp_path) for path in paths)


def test_a_session_finds_the_archive_for_its_own_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    kept(archive_path("17.0.2"))
    assert {java: has_class_archive(session_of_java(java)) for java in ("17.0.2", "21.0.1")} == {"17.0.2": True, "21.0.1": False}


def test_a_jvm_gets_an_existing_archive(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)
    with using(kept(archive)):
        assert f'"-XX:SharedArchiveFile={archive}"' in os.environ[OPTIONS]
    assert OPTIONS not in os.environ


def test_the_options_of_a_jvm_stay_as_they_are_without_an_archive(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, "-Duser=own")
    with using(archive):
        assert os.environ[OPTIONS] == "-Duser=own"


def test_options_of_the_user_come_last_and_stay(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, "-Xshare:off")
    with using(kept(archive)):
        assert os.environ[OPTIONS].endswith(" -Xshare:off")
    assert os.environ[OPTIONS] == "-Xshare:off"


def test_no_archive_is_used_while_a_new_one_is_made(archive: Path) -> None:
    with making(kept(archive)), using(archive):
        assert "-XX:SharedArchiveFile" not in os.environ[OPTIONS]
        written_by_the_jvm().write_bytes(b"new")
    assert archive.read_bytes() == b"new"


def written_by_the_jvm() -> Path:
    return Path(os.environ[OPTIONS].partition("-XX:ArchiveClassesAtExit=")[2].partition('"')[0])


def test_an_interrupted_archive_is_not_kept(archive: Path) -> None:
    def interrupted() -> None:
        with making(archive):
            written_by_the_jvm().write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(archive.parent.iterdir()) == []


def test_a_jvm_that_writes_no_archive_is_an_error_and_the_old_archive_stays(archive: Path) -> None:
    kept(archive)
    with pytest.raises(FileNotFoundError), making(archive):
        pass
    assert archive.read_bytes() == b"classes"
