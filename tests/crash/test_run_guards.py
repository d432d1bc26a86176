"""The guards of a run. Each test takes a guard away and shows the fault that it prevents."""

import shutil
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    CorruptDocumentError,
    InterruptedRunError,
    StreamPipelineError,
)
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime import round_run
from spark_jobs.runtime.spark.spark_log import OffsetEntry, SparkLog
from spark_jobs.runtime.stages.replay import replay
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.stages.staging import StageWriter
from spark_jobs.storage.local import LocalFiles
from tests.support import small_pipeline
from tests.support.crashes import run_into
from tests.support.run_site import RunSite
from tests.support.small_pipeline import answer

pytestmark = pytest.mark.spark


def crash_at(site: RunSite, step: Step, *, before: bool, occurrence: int = 1, on_end: OnEnd = OnEnd.DRAIN) -> None:
    point = run_into(site, lambda passed: passed.name == (step, before) and passed.occurrence == occurrence, on_end=on_end)
    assert point is not None


@pytest.fixture
def replanned(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    """A site where a batch is staged and Spark has forgotten its plan. The next plan takes more input into the batch."""
    crash_at(site, Step.STAGE_VERSION, before=False)
    (checkpoint,) = site.home.glob("work/*/stages/known/checkpoint")
    shutil.rmtree(checkpoint)
    monkeypatch.setattr(small_pipeline, "FILES_A_BATCH", small_pipeline.FILES_A_DAY)
    monkeypatch.setattr(round_run, "replay", lambda stage, rebuild: stage)
    return site


def test_a_batch_is_computed_again_as_planned_although_spark_lost_its_plan(
    replanned: RunSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_run, "replay", replay)
    replanned.run()
    replanned.assert_answered()


def test_a_batch_that_would_be_staged_with_other_input_is_refused(replanned: RunSite) -> None:
    with pytest.raises(InterruptedRunError, match="other input"):
        replanned.run()
    assert replanned.public() == {"hourly": [], "daily": []}
    assert replanned.checkpoints() == []


def test_without_the_check_of_a_batchs_input_rows_are_lost(replanned: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageWriter, "_check_same", lambda *_: None)
    replanned.run()
    assert counted(replanned) < sum(count for _, count in answer([0])["daily"])


def counted(site: RunSite) -> int:
    return sum(count for _, count in site.public()["daily"])


@pytest.fixture(params=[OnEnd.DRAIN])
def hurried(site: RunSite, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    """A site where a batch of the first stage is planned and not run, with a stage that would not run it."""
    crash_at(site, Step.STAGE_FILES, before=True, occurrence=2, on_end=request.param)
    run_to_end = StageRun.run_to_end

    def hurry(stage: StageRun) -> None:
        if not stage.spark_log.pending():
            run_to_end(stage)

    monkeypatch.setattr(StageRun, "run_to_end", hurry)
    return site


@pytest.mark.parametrize("hurried", [OnEnd.SUSPEND], indirect=True)
def test_no_batch_is_planned_while_a_batch_is_pending(hurried: RunSite) -> None:
    with pytest.raises(CorruptDocumentError, match="cannot be planned"):
        hurried.run(on_end=OnEnd.SUSPEND)
    assert hurried.public() == {"hourly": [], "daily": []}


@pytest.mark.parametrize("hurried", [OnEnd.SUSPEND], indirect=True)
@pytest.mark.nightly
def test_a_plan_above_a_pending_batch_would_lose_that_batch(hurried: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(log: SparkLog, _: int, entry: OffsetEntry) -> None:
        pending = log.offsets(log.last_offsets())
        with step(Step.PLAN_BATCH):
            path = f"{log.directory}/offsets/{log.last_offsets() + 1}"
            log.files.create(path, pending.with_watermark(entry.watermark_ms).to_bytes())

    monkeypatch.setattr(SparkLog, "plan", plan)
    hurried.run(on_end=OnEnd.SUSPEND)
    monkeypatch.undo()
    hurried.run("second")
    assert counted(hurried) < sum(count for _, count in answer([0])["daily"])


def test_no_cut_is_taken_while_a_batch_is_pending(hurried: RunSite) -> None:
    with pytest.raises(CorruptDocumentError, match="cannot be cut"):
        hurried.run()
    assert hurried.public() == {"hourly": [], "daily": []}


@pytest.mark.nightly
def test_a_cut_below_a_pending_batch_would_lose_that_batch(hurried: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkLog, "last_batch", SparkLog.last_commit)
    hurried.run()
    assert counted(hurried) < sum(count for _, count in answer([0])["daily"])


class NeverAdopts(LocalFiles):
    """A create that fails if the file exists, also with the same bytes."""

    def below(self, directory: str) -> "NeverAdopts":
        return NeverAdopts(self._target(directory), self._system)

    def create(self, path: str, data: bytes) -> None:
        if Path(self._target(path)).exists():
            raise AlreadyExistsError(f"{path} exists.")
        super().create(path, data)


def test_a_run_adopts_the_actions_that_it_wrote_before(site: RunSite) -> None:
    crash_at(site, Step.ACTIONS_CREATE, before=False)
    with pytest.raises(StreamPipelineError, match=r"channel exists"):
        site.run(home=NeverAdopts(site.home))
    site.run()
    site.assert_answered()


def set_clocks(monkeypatch: pytest.MonkeyPatch, year: int) -> None:
    """Sets every clock that a run reads."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime(year, 1, 1, tzinfo=tz)

    for module in (
        "control.channel",
        "control.liveness",
        "runtime.application",
        "runtime.start.begin_round",
        "runtime.checkpoints.checkpoint_try",
        "runtime.driver.heartbeat",
    ):
        monkeypatch.setattr(f"spark_jobs.{module}.datetime", Clock)


def test_a_clock_that_is_set_back_between_attempts_changes_nothing(any_site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for year, death in ((2040, Step.STAGE_VERSION), (2020, Step.MANIFEST_CREATE), (2001, Step.PUBLISH_SINK)):
        set_clocks(monkeypatch, year)
        crash_at(any_site, death, before=False)
    monkeypatch.undo()
    any_site.run()
    any_site.assert_answered()
