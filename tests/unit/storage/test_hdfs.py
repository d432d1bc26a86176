"""An HDFS client without a name node, and its reading of the name node's answers. Real name nodes are in ``tests/hdfs``."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hdfs_native import Client

from spark_jobs.protocol.errors import (
    AccessDeniedError,
    ConflictError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    Retry,
    StorageError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.storage import hdfs_client
from spark_jobs.storage.files import Files
from spark_jobs.storage.hdfs import HdfsFiles
from spark_jobs.storage.hdfs_client import Calls, HdfsClient, HdfsFailure, failure_from_text
from tests.support.left_behind import land_left_behind

LOOK_S = 3.0
"""More time than a busy machine needs to notice a deadline."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def silent() -> Iterator[str]:
    """A name node that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    land_left_behind()


CALLS: list[Callable[[Files], object]] = [
    lambda files: files.create("a/b", b"data"),
    lambda files: files.replace("a/b", b"data"),
    lambda files: files.read("a/b"),
    lambda files: files.digest("a/b"),
    lambda files: files.link_or_copy(Path(__file__), "a/b"),
    lambda files: files.names("a"),
    lambda files: files.delete("a/b"),
    lambda files: files.sync("a/b"),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
@pytest.mark.slow
def test_a_call_without_an_answer_ends_in_time(silent: str, number: int) -> None:
    files = HdfsFiles(silent, "/home", retry_timeout_s=0.4)
    began_s = time.monotonic()
    with pytest.raises(StorageError, match="no answer") as failed:
        CALLS[number](files)
    assert time.monotonic() - began_s < 0.4 * 9 / 8 + LOOK_S
    assert type(failed.value) is StorageError, "may be repeated"


def test_leftovers_stay_if_the_name_node_does_not_answer(silent: str) -> None:
    HdfsFiles(silent, "/home", retry_timeout_s=0.2).remove_unfinished("a/b")


def test_a_refused_connection_is_tried_again_until_the_retry_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nobody = f"127.0.0.1:{listening.getsockname()[1]}"
    files = HdfsFiles(nobody, "/home", retry_timeout_s=1.0)
    began_s = time.monotonic()
    with pytest.raises(StorageError, match="Connection refused|no answer"):
        files.read("a")
    assert 0.5 < time.monotonic() - began_s < 9 / 8 + LOOK_S


def test_a_call_after_one_without_an_answer_opens_a_new_connection(silent: str) -> None:
    client = HdfsClient(silent, 0.4)
    seen: list[object] = []

    def ask(opened: Client) -> None:
        seen.append(opened)
        opened.get_file_info("/")

    for _ in range(2):
        with pytest.raises(HdfsFailure):
            client.call(ask, 0.1)
    assert seen[0] is not seen[1]


def test_a_thousand_homes_share_threads_and_files_until_the_settings_change(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = psutil.Process()
    HdfsFiles(silent, "/home")
    before = (process.num_threads(), process.num_fds())
    files = [HdfsFiles(silent, f"/homes/{number}") for number in range(1000)]
    assert process.num_threads() <= before[0]
    assert process.num_fds() <= before[1]
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert HdfsFiles(silent, "/homes/0")._client is not files[0]._client
    before_a_change = HdfsFiles(silent, "/homes/0")._client
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    assert HdfsFiles(silent, "/homes/0")._client is not before_a_change


def test_a_process_with_too_many_open_files_says_so_and_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Client:
        raise RuntimeError("Too many open files (os error 24)")

    monkeypatch.setattr(hdfs_client, "Client", full)
    with pytest.raises(StorageError, match="too many files open") as failed:
        HdfsClient("name-node:8020", 1.0)
    assert failed.value.retry is Retry.WITH_BACKOFF


def test_no_call_begins_after_the_deadline(silent: str) -> None:
    calls = Calls(HdfsClient(silent, 0.1))
    with pytest.raises(HdfsFailure):
        calls(lambda client: client.get_file_info("/"))
    while calls.may_repeat():
        pass
    time.sleep(0.1)
    begun: list[int] = []
    with pytest.raises(HdfsFailure) as failed:
        calls(lambda _: begun.append(1))
    assert begun == []
    assert not failed.value.in_doubt


@pytest.mark.parametrize(
    ("authority", "root"),
    [
        ("node:1", ""),
        ("node:1", "/"),
        ("node:1", "relative"),
        ("node:1", "/a//b"),
        ("node:1", "/a/../b"),
        ("node:1", "/a%20b"),
        ("node:1", "/a:b"),
        ("user@node:1", "/a"),
        ("node:1/x", "/a"),
        ("node:port", "/a"),
        ("", "/a"),
    ],
)
def test_an_invalid_address_or_path_is_refused(authority: str, root: str) -> None:
    with pytest.raises(InvalidParameterError):
        HdfsFiles(authority, root)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(InvalidParameterError) as refused:
        HdfsFiles("user:secret@node:1", "/a")
    assert "secret" not in str(refused.value)


def test_the_url_of_the_files_is_the_url_of_their_directory() -> None:
    assert HdfsFiles("node:8020", "/data/home/").url == "hdfs://node:8020/data/home"
    assert HdfsFiles("node", "/data").url == "hdfs://node/data", "at Hadoop's own port"
    assert HdfsFiles("node:8020", "/data").below("a/b").url == "hdfs://node:8020/data/a/b"


def answered(kind: str, reason: str = "reason") -> str:
    return f'RPCError("{kind}", "{reason}\\n\\tat org.apache.hadoop.Some.where(Some.java:1)")'


@pytest.mark.parametrize(
    ("text", "kind", "passing", "in_doubt"),
    [
        (answered("org.apache.hadoop.security.AccessControlException", "Permission denied"), AccessDeniedError, False, False),
        (answered("org.apache.hadoop.security.AccessControlException", "/a (is not a directory)"), NotFoundError, False, False),
        ('SASLError("no ticket")', AccessDeniedError, False, False),
        (answered("java.io.FileNotFoundException"), NotFoundError, False, False),
        (answered("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException"), StorageFullError, False, False),
        (answered("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"), StorageFullError, False, False),
        (
            answered("org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"),
            InvalidParameterError,
            False,
            False,
        ),
        (answered("org.apache.hadoop.ipc.StandbyException"), StorageError, True, False),
        (answered("org.apache.hadoop.hdfs.server.namenode.SafeModeException"), StorageError, True, False),
        (answered("org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException"), ConflictError, False, False),
        (answered("java.io.IOException", "what nobody has thought of"), StorageError, False, False),
        (
            answered(
                "java.io.IOException",
                "File /a could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running and 0 node(s) are "
                "excluded in this operation.",
            ),
            StorageError,
            True,
            False,
        ),
        (
            answered(
                "java.io.IOException",
                "File /a could only be written to 0 of the 1 minReplication nodes. There are 3 datanode(s) running and 0 node(s) are "
                "excluded in this operation.",
            ),
            StorageFullError,
            True,
            False,
        ),
        ('DataTransferError("All nodes failed for write")', StorageError, True, True),
        ('FatalRPCError("org.apache.hadoop.ipc.RpcServerException", "what")', StorageError, False, True),
        ('InvalidArgument("what")', InvalidParameterError, False, False),
    ],
)
def test_each_response_of_the_name_node_becomes_the_right_error(
    text: str, kind: type[StreamPipelineError], passing: bool, in_doubt: bool
) -> None:
    failure = failure_from_text(text)
    assert (failure.kind, failure.passing, failure.in_doubt) == (kind, passing, in_doubt)
    error = failure.as_error("hdfs://node/a")
    assert type(error) is kind
    assert error.evidence["path"] == "hdfs://node/a"
    assert "Some.java" not in str(error)


FORKS = """
import os, sys
from spark_jobs.storage.hdfs import HdfsFiles

def read(files=None):
    try:
        (files or HdfsFiles(sys.argv[1], "/home", retry_timeout_s=0.2)).read("a")
    except Exception as error:
        print(type(error).__name__, flush=True)

files = HdfsFiles(sys.argv[1], "/home", retry_timeout_s=0.2)
read()
child = os.fork()
if child == 0:
    read()
    read(files)
else:
    os.waitpid(child, 0)
os._exit(0)
"""


def test_a_process_forked_from_one_that_has_used_hdfs_is_refused(silent: str) -> None:
    printed = subprocess.run([sys.executable, "-c", FORKS, silent], capture_output=True, text=True, timeout=60, check=True).stdout
    assert printed.split() == [each.__name__ for each in (StorageError, MissingRequirementError, MissingRequirementError)]
