"""A home in an object store whose workspace is a directory."""

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs.control.attempts import LOGS_KEPT, Attempts, forget_old_logs
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import DividedHome, check_claim, check_workspace, look_interval_s, open_home, workspace_of
from spark_jobs.control.home import claim_workspace as claim_workspace_of
from spark_jobs.control.liveness import claimed_request, driver_at_work, holding
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import DRIVER_LOCK, log_path
from spark_jobs.protocol.documents import RunState, Status
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    StorageError,
)
from spark_jobs.protocol.ids import AttemptNumber, PipelineName, RunId
from spark_jobs.protocol.workspace import NamedWorkspace
from spark_jobs.storage.files import Files, is_here, local_path, take
from spark_jobs.storage.local import LocalFiles
from tests.support.memory_files import MemoryFiles
from tests.unit.control.test_channel import attempt

STATE = "state/hourly/3-1-1/state/0/0/4_id.changelog"
FLIGHTS = PipelineName("flights")


@pytest.fixture
def documents() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def home(documents: MemoryFiles, tmp_path: Path) -> DividedHome:
    return DividedHome(documents, LocalFiles(tmp_path / "workspace"))


def claim_workspace(home: Files, given: str | None = None) -> NamedWorkspace | None:
    """Claims the workspace like a start."""
    return claim_workspace_of(home, Channel(home).pipeline(), given)


def below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def spark_wrote(directory: Path, data: bytes = b"state") -> Path:
    path = directory / "4.changelog"
    path.write_bytes(data)
    return path


def beat() -> Status:
    return Status(attempt=AttemptNumber(1), run=RunId("r"), state=RunState.RUNNING, updated_at=datetime.now(UTC), stages={})


@pytest.mark.parametrize("path", ["channels/i/known/a", "logs/1.log", "tombstones/i/hourly/a", "work/7/a"])
def test_what_spark_and_the_host_need_is_in_the_workspace(
    home: DividedHome, documents: MemoryFiles, tmp_path: Path, path: str
) -> None:
    home.create(path, b"here")
    assert local_path(home, path) == tmp_path / "workspace" / path
    assert (tmp_path / "workspace" / path).read_bytes() == home.read(path) == b"here"
    assert home.names(path.rpartition("/")[0]) == [path.rpartition("/")[2]]
    assert documents.contents == {}
    directory, _, name = path.partition("/")
    assert home.below(directory).read(name) == b"here"
    home.sync(path)
    home.delete(path)
    assert not (tmp_path / "workspace" / path).exists()


@pytest.mark.parametrize("path", ["pipeline.json", "attempts/1.json", "manifests/1.json", "savepoints/s/savepoint.json"])
def test_documents_are_in_the_store(home: DividedHome, documents: MemoryFiles, tmp_path: Path, path: str) -> None:
    home.create(path, b"{}")
    assert documents.contents == {path: b"{}"}
    assert home.local(path) is None
    assert not is_here(home)
    assert not (tmp_path / "workspace").exists()


def test_who_reads_documents_needs_no_workspace(documents: MemoryFiles) -> None:
    documents.contents |= {"requests/start-1.json": b"{}", "status.json": b"{}", "pipeline.json": b"not read"}
    home = DividedHome(documents)
    assert home.names("requests") == ["start-1.json"]
    assert home.read("status.json") == b"{}"
    with pytest.raises(NotFoundError):
        home.read("responses/start-1.json")


class TestCache:
    """Without a workspace, the files that Spark and the host need are on the driver's disk, and no other files are."""

    @pytest.fixture
    def disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "disk"))
        return tmp_path / "disk"

    @pytest.fixture
    def home(self, documents: MemoryFiles, disk: Path) -> DividedHome:
        home = DividedHome(documents)
        Channel(home).claim(FLIGHTS, claim_workspace(home))
        return home

    def test_nobody_is_at_work_in_a_home_that_has_not_begun(self, documents: MemoryFiles, disk: Path) -> None:
        home = DividedHome(documents)
        assert not driver_at_work(home)
        assert claimed_request(home) is None
        assert home.names("work") == []
        assert workspace_of(home) is None
        assert not disk.exists()

    @pytest.mark.parametrize("path", ["work/7/a", "logs/1.log"])
    def test_work_and_logs_are_on_the_disk(self, home: DividedHome, documents: MemoryFiles, disk: Path, path: str) -> None:
        home.create(path, b"here")
        home.sync(path)
        assert local_path(home, path).read_bytes() == b"here"
        assert local_path(home, path).is_relative_to(disk)
        assert set(documents.contents) == {"pipeline.json"}

    @pytest.mark.parametrize("path", ["channels/i/known/a", "tombstones/i/hourly/a", "state/hourly/1-1-1/a", "manifests/1.json"])
    def test_all_that_a_restore_needs_is_in_the_store(
        self, home: DividedHome, documents: MemoryFiles, disk: Path, path: str
    ) -> None:
        home.create(path, b"there")
        assert documents.contents[path] == b"there"
        assert home.local(path) is None
        assert home.below(path.rpartition("/")[0]).read(path.rpartition("/")[2]) == b"there"
        assert not disk.exists()

    def test_a_cut_waits_on_the_disk_until_it_is_in_the_store(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        home.adopt(spark_wrote(tmp_path), STATE)
        assert STATE not in documents.contents
        home.sync(STATE)
        assert documents.contents[STATE] == b"state"

    def test_two_homes_have_two_caches(self, home: DividedHome, disk: Path) -> None:
        assert local_path(DividedHome(Elsewhere()), "work") != local_path(home, "work")

    def test_a_home_that_has_begun_without_a_workspace_gets_none(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        told = DividedHome(documents, LocalFiles(tmp_path / "workspace"))
        assert told.has_cache
        with pytest.raises(RejectedError, match="was begun without a workspace"):
            claim_workspace(told, str(tmp_path / "workspace"))
        assert claim_workspace(DividedHome(documents)) is None

    def test_a_copy_of_it_is_no_home(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        """A copy would publish its checkpoints under the same numbers as the original home."""
        copy = Elsewhere()
        copy.contents |= documents.contents
        with pytest.raises(RejectedError, match="cannot be continued or begun as a home here"):
            claim_workspace(DividedHome(copy))

    def test_a_user_without_a_directory_for_caches_is_told_what_to_name(
        self, documents: MemoryFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

        def no_home() -> Path:
            raise RuntimeError

        monkeypatch.setattr(Path, "home", no_home)
        with pytest.raises(MissingRequirementError, match="no home directory") as refused:
            DividedHome(documents).create("work/1/a", b"")
        assert "XDG_CACHE_HOME" in str(refused.value.remedy)

    @pytest.mark.parametrize("note", ["start-1", "start-2", None])
    def test_a_lock_on_this_disk_counts_only_where_it_is_the_driver_s(self, home: DividedHome, note: str | None) -> None:
        """Containers may share the host's name without sharing its disk."""
        live = attempt(1).model_copy(update={"host": socket.gethostname()})
        Attempts(home).create(live)
        write_status(home, beat())
        if note is not None:
            with holding(local_path(home, DRIVER_LOCK), note):
                assert driver_at_work(home)
        assert live.request == "start-1"
        assert driver_at_work(home) is (note != "start-1"), "it was heard of a moment ago, unless this is its lock"


def test_a_driver_is_seen_by_its_lock_in_the_workspace(home: DividedHome) -> None:
    with holding(local_path(home, DRIVER_LOCK), "start-3"):
        assert driver_at_work(home)
        assert claimed_request(home) == "start-3"
    assert not driver_at_work(home)


def test_looks_into_a_store_are_rarer(home: DividedHome, tmp_path: Path) -> None:
    assert (look_interval_s(home), look_interval_s(LocalFiles(tmp_path))) == (5.0, 1.0)


class TestStateThatWaits:
    def test_a_cut_moves_no_bytes(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        source = spark_wrote(tmp_path)
        home.adopt(source, STATE)
        assert documents.contents == {}
        assert (tmp_path / "workspace" / STATE).stat().st_ino == source.stat().st_ino

    def test_it_is_in_the_store_and_waits_no_more_once_it_is_durable(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        home.adopt(spark_wrote(tmp_path), STATE)
        assert home.digest(STATE).size_bytes == 5
        home.sync(STATE)
        assert documents.contents == {STATE: b"state"}
        assert home.read(STATE) == b"".join(home.chunks(STATE)) == b"state"
        assert below(tmp_path / "workspace") == ["state", "state/hourly"]

    def test_what_others_wait_for_stays(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        other = STATE.replace("/0/0/", "/0/1/")
        for path in (STATE, other):
            home.adopt(spark_wrote(tmp_path), path)
        home.sync(STATE)
        assert documents.contents == {STATE: b"state"}
        assert home.read(other) == b"state"

    def test_a_try_that_has_only_kept_files_has_taken_its_name(self, home: DividedHome, tmp_path: Path) -> None:
        home.adopt(spark_wrote(tmp_path), STATE)
        assert home.names("state") == ["hourly"]
        assert home.names("state/hourly") == ["3-1-1"]
        assert home.paths("state") == [STATE]

    @pytest.mark.parametrize("done", [False, True])
    def test_it_may_be_made_durable_again_wherever_that_was_broken_off(
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
        home = DividedHome(store, LocalFiles(tmp_path / "workspace"))
        home.adopt(spark_wrote(tmp_path), STATE)
        with pytest.raises(OutcomeUnknownError):
            home.sync(STATE)
        home.sync(STATE)
        home.sync(STATE)
        assert store.contents == {STATE: b"state"}
        assert below(tmp_path / "workspace") == ["state", "state/hourly"]

    def test_one_that_was_not_whole_when_the_host_died_is_not_read(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        documents.create(STATE, b"state")
        home.adopt(spark_wrote(tmp_path, b"st"), STATE)
        assert home.read(STATE) == b"".join(home.chunks(STATE)) == b"state"
        assert home.digest(STATE).size_bytes == 5

    def test_it_is_found_while_it_is_brought_in(self, tmp_path: Path) -> None:
        class BroughtIn(MemoryFiles):
            """A store that lacks the file at the first request and has it at the second."""

            def digest(self, path: str):  # type: ignore[no-untyped-def]
                try:
                    return super().digest(path)
                except NotFoundError:
                    waiting.sync(path)
                    raise

        waiting = DividedHome(BroughtIn(), LocalFiles(tmp_path / "workspace"))
        waiting.adopt(spark_wrote(tmp_path), STATE)
        assert waiting.digest(STATE).size_bytes == 5

    def test_it_goes_with_its_checkpoint_wherever_it_is(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        home.adopt(spark_wrote(tmp_path), STATE)
        documents.create(f"{STATE}.other", b"state")
        home.delete("state/hourly/3-1-1")
        assert home.names("state/hourly") == []
        with pytest.raises(NotFoundError):
            home.read(STATE)

    def test_a_restore_takes_a_copy_from_the_store(self, home: DividedHome, documents: MemoryFiles) -> None:
        documents.create(STATE, b"state")
        take(home, STATE, home.below("work/2"), "stages/hourly/4.changelog")
        assert home.read("work/2/stages/hourly/4.changelog") == b"state"


class TestWhoseItIs:
    def claimed(self, home: DividedHome, given: str | None = None) -> None:
        Channel(home).claim(FLIGHTS, claim_workspace(home, given))

    def test_the_first_start_names_it_and_nobody_has_to_again(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        self.claimed(home)
        self.claimed(home)
        assert workspace_of(DividedHome(documents)) == f"file://{tmp_path}/workspace"
        self.claimed(DividedHome(documents))

    def test_what_the_home_says_goes_before_what_somebody_says(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        self.claimed(home)
        told = DividedHome(documents, LocalFiles(tmp_path / "elsewhere"))
        assert local_path(told, "work") == tmp_path / "workspace/work"
        with pytest.raises(RejectedError, match="is file:.*workspace, not .*elsewhere"):
            self.claimed(told, str(tmp_path / "elsewhere"))
        assert not (tmp_path / "elsewhere").exists()

    def test_it_is_of_one_home(self, home: DividedHome, tmp_path: Path) -> None:
        claim_workspace(home)
        with pytest.raises(RejectedError, match="cannot be the workspace of memory:elsewhere: it is that of the home memory:"):
            self.claimed(DividedHome(other := Elsewhere(), LocalFiles(tmp_path / "workspace")))
        self.claimed(home)
        (tmp_path / "workspace/work").mkdir()
        with pytest.raises(RejectedError, match="cannot be the workspace of memory:elsewhere: it has work already"):
            self.claimed(DividedHome(other, LocalFiles(tmp_path / "workspace")))
        assert other.contents == {}

    def test_the_lock_of_a_requested_start_is_in_it_before_it_is_claimed(self, home: DividedHome) -> None:
        with holding(local_path(home, DRIVER_LOCK), "start-1"):
            self.claimed(home)
        assert workspace_of(home) is not None

    def test_a_check_claims_nothing(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        check_claim(home, None)
        assert list(tmp_path.iterdir()) == []
        claim_workspace(home)
        with pytest.raises(RejectedError, match="it is that of the home memory:"):
            check_claim(DividedHome(Elsewhere(), LocalFiles(tmp_path / "workspace")), None)

    @pytest.mark.parametrize("left", ["status.json", "state/hourly/3-1-1/a", "channels/i/known/a", "tombstones/i/hourly/a"])
    def test_a_directory_with_something_in_it_is_none(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path, left: str
    ) -> None:
        """Another home would lose its state, and a new home would take over the files of an old one."""
        LocalFiles(tmp_path / "workspace").create(left, b"{}")
        with pytest.raises(RejectedError, match=f"has {left.partition('/')[0]} already"):
            self.claimed(home)
        assert documents.contents == {}

    def test_an_empty_place_where_it_is_not_mounted_is_none(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        self.claimed(home)
        (tmp_path / "workspace").rename(tmp_path / "on another host")
        for again in (home, DividedHome(documents)):
            assert not again.sees_workspace
            with pytest.raises(StorageError, match="does not exist on"):
                self.claimed(again)
            with pytest.raises(StorageError, match="does not exist on"):
                check_workspace(again)
        assert not (tmp_path / "workspace").exists()

    def test_another_disk_under_its_path_is_none(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        """A first start died on one host before the home named the workspace. The next start ran on another host with a disk of its own."""
        claim_workspace(home)
        (tmp_path / "workspace").rename(tmp_path / "of the first host")
        self.claimed(DividedHome(documents, LocalFiles(tmp_path / "workspace")))
        (tmp_path / "workspace").rename(tmp_path / "of the second host")
        (tmp_path / "of the first host").rename(tmp_path / "workspace")
        with pytest.raises(StorageError, match="does not exist on"):
            self.claimed(DividedHome(documents))

    def test_a_first_start_that_died_on_the_way_is_begun_again(self, home: DividedHome, documents: MemoryFiles) -> None:
        claim_workspace(home)
        home.create("logs/driver-1.out", b"what a first driver has said")
        self.claimed(DividedHome(documents, home.workspace))

    def test_of_two_first_starts_with_two_workspaces_one_looks_again(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        slower = DividedHome(documents, LocalFiles(tmp_path / "another"))
        claim = claim_workspace(slower)
        self.claimed(home)
        with pytest.raises(ConflictError, match="with another workspace"):
            Channel(slower).claim(FLIGHTS, claim)

    def test_a_home_that_is_a_directory_has_no_other(self, tmp_path: Path) -> None:
        assert claim_workspace(open_home(str(tmp_path))) is None
        assert workspace_of(open_home(str(tmp_path))) is None
        with pytest.raises(InvalidParameterError, match="is its own workspace"):
            open_home(str(tmp_path), str(tmp_path / "workspace"))

    def test_a_copy_in_another_kind_of_place_is_no_home(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        """A copy has only the documents. It lacks the deleted keys and the staged rows."""
        self.claimed(home)
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy/pipeline.json").write_bytes(documents.contents["pipeline.json"])
        with pytest.raises(RejectedError, match="cannot be continued or begun as a home here"):
            claim_workspace(open_home(str(tmp_path / "copy")))
        directory, store = LocalFiles(tmp_path / "home"), MemoryFiles()
        Channel(directory).claim(FLIGHTS, claim_workspace(directory))
        store.create("pipeline.json", directory.read("pipeline.json"))
        with pytest.raises(RejectedError, match="cannot be continued or begun as a home here"):
            claim_workspace(DividedHome(store, LocalFiles(tmp_path / "new")))
        assert not (tmp_path / "new").exists()

    def test_one_that_is_not_trusted_is_not_looked_into(self, home: DividedHome, documents: MemoryFiles) -> None:
        self.claimed(home)
        home.create("logs/1.log", b"of somebody else")
        wary = DividedHome(documents, trusts=lambda url: url.startswith("file:///allowed/"))
        assert (wary.workspace, wary.local("logs/1.log"), wary.names("logs")) == (None, None, [])
        with pytest.raises(AccessDeniedError, match="not allowed here"):
            workspace_of(wary)


class TestLiveness:
    def test_where_the_workspace_is_not_seen_a_heartbeat_counts_also_of_this_host(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        """Containers may share the host's name without sharing its directories."""
        Channel(home).claim(FLIGHTS, claim_workspace(home))
        Attempts(home).create(attempt(1).model_copy(update={"host": socket.gethostname()}))
        write_status(home, beat())
        assert not driver_at_work(home), "it has let its lock go"
        (tmp_path / "workspace").rename(tmp_path / "elsewhere")
        assert driver_at_work(home)
        write_status(home, beat().model_copy(update={"state": RunState.DONE}))
        assert not driver_at_work(home)


class Elsewhere(MemoryFiles):
    url = "memory:elsewhere"


class TestLogs:
    def test_who_has_the_workspace_reads_them_whole_and_others_their_end(
        self, home: DividedHome, documents: MemoryFiles, tmp_path: Path
    ) -> None:
        home.create("logs/1.log", b"first\nlast\n")
        documents.replace("logs/1.log", b"last\n")
        assert home.read("logs/1.log") == b"first\nlast\n"
        assert DividedHome(documents, LocalFiles(tmp_path / "not mounted")).read("logs/1.log") == b"last\n"

    def test_old_ones_go_in_both_places(self, home: DividedHome, documents: MemoryFiles, tmp_path: Path) -> None:
        live = LOGS_KEPT + 1
        for number in (1, live):
            home.create(log_path(AttemptNumber(number)), b"said")
            documents.create(log_path(AttemptNumber(number)), b"said")
        home.documents.create(log_path(AttemptNumber(0)), b"said by one whose file is gone")
        forget_old_logs(home, AttemptNumber(live))
        assert list(documents.contents) == [f"logs/{live}.log"]
        assert below(tmp_path / "workspace") == ["logs", f"logs/{live}.log"]


CALLS: list[Callable[[DividedHome, Path], object]] = [
    lambda home, source: home.adopt(source, STATE),
    lambda home, source: home.adopt(source, "work/1/a"),
    lambda home, source: home.copy(LocalFiles(source.parent), source.name, "work/1/a"),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_taken_name_is_taken(home: DividedHome, tmp_path: Path, call: Callable[[DividedHome, Path], object]) -> None:
    source = spark_wrote(tmp_path)
    call(home, source)
    with pytest.raises(AlreadyExistsError):
        call(home, source)
