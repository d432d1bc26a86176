"""The storage port on HDFS with killed, stopped, full or unready nodes, and with connections that lose responses."""

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from hdfs_native import Client

from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
)
from spark_jobs.storage.hdfs import HdfsFiles
from spark_jobs.storage.local import LocalFiles
from tests.support.hdfs_cluster import (
    DEADLINE_S,
    HdfsCluster,
    LossyLine,
    default_file_system,
    hdfs_cluster,
    write_settings,
)
from tests.support.left_behind import land_left_behind

pytestmark = pytest.mark.hdfs

LOOK_S = 5.0
"""More time than a busy machine needs to notice a deadline."""
OLD_S = 2 * 24 * 3600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture
def root() -> str:
    return f"/{uuid4()}"


@pytest.fixture
def home(cluster: HdfsCluster, root: str) -> HdfsFiles:
    return HdfsFiles(cluster.authority, root, DEADLINE_S)


@pytest.fixture
def line(cluster: HdfsCluster) -> Iterator[LossyLine]:
    line = LossyLine(cluster.authority)
    yield line
    line.close()
    land_left_behind()


def everything(cluster: HdfsCluster, directory: str) -> list[str]:
    """Returns the names in a directory, with those of temporary files."""
    found = Client(f"hdfs://{cluster.authority}/").list_status(directory)
    return sorted(each.path.rpartition("/")[2] for each in found)


LOST = [(method, only) for method in ("create", "addBlock", "complete", "rename2") for only in (True, False)]


@pytest.mark.parametrize(("method", "answer_only"), LOST)
def test_a_create_whose_response_is_lost_creates_the_file_once(
    cluster: HdfsCluster, line: LossyLine, home: HdfsFiles, root: str, method: str, answer_only: bool
) -> None:
    over_line = HdfsFiles(line.authority, root, DEADLINE_S)
    over_line.create("a/before", b"the connection is there")
    line.lose(method, answer_only=answer_only)
    over_line.create("a/b", b"data")
    assert line.lost == [method]
    assert home.read("a/b") == b"data"
    assert everything(cluster, f"{root}/a") == ["b", "before"]


@pytest.mark.parametrize("answer_only", [True, False])
def test_a_create_whose_response_is_lost_finds_out_whose_file_has_the_name(
    cluster: HdfsCluster, line: LossyLine, home: HdfsFiles, root: str, answer_only: bool
) -> None:
    over_line = HdfsFiles(line.authority, root, DEADLINE_S)
    home.create("a/b", b"theirs")
    line.lose("rename2", answer_only=answer_only)
    with pytest.raises(AlreadyExistsError):
        over_line.create("a/b", b"ours")
    assert line.lost == ["rename2"]
    assert home.read("a/b") == b"theirs"
    assert everything(cluster, f"{root}/a") == ["b"]


@pytest.mark.parametrize("answer_only", [True, False])
def test_a_replace_a_copy_and_a_delete_succeed_although_their_response_is_lost(
    cluster: HdfsCluster, line: LossyLine, home: HdfsFiles, root: str, tmp_path: Path, answer_only: bool
) -> None:
    over_line = HdfsFiles(line.authority, root, DEADLINE_S)
    home.replace("a/b", b"old")
    line.lose("rename2", answer_only=answer_only)
    over_line.replace("a/b", b"new")
    assert home.read("a/b") == b"new"
    (tmp_path / "theirs").write_bytes(b"state")
    line.lose("rename2", answer_only=answer_only)
    over_line.copy(LocalFiles(tmp_path), "theirs", "a/copy")
    assert home.read("a/copy") == b"state"
    line.lose("delete", answer_only=answer_only)
    over_line.delete("a/b")
    assert line.lost == ["rename2", "rename2", "delete"]
    assert everything(cluster, f"{root}/a") == ["copy"]


def test_the_outcome_of_a_rename_is_queried_until_a_response_arrives(line: LossyLine, home: HdfsFiles, root: str) -> None:
    over_line = HdfsFiles(line.authority, root, DEADLINE_S)
    line.lose("rename2", "delete", "getBlockLocations")
    over_line.create("a/b", b"data")
    assert line.lost == ["rename2", "delete", "getBlockLocations"]
    assert home.read("a/b") == b"data"


@pytest.mark.parametrize("answer_only", [True, False])
def test_a_create_without_any_response_raises_outcome_unknown_in_time(
    line: LossyLine, home: HdfsFiles, root: str, answer_only: bool
) -> None:
    over_line = HdfsFiles(line.authority, root, 2.0)
    line.lose("rename2", answer_only=answer_only, silent_after=True)
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknownError):
        over_line.create("a/b", b"data")
    assert time.monotonic() - began_s < 2.0 * 9 / 8 + LOOK_S
    home.create("a/b", b"data")
    assert home.read("a/b") == b"data"


def test_calls_of_a_stopped_name_node_end_in_time(cluster: HdfsCluster, home: HdfsFiles, root: str) -> None:
    home.create("a/b", b"data")
    hasty = HdfsFiles(cluster.authority, root, 1.0)
    with cluster.frozen():
        for call in (
            lambda: hasty.read("a/b"),
            lambda: hasty.create("a/c", b"data"),
            lambda: hasty.replace("a/b", b"data"),
            lambda: hasty.names("a"),
            lambda: hasty.delete("a/b"),
            lambda: hasty.sync("a/b"),
        ):
            began_s = time.monotonic()
            with pytest.raises(StorageError, match="no answer"):
                call()
            assert time.monotonic() - began_s < 9 / 8 + LOOK_S
    assert home.read("a/b") == b"data", "what was to remove it was never sent"
    assert home.names("a") == ["b"]
    hasty.create("a/c", b"other")
    assert home.read("a/c") == b"other"


def test_each_create_that_returned_survives_the_kill_of_the_name_node(cluster: HdfsCluster, root: str) -> None:
    hasty = HdfsFiles(cluster.authority, root, 0.5)
    patient = HdfsFiles(cluster.authority, root, DEADLINE_S)

    def creates(files: HdfsFiles, kind: str, until_s: float) -> dict[str, bool]:
        made: dict[str, bool] = {}
        while time.monotonic() < until_s:
            path = f"{kind}/{len(made)}"
            try:
                files.create(path, path.encode() * 1000)
            except (StorageError, OutcomeUnknownError, ConflictError):
                made[path] = False
            else:
                made[path] = True
        return made

    until_s = time.monotonic() + 12
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(creates, files, f"{number}", until_s) for number, files in enumerate((hasty, hasty, patient))]
        time.sleep(2)
        cluster.kill_name_node()
        time.sleep(1)
        cluster.start_name_node()
        *hasty_made, patient_made = [run.result() for run in runs]
    cluster.wait_until_it_writes()
    assert all(patient_made.values()), "a restart is waited for"
    assert any(not each for made in hasty_made for each in made.values()), "the name node was away"
    for path, returned in [item for made in (*hasty_made, patient_made) for item in made.items()]:
        try:
            assert patient.read(path) == path.encode() * 1000
        except NotFoundError:
            assert not returned


def test_without_data_nodes_no_file_is_incomplete_and_a_create_waits_for_their_return(
    cluster: HdfsCluster, home: HdfsFiles, root: str
) -> None:
    home.create("a/b", b"data")
    cluster.kill_data_node()
    hasty = HdfsFiles(cluster.authority, root, 1.0)
    try:
        with pytest.raises(StorageError):
            hasty.create("a/c", b"data")
        with pytest.raises(StorageError):
            hasty.read("a/b")
        assert home.names("a") == ["b"]
        with ThreadPoolExecutor(1) as pool:
            creating = pool.submit(home.create, "a/c", b"other")
            cluster.start_data_node()
            creating.result(2 * DEADLINE_S)
    finally:
        if len(cluster.processes) < 2:
            cluster.start_data_node()
    assert home.read("a/c") == b"other"
    assert everything(cluster, f"{root}/a") == ["b", "c"]


@pytest.mark.nightly
def test_a_call_waits_for_a_name_node_that_is_not_ready(cluster: HdfsCluster, home: HdfsFiles, root: str) -> None:
    home.create("a/b", b"data")
    cluster.kill_data_node()
    cluster.kill_name_node()
    cluster.start_name_node()
    hasty = HdfsFiles(cluster.authority, root, 1.0)
    try:
        assert home.names("a") == ["b"]
        with pytest.raises(StorageError, match="[Ss]afe mode") as refused:
            hasty.create("a/c", b"data")
        assert type(refused.value) is StorageError
    finally:
        cluster.start_data_node()
    home.create("a/c", b"data")
    assert home.read("a/c") == b"data"


def test_a_full_quota_is_an_error_at_once(cluster: HdfsCluster, home: HdfsFiles, root: str) -> None:
    home.create("names/b", b"data")
    home.create("bytes/b", b"data")
    cluster.admin("-setQuota", "2", f"{root}/names")
    cluster.admin("-setSpaceQuota", "1000", f"{root}/bytes")
    for directory in ("names", "bytes"):
        began_s = time.monotonic()
        with pytest.raises(StorageFullError):
            home.create(f"{directory}/c", b"data")
        assert time.monotonic() - began_s < LOOK_S
        assert everything(cluster, f"{root}/{directory}") == ["b"]


def test_a_failed_writer_makes_no_call_when_it_is_garbage_collected(cluster: HdfsCluster, home: HdfsFiles, root: str) -> None:
    home.create("a/b", b"data")
    cluster.admin("-setSpaceQuota", "1000", f"{root}/a")
    kept: list[StorageFullError] = []  # and with it all objects in its traceback
    try:
        home.create("a/c", b"data")
    except StorageFullError as full:
        kept.append(full)
    assert kept

    def forget() -> None:
        kept.clear()
        gc.collect()

    with ThreadPoolExecutor(1) as pool, cluster.frozen():
        pool.submit(forget).result(LOOK_S)


def test_a_missing_permission_to_write_is_an_error_at_once(
    cluster: HdfsCluster, home: HdfsFiles, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create("a/b", b"data")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    theirs = HdfsFiles(cluster.authority, root, DEADLINE_S)
    calls: list[Callable[[], None]] = [
        lambda: theirs.create("a/c", b""),
        lambda: theirs.replace("a/b", b""),
        lambda: theirs.delete("a/b"),
    ]
    for call in calls:
        began_s = time.monotonic()
        with pytest.raises(AccessDeniedError):
            call()
        assert time.monotonic() - began_s < LOOK_S
    assert theirs.read("a/b") == b"data"


def test_a_call_skips_a_name_node_that_does_not_respond(
    cluster: HdfsCluster, line: LossyLine, home: HdfsFiles, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = {"dfs.nameservices": "service", "dfs.ha.namenodes.service": "first,second"}
    nodes = {"first": line.authority, "second": cluster.authority}
    addresses = {f"dfs.namenode.rpc-address.service.{name}": authority for name, authority in nodes.items()}
    write_settings(tmp_path, {"fs.defaultFS": "hdfs://service"}, service | addresses)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    line.silent.set()
    for authority in ("service", ""):
        HdfsFiles(authority, root, 16.0).create(f"a/{authority}x", b"data")
    assert home.names("a") == ["servicex", "x"]


def test_unfinished_files_of_dead_writers_are_removed(cluster: HdfsCluster, home: HdfsFiles, root: str) -> None:
    raw = Client(f"hdfs://{cluster.authority}/")
    home.create("a/b", b"data")

    def leave(*names: str) -> None:
        for name in names:
            raw.create(f"{root}/a/{name}").close()

    ours, another, foreign, old = ".b.0123456789ab.tmp", ".c.0123456789ab.tmp", ".b.tmp", ".d.0123456789ab.tmp"
    leave(ours, another, foreign, old)
    long_ago_ms = int((time.time() - OLD_S) * 1000)
    raw.set_times(f"{root}/a/{old}", long_ago_ms, long_ago_ms)
    assert home.names("a") == ["b"]
    home.remove_unfinished("a/b")
    assert everything(cluster, f"{root}/a") == sorted(["b", another, foreign])
    leave(ours)
    home.replace("a/b", b"new")
    assert everything(cluster, f"{root}/a") == sorted(["b", another, foreign])
    home.create("a/c", b"new")
    assert everything(cluster, f"{root}/a") == sorted(["b", "c", foreign])
    home.remove_unfinished("nowhere/x")


def test_the_default_file_system_comes_from_the_hadoop_settings(cluster: HdfsCluster, home: HdfsFiles, root: str) -> None:
    with default_file_system(cluster):
        found = HdfsFiles("", root)
        found.create("a", b"data")
    assert found.url == f"hdfs://{root}"
    assert home.read("a") == b"data"
