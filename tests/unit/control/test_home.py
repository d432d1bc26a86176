"""A home in an object store, and its cache in a directory."""

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs.control.attempts import LOGS_KEPT, Attempts, forget_old_logs
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import HomeInStore, cache_name, check_claim, look_interval_s, open_home
from spark_jobs.control.liveness import claimed_request, driver_at_work, holding
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK, SPARK_LOG, log_path
from spark_jobs.protocol.documents import RunState, Status
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
)
from spark_jobs.protocol.ids import AttemptNumber, PipelineName, RunId
from spark_jobs.storage.files import Files, is_mounted, local_path, transfer
from spark_jobs.storage.local import LocalFiles
from tests.support.attempts import attempt
from tests.support.memory_files import MemoryFiles

STATE = "state/hourly/3-1-1/state/0/0/4_id.changelog"
FLIGHTS = PipelineName("flights")


@pytest.fixture
def documents() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def home(documents: MemoryFiles, tmp_path: Path) -> HomeInStore:
    return HomeInStore(documents, LocalFiles(tmp_path / "cache"))


def below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def spark_wrote(directory: Path, data: bytes = b"state") -> Path:
    path = directory / "4.changelog"
    path.write_bytes(data)
    return path


def beat() -> Status:
    return Status(attempt=AttemptNumber(1), run=RunId("r"), state=RunState.RUNNING, updated_at=datetime.now(UTC), stages={})


@pytest.mark.parametrize("path", ["logs/1.log", "work/7/a"])
def test_files_of_a_running_driver_are_in_the_cache(home: HomeInStore, documents: MemoryFiles, tmp_path: Path, path: str) -> None:
    home.create(path, b"here")
    assert local_path(home, path) == tmp_path / "cache" / path
    assert (tmp_path / "cache" / path).read_bytes() == home.read(path) == b"here"
    assert home.names(path.rpartition("/")[0]) == [path.rpartition("/")[2]]
    assert documents.contents == {}
    directory, _, name = path.partition("/")
    assert home.below(directory).read(name) == b"here"
    home.sync(path)
    home.delete(path)
    assert not (tmp_path / "cache" / path).exists()


@pytest.mark.parametrize(
    "path",
    [
        "pipeline.json",
        "attempts/1.json",
        "manifests/1.json",
        "savepoints/s/savepoint.json",
        "channels/i/known/a",
        "tombstones/i/hourly/a",
    ],
)
def test_documents_and_rows_are_in_the_store(home: HomeInStore, documents: MemoryFiles, tmp_path: Path, path: str) -> None:
    home.create(path, b"{}")
    assert documents.contents == {path: b"{}"}
    assert home.local(path) is None
    assert not is_mounted(home)
    assert not (tmp_path / "cache").exists()


def test_reading_documents_needs_no_cache(documents: MemoryFiles) -> None:
    documents.contents |= {"requests/start-1.json": b"{}", "status.json": b"{}", "pipeline.json": b"not read"}
    home = HomeInStore(documents)
    assert home.names("requests") == ["start-1.json"]
    assert home.read("status.json") == b"{}"
    with pytest.raises(NotFoundError):
        home.read("responses/start-1.json")


class TestCache:
    """Without a work root, the cache is on the driver's disk."""

    @pytest.fixture
    def disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "disk"))
        return tmp_path / "disk"

    @pytest.fixture
    def home(self, documents: MemoryFiles, disk: Path) -> HomeInStore:
        home = HomeInStore(documents)
        Channel(home).claim(FLIGHTS)
        return home

    def test_no_driver_is_at_work_in_a_home_without_attempts(self, documents: MemoryFiles, disk: Path) -> None:
        home = HomeInStore(documents)
        assert not driver_at_work(home)
        assert claimed_request(home) is None
        assert home.names("work") == []
        assert not disk.exists()

    @pytest.mark.parametrize("path", ["work/7/a", "logs/1.log"])
    def test_work_directories_and_logs_are_on_the_disk(
        self, home: HomeInStore, documents: MemoryFiles, disk: Path, path: str
    ) -> None:
        home.create(path, b"here")
        home.sync(path)
        assert local_path(home, path).read_bytes() == b"here"
        assert local_path(home, path).is_relative_to(disk)
        assert set(documents.contents) == {"pipeline.json"}

    @pytest.mark.parametrize("path", ["channels/i/known/a", "tombstones/i/hourly/a", "state/hourly/1-1-1/a", "manifests/1.json"])
    def test_all_files_that_a_restore_needs_are_in_the_store(
        self, home: HomeInStore, documents: MemoryFiles, disk: Path, path: str
    ) -> None:
        home.create(path, b"there")
        assert documents.contents[path] == b"there"
        assert home.local(path) is None
        assert home.below(path.rpartition("/")[0]).read(path.rpartition("/")[2]) == b"there"
        assert not disk.exists()

    def test_state_of_a_cut_stays_on_the_disk_until_it_is_synced_to_the_store(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        home.link_or_copy(spark_wrote(tmp_path), STATE)
        assert STATE not in documents.contents
        home.sync(STATE)
        assert documents.contents[STATE] == b"state"

    def test_two_homes_have_two_caches(self, home: HomeInStore, disk: Path) -> None:
        assert local_path(HomeInStore(Elsewhere()), "work") != local_path(home, "work")

    def test_a_copy_of_a_home_is_refused(self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path) -> None:
        """A copy would publish its checkpoints under the same numbers as the original home."""
        copy = Elsewhere()
        copy.contents |= documents.contents
        with pytest.raises(RejectedError, match="it was begun at memory: and copied"):
            check_claim(HomeInStore(copy), Channel(copy).pipeline())

    def test_the_error_for_a_user_without_a_cache_directory_names_the_setting(
        self, documents: MemoryFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

        def no_home() -> Path:
            raise RuntimeError

        monkeypatch.setattr(Path, "home", no_home)
        with pytest.raises(MissingRequirementError, match="no home directory") as refused:
            HomeInStore(documents).create("work/1/a", b"")
        assert "XDG_CACHE_HOME" in str(refused.value.remedy)

    @pytest.mark.parametrize("note", ["start-1", "start-2", None])
    def test_a_lock_on_this_disk_counts_only_if_the_live_driver_holds_it(self, home: HomeInStore, note: str | None) -> None:
        """Containers may share the host's name without sharing its disk."""
        live = attempt(1).model_copy(update={"host": socket.gethostname()})
        Attempts(home).create(live)
        write_status(home, beat())
        if note is not None:
            with holding(local_path(home, DRIVER_LOCK), note):
                assert driver_at_work(home)
        assert live.request == "start-1"
        assert driver_at_work(home) is (note != "start-1"), "it was heard of a moment ago, unless this is its lock"


def test_files_that_are_created_together_are_each_in_their_own_place(
    home: HomeInStore, documents: MemoryFiles, tmp_path: Path
) -> None:
    home.create_all([("manifests/1.json", b"1"), ("logs/driver.log", b"log"), ("manifests/2.json", b"2")])
    assert documents.contents == {"manifests/1.json": b"1", "manifests/2.json": b"2"}
    assert (tmp_path / "cache/logs/driver.log").read_bytes() == b"log"


def test_a_driver_is_seen_by_its_lock_in_the_cache(home: HomeInStore) -> None:
    with holding(local_path(home, DRIVER_LOCK), "start-3"):
        assert driver_at_work(home)
        assert claimed_request(home) == "start-3"
    assert not driver_at_work(home)


def test_a_home_in_a_store_is_read_less_often_than_a_directory(home: HomeInStore, tmp_path: Path) -> None:
    assert (look_interval_s(home), look_interval_s(LocalFiles(tmp_path))) == (5.0, 1.0)


class TestStateInTheCache:
    def test_is_a_link_to_the_file_of_spark(self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path) -> None:
        source = spark_wrote(tmp_path)
        home.link_or_copy(source, STATE)
        assert documents.contents == {}
        assert (tmp_path / "cache" / STATE).stat().st_ino == source.stat().st_ino

    def test_moves_to_the_store_when_it_is_synced(self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path) -> None:
        home.link_or_copy(spark_wrote(tmp_path), STATE)
        assert home.digest(STATE).size_bytes == 5
        home.sync(STATE)
        assert documents.contents == {STATE: b"state"}
        assert home.read(STATE) == b"".join(home.chunks(STATE)) == b"state"
        assert below(tmp_path / "cache") == ["state", "state/hourly"]

    def test_stays_in_the_cache_if_another_file_is_synced(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        other = STATE.replace("/0/0/", "/0/1/")
        for path in (STATE, other):
            home.link_or_copy(spark_wrote(tmp_path), path)
        home.sync(STATE)
        assert documents.contents == {STATE: b"state"}
        assert home.read(other) == b"state"

    def test_is_listed_under_the_name_of_its_try(self, home: HomeInStore, tmp_path: Path) -> None:
        home.link_or_copy(spark_wrote(tmp_path), STATE)
        assert home.names("state") == ["hourly"]
        assert home.names("state/hourly") == ["3-1-1"]
        assert home.paths("state") == [STATE]

    @pytest.mark.parametrize("done", [False, True])
    def test_can_be_synced_again_after_an_interruption_at_any_step(
        self, documents: MemoryFiles, tmp_path: Path, done: bool
    ) -> None:
        class BreaksOff(MemoryFiles):
            broken = False

            def copy(self, source: Files, named: str, path: str):  # type: ignore[no-untyped-def]
                if not self.broken:
                    self.broken = True
                    if done:
                        super().copy(source, named, path)
                    raise OutcomeUnknownError("no answer")
                return super().copy(source, named, path)

        store = BreaksOff()
        home = HomeInStore(store, LocalFiles(tmp_path / "cache"))
        home.link_or_copy(spark_wrote(tmp_path), STATE)
        with pytest.raises(OutcomeUnknownError):
            home.sync(STATE)
        home.sync(STATE)
        home.sync(STATE)
        assert store.contents == {STATE: b"state"}
        assert below(tmp_path / "cache") == ["state", "state/hourly"]

    def test_is_not_read_if_it_is_incomplete_and_the_store_has_the_file(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        documents.create(STATE, b"state")
        HomeInStore(documents, home.cache).link_or_copy(spark_wrote(tmp_path, b"st"), STATE)
        assert home.read(STATE) == b"".join(home.chunks(STATE)) == b"state"
        assert home.digest(STATE).size_bytes == 5

    def test_is_read_by_its_own_process_without_a_request_to_the_store(self, tmp_path: Path) -> None:
        class NeverAsked(MemoryFiles):
            def digest(self, path: str):  # type: ignore[no-untyped-def]
                raise AssertionError(f"{path} was looked for in the store")

        home = HomeInStore(NeverAsked(), LocalFiles(tmp_path / "cache"))
        home.link_or_copy(spark_wrote(tmp_path), STATE)
        assert home.digest(STATE).size_bytes == 5

    def test_is_found_by_another_process_while_it_is_moved_to_the_store(self, tmp_path: Path) -> None:
        class BroughtIn(MemoryFiles):
            """A store that lacks the file at the first request and has it at the second."""

            def digest(self, path: str):  # type: ignore[no-untyped-def]
                try:
                    return super().digest(path)
                except NotFoundError:
                    waiting.sync(path)
                    raise

        store = BroughtIn()
        waiting = HomeInStore(store, LocalFiles(tmp_path / "cache"))
        waiting.link_or_copy(spark_wrote(tmp_path), STATE)
        assert HomeInStore(store, waiting.cache).digest(STATE).size_bytes == 5

    def test_is_deleted_with_its_checkpoint_from_cache_and_store(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        home.link_or_copy(spark_wrote(tmp_path), STATE)
        documents.create(f"{STATE}.other", b"state")
        home.delete("state/hourly/3-1-1")
        assert home.names("state/hourly") == []
        with pytest.raises(NotFoundError):
            home.read(STATE)

    def test_is_copied_from_the_store_by_a_restore(self, home: HomeInStore, documents: MemoryFiles) -> None:
        documents.create(STATE, b"state")
        transfer(home, STATE, home.below("work/2"), "stages/hourly/4.changelog")
        assert home.read("work/2/stages/hourly/4.changelog") == b"state"


class TestPlacesOfHomesAndCaches:
    def test_each_home_has_its_own_cache_below_a_work_root(self, tmp_path: Path) -> None:
        homes = [open_home(f"s3://lake/{name}/flights", str(tmp_path)) for name in ("a", "b")]
        first, second = (local_path(home, "work").parent for home in homes)
        assert first != second
        assert (first.parent, first.name) == (tmp_path, cache_name("s3://lake/a/flights"))
        assert first.name.startswith("flights-")

    def test_a_home_whose_name_no_directory_can_have_still_gets_a_cache(self) -> None:
        assert cache_name("s3://lake/ä b…" + "c" * 300).startswith("__b_ccc")
        assert len(cache_name("s3://lake/" + "c" * 300)) < 64

    def test_a_home_that_has_begun_accepts_any_work_root(self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path) -> None:
        Channel(home).claim(FLIGHTS)
        elsewhere = HomeInStore(documents, LocalFiles(tmp_path / "elsewhere"))
        check_claim(elsewhere, Channel(elsewhere).pipeline())

    def test_a_home_that_is_a_directory_has_no_work_root(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidParameterError, match="has its own work directories"):
            open_home(str(tmp_path), str(tmp_path / "work"))

    def test_a_copy_of_a_home_in_another_kind_of_place_is_refused(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        Channel(home).claim(FLIGHTS)
        directory, store = LocalFiles(tmp_path / "home"), MemoryFiles()
        directory.create("pipeline.json", documents.contents["pipeline.json"])
        with pytest.raises(RejectedError, match="it was begun at memory: and copied"):
            check_claim(directory, Channel(directory).pipeline())
        Channel(LocalFiles(tmp_path / "another")).claim(FLIGHTS)
        store.create("pipeline.json", LocalFiles(tmp_path / "another").read("pipeline.json"))
        with pytest.raises(RejectedError, match="it was begun in a directory and copied"):
            check_claim(HomeInStore(store), Channel(store).pipeline())


class TestWorkRootInAStore:
    UUID = "12345678-1234-1234-1234-123456789012"

    @pytest.fixture
    def work(self) -> MemoryFiles:
        return MemoryFiles()

    @pytest.fixture
    def home(self, documents: MemoryFiles, work: MemoryFiles, tmp_path: Path) -> HomeInStore:
        return HomeInStore(documents, LocalFiles(tmp_path / "cache"), work)

    @pytest.mark.parametrize("name", [UUID, f"probe-{UUID.replace('-', '')}"])
    def test_files_of_executors_are_in_the_work_root(
        self, home: HomeInStore, documents: MemoryFiles, work: MemoryFiles, tmp_path: Path, name: str
    ) -> None:
        path = f"work/{name}/a"
        home.create(path, b"there")
        home.below(f"work/{name}").create("b", b"there, too")
        assert work.contents == {path: b"there", f"work/{name}/b": b"there, too"}
        assert (documents.contents, below(tmp_path)) == ({}, [])
        assert home.local(path) is None
        home.sync(path)
        assert home.names(f"work/{name}") == ["a", "b"]
        home.delete(f"work/{name}")
        assert work.contents == {}

    @pytest.mark.parametrize("path", [DRIVER_LOCK, SPARK_LOG, "logs/1.log", "work/publish-1.out"])
    def test_files_of_the_driver_alone_are_on_its_disk(
        self, home: HomeInStore, work: MemoryFiles, tmp_path: Path, path: str
    ) -> None:
        home.create(path, b"here")
        assert local_path(home, path).read_bytes() == home.read(path) == b"here"
        home.sync(path)
        assert work.contents == {}

    def test_files_in_the_work_root_and_on_the_disk_are_listed_and_deleted_together(
        self, home: HomeInStore, work: MemoryFiles
    ) -> None:
        home.create(f"work/{self.UUID}/a", b"there")
        home.create(DRIVER_LOCK, b"here")
        assert home.names("work") == [self.UUID, "driver.lock"]
        assert home.paths("work") == [f"work/{self.UUID}/a", DRIVER_LOCK]
        home.delete("work")
        assert home.names("work") == []

    def test_each_home_has_its_own_place_below_the_work_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        home = open_home("s3://lake/homes/flights", "s3://lake/work")
        cache = cache_name(home.url)
        assert home.below(f"work/{self.UUID}").url == f"s3://lake/work/{cache}/work/{self.UUID}"
        assert local_path(home, DRIVER_LOCK) == tmp_path / "spark-jobs/homes" / cache / DRIVER_LOCK

    def test_an_unknown_kind_of_root_is_refused(self) -> None:
        with pytest.raises(InvalidParameterError, match="wasbs: is not supported"):
            open_home("s3://lake/homes/flights", "wasbs://lake/work")


class TestLiveness:
    def test_the_heartbeat_counts_if_the_cache_is_not_visible_even_on_the_same_host(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        """Containers may share the host's name without sharing its directories."""
        Channel(home).claim(FLIGHTS)
        Attempts(home).create(attempt(1).model_copy(update={"host": socket.gethostname()}))
        write_status(home, beat())
        with holding(local_path(home, DRIVER_LOCK), "start-1"):
            assert driver_at_work(home)
        assert not driver_at_work(home), "it has let its lock go"
        (tmp_path / "cache").rename(tmp_path / "elsewhere")
        assert driver_at_work(home)
        write_status(home, beat().model_copy(update={"state": RunState.DONE}))
        assert not driver_at_work(home)


class Elsewhere(MemoryFiles):
    url = "memory:elsewhere"


class TestLogs:
    def test_logs_are_read_completely_from_the_cache_and_otherwise_from_their_shown_end(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        home.create("logs/1.log", b"first\nlast\n")
        documents.replace("logs/1.log", b"last\n")
        assert home.read("logs/1.log") == b"first\nlast\n"
        assert HomeInStore(documents, LocalFiles(tmp_path / "not mounted")).read("logs/1.log") == b"last\n"

    def test_old_logs_are_deleted_in_the_cache_and_in_the_store(
        self, home: HomeInStore, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        live = LOGS_KEPT + 1
        for number in (1, live):
            home.create(log_path(AttemptNumber(number)), b"said")
            documents.create(log_path(AttemptNumber(number)), b"said")
        home.documents.create(log_path(AttemptNumber(0)), b"said by one whose file is gone")
        forget_old_logs(home, AttemptNumber(live))
        assert list(documents.contents) == [f"logs/{live}.log"]
        assert below(tmp_path / "cache") == ["logs", f"logs/{live}.log"]


CALLS: list[Callable[[HomeInStore, Path], object]] = [
    lambda home, source: home.link_or_copy(source, STATE),
    lambda home, source: home.link_or_copy(source, "work/1/a"),
    lambda home, source: home.copy(LocalFiles(source.parent), source.name, "work/1/a"),
]


@pytest.mark.parametrize("call", CALLS)
def test_creating_a_file_whose_name_is_taken_fails(
    home: HomeInStore, tmp_path: Path, call: Callable[[HomeInStore, Path], object]
) -> None:
    source = spark_wrote(tmp_path)
    call(home, source)
    with pytest.raises(AlreadyExistsError):
        call(home, source)
