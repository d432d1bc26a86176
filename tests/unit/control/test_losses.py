"""The loss ledger: each loss is recorded once, and can be accepted or undone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.control.losses import LossLedger, LossState, rows_passed_over
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import BatchId, IncarnationId, InputName, LossId, RoundNumber, RunId, StageName
from spark_jobs.protocol.losses import Loss, LostFile, LostFiles, PassedOver, StagedFile
from spark_jobs.storage.local import LocalFiles
from tests.support.documents import ATTEMPT, SAMPLES
from tests.support.rounds import begun
from tests.support.staged_pipeline import a_manifest

ORDERS = InputName("orders")
FIRST, SECOND = RoundNumber(1), RoundNumber(2)


def lost(*paths: str, stage: str = "copy") -> LostFiles:
    return LostFiles(input=ORDERS, stage=StageName(stage), files=tuple(LostFile(path=path) for path in paths))


def paths(losses: tuple[Loss, ...]) -> list[list[str]]:
    return [[file.path for file in loss.files] for loss in losses if isinstance(loss, LostFiles)]


@pytest.fixture
def ledger(tmp_path: Path) -> LossLedger:
    return LossLedger(LocalFiles(tmp_path))


def test_a_loss_of_each_stage_is_recorded_under_a_number_of_the_round(ledger: LossLedger) -> None:
    recorded = ledger.record(FIRST, ATTEMPT, [lost("a"), lost("a", stage="count")])
    assert [(loss.id, loss.stage) for loss in recorded] == [("1-1", "copy"), ("1-2", "count")]
    assert ledger.of_round(FIRST) == recorded
    assert ledger.of_round(SECOND) == ()


def test_a_loss_that_is_recorded_in_a_round_is_not_recorded_again(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [lost("a")])
    assert paths(ledger.record(FIRST, ATTEMPT, [lost("a", "b")])) == [["b"]]
    assert ledger.record(FIRST, ATTEMPT, [lost("a", "b")]) == ()
    assert paths(ledger.of_round(FIRST)) == [["a"], ["b"]]


def test_two_attempts_that_record_at_once_give_two_numbers(ledger: LossLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    other, seen = LossLedger(ledger.files), list[int]()
    names = LocalFiles.names

    def names_before_the_other_records(files: LocalFiles, directory: str) -> list[str]:
        found = names(files, directory)
        seen.append(len(found))
        if len(seen) == 2:  # the first recorder has looked for the next number, and has not created its document
            other.record(FIRST, ATTEMPT, [lost("b")])
        return found

    monkeypatch.setattr(LocalFiles, "names", names_before_the_other_records)
    (mine,) = ledger.record(FIRST, ATTEMPT, [lost("a")])
    assert mine.id == "1-2"
    assert paths(ledger.of_round(FIRST)) == [["b"], ["a"]]


def test_a_loss_is_open_until_it_is_accepted(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [lost("a")])
    assert [each.state for each in ledger.entries()] == [LossState.OPEN]
    ledger.accept([LossId("1-1")], "deleted by the vendor")
    ledger.accept([LossId("1-1")], "again")
    (entry,) = ledger.entries()
    assert entry.state is LossState.ACCEPTED
    assert entry.acceptance is not None
    assert entry.acceptance.reason == "deleted by the vendor"


def test_a_run_that_accepts_the_losses_of_a_source_accepts_no_others(ledger: LossLedger) -> None:
    clicks = lost("b").model_copy(update={"input": InputName("clicks")})
    ledger.record(FIRST, ATTEMPT, [lost("a"), clicks], accepted=[ORDERS])
    assert [each.state for each in ledger.entries()] == [LossState.ACCEPTED, LossState.OPEN]


def test_no_loss_is_accepted_if_one_of_them_is_unknown_or_undone(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [lost("a"), lost("b")])
    ledger.undo([LossId("1-2")], SECOND)
    for other, said in (("9-9", "has no loss 9-9"), ("1-2", "is undone")):
        with pytest.raises(RejectedError, match=said):
            ledger.accept([LossId("1-1"), LossId(other)], "why")
    assert [each.state for each in ledger.entries()] == [LossState.OPEN, LossState.UNDONE]


def test_an_accepted_loss_can_be_undone(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [lost("a")], accepted=[ORDERS])
    ledger.undo([LossId("1-1")], SECOND)
    ledger.undo([LossId("1-1")], SECOND)
    assert [each.state for each in ledger.entries()] == [LossState.UNDONE]


def test_a_round_leaves_out_its_own_losses_and_those_that_it_took_from_the_round_before(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [lost("a"), lost("b")])
    rounds = Rounds(ledger.files)
    rounds.begin(begun(2).model_copy(update={"losses": (LossId("1-2"),)}))
    ledger.record(SECOND, ATTEMPT, [lost("c")])
    assert paths(rounds.losses(SECOND)) == [["b"], ["c"]]


def passed_over(file: str, rows: int, stage: str = "score") -> PassedOver:
    whose = {"input": InputName("copy"), "stage": StageName(stage)}
    return PassedOver(**whose, unit=StagedFile(batch=BatchId(4), file=file, size_bytes=9), rows=rows, error="it fails", tries=3)


def test_rows_that_a_stage_has_passed_over_count_for_a_while_unless_they_are_undone(ledger: LossLedger) -> None:
    score, now = StageName("score"), datetime.now(UTC)
    ledger.record(FIRST, ATTEMPT, [passed_over("a", 10), passed_over("b", 100)])
    ledger.record(SECOND, ATTEMPT, [passed_over("c", 5), passed_over("d", 7, "other"), lost("e", stage="score")])

    def rows(since: datetime) -> int:
        return rows_passed_over(ledger.passed_over(since), score, since)

    assert rows(now - timedelta(hours=1)) == 115
    ledger.undo([LossId("1-2")], SECOND)
    assert rows(now - timedelta(hours=1)) == 15
    assert rows(datetime.now(UTC) + timedelta(seconds=1)) == 0


def in_checkpoint(*losses: str, run: str = "mended") -> Manifest:
    (manifest,) = (sample for sample in SAMPLES if isinstance(sample, Manifest))
    return manifest.model_copy(update={"backfilled": tuple(map(LossId, losses)), "run": RunId(run)})


def test_a_loss_is_backfilled_by_the_first_checkpoint_with_its_rows_until_a_restore_of_an_earlier_one(
    ledger: LossLedger,
) -> None:
    ledger.record(FIRST, ATTEMPT, [passed_over("a", 10), passed_over("b", 100), lost("c")])
    assert (ledger.can_be_backfilled(), sorted(ledger.needed_files(ledger.can_be_backfilled()))) == (["1-1", "1-2"], ["a", "b"])
    for run in ("mended", "later"):
        ledger.backfill(in_checkpoint("1-1", run=run))
    assert [each.state for each in ledger.entries()] == [LossState.BACKFILLED, LossState.OPEN, LossState.OPEN]
    assert (ledger.can_be_backfilled(), sorted(ledger.needed_files(ledger.can_be_backfilled()))) == (["1-2"], ["b"])
    (found,) = [each.backfill for each in ledger.entries() if each.backfill]
    assert (found.run, found.checkpoint) == ("mended", in_checkpoint().checkpoint)
    ledger.reopen([LossId("1-1")])
    assert {each.state for each in ledger.entries()} == {LossState.OPEN}


def test_a_backfilled_loss_that_is_undone_counts_as_undone(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [passed_over("a", 10)])
    ledger.backfill(in_checkpoint("1-1"))
    ledger.undo([LossId("1-1")], FIRST)
    assert [each.state for each in ledger.entries()] == [LossState.UNDONE]
    ledger.reopen([LossId("1-1")])
    assert [each.state for each in ledger.entries()] == [LossState.OPEN]


def test_only_open_losses_whose_rows_may_still_exist_can_be_backfilled(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [passed_over(file, 1) for file in "abcd"])
    ledger.record(FIRST, ATTEMPT, [lost("e")])
    ledger.accept([LossId("1-1")], "they may stay out")
    ledger.undo([LossId("1-2")], SECOND)
    ledger.backfill(in_checkpoint("1-3"))
    run, incarnation = RunId("mended"), ATTEMPT.incarnation
    for loss, why in {
        "1-1": "it is accepted",
        "1-2": "it is undone",
        "1-5": "its rows are gone. It is",
        "1-6": "has no loss 1-6",
    }.items():
        with pytest.raises(RejectedError, match=why):
            ledger.check_backfill([LossId("1-4"), LossId(loss)], run, incarnation)
    with pytest.raises(RejectedError, match="it is backfilled"):
        ledger.check_backfill([LossId("1-3")], RunId("another"), incarnation)
    with pytest.raises(RejectedError, match="the pipeline has begun again since"):
        ledger.check_backfill([LossId("1-4")], run, IncarnationId("later"))
    with pytest.raises(RejectedError, match="cannot be accepted: it is backfilled"):
        ledger.accept([LossId("1-3")], "why")
    ledger.check_backfill([LossId("1-4"), LossId("1-3")], run, incarnation)


def test_a_backfilled_loss_is_forgotten_with_its_round(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [passed_over("a", 1), passed_over("b", 1)])
    ledger.backfill(in_checkpoint("1-1"))
    ledger.forget(SECOND, needed=())
    assert [each.recorded.loss.id for each in ledger.entries()] == ["1-2"]
    assert ledger.files.names("losses") == ["1-2.json"]


def test_a_round_reads_the_rows_of_an_undone_loss_again(ledger: LossLedger) -> None:
    ledger.record(FIRST, ATTEMPT, [passed_over("a", 10), passed_over("b", 100)])
    ledger.undo([LossId("1-1")], FIRST)
    assert [loss.id for loss in ledger.of_round(FIRST)] == ["1-2"]
    assert [loss.id for loss in ledger.of_round(SECOND, [LossId("1-1"), LossId("1-2")])] == ["1-2"]


def test_a_checkpoint_lacks_the_losses_before_it_until_they_are_accepted_or_in_a_checkpoint(ledger: LossLedger) -> None:
    old = ledger.record(FIRST, ATTEMPT, [lost("a"), lost("b")])
    new = ledger.record(SECOND, ATTEMPT, [lost("c"), lost("d")])

    def at(checkpoint: int, number: int, **changes: Any) -> Manifest:
        return a_manifest(checkpoint, round=RoundNumber(number), incarnation=ATTEMPT.incarnation, **changes)

    first, second = at(1, 1, losses=old), at(2, 2, losses=new[:1])
    assert ledger.lacking(at(1, 1)) == ()
    assert ledger.lacking(first) == ("1-1", "1-2")
    assert ledger.lacking(second) == ("1-1", "1-2", "2-1"), "the other one was recorded after it"
    assert ledger.lacking(second.model_copy(update={"incarnation": IncarnationId("other")})) == ()
    ledger.accept([LossId("1-1")], "why")
    ledger.undo([LossId("2-1")], RoundNumber(3))
    third = at(3, 3, backfilled=(LossId("1-2"),))
    assert ledger.lacking(third) == ("2-2",), "an attempt that dies now has not told the ledger"
    ledger.backfill(third)
    assert ledger.lacking(first) == ("1-2",)
    assert ledger.lacking(second) == ("1-2", "2-1"), "a later checkpoint has the rows of the second one"
    assert ledger.lacking(third) == ("2-2",)
    assert ledger.lacking(at(4, 4)) == ("2-2",)
