"""The process or the machine dies, or the store fails, while a savepoint is made or deleted. The call is then repeated."""

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from spark_jobs.checkpoint.savepoint import dispose, export, verify
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from tests.support.crashes import Point, Watched
from tests.support.object_store import object_store
from tests.support.savepoint_site import SavepointSite
from tests.support.systems import Crashed, CrashSystem, every_fault, failing_with, quick

OPERATIONS_APART = 13
"""The distance between the operations of the system before which power is lost. The seed decides the first one."""


def a_checkpoint(root: Path) -> tuple[SavepointSite, Manifest]:
    """Returns a checkpoint with rows of the checkpoint before it, and rows in flight."""
    site = SavepointSite(root)
    site.complete([(1, "a")])
    return site, site.complete([(2, "a b")], in_flight=["x.parquet"])


def exported(home: Files, manifest: Manifest, target: Files) -> None:
    export(home, manifest.checkpoint, target, request=RequestId("savepoint-a"))


def contents(place: Files) -> dict[str, bytes]:
    return {path: place.read(path) for path in place.paths()}


def is_whole(target: Files) -> bool:
    try:
        verify(target)
    except RejectedError:
        return False
    return True


def points(act: Callable[[], object]) -> list[Point]:
    observer = Watched()
    with observed_by(observer):
        act()
    return observer.points


def dies_at(point: Point, act: Callable[[], object]) -> None:
    observer = Watched(lambda passed: passed == point)
    with observed_by(observer), pytest.raises(Crashed):
        act()


@pytest.fixture(params=["a directory", "an object store"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Files]]:
    """Returns a function that opens a place for a savepoint by name."""
    if request.param == "a directory":
        yield lambda name: quick(tmp_path / name)
    else:
        with object_store() as url:
            yield lambda name: open_place(f"{url}/{name}")


def test_the_next_export_finishes_one_that_died_at_any_step(tmp_path: Path, places: Callable[[str], Files]) -> None:
    site, manifest = a_checkpoint(tmp_path)
    exported(site.home, manifest, places("undisturbed"))
    expected = contents(places("undisturbed"))
    passed = points(lambda: exported(site.home, manifest, places("watched")))
    assert {point.step for point in passed} == {
        Step.SAVEPOINT_BEGIN, Step.SAVEPOINT_FILES, Step.SAVEPOINT_CREATE, Step.SAVEPOINT_END,
    }  # fmt: skip
    for number, point in enumerate(passed):
        target = places(f"savepoint {number}")
        dies_at(point, lambda target=target: exported(site.home, manifest, target))  # type: ignore[misc]
        assert is_whole(target) == (point.step is Step.SAVEPOINT_END or point.name == (Step.SAVEPOINT_CREATE, False))
        exported(site.home, manifest, target)
        assert contents(target) == expected


def test_the_next_disposal_finishes_one_that_died_at_any_step(tmp_path: Path, places: Callable[[str], Files]) -> None:
    site, manifest = a_checkpoint(tmp_path)
    exported(site.home, manifest, places("watched"))
    passed = points(lambda: dispose(places("watched")))
    assert {point.step for point in passed} == {Step.SAVEPOINT_VOID, Step.SAVEPOINT_REMOVE}
    for number, point in enumerate(passed):
        target = places(f"savepoint {number}")
        exported(site.home, manifest, target)
        dies_at(point, lambda target=target: dispose(target))  # type: ignore[misc]
        assert is_whole(target) == (point.name == (Step.SAVEPOINT_VOID, True))
        dispose(target)
        assert contents(target) == {}
        assert not (tmp_path / f"savepoint {number}").exists()


# The tests above fail by day: to the next call, a process that died and one whose store failed are the same.
@pytest.mark.nightly
@pytest.mark.parametrize("answer_lost", [False, True], ids=["not done", "done but answer lost"])
def test_the_next_call_finishes_an_export_or_a_disposal_during_which_the_store_failed_once(
    tmp_path: Path, answer_lost: bool
) -> None:
    site, manifest = a_checkpoint(tmp_path)
    with object_store() as url:
        exported(site.home, manifest, open_place(f"{url}/undisturbed"))
        expected = contents(open_place(f"{url}/undisturbed"))
        for number, system in enumerate(every_fault(errno.EIO, answer_lost=answer_lost)):
            target = open_place(f"{url}/savepoint {number}")
            finished = succeeds(partial(exported, site.home, manifest, failing_with(target, system)))
            assert is_whole(target) or not finished, system.trace
            exported(site.home, manifest, target)
            assert contents(target) == expected, system.trace
        target = open_place(f"{url}/savepoint")
        for system in every_fault(errno.EIO, answer_lost=answer_lost):
            exported(site.home, manifest, target)
            finished = succeeds(partial(dispose, failing_with(target, system)))
            assert not (finished and is_whole(target)), system.trace
            dispose(target)
            assert contents(target) == {}, system.trace


def succeeds(act: Callable[[], object]) -> bool:
    """Returns False if the storage fails."""
    try:
        act()
    except StreamPipelineError:
        return False
    return True


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_loss_of_power_leaves_no_savepoint_or_a_complete_one(tmp_path: Path, seed: int | None) -> None:
    site, manifest = a_checkpoint(tmp_path / "origin")
    exported(site.home, manifest, quick(tmp_path / "undisturbed"))
    expected = contents(quick(tmp_path / "undisturbed"))
    for index in range(0, 10_000, OPERATIONS_APART):
        root, finished = tmp_path / str(index), False
        root.mkdir()
        system = CrashSystem(root, crash_before=index + (seed or 0), seed=seed)
        with suppress(Crashed):
            exported(site.home, manifest, LocalFiles(root / "savepoint", system))
            finished = True
        system.crash()
        assert is_whole(quick(root / "savepoint")) or not finished
        exported(site.home, manifest, quick(root / "savepoint"))
        assert contents(quick(root / "savepoint")) == expected
        if finished:
            return
    raise AssertionError("it never finishes")


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_loss_of_power_during_a_disposal_leaves_no_savepoint_or_a_complete_one(tmp_path: Path, seed: int | None) -> None:
    site, manifest = a_checkpoint(tmp_path / "origin")
    for index in range(0, 10_000, OPERATIONS_APART):
        root, finished = tmp_path / str(index), False
        exported(site.home, manifest, quick(root / "savepoint"))
        system = CrashSystem(root, crash_before=index + (seed or 0), seed=seed)
        with suppress(Crashed):
            dispose(LocalFiles(root / "savepoint", system))
            finished = True
        system.crash()
        assert not (finished and is_whole(quick(root / "savepoint")))
        dispose(quick(root / "savepoint"))
        assert contents(quick(root)) == {}
        if finished:
            return
    raise AssertionError("it never finishes")
