"""``spark-jobs losses`` and ``spark-jobs accept``."""

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.ids import InputName, LossId, RoundNumber, StageName
from spark_jobs.protocol.losses import LostOffsets, OffsetRange
from tests.support.command_line import UsedHome, document, spark_jobs


def lose(home: UsedHome, *ends: int) -> None:
    attempt = Attempts(home.files).latest()
    assert attempt is not None
    lost = [
        LostOffsets(input=InputName("events"), stage=StageName("hourly"), topics={"clicks": {n: OffsetRange(first=3, end=end)}})
        for n, end in enumerate(ends)
    ]
    LossLedger(home.files).record(RoundNumber(1), attempt, lost)


def test_a_pipeline_that_has_lost_nothing_says_so(drained: UsedHome) -> None:
    assert "left out no rows" in spark_jobs("losses", "--home", drained.url).stdout


def test_losses_are_listed_with_all_known_facts(interrupted: UsedHome) -> None:
    lose(interrupted, 10)
    shown = spark_jobs("losses", "--home", interrupted.url)
    assert shown.exit_code == 0
    for text in ("1-1", "open", "events", "hourly", "7"):
        assert text in shown.stdout
    (loss,) = document(spark_jobs("losses", "--home", interrupted.url, "--output", "json"))["losses"]
    assert (loss["rows_at_most"], loss["accepted_at"]) == (7, None)
    assert loss["parts"]["topics"] == {"clicks": {"0": {"first": 3, "end": 10}}}


def test_an_accepted_loss_keeps_its_reason_and_the_others_stay_open(interrupted: UsedHome) -> None:
    lose(interrupted, 10, 4)
    command = ("accept", "1-2", "--home", interrupted.url, "--reason", "one row of a test")
    answer = document(spark_jobs(*command, "--output", "json"))
    assert [(loss["loss"], loss["state"], loss["reason"]) for loss in answer["losses"]] == [
        ("1-2", "accepted", "one row of a test")
    ]
    assert answer["open"] == 1
    assert "1 loss is open" in spark_jobs(*command).stdout


def test_an_unknown_loss_is_refused(interrupted: UsedHome) -> None:
    refused = spark_jobs("accept", "1-1", "--home", interrupted.url, "--reason", "why")
    assert refused.exit_code == 2
    assert "has no loss 1-1" in refused.stderr


def test_a_backfill_is_refused_if_no_loss_can_be_backfilled(interrupted: UsedHome) -> None:
    lose(interrupted, 10)
    refused = spark_jobs("backfill", "flights.py", "--home", interrupted.url)
    assert refused.exit_code == 2
    assert "has no loss that can be backfilled" in refused.stderr


def test_a_backfill_opens_the_home_with_its_work_root(interrupted: UsedHome) -> None:
    refused = spark_jobs("backfill", "flights.py", "--home", interrupted.url, "--work-root", "/mnt/work")
    assert refused.exit_code == 2
    assert "It cannot have the work root /mnt/work" in refused.stderr.replace("\n", " ")


def test_a_backfilled_loss_is_listed_with_its_checkpoint_and_is_in_no_status(interrupted: UsedHome) -> None:
    lose(interrupted, 10, 4)
    manifest = interrupted.complete()
    LossLedger(interrupted.files).backfill(manifest.model_copy(update={"backfilled": (LossId("1-1"),)}))
    first, second = document(spark_jobs("losses", "--home", interrupted.url, "--output", "json"))["losses"]
    assert (first["state"], first["checkpoint"], second["state"], second["checkpoint"]) == (
        *("backfilled", manifest.checkpoint),
        *("open", None),
    )
    left = document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["losses"]
    assert [loss["id"] for loss in left] == ["1-2"]


def test_a_checkpoint_is_exact_once_its_losses_are_accepted(interrupted: UsedHome) -> None:
    def listed() -> list[object]:
        answer = document(spark_jobs("checkpoints", "--home", interrupted.url, "--output", "json"))
        return [each["exact"] for each in answer["checkpoints"]]

    assert document(spark_jobs("status", "--home", interrupted.url, "--output", "json"))["exact"] is None
    lose(interrupted, 10)
    (lost,) = LossLedger(interrupted.files).of_round(RoundNumber(1))
    interrupted.complete(losses=(lost,))
    for command in ("status", "inspect"):
        assert "no: it lacks rows of inputs" in " ".join(spark_jobs(command, "--home", interrupted.url).stdout.split())
        assert document(spark_jobs(command, "--home", interrupted.url, "--output", "json"))["exact"] is False
    assert listed() == [False]
    assert "Not exact: 1. See spark-jobs losses" in spark_jobs("checkpoints", "--home", interrupted.url).stdout
    spark_jobs("accept", "1-1", "--home", interrupted.url, "--reason", "one row of a test")
    for command in ("status", "inspect"):
        assert document(spark_jobs(command, "--home", interrupted.url, "--output", "json"))["exact"] is True
    assert listed() == [True]
    assert "Not exact" not in spark_jobs("checkpoints", "--home", interrupted.url).stdout
