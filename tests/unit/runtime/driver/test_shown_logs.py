"""The last lines of a driver's logs, for hosts that cannot read its cache."""

import logging
import time
from pathlib import Path

import pytest

from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.errors import StorageError
from spark_jobs.runtime.driver.shown_logs import shown
from spark_jobs.storage.local import LocalFiles
from tests.support.memory_files import MemoryFiles

LOG = "logs/1.log"


@pytest.fixture
def store() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def home(store: MemoryFiles, tmp_path: Path) -> HomeInStore:
    return HomeInStore(store, LocalFiles(tmp_path / "cache"))


def say(home: HomeInStore, text: str) -> None:
    path = home.local(LOG)
    assert path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_logs_are_shown_while_the_driver_runs_and_once_more_at_its_end(home: HomeInStore, store: MemoryFiles) -> None:
    with shown(home, LOG, "logs/driver-1.out", interval_s=0.02):
        say(home, "begins\n")
        deadline_s = time.monotonic() + 30
        while LOG not in store.contents:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert store.contents == {LOG: b"begins\n"}
        say(home, "ends\n")
    assert store.contents == {LOG: b"begins\nends\n"}


def test_the_last_complete_lines_of_a_long_log_are_shown(home: HomeInStore, store: MemoryFiles) -> None:
    with shown(home, LOG):
        say(home, "".join(f"{number:09d}\n" for number in range(100_000)))
    first, *_, last = store.contents[LOG].splitlines()
    assert len(store.contents[LOG]) <= 256 << 10
    assert len(first) == 9
    assert last == b"000099999"


def test_the_settings_of_a_store_show_no_secret(home: HomeInStore, store: MemoryFiles) -> None:
    with shown(home, LOG, mask=lambda text: text.replace("hunter2", "***")):
        say(home, "the password is hunter2\n")
    assert store.contents == {LOG: b"the password is ***\n"}


def test_an_unchanged_log_is_not_written_again(home: HomeInStore, store: MemoryFiles) -> None:
    with shown(home, LOG, interval_s=0.01):
        say(home, "begins\n")
        time.sleep(0.2)
        store.contents.pop(LOG)
        time.sleep(0.1)
    assert store.contents == {}


def test_an_unavailable_store_does_not_end_the_run(home: HomeInStore, caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryFiles):
        def replace(self, path: str, data: bytes) -> None:
            raise StorageError("the store is away")

    with caplog.at_level(logging.WARNING), shown(HomeInStore(Away(), home.cache), LOG):
        say(home, "begins\n")
    assert "the store is away" in caplog.text


def test_logs_of_a_home_that_is_a_directory_are_not_copied(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with shown(files, LOG, interval_s=0.01):
        files.create(LOG, b"begins\n")
    assert files.names("") == ["logs"]
