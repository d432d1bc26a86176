"""The state of a checkpoint in a store is copied while the start that goes on from it is planned."""

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.background import run_in_background
from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.documents import AttemptDocument, Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, RejectedError
from spark_jobs.protocol.ids import AttemptNumber, RoundNumber
from spark_jobs.runtime.start import early_copy as module
from spark_jobs.runtime.start import restore as restore_module
from spark_jobs.runtime.start.decision import Begin, HomeFacts
from spark_jobs.runtime.start.early_copy import EarlyCopy, early_copy
from spark_jobs.runtime.start.restore import is_whole, restore
from spark_jobs.runtime.state.early_directory import MARK, is_for_later
from spark_jobs.storage.files import Files
from tests.support.attempts import attempt
from tests.support.memory_files import MemoryFiles
from tests.support.start_decisions import request
from tests.support.state_site import HOURLY, Site
from tests.support.systems import quick


@dataclass
class Far:
    """A checkpoint of a home in a store, and the cache of this host."""

    site: Site
    store: MemoryFiles
    manifest: Manifest

    @property
    def facts(self) -> HomeFacts:
        return HomeFacts(attempt(1), None, lambda run: None, dict, head=self.manifest)

    def attempt(self, copy: EarlyCopy) -> AttemptDocument:
        return attempt(2).model_copy(update={"work_directory": copy.directory})

    def begun(self) -> EarlyCopy:
        return early_copy(
            self.site.home, request("a"), Begin(RoundNumber(2), self.manifest.checkpoint), self.facts, second_copy=False
        )

    def directories(self) -> list[str]:
        return sorted(path.name for path in (self.site.root / "home/work").glob("*"))


@pytest.fixture
def far(tmp_path: Path) -> Far:
    store = MemoryFiles()
    site = Site(tmp_path, HomeInStore(store, quick(tmp_path / "home")))
    site.batches(4)
    return Far(site, store, site.complete(3))


def state(far: Far, directory: str) -> dict[str, bytes]:
    """Returns the stage's files of Spark in a work directory."""
    place = far.site.root / "home/work" / directory / "stages/hourly/checkpoint"
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def lose_the_disk(far: Far) -> None:
    shutil.rmtree(far.site.root / "home")


def test_a_restore_copies_nothing_that_was_copied_early(far: Far) -> None:
    restore(far.site.home, far.manifest, quick(far.site.root / "home/work/plain"))
    expected = state(far, "plain")
    lose_the_disk(far)
    with far.begun() as early:
        work = far.site.home.below(early.directory.path)
        copied = early.copied(far.attempt(early), far.manifest)
        far.store.delete("state")
        restored = restore(far.site.home, far.manifest, work, copied=copied)
    assert restored[HOURLY].home_files == len(far.manifest.stages[HOURLY].files)
    assert state(far, early.directory.id) == expected


def test_files_of_this_host_are_used_early_too(far: Far) -> None:
    shutil.rmtree(far.site.root / "home/work/w/stages/hourly/log")  # so the directory is not continued
    with far.begun() as early:
        copied = early.copied(far.attempt(early), far.manifest)
    assert copied[HOURLY].home_files == 0


def test_a_start_that_is_refused_leaves_nothing_behind(far: Far) -> None:
    lose_the_disk(far)
    with pytest.raises(RejectedError), far.begun():
        raise RejectedError("The table was written by another pipeline.", remedy="Name another table.")
    assert far.directories() == []


def test_a_refused_start_does_not_wait_for_the_rest_of_the_state(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(far.store, "read", lambda path, *_: asked.append(path))
    lose_the_disk(far)
    early = far.begun()
    early._given_up.set()
    with early:
        pass
    assert not [path for path in asked if path.startswith("state/")]


def test_a_damaged_file_is_an_error_of_the_restore_and_not_of_the_early_copy(far: Far, caplog: pytest.LogCaptureFixture) -> None:
    lose_the_disk(far)
    damaged = next(file.stored for file in far.manifest.stages[HOURLY].files if file.offset is None)
    far.store.contents[damaged] = b"damaged"
    with far.begun() as early, caplog.at_level(logging.WARNING):
        copied = early.copied(far.attempt(early), far.manifest)
        assert not copied
        with pytest.raises(CorruptDocumentError, match="hourly"):
            restore(far.site.home, far.manifest, far.site.home.below(early.directory.path), copied=copied)
    assert "could not be copied early" in caplog.text


def test_an_unexpected_error_of_the_copy_is_no_error_of_the_start(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_the_disk(far)
    monkeypatch.setattr(module, "copy_state", lambda *_, **__: 1 / 0)
    with far.begun() as early:
        assert not early.copied(far.attempt(early), far.manifest)
    with pytest.raises(RejectedError, match="another pipeline"), far.begun():
        raise RejectedError("The table was written by another pipeline.", remedy="Name another table.")


def test_the_copy_says_for_which_attempt_it_is_before_it_has_any_other_file(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_the_disk(far)
    real, found = restore_module._begin, list[list[str]]()

    def begin(work: Files, manifest: Manifest) -> None:
        found.append(work.names(""))
        real(work, manifest)

    monkeypatch.setattr(restore_module, "_begin", begin)
    with far.begun() as early:
        assert early.copied(far.attempt(early), far.manifest)
        work = far.site.home.below(early.directory.path)
        assert found == [[MARK]]
        assert is_for_later(work, AttemptNumber(9))
        assert not is_for_later(work, AttemptNumber(10))


def test_a_copy_of_another_checkpoint_is_not_used(far: Far) -> None:
    far.site.batches(1)
    later = far.site.complete(4, far.manifest.stages[HOURLY], checkpoint=2)
    lose_the_disk(far)
    with far.begun() as early:
        work = far.site.home.below(early.directory.path)
        copied = early.copied(far.attempt(early), later)
        assert not copied
        restored = restore(far.site.home, later, work, copied=copied)
    assert restored[HOURLY].home_files == len(later.stages[HOURLY].files)
    assert is_whole(work, later)


@pytest.mark.parametrize("place", ["mounted", "in place", "without a checkpoint"])
def test_a_start_that_needs_no_copy_makes_none(far: Far, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home: Files = far.site.home
    parent = far.manifest.checkpoint
    if place == "mounted":
        home = quick(far.site.root / "home")
    elif place == "in place":
        monkeypatch.setattr(module, "why_not_continued", lambda *_: None)
    facts = far.facts if place != "without a checkpoint" else HomeFacts(None, None, lambda run: None, dict)
    monkeypatch.setattr(module, "run_in_background", lambda work: pytest.fail(f"{work} began"))
    decision = Begin(RoundNumber(2), parent if place != "without a checkpoint" else None)
    with early_copy(home, request("a"), decision, facts, second_copy=False) as early:
        assert not early.copied(far.attempt(early), far.manifest)


def test_the_copy_begins_before_anybody_waits_for_it(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_the_disk(far)
    begun: list[Future[Any]] = []

    def run(work: Callable[[], Any]) -> Future[Any]:
        begun.append(run_in_background(work))
        return begun[0]

    monkeypatch.setattr(module, "run_in_background", run)
    with far.begun():
        assert begun[0].exception() is None
        assert len(far.directories()) == 1
