"""Retries of a blocked publication, and the status that users see."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.protocol.documents import BlockedPublication, CheckpointKind, HoldLimits, Manifest, Publish
from spark_jobs.protocol.errors import StorageError, UnsupportedTableError
from spark_jobs.protocol.masking import masking
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import DeltaRsTransaction, Publishers
from spark_jobs.runtime.checkpoints import blocked_publication
from spark_jobs.runtime.checkpoints.blocked_publication import Blocking, Retries
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline

STAGED = datetime.fromtimestamp(1_700_000_000, UTC)


def test_a_blocked_publication_is_retried_after_five_seconds_and_then_with_growing_delays_up_to_a_minute() -> None:
    retries, now_s, delays = Retries(), 100.0, list[float]()
    assert not retries.is_due(10**9), "nothing has failed"
    for _ in range(2_000):
        retries.failed(now_s)
        before_s = now_s
        while not retries.is_due(now_s):
            now_s += 5.0
        delays.append(now_s - before_s)
    assert delays[:6] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert set(delays[6:]) == {60.0}
    retries.got_through()
    assert not retries.is_due(now_s)
    retries.failed(now_s)
    assert retries.is_due(now_s + 5.0)


class Clock:
    """Stands in for the class ``datetime``."""

    def __init__(self) -> None:
        self.time = STAGED + timedelta(hours=1)

    def now(self, zone: object) -> datetime:
        return self.time


class Blocked:
    """A pipeline of two tables that publishes each checkpoint, and the reported states of its publication."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.pipeline, self.clock = StagedPipeline(MemoryFiles(), directory), clock
        self.pipeline.make_table(HOURLY)
        self.pipeline.make_table(DAILY, partition_by=())
        self.reports: list[BlockedPublication | None] = []
        self.blocking = Blocking(self.pipeline.files, masking(["hunter2"]), self.reports.append)

    def checkpoint(self, **changes: Any) -> Manifest:
        every: dict[str, Any] = {"publish": Publish.EVERY_CHECKPOINT, "checkpoint_kind": CheckpointKind.PERIODIC}
        return self.pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]}, **every | changes)


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blocked:
    clock = Clock()
    monkeypatch.setattr(blocked_publication, "datetime", clock)
    return Blocked(tmp_path, clock)


REFUSED = UnsupportedTableError("Sink hourly: 7 rows break hunter2.", remedy="Drop the constraint.", sink="hourly")


def test_a_blocked_publication_is_reported_with_its_error_time_tables_and_remedy_without_secrets(blocked: Blocked) -> None:
    blocked.blocking.failed(blocked.checkpoint(completed_at=STAGED + timedelta(hours=1)), REFUSED)
    (report,) = blocked.reports
    assert report is not None
    assert report.summary == (
        "Publication is blocked by sink hourly since 2023-11-14 23:13:20Z, from checkpoint 1 on: UnsupportedTableError: "
        "Sink hourly: 7 rows break ***. Waiting: hourly, daily. Drop the constraint."
    )
    assert report.rows_kept_until == STAGED + timedelta(days=7)
    assert blocked.blocking.blocked is report


def test_a_later_try_keeps_the_time_and_the_checkpoint_of_the_first_and_has_the_newest_error(blocked: Blocked) -> None:
    blocked.blocking.failed(blocked.checkpoint(), REFUSED)
    blocked.clock.time += timedelta(hours=2)
    blocked.blocking.failed(blocked.checkpoint(), StorageError("The disk is away."))
    first, second = blocked.reports
    assert first is not None
    assert second is not None
    assert (second.since, second.checkpoint, second.tries, second.error.error) == (first.since, 1, 2, "StorageError")


def test_a_later_attempt_names_the_checkpoint_and_the_time_of_the_first_publication_that_was_blocked(blocked: Blocked) -> None:
    blocked.blocking.failed(blocked.checkpoint(completed_at=STAGED), REFUSED)
    later = Blocking(blocked.pipeline.files, masking([]))
    later.failed(blocked.checkpoint(), REFUSED)
    assert later.blocked is not None
    assert (later.blocked.checkpoint, later.blocked.since, later.blocked.tries) == (1, STAGED, 1)


def test_the_end_of_a_blocked_publication_is_reported_once(blocked: Blocked) -> None:
    blocked.blocking.got_through()
    assert blocked.reports == []
    blocked.blocking.failed(blocked.checkpoint(), REFUSED)
    publish(blocked.pipeline.files)
    blocked.blocking.got_through()
    blocked.blocking.got_through()
    assert blocked.reports[1:] == [None]
    assert blocked.blocking.blocked is None


def test_an_unchanged_block_is_logged_once_and_old_rows_cause_one_warning(
    blocked: Blocked, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = blocked.checkpoint()
    for _ in range(3):
        blocked.blocking.failed(manifest, REFUSED)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    blocked.clock.time = STAGED + timedelta(days=4)
    for _ in range(3):
        blocked.blocking.failed(manifest, REFUSED)
    assert "from 2023-11-21 22:13:20+00:00 on a VACUUM" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_a_blocked_publication_fails_before_the_first_row_can_be_lost(blocked: Blocked) -> None:
    manifest = blocked.checkpoint()
    blocked.clock.time = STAGED + timedelta(days=6, hours=10)
    with pytest.raises(UnsupportedTableError, match="may delete them"):
        blocked.blocking.failed(manifest, REFUSED)
    assert blocked.reports[-1] is not None


def test_the_report_says_until_when_the_other_tables_are_published_without_a_held_one(blocked: Blocked) -> None:
    hold = HoldLimits(time_ms=7_200_000, size_bytes=None)
    manifest = blocked.checkpoint(cut={"hold": hold}, completed_at=STAGED)
    publish(blocked.pipeline.files, sinks=[DAILY])
    blocked.blocking.record_held(manifest, {HOURLY: REFUSED})
    (report,) = blocked.reports
    assert report is not None
    assert (report.waiting, report.all_wait_from) == ((HOURLY,), STAGED + timedelta(hours=2))
    assert " Waiting: hourly. The other tables go on, at most until 2023-11-15 00:13:20Z. Drop the constraint." in report.summary
    blocked.blocking.failed(manifest, REFUSED)
    assert blocked.reports[-1] is not None
    assert blocked.reports[-1].all_wait_from is None


@pytest.mark.parametrize("hold", [None, HoldLimits(time_ms=10**12, size_bytes=None)])
def test_a_final_checkpoint_that_a_table_refuses_stays_blocked_in_the_next_round_until_it_is_public(
    blocked: Blocked, monkeypatch: pytest.MonkeyPatch, hold: HoldLimits | None
) -> None:
    """The checkpoints of the next round are not due in any sink. Publishing one of them must not clear the block."""
    publishers, by_round = Publishers(), {"publish": Publish.FINAL, "cut": {"hold": hold}}
    final = blocked.checkpoint(**by_round, checkpoint_kind=CheckpointKind.FINAL)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaRsTransaction, "publish", refusing)
        blocked.blocking.publish_or_block(final, publishers)
        later = blocked.checkpoint(**by_round)
        blocked.blocking.publish_or_block(later, publishers)
    report = blocked.blocking.blocked
    assert report is not None
    assert (report.checkpoint, report.tries, set(report.waiting)) == (1, 2, {HOURLY, DAILY})
    blocked.blocking.publish_or_block(later, publishers)
    assert blocked.blocking.blocked is None
    assert [blocked.pipeline.commits(sink) for sink in (HOURLY, DAILY)] == [[1], [1]]


def refusing(*_: Any, **__: Any) -> None:
    raise UnsupportedTableError("It refuses.")
