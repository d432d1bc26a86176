"""The version of a static input that an attempt reads: the newest, unless its round or a planned batch needs another."""

import logging
from pathlib import Path

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.graph import Graph
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.protocol.documents import AttemptDocument, PinnedInput, WorkDirectory
from spark_jobs.protocol.ids import AttemptNumber, InputName, RoundNumber, WorkDirectoryId
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.runtime.start.static_versions import keep_pinned_versions
from spark_jobs.storage.local import LocalFiles
from tests.support import attempts, private_logs
from tests.support.staged_pipeline import a_manifest

SHOPS = InputName("shops")


def shops(version: int) -> PinnedInput:
    return PinnedInput(input=SHOPS, pins=(DeltaPin(path="/shops", table="t", version=version),))


def graph(refresh: str = "round", *, bounded: bool = False) -> Graph:
    """A graph in which two stages read the orders, and one of them reads the shops."""
    pipeline = Pipeline("orders")
    pipeline.source(bounded=bounded, name="orders")(lambda spark: None)
    pipeline.static(refresh=refresh, name="shops")(lambda spark: None)  # type: ignore[call-overload]
    pipeline.stage(sink=DeltaSink("/known"), name="known")(lambda orders, shops: None)
    pipeline.stage(sink=DeltaSink("/copied"), name="copied")(lambda orders: None)
    return pipeline.graph()


@pytest.fixture
def home(tmp_path: Path) -> LocalFiles:
    """A home with a work directory in which each stage has committed a batch."""
    files = LocalFiles(tmp_path)
    for stage in ("known", "copied"):
        planned(files, 0, stage)
        files.create(f"work/w/stages/{stage}/checkpoint/commits/0", b"v2\n{}")
    return files


def planned(home: LocalFiles, batch: int, stage: str = "known", work: str = "w") -> None:
    """Plans a batch that is not committed."""
    home.create(f"work/{work}/stages/{stage}/checkpoint/offsets/{batch}", b"v1\n{}")


def begun(home: LocalFiles, number: int, version: int | None = None, work: str = "w") -> AttemptDocument:
    """Adds an attempt to the home, which has pinned this version of the shops."""
    directory = WorkDirectory(id=WorkDirectoryId(work), path=f"work/{work}", host="h")
    document = attempts.attempt(number).model_copy(update={"work_directory": directory})
    Attempts(home).create(document)
    if version is not None:
        pins_of_attempt(home, AttemptNumber(number)).pin(shops(version))
    return document


def kept(home: LocalFiles, attempt: AttemptDocument) -> int | None:
    """Returns the version that is pinned for an attempt before its stages are built."""
    pinned = pins_of_attempt(home, attempt.attempt).pinned(SHOPS)
    return None if pinned is None else next(pin.version for pin in pinned.pins if isinstance(pin, DeltaPin))


def test_an_attempt_reads_the_newest_version_if_every_batch_was_committed(home: LocalFiles) -> None:
    begun(home, 1, version=3)
    now = begun(home, 2)
    keep_pinned_versions(graph(), home, now)
    assert kept(home, now) is None, "it is left to be pinned"


def test_a_planned_batch_is_repeated_with_the_version_for_which_it_was_planned(
    home: LocalFiles, caplog: pytest.LogCaptureFixture
) -> None:
    begun(home, 1, version=3)
    planned(home, 1)
    now = begun(home, 2)
    with caplog.at_level(logging.INFO):
        keep_pinned_versions(graph(), home, now)
        keep_pinned_versions(graph(), home, now)
    assert kept(home, now) == 3
    assert "static input shops keeps the version of the earlier attempt" in caplog.text


def test_a_batch_of_a_stage_that_does_not_read_the_table_keeps_no_version(home: LocalFiles) -> None:
    begun(home, 1, version=3)
    planned(home, 1, stage="copied")
    now = begun(home, 2)
    keep_pinned_versions(graph(), home, now)
    assert kept(home, now) is None


def test_an_attempt_in_between_that_pinned_no_version_is_ignored(home: LocalFiles) -> None:
    """Attempt 2 ended before it built its stages. The batch belongs to attempt 1."""
    begun(home, 1, version=3)
    planned(home, 1)
    begun(home, 2)
    now = begun(home, 3)
    keep_pinned_versions(graph(), home, now)
    assert kept(home, now) == 3


def test_the_newest_attempt_that_pinned_a_version_counts(home: LocalFiles) -> None:
    begun(home, 1, version=3)
    begun(home, 2, version=5)
    planned(home, 1)
    now = begun(home, 3)
    keep_pinned_versions(graph(), home, now)
    assert kept(home, now) == 5


def test_the_pin_of_a_later_attempt_does_not_count(home: LocalFiles) -> None:
    begun(home, 1, version=3)
    planned(home, 1)
    now = begun(home, 2)
    begun(home, 3, version=7)
    keep_pinned_versions(graph(), home, now)
    assert kept(home, now) == 3


def test_a_batch_that_was_planned_before_any_pin_keeps_no_version(home: LocalFiles) -> None:
    begun(home, 1)
    planned(home, 1)
    now = begun(home, 2)
    keep_pinned_versions(graph(), home, now)
    assert kept(home, now) is None


def test_an_unpinned_input_has_no_version_to_keep(home: LocalFiles) -> None:
    begun(home, 1)
    pins_of_attempt(home, AttemptNumber(1)).pin(PinnedInput(input=SHOPS, pins=()))
    planned(home, 1)
    now = begun(home, 2)
    keep_pinned_versions(graph(refresh="unpinned"), home, now)
    assert pins_of_attempt(home, now.attempt).pinned(SHOPS) is None


def test_all_attempts_of_a_bounded_round_read_the_same_version(home: LocalFiles) -> None:
    begun(home, 1, version=3)
    begun(home, 2)
    now = begun(home, 3, work="another")
    keep_pinned_versions(graph(bounded=True), home, now)
    assert kept(home, now) == 3


def test_the_next_bounded_round_reads_the_newest_version(home: LocalFiles) -> None:
    begun(home, 1, version=3)
    now = attempts.attempt(2).model_copy(update={"round": RoundNumber(2)})
    Attempts(home).create(now)
    keep_pinned_versions(graph(bounded=True), home, now)
    assert kept(home, now) is None, "it is left to be pinned"


def test_batches_that_are_computed_again_read_the_version_in_the_checkpoint_that_has_them(
    home: LocalFiles,
) -> None:
    begun(home, 1, 7)
    live = begun(home, 2)
    head = a_manifest(inputs={SHOPS: shops(5).pins})
    assert not keep_pinned_versions(graph(), home, live, head)
    assert kept(home, live) is None, "no stage is behind"
    log = private_logs.begun(home.below("work/w"), "stages/known/log")
    for batch in (0, 1):
        log.append(private_logs.staged(batch))
    assert keep_pinned_versions(graph(), home, live, head) == {SHOPS}
    assert kept(home, live) == 5
