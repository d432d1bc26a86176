"""The consequence of a stage's failure: a delayed restart, or the end of the attempt."""

import random
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from spark_jobs.api.restarts import RESTART_OF_UNBOUNDED
from spark_jobs.protocol.errors import (
    CorruptDocumentError,
    FencedError,
    InterruptedRunError,
    NotFoundError,
    PermanentFailureError,
    RejectedError,
    RestartsExhaustedError,
    RunCancelledError,
    SourceChangedError,
    SourceGoesOnError,
    StorageError,
)
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.restart_settings import FixedDelay, RestartSettings
from spark_jobs.protocol.restarts import Restarts
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.stages import running_stage
from spark_jobs.runtime.stages.passing_over import PassingOver
from spark_jobs.runtime.stages.running_stage import StageAtWork
from spark_jobs.runtime.stages.stage import StageRun
from tests.support.memory_files import MemoryFiles

STAGE = StageName("hourly")


class Failing:
    """A failing stage with this number of allowed restarts."""

    def __init__(self, attempts: int = 0, settings: RestartSettings | None = None, *, isolated: bool = False) -> None:
        self.stopping = threading.Event()
        self.now_s = 0.0
        self.restarts = Restarts(settings or FixedDelay(attempts=attempts, delay_ms=0), lambda: self.now_s, random.Random(0))
        self.committed = MemoryFiles()
        self.told: list[tuple[StageName, Exception]] = []
        stage = SimpleNamespace(
            stage=SimpleNamespace(name=STAGE),
            frame=SimpleNamespace(sparkSession=None),
            spark_log=SparkLog(self.committed, "stage"),
            output=SimpleNamespace(ended=threading.Event()),
            upstream=[],
            heartbeat=SimpleNamespace(
                restarting=lambda name, error: self.told.append((name, error)),
                failed=lambda name, error: self.told.append((name, error)),
            ),
        )
        self.lost: Exception | None = None
        self.goes_on: Exception | None = None
        self.at_work = StageAtWork(
            cast(StageRun, stage), self.restarts, self.stopping, self._check_lost, self._check_skipped, isolated
        )

    def _check_lost(self, run: StageRun, error: Exception) -> None:
        if self.lost is not None:
            raise self.lost

    def _check_skipped(self, run: StageRun) -> None:
        if self.goes_on is not None:
            raise self.goes_on

    def fails(self, error: Exception) -> None:
        self.at_work._wait_for_restart(error)

    def runs_until(self, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs the stage until it is not restarted. Each run fails with this error."""

        def go_on() -> None:
            raise error

        monkeypatch.setattr(self.at_work, "_go_on", go_on)
        self.at_work.start()
        self.at_work.stop()


@pytest.fixture
def spark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_stage, "application_has_ended", lambda spark: False)


@pytest.mark.usefixtures("spark_runs")
def test_a_failure_that_may_heal_is_logged_and_the_stage_starts_again() -> None:
    failing, error = Failing(attempts=1000), StorageError("The disk is away.")
    failing.fails(error)
    assert failing.told == [(STAGE, error)]
    assert failing.restarts.history.restarts == 1


@pytest.mark.usefixtures("spark_runs")
@pytest.mark.parametrize("error", [RejectedError("Its rows do not fit."), FencedError("Another attempt is live.")])
def test_a_failure_that_cannot_heal_ends_the_attempt_at_once(error: Exception) -> None:
    failing = Failing(attempts=1000)
    with pytest.raises(type(error)) as raised:
        failing.fails(error)
    assert raised.value is error
    assert (failing.told, failing.restarts.history.restarts) == ([], 0)


@pytest.mark.usefixtures("spark_runs")
def test_a_stage_that_has_lost_its_input_does_not_start_again() -> None:
    failing = Failing(attempts=1000)
    failing.lost = RejectedError("Its records have expired.")
    with pytest.raises(RejectedError, match="expired"):
        failing.fails(InterruptedRunError("A file is gone."))


@pytest.mark.usefixtures("spark_runs")
@pytest.mark.parametrize("error", [InterruptedRunError("A file is gone."), RejectedError("Version 3 changes rows.")])
def test_a_stage_whose_source_skips_lost_rows_is_built_again_and_that_is_no_restart(error: Exception) -> None:
    failing = Failing(attempts=0, isolated=True)
    failing.goes_on = SourceGoesOnError("Version 3 is passed over.")
    with pytest.raises(SourceGoesOnError):
        failing.fails(error)
    assert (failing.told, failing.restarts.history.restarts) == ([], 0)


@pytest.mark.usefixtures("spark_runs")
def test_a_stage_fails_as_usual_if_it_is_unknown_whether_its_source_skips_lost_rows() -> None:
    failing, error = Failing(attempts=1000), InterruptedRunError("A file is gone.")
    failing.goes_on = StorageError("Kafka does not answer.")
    failing.fails(error)
    assert failing.told == [(STAGE, error)]


@pytest.mark.usefixtures("spark_runs")
def test_a_stage_starts_again_if_it_is_unknown_whether_its_input_is_lost() -> None:
    failing = Failing(attempts=1000)
    for failing.lost in (StorageError("Kafka does not answer."), ValueError("of a client")):
        failing.fails(InterruptedRunError("A file is gone."))
    failing.stopping.set()
    failing.lost = RejectedError("Its records have expired.")
    failing.fails(InterruptedRunError("A file is gone."))


def test_no_failure_can_heal_after_spark_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_stage, "application_has_ended", lambda spark: True)
    failing, error = Failing(attempts=1000), StorageError("The disk is away.")
    with pytest.raises(StorageError) as raised:
        failing.fails(error)
    assert raised.value is error
    assert (failing.told, failing.restarts.history.restarts) == ([], 0)


@pytest.mark.usefixtures("spark_runs")
def test_a_stage_gives_up_once_its_strategy_allows_no_more_restarts() -> None:
    failing = Failing(attempts=1)
    failing.fails(StorageError("The disk is away."))
    failing.restarts.history = failing.restarts.history.model_copy(update={"restart_at_ms": -1})  # the restart has happened
    with pytest.raises(RestartsExhaustedError, match="fixed-delay allows 1 restart. The last failure was ValueError: seven"):
        failing.fails(ValueError("seven"))


DEFAULT = RESTART_OF_UNBOUNDED.model_copy(update={"initial_backoff_ms": 1, "max_backoff_ms": 1, "jitter_factor": 0.0})
"""A pipeline's default strategy, with restarts that have no delay."""
HOURS_S = 7_200.0
SAME_BATCH = "Batch 7 of stage 'hourly' was computed twice and had 3 rows after 2: the stage is not deterministic."


@pytest.mark.usefixtures("spark_runs")
@pytest.mark.parametrize("lasts_s", [1.0, HOURS_S])
@pytest.mark.parametrize("error", [InterruptedRunError(SAME_BATCH), ConnectionError("its code finds no service")])
def test_a_batch_that_fails_at_each_try_ends_the_stage_by_default_however_long_a_try_takes(
    error: Exception, lasts_s: float
) -> None:
    failing = Failing(settings=DEFAULT)
    for _ in range(20):
        failing.fails(error)
        failing.now_s += lasts_s
    last = f"allows 20 restarts in a row. The last failure was {type(error).__name__}: "
    with pytest.raises(RestartsExhaustedError, match=last):
        failing.fails(error)


@pytest.mark.usefixtures("spark_runs")
def test_a_stage_that_completes_batches_between_rare_failures_is_restarted_for_ever() -> None:
    failing = Failing(settings=DEFAULT)
    for batch in range(100):
        failing.committed.create(f"stage/commits/{batch}", b"v2\n{}")
        failing.fails(StorageError("The disk is away."))
        failing.now_s += HOURS_S
    assert failing.restarts.history.restarts == 1


OF_ITS_OWN = [
    (PermanentFailureError("A row cannot be divided."), PermanentFailureError),
    (RejectedError("Its records have expired."), RejectedError),
    (InterruptedRunError(SAME_BATCH), RestartsExhaustedError),
]


@pytest.mark.usefixtures("spark_runs")
@pytest.mark.parametrize(("error", "given_up_with"), OF_ITS_OWN)
def test_only_the_stage_that_has_failed_for_good_is_given_up_and_stays_failing(
    error: Exception, given_up_with: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(attempts=0, isolated=True)
    failing.runs_until(error, monkeypatch)
    given_up = failing.at_work.given_up
    assert isinstance(given_up, given_up_with)
    assert (failing.at_work.failure, failing.at_work.failing_with(), failing.told) == (None, given_up, [(STAGE, given_up)])


@pytest.mark.usefixtures("spark_runs")
@pytest.mark.parametrize(("error", "ends_with"), OF_ITS_OWN)
def test_a_stage_that_has_failed_for_good_ends_the_attempt_if_the_pipeline_declares_it(
    error: Exception, ends_with: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(attempts=0)
    failing.runs_until(error, monkeypatch)
    assert isinstance(failing.at_work.failure, ends_with)
    assert (failing.at_work.given_up, failing.told) == (None, [])


@pytest.mark.usefixtures("spark_runs")
@pytest.mark.parametrize(
    "error",
    [
        FencedError("Another attempt is live."),
        RunCancelledError("Somebody has ended it."),
        SourceChangedError("It has other columns."),
        NotFoundError("A file of the work directory is gone."),
        CorruptDocumentError("A version of a log is torn."),
    ],
)
def test_a_failure_of_all_stages_or_for_the_next_attempt_ends_the_attempt(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(attempts=1000, isolated=True)
    failing.runs_until(error, monkeypatch)
    assert (failing.at_work.failure, failing.at_work.given_up) == (error, None)


@pytest.mark.usefixtures("spark_runs")
def test_a_stage_that_ends_while_all_stages_stop_has_not_failed() -> None:
    failing = Failing(attempts=0)
    failing.stopping.set()
    failing.fails(RejectedError("Its rows do not fit."))
    assert failing.told == []


class Tolerant:
    """A rule that tolerates two failures and passes over a file at the next run."""

    is_due = False

    def __init__(self) -> None:
        self.failures, self.passed_over = 0, 0

    def tolerates(self, run: StageRun, error: Exception) -> bool:
        self.failures += 1
        self.is_due = self.failures == 2
        return isinstance(error, PermanentFailureError)

    def pass_over(self, run: StageRun) -> StageRun:
        self.is_due = False
        self.passed_over += 1
        return run


@pytest.mark.usefixtures("spark_runs")
def test_a_tolerated_failure_is_no_restart_and_a_file_is_passed_over_before_the_stage_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing, tolerant = Failing(attempts=0), Tolerant()
    failing.at_work.passing_over = cast(PassingOver, tolerant)
    error, tries = PermanentFailureError("A row cannot be divided."), list[int]()

    def go_on() -> None:
        tries.append(tolerant.passed_over)
        if not tolerant.passed_over:
            raise error
        failing.stopping.set()

    monkeypatch.setattr(failing.at_work, "_go_on", go_on)
    failing.at_work.start()
    failing.at_work.stop()
    assert tries == [0, 0, 1]
    assert (failing.at_work.failure, failing.restarts.history.restarts, failing.told) == (None, 0, [(STAGE, error)] * 2)


@pytest.mark.usefixtures("spark_runs")
def test_a_failure_that_a_stage_does_not_tolerate_fails_it_as_usual() -> None:
    failing = Failing(attempts=0)
    failing.at_work.passing_over = cast(PassingOver, Tolerant())
    with pytest.raises(RejectedError):
        failing.fails(RejectedError("Its rows do not fit."))
