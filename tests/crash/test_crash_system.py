"""The system that loses power forgets everything that POSIX allows it to forget, and no more."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_jobs.storage.local import LocalFiles
from tests.support.systems import Crashed, CrashSystem, quick


def _write(system: CrashSystem, path: Path, data: bytes, *, fsync: bool = False) -> None:
    descriptor = system.create_file(str(path))
    system.write(descriptor, data)
    if fsync:
        system.fsync(descriptor)
    system.close(descriptor)


def _fsync(system: CrashSystem, path: Path) -> None:
    descriptor = system.open(str(path))
    system.fsync(descriptor)
    system.close(descriptor)


def test_files_from_before_the_test_survive_a_crash(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    CrashSystem(tmp_path).crash()
    assert (tmp_path / "old").read_bytes() == b"old"


def test_contents_without_fsync_are_empty_under_a_durable_name(tmp_path: Path) -> None:
    system = CrashSystem(tmp_path)
    _write(system, tmp_path / "new", b"contents")
    _fsync(system, tmp_path)
    assert (tmp_path / "new").read_bytes() == b"contents", "until then everybody sees them"
    system.crash()
    assert (tmp_path / "new").read_bytes() == b""


def test_a_name_without_an_fsync_of_its_directory_is_lost(tmp_path: Path) -> None:
    system = CrashSystem(tmp_path)
    _write(system, tmp_path / "new", b"contents", fsync=True)
    system.crash()
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_and_an_unlinked_file_without_an_fsync_come_back(tmp_path: Path) -> None:
    (tmp_path / "replaced").write_bytes(b"old")
    (tmp_path / "unlinked").write_bytes(b"old, too")
    system = CrashSystem(tmp_path)
    _write(system, tmp_path / "new", b"new", fsync=True)
    system.replace(str(tmp_path / "new"), str(tmp_path / "replaced"))
    system.unlink(str(tmp_path / "unlinked"))
    system.crash()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"replaced": b"old", "unlinked": b"old, too"}


def test_a_removed_directory_comes_back_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"old")
    system = CrashSystem(tmp_path)
    system.unlink(str(tmp_path / "a" / "b"))
    system.rmdir(str(tmp_path / "a"))
    system.crash()
    assert (tmp_path / "a" / "b").read_bytes() == b"old"


def test_no_file_of_a_durably_removed_directory_comes_back_into_its_successor(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"old")
    system = CrashSystem(tmp_path)
    system.unlink(str(tmp_path / "a" / "b"))
    system.rmdir(str(tmp_path / "a"))
    _fsync(system, tmp_path)
    system.mkdir(str(tmp_path / "a"))
    _fsync(system, tmp_path)
    system.crash()
    assert list((tmp_path / "a").iterdir()) == []


def test_a_directory_without_an_fsync_of_its_parent_is_lost_with_its_contents(tmp_path: Path) -> None:
    system = CrashSystem(tmp_path)
    system.mkdir(str(tmp_path / "a"))
    _write(system, tmp_path / "a" / "b", b"contents", fsync=True)
    _fsync(system, tmp_path / "a")
    system.crash()
    assert list(tmp_path.iterdir()) == []


def test_a_seed_decides_which_unsynced_files_survive(tmp_path: Path) -> None:
    def after_crash(directory: Path, seed: int) -> tuple[tuple[str, int], ...]:
        directory.mkdir()
        system = CrashSystem(directory, seed=seed)
        for number in range(8):
            _write(system, directory / str(number), b"contents")
        system.crash()
        return tuple(sorted((path.name, path.stat().st_size) for path in directory.iterdir()))

    found = [after_crash(tmp_path / f"{seed}", seed) for seed in range(10)]
    assert found == [after_crash(tmp_path / f"{seed} again", seed) for seed in range(10)]
    assert len(set(found)) > 5
    assert {size for crash in found for _, size in crash} > {0, 8}


def test_a_crash_stops_every_thread_and_keeps_the_finished_writes(tmp_path: Path) -> None:
    system = CrashSystem(tmp_path, crash_before=400)
    files = LocalFiles(tmp_path / "home", system)
    finished: list[str] = []

    def create_until_the_crash(thread: int) -> None:
        for number in range(1000):
            files.create(f"{thread}/{number}", b"contents")
            finished.append(f"{thread}/{number}")

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(create_until_the_crash, thread) for thread in range(4)]
        for each in running:
            with pytest.raises(Crashed):
                each.result()
    after = quick(tmp_path / "home")
    assert len(finished) > 5
    assert {after.read(path) for path in finished} == {b"contents"}
