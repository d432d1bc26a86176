"""The storage port with every implementation: the invariants of ``spark_jobs/storage/files.py``."""

import multiprocessing
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Barrier as ThreadBarrier
from typing import Any

import obstore
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.documents import PipelineDocument
from spark_jobs.protocol.errors import AlreadyExistsError, InvalidParameterError, NotFoundError, RejectedError, StorageError
from spark_jobs.protocol.ids import PipelineName, PipelineUuid
from spark_jobs.storage.files import Files, create_document, read_document
from spark_jobs.storage.hdfs import HdfsFiles
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import check_create_if_absent, open_files, open_place
from tests.support import google_cloud
from tests.support.azurite import CONTAINER, azurite
from tests.support.hdfs_cluster import default_file_system, hdfs_cluster
from tests.support.memory_files import MemoryFiles
from tests.support.object_store import BUCKET, GOOGLE_BUCKET, google_store, object_store
from tests.support.systems import CrashSystem, FaultSystem
from tests.support.versitygw import versitygw

Open = Callable[[Path], Files]


class GoesAway(MemoryFiles):
    """A storage that fails in the middle of a file."""

    def __init__(self, chunks: int) -> None:
        super().__init__()
        self._chunks = chunks

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        yield from [b"c" * (1 << 20)] * self._chunks
        raise StorageError("the source is away")


def local(root: Path) -> Files:
    return LocalFiles(root)


def opened(root: Path) -> Files:
    return open_files(root.as_uri())


def over_crash_system(root: Path) -> Files:
    return LocalFiles(root, CrashSystem(root.parent))


def over_fault_system(root: Path) -> Files:
    return LocalFiles(root, FaultSystem())


def in_object_store(root: Path) -> Files:
    return open_place(f"s3://{BUCKET}{root.as_posix()}")


def in_versitygw(root: Path) -> Files:
    return in_object_store(root)


def in_azure(root: Path) -> Files:
    return open_place(f"abfss://{CONTAINER}{root.as_posix()}")


def in_google(root: Path) -> Files:
    return open_place(f"gs://{GOOGLE_BUCKET}{root.as_posix()}")


def in_google_cloud(root: Path) -> Files:
    return open_place(f"gs://{google_cloud.BUCKET}{root.as_posix()}")


def in_hdfs(root: Path) -> Files:
    return HdfsFiles("", root.as_posix())


AZURE = pytest.param(in_azure, marks=pytest.mark.azure, id="in_azure")
HDFS = pytest.param(in_hdfs, marks=pytest.mark.hdfs, id="in_hdfs")
HDFS_AT_NIGHT = pytest.param(in_hdfs, marks=[pytest.mark.hdfs, pytest.mark.nightly], id="in_hdfs")
VERSITYGW = pytest.param(in_versitygw, marks=[pytest.mark.versitygw, pytest.mark.nightly], id="in_versitygw")
GOOGLE = pytest.param(in_google_cloud, marks=[pytest.mark.google, pytest.mark.nightly], id="in_google_cloud")
IN_S3 = [in_object_store, VERSITYGW]
IN_GOOGLE = [in_google, GOOGLE]
"""Two servers that have Google's condition: moto's S3, in which it is translated, and at night a server of Google Cloud Storage."""
LOCAL: list[Open] = [local, opened, over_crash_system, over_fault_system]


def only(*opens: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("open_home", opens, indirect=True, ids=lambda open_: open_.__name__)


only_local = only(*LOCAL)
only_directories = only(*LOCAL, HDFS)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture
def versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server for one test: another server of S3 is found by the same variables."""
    with versitygw(tmp_path_factory.mktemp("versitygw")):
        yield


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as cluster, default_file_system(cluster):
        yield


@pytest.fixture(scope="module")
def google() -> Iterator[None]:
    with google_store():
        yield


@pytest.fixture
def cloud() -> Iterator[None]:
    """A server for one test, as that of :func:`versity`."""
    with google_cloud.google_cloud():
        yield


@pytest.fixture(scope="module")
def azure() -> Iterator[None]:
    with azurite():
        yield


SERVERS = {
    in_object_store: "store",
    in_versitygw: "versity",
    in_google: "google",
    in_google_cloud: "cloud",
    in_azure: "azure",
    in_hdfs: "hdfs",
}
"""The fixture of the server that a function opens a directory in."""


@pytest.fixture(params=[*LOCAL, *IN_S3, *IN_GOOGLE, AZURE, HDFS], ids=lambda open_: open_.__name__)
def open_home(request: pytest.FixtureRequest) -> Open:
    """A function that opens a directory. Each call opens it like another process."""
    found: Open = request.param
    if found in SERVERS:
        request.getfixturevalue(SERVERS[found])
    return found


@pytest.fixture
def home(open_home: Open, tmp_path: Path) -> Files:
    return open_home(tmp_path / "home")


def test_a_created_file_can_be_read_by_every_reader(open_home: Open, home: Files, tmp_path: Path) -> None:
    home.create("manifests/7.json", b"whole")
    assert home.read("manifests/7.json") == b"whole"
    assert open_home(tmp_path / "home").read("manifests/7.json") == b"whole"


def test_creating_a_file_again_with_the_same_bytes_succeeds(home: Files) -> None:
    home.create("a/b", b"ours")
    home.create("a/b", b"ours")
    assert home.read("a/b") == b"ours"


@pytest.mark.parametrize("other", [b"theirs", b"", b"ours and more", b"our"])
def test_creating_a_file_again_with_other_bytes_is_refused_and_changes_nothing(home: Files, other: bytes) -> None:
    home.create("a/b", b"ours")
    with pytest.raises(AlreadyExistsError) as refused:
        home.create("a/b", other)
    assert home.read("a/b") == b"ours"
    assert refused.value.evidence["path"].endswith("/home/a/b")
    assert home.names("a") == ["b"]


def test_files_that_are_created_together_are_all_there(home: Files) -> None:
    wanted = {f"log/{number}": b"%d" % number for number in range(40)} | {"another/place": b""}
    home.create("log/7", b"7")
    home.create_all(wanted.items())
    home.create_all([])
    assert {path: home.read(path) for path in home.paths()} == wanted


def test_of_files_that_are_created_together_each_keeps_the_bytes_that_it_has(home: Files) -> None:
    home.create("log/1", b"ours")
    with pytest.raises(AlreadyExistsError) as refused:
        home.create_all([("log/0", b"new"), ("log/1", b"theirs")])
    assert refused.value.evidence["path"].endswith("/home/log/1")
    assert home.read("log/1") == b"ours"


def nothing_is_unfinished(root: Path) -> bool:
    return not list(root.rglob(".*"))


@only_directories
def test_no_file_can_be_created_under_the_name_of_a_directory(home: Files) -> None:
    home.create("a/b", b"ours")
    with pytest.raises(AlreadyExistsError):
        home.create("a", b"theirs")


def test_reading_a_missing_file_raises_not_found(home: Files) -> None:
    for path in ("a", "a/b"):
        with pytest.raises(NotFoundError):
            home.read(path)
    home.create("a", b"a file")
    with pytest.raises(NotFoundError):
        home.read("a/b")


def test_a_directory_cannot_be_read_as_a_file(home: Files) -> None:
    home.create("a/b", b"")
    with pytest.raises(NotFoundError):
        home.read("a")


def test_replace_puts_new_bytes_under_any_name(home: Files) -> None:
    home.replace("status.json", b"first")
    home.replace("status.json", b"second, longer")
    home.replace("status.json", b"3")
    assert home.read("status.json") == b"3"
    assert home.names("") == ["status.json"]


def test_names_are_sorted_direct_children_and_empty_for_a_missing_directory(home: Files) -> None:
    assert home.names("") == []
    for path in ("c/10", "c/9", "c/x/deep", "b", "a"):
        home.create(path, b"")
    assert home.names("") == ["a", "b", "c"]
    assert home.names("c") == ["10", "9", "x"]
    assert home.names("nowhere") == []
    assert home.names("a") == []


def test_paths_are_those_of_all_files_in_the_tree(home: Files) -> None:
    assert home.paths() == home.paths("nowhere") == []
    for path in ("c/10", "c/9", "c/x/deep/er", "b", "cc/a"):
        home.create(path, b"")
    assert home.paths() == ["b", "c/10", "c/9", "c/x/deep/er", "cc/a"]
    assert home.paths("c") == ["c/10", "c/9", "c/x/deep/er"]
    assert home.paths("c/x") == ["c/x/deep/er"]
    assert home.paths("b") == []


def test_delete_removes_a_file_or_a_tree_and_may_be_repeated(home: Files) -> None:
    for path in ("c/1/manifest.json", "c/1/deep/er", "c/2/manifest.json", "c/2/left"):
        home.create(path, b"x")
    for _ in range(2):
        home.delete("c/2/manifest.json")
        home.delete("c/1")
        home.delete("never/there")
    assert home.names("c") == ["2"]
    assert home.names("c/2") == ["left"]
    home.create("c/1/manifest.json", b"a name is free again once it is deleted")


def test_sync_fails_for_a_missing_file(home: Files) -> None:
    home.create("part=1/0.parquet", b"rows")
    home.sync("part=1/0.parquet")
    with pytest.raises(NotFoundError):
        home.sync("part=1/0.parquet", "part=1/1.parquet")


@only_local
def test_sync_accepts_the_file_of_another_writer_and_fails_for_a_missing_file(home: Files, tmp_path: Path) -> None:
    (tmp_path / "home" / "part=1").mkdir(parents=True)
    (tmp_path / "home" / "part=1" / "0.parquet").write_bytes(b"rows")
    home.sync("part=1/0.parquet")
    assert home.read("part=1/0.parquet") == b"rows"
    with pytest.raises(NotFoundError):
        home.sync("part=1/1.parquet")


def test_adopt_gives_a_file_a_second_name_that_survives_the_first(home: Files, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"state")
    home.link_or_copy(theirs, "state/1/3.zip")
    home.sync("state/1/3.zip")
    theirs.unlink()
    assert home.read("state/1/3.zip") == b"state"
    assert home.names("state/1") == ["3.zip"]


def test_adopt_refuses_a_taken_name_and_a_missing_file(home: Files, tmp_path: Path) -> None:
    home.create("taken", b"ours")
    (tmp_path / "theirs").write_bytes(b"theirs")
    with pytest.raises(AlreadyExistsError):
        home.link_or_copy(tmp_path / "theirs", "taken")
    with pytest.raises(NotFoundError):
        home.link_or_copy(tmp_path / "nowhere", "free")
    assert home.read("taken") == b"ours"
    assert home.names("") == ["taken"]


def test_a_copy_is_independent_of_its_source(home: Files, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"state" * 1_000_000)
    assert home.copy(LocalFiles(tmp_path), "theirs", "state/1/3.zip") == (5_000_000, sha256(b"state" * 1_000_000))
    home.sync("state/1/3.zip")
    theirs.write_bytes(b"written over where it lies")
    assert home.read("state/1/3.zip") == b"state" * 1_000_000
    assert home.names("state/1") == ["3.zip"]


@pytest.mark.parametrize("size_bytes", [0, 1, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 20_000_000])
@pytest.mark.slow
def test_a_copy_of_any_size_is_complete_and_returns_its_digest(home: Files, tmp_path: Path, size_bytes: int) -> None:
    data = bytes(range(256)) * (size_bytes // 256 + 1)
    (tmp_path / "theirs").write_bytes(data[:size_bytes])
    assert home.copy(LocalFiles(tmp_path), "theirs", "a/copy") == (size_bytes, sha256(data[:size_bytes]))
    with pytest.raises(AlreadyExistsError):
        home.copy(LocalFiles(tmp_path), "theirs", "a/copy")
    assert home.digest("a/copy") == (size_bytes, sha256(data[:size_bytes]))
    assert b"".join(home.chunks("a/copy")) == data[:size_bytes]
    assert home.copy(home, "a/copy", "within/copy") == home.digest("within/copy") == (size_bytes, sha256(data[:size_bytes]))


def test_a_copy_whose_source_fails_halfway_does_not_exist(home: Files) -> None:
    with pytest.raises(StorageError, match="the source is away"):
        home.copy(GoesAway(chunks=30), "theirs", "a/copy")
    assert home.names("a") == []


def test_a_file_can_be_copied_from_any_storage(home: Files, open_home: Open, tmp_path: Path) -> None:
    for source in (open_home(tmp_path / "other"), open_files(str(tmp_path / "here"))):
        source.create("x/theirs", b"state")
        copied = home.copy(source, "x/theirs", f"from/{source.url.rpartition('/')[2]}")
        assert copied == (5, sha256(b"state"))
    home.sync("from/other", "from/here")
    assert [home.read("from/other"), home.read("from/here")] == [b"state", b"state"]


@pytest.mark.parametrize("name", ["part=a b", "day=2026-01-01 00%3A00%3A00", "x#y?z", "ü+&=,@~'", "[*]{}"])
def test_names_of_partitions_with_any_characters_are_kept(home: Files, name: str) -> None:
    home.create(f"staged/{name}/{name}.parquet", b"rows")
    assert home.names("staged") == [name]
    assert home.names(f"staged/{name}") == [f"{name}.parquet"]
    assert home.paths() == [f"staged/{name}/{name}.parquet"]
    home.delete(f"staged/{name}")
    assert home.names("staged") == []


@only(*LOCAL, *IN_S3, *IN_GOOGLE, HDFS)
def test_a_name_may_contain_a_backslash(home: Files) -> None:
    home.create("a/c\\d", b"rows")
    assert home.names("a") == ["c\\d"]
    assert home.read("a/c\\d") == b"rows"


@only(AZURE)
def test_azure_refuses_a_backslash_in_a_name(home: Files) -> None:
    for call in (home.read, home.delete, home.sync, lambda path: home.create(path, b"rows")):
        with pytest.raises(InvalidParameterError, match="cannot be the name"):
            call("a/c\\d")


@only(*IN_GOOGLE, AZURE)
def test_a_tree_of_which_another_process_deletes_a_part_is_deleted_in_few_requests(
    home: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        home.create(f"tree/{number}", b"rows")
    delete = obstore.delete
    requests: list[Sequence[str]] = []

    def second(store: Any, keys: Sequence[str]) -> None:
        if not requests:
            delete(store, keys[:1])
        requests.append(keys)
        delete(store, keys)

    monkeypatch.setattr(obstore, "delete", second)
    home.delete("tree")
    assert home.paths() == []
    assert len(requests) < 10, "all files, those that are left of them, perhaps again, and the directory; never one by one"


@only(*LOCAL, *IN_S3, *IN_GOOGLE, AZURE)
def test_a_name_may_contain_a_colon(home: Files) -> None:
    home.create("a/c:d", b"rows")
    assert home.names("a") == ["c:d"]
    assert home.read("a/c:d") == b"rows"


@only(HDFS)
def test_hdfs_refuses_a_colon_in_a_name(home: Files) -> None:
    for call in (home.read, home.delete, home.sync, lambda path: home.create(path, b"rows")):
        with pytest.raises(InvalidParameterError, match="':'"):
            call("a/c:d")


def test_copy_refuses_a_taken_name_and_a_missing_file(home: Files, tmp_path: Path) -> None:
    home.create("taken", b"ours")
    (tmp_path / "theirs").write_bytes(b"theirs")
    with pytest.raises(AlreadyExistsError):
        home.copy(LocalFiles(tmp_path), "theirs", "taken")
    with pytest.raises(NotFoundError):
        home.copy(LocalFiles(tmp_path), "nowhere", "free")
    assert home.read("taken") == b"ours"
    assert home.names("") == ["taken"]
    assert nothing_is_unfinished(tmp_path)


@pytest.mark.parametrize("size_bytes", [0, 3, 3 << 20])
def test_a_digest_has_the_size_and_hash_of_any_file(home: Files, size_bytes: int) -> None:
    data = b"s" * size_bytes
    home.create("a/b", data)
    assert home.digest("a/b") == (size_bytes, sha256(data))
    with pytest.raises(NotFoundError):
        home.digest("a/c")


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "..", "../x", "a/../../x", "a/./b", "a//b", "a/", ".x.tmp", "a/.b.0.tmp/c", "a\0b"]
)
def test_no_path_leads_out_of_the_root_or_to_an_unfinished_file(home: Files, tmp_path: Path, path: str) -> None:
    (tmp_path / "x").write_bytes(b"outside")
    for call in (
        home.read,
        home.digest,
        home.delete,
        home.sync,
        lambda path: home.link_or_copy(tmp_path / "x", path),
        lambda path: home.copy(LocalFiles(tmp_path), "x", path),
        lambda path: home.create(path, b""),
        lambda path: home.replace(path, b""),
    ):
        with pytest.raises(RejectedError):
            call(path)
    if path:
        with pytest.raises(RejectedError):
            home.names(path)
    assert [found.name for found in tmp_path.iterdir()] == ["x"], "nothing was written"
    assert (tmp_path / "x").read_bytes() == b"outside"


@only_directories
def test_a_name_that_is_too_long_is_refused(home: Files) -> None:
    with pytest.raises(InvalidParameterError):
        home.create("n" * 300, b"")
    assert home.names("") == []


def test_a_subdirectory_can_be_opened_as_a_root(home: Files) -> None:
    below = home.below("inner/1")
    below.create("a/b", b"deep")
    assert home.read("inner/1/a/b") == b"deep"
    assert below.url == f"{home.url}/inner/1"
    assert below.names("") == ["a"]
    with pytest.raises(RejectedError):
        below.read("../../x")
    with pytest.raises(RejectedError):
        home.below("..")


def test_the_url_of_a_root_opens_the_same_files(home: Files) -> None:
    home.create("a", b"here")
    assert home.url.startswith(("file:///", "s3://", "gs://", "abfss://", "hdfs://"))
    assert open_place(home.url).read("a") == b"here"


def test_the_check_of_create_if_absent_succeeds_and_leaves_no_file(home: Files) -> None:
    check_create_if_absent(home)
    assert home.names("") == []


def test_documents_are_read_as_they_were_created(home: Files) -> None:
    document = PipelineDocument(name=PipelineName("flights"), uuid=PipelineUuid("0-1"))
    create_document(home, "pipeline.json", document)
    create_document(home, "pipeline.json", document)
    assert read_document(home, "pipeline.json", PipelineDocument) == document
    with pytest.raises(AlreadyExistsError):
        create_document(home, "pipeline.json", PipelineDocument(name=document.name, uuid=document.uuid))


@only(*LOCAL, *IN_S3, *IN_GOOGLE, AZURE, HDFS_AT_NIGHT)  # hundreds of creates that take half a second each
@given(contents=st.lists(st.binary(max_size=3000), min_size=1, max_size=5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_any_bytes_are_read_as_they_were_written(home: Files, contents: list[bytes]) -> None:
    home.delete("d")
    for number, data in enumerate(contents):
        home.create(f"d/{number}", data)
        home.replace("d/latest", data)
    assert [home.read(f"d/{number}") for number in range(len(contents))] == contents
    assert home.read("d/latest") == contents[-1]


def test_a_file_larger_than_one_write_is_complete(home: Files) -> None:
    data = bytes(range(256)) * 20_000
    home.create("large", data)
    assert home.read("large") == data


def _creates(home: Files, path: str, data: bytes) -> bool:
    try:
        home.create(path, data)
    except AlreadyExistsError:
        return False
    return True


@pytest.mark.slow
def test_one_of_many_threads_creates_a_file(open_home: Open, tmp_path: Path) -> None:
    threads = 8
    homes = [open_home(tmp_path / "home") for _ in range(threads)]
    barrier = ThreadBarrier(threads)

    def creates(number: int, path: str) -> bool:
        barrier.wait(30)
        return _creates(homes[number], path, b"%d" % number)

    with ThreadPoolExecutor(threads) as pool:
        for turn in range(10):
            won = list(pool.map(creates, range(threads), [f"new/{turn}/x"] * threads))
            assert won.count(True) == 1
            assert homes[0].read(f"new/{turn}/x") == b"%d" % won.index(True)
            assert homes[0].names(f"new/{turn}") == ["x"]
            assert nothing_is_unfinished(tmp_path), "the losers clear up"


@pytest.mark.slow
def test_one_writer_that_creates_the_same_file_in_many_threads_is_never_refused(open_home: Open, tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    with ThreadPoolExecutor(8) as pool:
        for turn in range(10):
            assert all(pool.map(_creates, [home] * 8, [f"a/{turn}"] * 8, [b"same"] * 8))


def test_a_reader_never_sees_a_mix_of_old_and_new_bytes(open_home: Open, tmp_path: Path) -> None:
    home, reader = open_home(tmp_path / "home"), open_home(tmp_path / "home")
    values = [b"%d" % number * 50_000 for number in range(10)]
    home.replace("status.json", values[0])

    def write() -> None:
        for value in values * 3:
            home.replace("status.json", value)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        seen = {reader.read("status.json")}
        while not writing.done():
            seen.add(reader.read("status.json"))
            assert reader.names("") == ["status.json"]
        writing.result()
    assert seen <= set(values)


def _create_in_process(open_home: Open, root: Path, number: int, barrier: Barrier, answers: "Queue[tuple[int, int]]") -> None:
    home = open_home(root)
    for turn in range(20):
        barrier.wait(60)
        if _creates(home, f"new/{turn}", b"%d" % number):
            answers.put((turn, number))


@pytest.mark.slow
def test_one_of_many_processes_creates_a_file(open_home: Open, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(3), context.Queue()
    root = tmp_path / "home"
    processes = [
        context.Process(target=_create_in_process, args=(open_home, root, number, barrier, answers)) for number in range(3)
    ]
    for process in processes:
        process.start()
    won = dict(answers.get(timeout=60) for _ in range(20))
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert answers.empty()
    home = open_home(root)
    assert {turn: int(home.read(f"new/{turn}")) for turn in range(20)} == won
