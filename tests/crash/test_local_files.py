"""A loss of power before each operation of the local storage. After the restart, all promises of finished calls hold."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from spark_jobs.protocol.errors import AlreadyExistsError, NotFoundError
from spark_jobs.storage.files import local_path
from spark_jobs.storage.local import LocalFiles
from tests.support.systems import Crashed, CrashSystem, quick

SEEDS = [None, 1, 2, 3]
OLD, NEW = b"old contents", b"new, longer contents"


def crash_everywhere(
    directory: Path,
    prepare: Callable[[LocalFiles], None],
    act: Callable[[LocalFiles], None],
    check: Callable[[LocalFiles, bool], None],
    *,
    files: type[LocalFiles] = LocalFiles,
    seed: int | None = None,
) -> int:
    """Crashes ``act`` before each of its operations, and once right after it. ``check`` gets True if ``act`` had finished.

    Returns:
        The number of operations.
    """
    for index in range(1000):
        root = directory / str(index) / "deep" / "home"
        root.parents[1].mkdir(parents=True)
        prepare(quick(root))
        system = CrashSystem(directory / str(index), crash_before=index, seed=seed)
        finished = False
        with suppress(Crashed):
            act(files(root, system))
            finished = True
        system.crash()
        check(quick(root), finished)
        if finished:
            return index
    raise AssertionError("it never finishes")


def _read(files: LocalFiles, path: str) -> bytes | None:
    try:
        return files.read(path)
    except NotFoundError:
        return None


def _nothing(_: LocalFiles) -> None:
    pass


def _check_create(files: LocalFiles, finished: bool) -> None:
    found = _read(files, "a/b/new")
    assert found == NEW if finished else found in (None, NEW)
    files.create("a/b/new", NEW)
    assert files.names("a/b") == ["new"]
    assert [found.name for found in Path(files.url[len("file://") :], "a/b").iterdir()] == ["new"], "the retry clears up"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_finished_create_never_disappears_and_an_unfinished_create_leaves_nothing_or_the_whole_file(
    tmp_path: Path, seed: int | None
) -> None:
    operations = crash_everywhere(tmp_path, _nothing, lambda files: files.create("a/b/new", NEW), _check_create, seed=seed)
    assert operations > 20


@pytest.mark.parametrize("seed", SEEDS)
def test_files_that_were_created_together_never_disappear_and_no_part_of_one_is_ever_there(
    tmp_path: Path, seed: int | None
) -> None:
    new = {"log/0": OLD, "log/1": NEW, "other/2": NEW}

    def check(files: LocalFiles, finished: bool) -> None:
        found = {path: _read(files, path) for path in new}
        assert found == new if finished else all(found[path] in (None, data) for path, data in new.items())
        files.create_all(new.items())
        assert {path: files.read(path) for path in files.paths()} == new

    crash_everywhere(tmp_path, _nothing, lambda files: files.create_all(new.items()), check, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_create_that_finds_its_own_bytes_makes_them_durable(tmp_path: Path, seed: int | None) -> None:
    def act(files: LocalFiles) -> None:
        system = files._system
        for directory in ("a", "a/b"):
            system.mkdir(files._target(directory))
        descriptor = system.create_file(files._target("a/b/new"))  # by a process that dies here, without any fsync of a directory
        system.write(descriptor, NEW)
        system.fsync(descriptor)
        files.create("a/b/new", NEW)

    def check(files: LocalFiles, finished: bool) -> None:
        assert not finished or files.read("a/b/new") == NEW

    crash_everywhere(tmp_path, lambda files: files.create("x", b""), act, check, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_create_below_a_root_that_another_process_has_just_made_is_durable(tmp_path: Path, seed: int | None) -> None:
    root = tmp_path / "home"
    system = CrashSystem(tmp_path, seed=seed)
    system.mkdir(str(root))
    LocalFiles(root, system).create("new", NEW)
    system.crash()
    assert quick(root).read("new") == NEW


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replaced_file_is_old_or_new(tmp_path: Path, seed: int | None) -> None:
    def check(files: LocalFiles, _: bool) -> None:
        assert files.read("status.json") in (OLD, NEW)
        files.replace("status.json", b"next")
        assert files.read("status.json") == b"next"
        assert [found.name for found in Path(files.url[len("file://") :]).iterdir()] == ["status.json"]

    crash_everywhere(
        tmp_path,
        lambda files: files.create("status.json", OLD),
        lambda files: files.replace("status.json", NEW),
        check,
        seed=seed,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deleted_file_does_not_come_back(tmp_path: Path, seed: int | None) -> None:
    def check(files: LocalFiles, finished: bool) -> None:
        found = _read(files, "a/b")
        assert found is None if finished else found in (None, OLD)

    crash_everywhere(tmp_path, lambda files: files.create("a/b", OLD), lambda files: files.delete("a/b"), check, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deleted_tree_does_not_come_back_and_its_files_stay_whole_until_then(tmp_path: Path, seed: int | None) -> None:
    paths = ["k/manifest.json", "k/deep/1", "k/deep/2"]

    def prepare(files: LocalFiles) -> None:
        for path in paths:
            files.create(path, OLD)

    def check(files: LocalFiles, finished: bool) -> None:
        assert all(_read(files, path) in (None, OLD) for path in paths)
        if finished:
            assert files.names("") == []
        files.delete("k")
        assert files.names("") == []

    crash_everywhere(tmp_path, prepare, lambda files: files.delete("k"), check, seed=seed)


def test_each_delete_is_durable_before_the_next_begins(tmp_path: Path) -> None:
    """A caller that deletes a manifest before the files that it names never leaves a manifest without its files."""

    def prepare(files: LocalFiles) -> None:
        files.create("manifest", OLD)
        files.create("state/named", OLD)

    def act(files: LocalFiles) -> None:
        files.delete("manifest")
        files.delete("state/named")

    def check(files: LocalFiles, _: bool) -> None:
        assert _read(files, "manifest") is None or _read(files, "state/named") == OLD

    crash_everywhere(tmp_path, prepare, act, check)


def _write_as_somebody_else(files: LocalFiles) -> Path:
    written = Path(files.url[len("file://") :], "part=1", "deep", "0.parquet")
    written.parent.mkdir(parents=True)
    written.write_bytes(NEW)
    return written


@pytest.mark.parametrize("seed", SEEDS)
def test_a_synced_file_of_another_process_survives_with_the_directories_above_it(tmp_path: Path, seed: int | None) -> None:
    root = tmp_path / "home"
    quick(root).create("x", b"")
    system = CrashSystem(tmp_path, foreign=("*.parquet",), seed=seed)
    files = LocalFiles(root, system)
    written = _write_as_somebody_else(files)
    files.sync("part=1/deep/0.parquet")
    system.crash()
    assert written.read_bytes() == NEW


def test_a_synced_file_survives_with_a_root_that_another_process_made(tmp_path: Path) -> None:
    table = tmp_path / "warehouse" / "hourly"
    system = CrashSystem(tmp_path, foreign=("*.parquet",))
    written = _write_as_somebody_else(LocalFiles(table, system))
    LocalFiles(table, system).sync("part=1/deep/0.parquet")
    system.crash()
    assert written.read_bytes() == NEW


def test_a_file_of_another_process_is_lost_without_sync(tmp_path: Path) -> None:
    root = tmp_path / "home"
    quick(root).create("x", b"")
    system = CrashSystem(tmp_path, foreign=("*.parquet",))
    written = _write_as_somebody_else(LocalFiles(root, system))
    system.crash()
    assert not written.exists()


class SkipsDirectory(LocalFiles):
    """A create that does not fsync the directory of the new name."""

    def create(self, path: str, data: bytes) -> None:
        target = self._target(path)
        self._make_directory(str(Path(target).parent))
        unfinished = self._write_unfinished(target, [data], durable=True)
        self._link(unfinished, target, data)
        self._system.unlink(unfinished)


class SkipsContents(LocalFiles):
    """A create that does not fsync the contents."""

    def _write_unfinished(self, target: str, chunks: Iterable[bytes], *, durable: bool) -> str:
        return super()._write_unfinished(target, chunks, durable=False)


class SkipsParents(LocalFiles):
    """A create that makes directories without an fsync of their parents."""

    def _make_directory(self, directory: str) -> None:
        self._make_root()
        for each in reversed(list(self._up_to_root(directory))[:-1]):
            with suppress(FileExistsError):
                self._system.mkdir(each)


class SkipsRootsParent(LocalFiles):
    """A create that makes the root without an fsync of the directory above."""

    def _make_root(self) -> None:
        Path(self._root).parent.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            self._system.mkdir(self._root)


@pytest.mark.parametrize("careless", [SkipsDirectory, SkipsContents, SkipsParents, SkipsRootsParent])
def test_the_tests_notice_a_create_that_skips_an_fsync(tmp_path: Path, careless: type[LocalFiles]) -> None:
    with pytest.raises((AssertionError, AlreadyExistsError)):
        crash_everywhere(tmp_path, _nothing, lambda files: files.create("a/b/new", NEW), _check_create, files=careless)


class ReplacesInPlace(LocalFiles):
    """A replace that does not fsync the new contents before the rename."""

    def replace(self, path: str, data: bytes) -> None:
        target = self._target(path)
        descriptor = self._system.create_file(f"{target}.new")
        self._system.write(descriptor, data)
        self._system.close(descriptor)
        self._system.replace(f"{target}.new", target)
        self._fsync(str(Path(target).parent))


def test_the_tests_notice_a_replace_that_skips_the_fsync_of_its_contents(tmp_path: Path) -> None:
    def check(files: LocalFiles, _: bool) -> None:
        assert files.read("status.json") in (OLD, NEW)

    with pytest.raises(AssertionError):
        crash_everywhere(
            tmp_path,
            lambda files: files.create("status.json", OLD),
            lambda files: files.replace("status.json", NEW),
            check,
            files=ReplacesInPlace,
        )


def test_after_a_crash_the_process_writes_nothing_more(tmp_path: Path) -> None:
    system = CrashSystem(tmp_path)
    files = LocalFiles(tmp_path / "home", system)
    files.create("a", OLD)
    system.crash()
    for call in (lambda: files.read("a"), lambda: files.names(""), lambda: files.create("b", NEW), lambda: files.delete("a")):
        with pytest.raises(Crashed):
            call()
    assert quick(tmp_path / "home").names("") == ["a"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_linked_file_is_durable_once_it_is_synced(tmp_path: Path, seed: int | None) -> None:
    def theirs(files: LocalFiles) -> Path:
        return local_path(files).parents[1] / "theirs"

    def prepare(files: LocalFiles) -> None:
        theirs(files).write_bytes(NEW)

    def act(files: LocalFiles) -> None:
        files.link_or_copy(theirs(files), "a/b/new")
        files.sync("a/b/new")

    def check(files: LocalFiles, finished: bool) -> None:
        assert not finished or files.read("a/b/new") == NEW

    assert crash_everywhere(tmp_path, prepare, act, check, seed=seed) > 3
