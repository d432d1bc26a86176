"""Behaviour that is specific to files on a POSIX file system."""

import errno
import os
from pathlib import Path

import pytest

from spark_jobs.control.liveness import holding
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.system import RealSystem
from tests.support.systems import FaultSystem

DAY_S = 24 * 3600


def test_a_relative_root_starts_at_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = LocalFiles("home")
    monkeypatch.chdir("/")
    files.create("a", b"")
    assert files.url == f"file://{tmp_path}/home"
    assert (tmp_path / "home" / "a").exists()


def test_no_directory_is_made_before_the_first_write(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "deep" / "home")
    assert files.names("") == []
    files.delete("a/b")
    with pytest.raises(NotFoundError):
        files.read("a")
    assert list(tmp_path.iterdir()) == []
    files.create("a", b"")
    assert files.names("") == ["a"]


def test_other_users_can_write_no_document_and_no_directory_with_any_umask(tmp_path: Path) -> None:
    standing = os.umask(0)
    try:
        files = LocalFiles(tmp_path / "deep" / "home")
        files.create("manifests/1.json", b"{}")
        files.replace("status.json", b"{}")
        with holding(tmp_path / "deep" / "home" / "locks" / "driver.lock", "start-1"):
            pass
    finally:
        os.umask(standing)
    made = list(tmp_path.rglob("*"))
    assert len(made) == 7
    assert [path for path in made if path.stat().st_mode & 0o002] == []


@pytest.mark.parametrize("name", ["my home", "höme", "a+b", "a&b;c", "a=b,c@d~e"])
def test_the_url_of_an_unusual_path_is_written_without_escapes(tmp_path: Path, name: str) -> None:
    assert LocalFiles(tmp_path / name).url == f"file://{tmp_path}/{name}"


def test_two_slashes_at_the_beginning_of_a_path_count_as_one() -> None:
    assert LocalFiles("//data/home").url == "file:///data/home"


@pytest.mark.parametrize("name", ["50%", "a%20b", "a#b", "a?b", "a*b", "a[b]", "a{b}", "a:b", "a\\b", "a\nb", "a\udcffb"])
def test_a_path_that_hadoop_fsspec_and_delta_rs_read_differently_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidParameterError, match="read differently"):
        LocalFiles(tmp_path / name)


def test_a_symbolic_link_is_deleted_and_its_target_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    files = LocalFiles(tmp_path / "home")
    files.create("a/b", b"")
    (tmp_path / "home" / "a" / "link").symlink_to(outside)
    files.delete("a")
    assert (outside / "kept").exists()
    assert files.names("") == []


def test_a_root_that_vanished_is_not_made_again_behind_its_users_back(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "home")
    files.create("a", b"")
    (tmp_path / "home" / "a").unlink()
    (tmp_path / "home").rmdir()
    with pytest.raises(NotFoundError):
        files.create("b", b"")
    assert not (tmp_path / "home").exists()


def test_an_empty_file_can_be_created_and_read(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.create("empty", b"")
    assert files.read("empty") == b""


class TestLeftovers:
    """Temporary files of writers that died."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        for name, age_s in ((".new.0123456789ab.tmp", 0), (".other.0123456789ab.tmp", 0), (".old.0123456789ab.tmp", 2 * DAY_S)):
            (tmp_path / name).write_bytes(b"half of som")
            written = (tmp_path / name).stat().st_mtime - age_s
            os.utime(tmp_path / name, (written, written))
        return tmp_path

    def test_are_not_shown(self, home: Path) -> None:
        assert LocalFiles(home).names("") == []

    def test_cannot_be_read_by_name(self, home: Path) -> None:
        with pytest.raises(InvalidParameterError):
            LocalFiles(home).read(".new.0123456789ab.tmp")

    @pytest.mark.parametrize("write", [LocalFiles.create, LocalFiles.replace])
    def test_of_the_same_name_are_deleted_at_once_and_others_after_a_day(self, home: Path, write: object) -> None:
        assert callable(write)
        write(LocalFiles(home), "new", b"whole")
        assert sorted(os.listdir(home)) == [".other.0123456789ab.tmp", "new"]

    def test_are_deleted_when_a_create_finds_the_name_taken(self, home: Path) -> None:
        (home / "new").write_bytes(b"theirs")
        with pytest.raises(ConflictError):
            LocalFiles(home).create("new", b"ours")
        assert ".new.0123456789ab.tmp" not in os.listdir(home)

    def test_are_deleted_on_request_also_for_an_existing_file(self, home: Path) -> None:
        (home / "new").write_bytes(b"whole")
        LocalFiles(home.parent).remove_unfinished(f"{home.name}/new")
        assert sorted(os.listdir(home)) == [".other.0123456789ab.tmp", "new"]

    def test_are_deleted_with_their_directory(self, home: Path) -> None:
        LocalFiles(home.parent).delete(home.name)
        assert not home.exists()


class _RemovesUnfinished(RealSystem):
    """A file system in which another process creates the target, or deletes our temporary file, just before we link or rename it."""

    def __init__(self, theirs: bytes | None) -> None:
        self._theirs = theirs

    def link(self, source: str, target: str) -> None:
        self._be_first(source, target)
        super().link(source, target)

    def replace(self, source: str, target: str) -> None:
        self._be_first(source, target)
        super().replace(source, target)

    def _be_first(self, source: str, target: str) -> None:
        os.unlink(source)
        if self._theirs is not None:
            Path(target).write_bytes(self._theirs)


def test_a_writer_whose_unfinished_file_was_removed_gets_a_conflict(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path, _RemovesUnfinished(theirs=None))
    with pytest.raises(ConflictError, match="at the same time"):
        files.create("a", b"ours")
    with pytest.raises(ConflictError, match="at the same time"):
        files.replace("a", b"ours")
    (tmp_path / "source").write_bytes(b"ours")
    with pytest.raises(ConflictError, match="at the same time"):
        files.copy(files, "source", "a")
    assert files.names("") == ["source"]


def test_a_writer_whose_unfinished_file_was_removed_by_the_winner_finds_the_winner(tmp_path: Path) -> None:
    LocalFiles(tmp_path, _RemovesUnfinished(theirs=b"ours")).create("a", b"ours")
    with pytest.raises(ConflictError, match="exists with other contents"):
        LocalFiles(tmp_path, _RemovesUnfinished(theirs=b"theirs")).create("b", b"ours")


class _WritesOneByte(RealSystem):
    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        return super().write(descriptor, data[:1])

    def read(self, descriptor: int, size_bytes: int) -> bytes:
        return super().read(descriptor, 1)


def test_short_writes_and_reads_are_continued(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path, _WritesOneByte())
    files.create("a", b"many bytes")
    assert files.read("a") == b"many bytes"


class _SomebodyElseDeletesToo(RealSystem):
    def listdir(self, path: str) -> list[str]:
        names = super().listdir(path)
        for name in names:
            if os.path.isfile(os.path.join(path, name)):
                os.unlink(os.path.join(path, name))
        return names


def test_each_further_file_that_is_created_with_others_costs_one_fsync(tmp_path: Path) -> None:
    def fsyncs(number: int) -> int:
        system = FaultSystem()
        LocalFiles(tmp_path / str(number), system).create_all((f"deep/log/{each}", b"") for each in range(number))
        return sum(operation.startswith("fsync ") for operation in system.trace)

    assert fsyncs(30) == fsyncs(10) + 20


def test_two_processes_may_delete_one_tree_at_once(tmp_path: Path) -> None:
    for path in ("a/1", "a/2", "a/b/3"):
        LocalFiles(tmp_path).create(path, b"")
    LocalFiles(tmp_path, _SomebodyElseDeletesToo()).delete("a")
    assert LocalFiles(tmp_path).names("") == []


class _HasNoDirectoryFsync(RealSystem):
    def fsync(self, descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(22, "Invalid argument")


def test_a_file_system_that_cannot_make_directories_durable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingRequirementError, match="Invalid argument"):
        LocalFiles(tmp_path / "home", _HasNoDirectoryFsync()).create("a", b"")


class _ParentOfRootIsPrivate(RealSystem):
    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, path: str) -> int:
        if path == str(self._root.parent):
            raise PermissionError(13, "Permission denied")
        return super().open(path)


def test_the_directory_above_an_existing_root_may_be_private(tmp_path: Path) -> None:
    root = tmp_path / "home"
    root.mkdir()
    LocalFiles(root, _ParentOfRootIsPrivate(root)).create("a", b"")
    assert LocalFiles(root).names("") == ["a"]


class _Fails(RealSystem):
    def __init__(self, code: int) -> None:
        self._code = code

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EACCES, AccessDeniedError),
        (errno.EPERM, AccessDeniedError),
        (errno.EROFS, AccessDeniedError),
        (errno.EOPNOTSUPP, MissingRequirementError),
        (errno.EIO, StorageError),
        (errno.ESTALE, StorageError),
        (errno.EMFILE, StorageError),
    ],
)
def test_an_error_names_the_file_what_is_safe_and_what_to_do(tmp_path: Path, code: int, kind: type[StreamPipelineError]) -> None:
    with pytest.raises(StreamPipelineError) as failed:
        LocalFiles(tmp_path, _Fails(code)).create("a/b", b"data")
    error = failed.value
    assert type(error) is kind
    assert str(tmp_path / "a" / "b") in error.failed
    assert os.strerror(code) in error.failed
    assert error.safe
    assert error.remedy
    assert error.evidence == {"path": str(tmp_path / "a" / "b"), "errno": code}


class _OnAnotherFileSystem(RealSystem):
    """A file system that cannot link files from outside ``root``."""

    def __init__(self, root: Path, code: int) -> None:
        self._root, self._code = root, code

    def link(self, source: str, target: str) -> None:
        if not source.startswith(str(self._root)):
            raise OSError(self._code, os.strerror(self._code))
        super().link(source, target)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_a_file_that_cannot_be_hard_linked_is_copied(tmp_path: Path, code: int) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"state" * 500_000)
    files = LocalFiles(tmp_path / "home", _OnAnotherFileSystem(tmp_path / "home", code))
    files.link_or_copy(theirs, "a/b")
    assert files.read("a/b") == theirs.read_bytes()
    assert not (tmp_path / "home/a/b").samefile(theirs)
    with pytest.raises(AlreadyExistsError):
        files.link_or_copy(theirs, "a/b")
    assert [found.name for found in (tmp_path / "home/a").iterdir()] == ["b"]


def test_a_file_that_can_be_hard_linked_is_not_copied(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"state")
    LocalFiles(tmp_path / "home").link_or_copy(theirs, "a/b")
    assert (tmp_path / "home/a/b").samefile(theirs)


def test_a_file_that_may_not_be_linked_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"state")
    files = LocalFiles(tmp_path / "home", _OnAnotherFileSystem(tmp_path / "home", errno.EACCES))
    with pytest.raises(AccessDeniedError):
        files.link_or_copy(tmp_path / "theirs", "a/b")
    assert list((tmp_path / "home/a").iterdir()) == []
