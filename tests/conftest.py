"""Settings of all tests: Spark's Python and address, and hypothesis. The tests fail if a process outlives them."""

import gc
import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.support.kafka_broker import KafkaBroker

pytest_plugins = ["pytester"]

OUTLIVE_S = 15.0
"""The time within which processes of the tests must end by themselves."""

settings.register_profile("every_change", deadline=None, print_blob=True)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile("every_change")

MARK = "SPARK_JOBS_TESTS"
"""An environment variable that every process of the tests inherits, even if it left its parent and its session."""

JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
"""An environment variable with options for every JVM that Spark's launcher starts."""

AIRFLOW_TESTS = "tests/airflow/"
RUNNING_AIRFLOW_TESTS = "tests/running_airflow/"
SHARED = (AIRFLOW_TESTS, RUNNING_AIRFLOW_TESTS)
"""Directories whose fixtures are too expensive to set up twice."""
APART = ("tests/simulation/",)
"""Directories whose tests share nothing. One of their files takes minutes."""
DEAR_FIRST = (
    *(RUNNING_AIRFLOW_TESTS, AIRFLOW_TESTS, "tests/spark/test_table_features.py"),  # each a quarter of an hour for one process
    *("tests/system/", "tests/crash/", "tests/spark/"),
)
"""The directories with the longest tests. Short tests must come last, so that all test processes stay busy to the end."""
FAST = ("tests/unit/", "tests/contract/", "tests/corruption/")
"""The directories whose tests `make check` runs, unless a mark of :data:`NOT_FAST` leaves them to `make test`."""
NOT_FAST = ("nightly", "slow", "hdfs", "azure")
LEFT_BEHIND = "left_behind"
left_behind: list[str] = []


def pytest_configure() -> None:
    os.environ[MARK] = str(uuid.uuid4())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes this process and its JVMs put temporary files where pytest removes them. A process that is killed leaves its files behind."""
    directory = str(tmp_path_factory.mktemp("temporary"))
    options = f'{os.environ.get(JVM_OPTIONS, "")} "-Djava.io.tmpdir={directory}"'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", directory)
        patch.setenv(JVM_OPTIONS, options.strip())
        patch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """A place in an S3 server, one for each process: the process has one JVM, whose client keeps to the server that it has found first."""
    from tests.support.object_store import object_store_apart
    from tests.support.run_site import small_session
    from tests.support.session_stores import store_of

    with store_of(small_session(), object_store_apart()) as place:
        yield place


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator["KafkaBroker"]:
    """A Kafka broker, one for each process."""
    from tests.support.kafka_broker import kafka_broker

    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets an empty temporary directory for this process during one test."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def started_by_us() -> list[psutil.Process]:
    """Returns all other processes that carry our mark."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == os.environ[MARK] and process.status() != psutil.STATUS_ZOMBIE
            # Python's own process, which ends with this one.
            if ours and process.pid != os.getpid() and "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def close_jvm() -> None:
    """Ends this process's own JVM, if it may have one."""
    if "pyspark" in sys.modules:
        from spark_jobs.runtime.spark.session import end_jvm

        end_jvm(OUTLIVE_S)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without garbage collection, which would take half of the time.

    Later collections ignore the objects loaded here.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the directories without fast tests if only those are wanted: it takes long to import what they need."""
    here = collection_path.parent == Path(__file__).parent and collection_path.is_dir()
    return True if here and config.option.markexpr == "fast" and f"tests/{collection_path.name}/" not in FAST else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks the fast tests, so that `make test` runs them once: with the others of `make check`."""
    if item.nodeid.startswith(FAST) and not any(item.get_closest_marker(mark) for mark in NOT_FAST):
        item.add_marker("fast")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the directories with long tests first, and keeps the order within them."""
    items.sort(key=lambda item: [*(item.nodeid.startswith(dear) for dear in DEAR_FIRST), True].index(True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assigns tests to processes. The tests of a file share one, and so do all tests that need Airflow, which is expensive to set up.

    Tests that share nothing are assigned one by one. They come near the end, when no process may be left with a whole file.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid
            return next((shared for shared in SHARED if nodeid.startswith(shared)), None) or super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # our order, not by the number of tests in a file
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collects the leftovers that a test process has reported."""
    left_behind.extend(getattr(node, "workeroutput", {}).get(LEFT_BEHIND, []))


def leave_closed_streams() -> None:
    """Removes the log handlers that tests have added. Their streams close with the tests, but loggers write until Python ends."""
    known = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.getLogger(), *known):
        for handler in [each for each in logger.handlers if type(each) is logging.StreamHandler]:
            logger.removeHandler(handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the session if a process of the tests still runs, and ends that process."""
    leave_closed_streams()
    close_jvm()
    _, alive = psutil.wait_procs(started_by_us(), timeout=OUTLIVE_S)
    for process in alive:
        left_behind.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
        process.kill()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[LEFT_BEHIND] = left_behind
    if left_behind and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if left_behind:
        terminalreporter.section("processes that outlived the tests", red=True, bold=True)
        terminalreporter.write_line("\n".join(left_behind))
