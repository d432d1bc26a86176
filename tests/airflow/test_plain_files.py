"""Files that are opened without following a link."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.drivers.driver_log import last_lines
from airflow_provider.drivers.plain_files import open_plain
from airflow_provider.pages.read_only import DOCUMENT_MAX_BYTES, read_only
from spark_jobs.protocol.errors import AccessDeniedError, StorageError, StreamPipelineError
from spark_jobs.storage.open import open_files


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/attempts").mkdir(parents=True)
    (tmp_path / "home/attempts/1.log").write_text("its own\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/1.log").write_text("somebody else's\n")
    return tmp_path.resolve() / "home"


def test_a_plain_file_is_read(home: Path) -> None:
    assert last_lines(home / "attempts/1.log", 5) == ["its own"]


def test_a_link_in_place_of_a_file_is_not_followed(home: Path) -> None:
    (home / "attempts/2.log").symlink_to(home.parent / "elsewhere/1.log")
    assert last_lines(home / "attempts/2.log", 5) == []
    with pytest.raises(StreamPipelineError):
        read_only(open_files(str(home))).read("attempts/2.log")


def test_a_link_in_place_of_a_directory_is_not_followed(home: Path) -> None:
    (home / "attempts").rename(home / "before")
    (home / "attempts").symlink_to(home.parent / "elsewhere")
    files = read_only(open_files(str(home)))
    assert last_lines(home / "attempts/1.log", 5) == []
    assert files.names("attempts") == []
    with pytest.raises(StreamPipelineError):
        files.read("attempts/1.log")


def test_a_link_that_takes_the_place_of_the_home_itself_is_not_followed(home: Path) -> None:
    files = read_only(open_files(str(home)))
    home.rename(home.with_name("before"))
    home.symlink_to(home.with_name("before"))
    with pytest.raises(StreamPipelineError):
        files.read("attempts/1.log")


def test_a_pipe_does_not_keep_the_reader_waiting(home: Path) -> None:
    os.mkfifo(home / "attempts/3.log")
    with pytest.raises(OSError, match="not a regular file"):
        open_plain(home / "attempts/3.log")


def test_what_is_larger_than_a_document_is_not_read(home: Path) -> None:
    with (home / "large.json").open("wb") as stream:
        stream.truncate(DOCUMENT_MAX_BYTES + 1)
    with pytest.raises(StorageError, match="larger than a document"):
        read_only(open_files(str(home))).read("large.json")


def test_a_log_with_one_endless_line_is_read_in_part(home: Path) -> None:
    (home / "attempts/4.log").write_text("x" * 1_000_000)
    (line,) = last_lines(home / "attempts/4.log", 5)
    assert len(line) == 5 * 4096


def test_nothing_is_written_through_it(home: Path) -> None:
    files = read_only(open_files(str(home)))
    before = sorted(home.rglob("*"))
    changes: list[Callable[[], None]] = [
        lambda: files.create("new.json", b"{}"),
        lambda: files.create("made/new.json", b"{}"),
        lambda: files.replace("attempts/1.log", b"{}"),
        lambda: files.delete("attempts/1.log"),
        lambda: files.delete("attempts"),
    ]
    for change in changes:
        with pytest.raises(AccessDeniedError):
            change()
    assert sorted(home.rglob("*")) == before
    assert (home / "attempts/1.log").read_text() == "its own\n"


def test_no_descriptor_is_left_open(home: Path) -> None:
    (home / "link").symlink_to("attempts")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("attempts/1.log", "link/1.log", "attempts", "nothing"):
        last_lines(home / path, 1)
    assert len(os.listdir("/proc/self/fd")) == before
