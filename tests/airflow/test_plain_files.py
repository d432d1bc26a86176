"""Files that are opened without following a link."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.drivers.driver_log import driver_log, last_lines, made_output_place, output_place
from airflow_provider.pages.read_only import DOCUMENT_MAX_BYTES, read_only
from spark_jobs.control.attempts import LOGS_KEPT
from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.errors import AccessDeniedError, CorruptDocumentError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from spark_jobs.storage.plain_files import open_plain
from tests.support.memory_files import MemoryFiles


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/logs").mkdir(parents=True)
    (tmp_path / "home/logs/1.log").write_text("its own\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/1.log").write_text("somebody else's\n")
    return tmp_path.resolve() / "home"


def test_a_plain_file_is_read(home: Path) -> None:
    assert last_lines(home / "logs/1.log", 5) == ["its own"]


def test_a_link_in_place_of_a_file_is_not_followed(home: Path) -> None:
    (home / "logs/2.log").symlink_to(home.parent / "elsewhere/1.log")
    assert last_lines(home / "logs/2.log", 5) == []
    with pytest.raises(StreamPipelineError):
        read_only(open_files(str(home))).read("logs/2.log")


def test_a_link_in_place_of_a_directory_is_not_followed(home: Path) -> None:
    (home / "logs").rename(home / "before")
    (home / "logs").symlink_to(home.parent / "elsewhere")
    files = read_only(open_files(str(home)))
    assert last_lines(home / "logs/1.log", 5) == []
    for look in (lambda: files.names("logs"), lambda: files.read("logs/1.log")):
        with pytest.raises(CorruptDocumentError, match="is behind a link"):
            look()


def test_a_link_that_takes_the_place_of_the_home_itself_is_not_followed(home: Path) -> None:
    files = read_only(open_files(str(home)))
    home.rename(home.with_name("before"))
    home.symlink_to(home.with_name("before"))
    with pytest.raises(StreamPipelineError):
        files.read("logs/1.log")


def test_a_pipe_does_not_keep_the_reader_waiting(home: Path) -> None:
    os.mkfifo(home / "logs/3.log")
    with pytest.raises(OSError, match="not a regular file"):
        open_plain(home / "logs/3.log")


def test_a_file_larger_than_a_document_is_not_read(home: Path) -> None:
    with (home / "large.json").open("wb") as stream:
        stream.truncate(DOCUMENT_MAX_BYTES + 1)
    with pytest.raises(CorruptDocumentError, match="is larger than .* bytes, the limit for its kind"):
        read_only(open_files(str(home))).read("large.json")


def test_a_log_with_one_endless_line_is_read_in_part(home: Path) -> None:
    (home / "logs/4.log").write_text("x" * 1_000_000)
    (line,) = last_lines(home / "logs/4.log", 5)
    assert len(line) == 5 * 4096


def test_read_only_files_refuse_every_write(home: Path) -> None:
    files = read_only(open_files(str(home)))
    before = sorted(home.rglob("*"))
    changes: list[Callable[[], None]] = [
        lambda: files.create("new.json", b"{}"),
        lambda: files.create("made/new.json", b"{}"),
        lambda: files.replace("logs/1.log", b"{}"),
        lambda: files.delete("logs/1.log"),
        lambda: files.delete("logs"),
    ]
    for change in changes:
        with pytest.raises(AccessDeniedError):
            change()
    assert sorted(home.rglob("*")) == before
    assert (home / "logs/1.log").read_text() == "its own\n"


def test_no_descriptor_is_left_open(home: Path) -> None:
    (home / "link").symlink_to("logs")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("logs/1.log", "link/1.log", "logs", "nothing"):
        last_lines(home / path, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_the_documents_of_a_home_in_a_store_are_visible(tmp_path: Path) -> None:
    store = MemoryFiles()
    store.create("logs/1.log", b"its end\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/1.log").write_text("all of it\n")
    files = read_only(HomeInStore(store, LocalFiles(tmp_path)))
    assert files.local("logs/1.log") is None
    assert files.read("logs/1.log") == b"its end\n"
    assert driver_log(files, AttemptNumber(1)).last_lines(5) == ["its end"]
    store.create("large.json", b"x" * (DOCUMENT_MAX_BYTES + 1))
    with pytest.raises(CorruptDocumentError, match="is larger than .* bytes, the limit for its kind"):
        files.read("large.json")
    changes: list[Callable[[], None]] = [
        lambda: files.create("new", b""),
        lambda: files.replace("new", b""),
        lambda: files.delete("logs"),
        lambda: files.sync("logs/1.log"),
    ]
    for change in changes:
        with pytest.raises(AccessDeniedError, match="only read"):
            change()


def test_the_whole_log_is_read_on_its_own_host_and_its_end_on_others(tmp_path: Path) -> None:
    store = MemoryFiles()
    store.create("logs/1.log", b"last\n")
    home = HomeInStore(store, LocalFiles(tmp_path))
    assert driver_log(home, AttemptNumber(1)).last_lines(5) == ["last"]
    assert str(driver_log(home, AttemptNumber(1))) == "memory:/logs/1.log"
    home.create("logs/1.log", b"first\nlast\n")
    assert driver_log(home, AttemptNumber(1)).last_lines(5) == ["first", "last"]
    assert str(driver_log(home, AttemptNumber(1))) == f"{tmp_path}/logs/1.log"


def test_the_output_of_a_submission_is_kept_although_there_is_no_cache(tmp_path: Path) -> None:
    home = HomeInStore(MemoryFiles(), LocalFiles(tmp_path / "cache"))
    first = AttemptNumber(1)
    assert output_place(home, first, driver_is_here=True) == tmp_path / "cache/logs/driver-1.out"
    assert not output_place(home, first).is_relative_to(tmp_path)
    (tmp_path / "cache").mkdir()
    assert output_place(home, first) == tmp_path / "cache/logs/driver-1.out"
    assert output_place(LocalFiles(tmp_path / "home"), first) == tmp_path / "home/logs/driver-1.out"


def test_no_output_is_written_into_a_directory_of_another_user(tmp_path: Path) -> None:
    home, own = HomeInStore(MemoryFiles()), tmp_path / f"spark-jobs-{os.getuid()}"
    (tmp_path / "theirs").mkdir()
    own.symlink_to(tmp_path / "theirs")
    with pytest.raises(AccessDeniedError, match="not a directory of this user alone"):
        made_output_place(home, AttemptNumber(1), driver_is_here=False, temporary=tmp_path)
    own.unlink()
    place = made_output_place(home, AttemptNumber(1), driver_is_here=False, temporary=tmp_path)
    assert own.stat().st_mode & 0o777 == 0o700
    place.parent.mkdir(parents=True)
    place.write_text("said")
    made_output_place(home, AttemptNumber(LOGS_KEPT + 1), driver_is_here=False, temporary=tmp_path)
    assert not place.exists(), "as many are kept as in a home"
    own.chmod(0o755)
    with pytest.raises(AccessDeniedError, match="not a directory of this user alone"):
        made_output_place(home, AttemptNumber(2), driver_is_here=False, temporary=tmp_path)


@pytest.mark.parametrize("line", ["said \x1b[2J\u202e", '{"message": "said \\u001b[2J\\u202e"}', "said " + "[" * 3_000 + "\x1b"])
def test_control_sequences_in_a_log_are_escaped(home: Path, line: str) -> None:
    (home / "logs/5.log").write_text(f"{line}\n")
    (shown,) = last_lines(home / "logs/5.log", 5)
    assert shown.startswith("said ")
    assert shown.isprintable()
