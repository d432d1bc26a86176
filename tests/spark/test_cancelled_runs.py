"""The owner of a run cancels it. The run ends by itself and loses no row, and the next run goes on."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.errors import InterruptedRunError, RunCancelledError
from spark_jobs.protocol.ids import AttemptNumber, PipelineName, RunId, start_request_id
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.runtime.driver.cancellation import Cancellation
from spark_jobs.runtime.launch import launch_requested
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public
from tests.support.places import in_a_store_at_night

pytestmark = pytest.mark.spark

FIRST = AttemptNumber(1)


class At:
    """Calls an action once before a step, and waits until the driver has seen its effect."""

    def __init__(self, step: Step, action: Callable[[], object], seen: Event) -> None:
        self._step, self._action, self._seen, self._done = step, action, seen, False

    def before(self, step: Step) -> None:
        if step is self._step and not self._done:
            self._done = True
            self._action()
            assert self._seen.wait(20.0)

    def after(self, step: Step) -> None:
        """Does nothing."""


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Event:
    """An event that is set once the driver has seen a cancel."""
    seen, look = Event(), Cancellation._look

    def looks(cancellation: Cancellation) -> None:
        look(cancellation)
        if cancellation._request is not None:
            seen.set()

    monkeypatch.setattr(Cancellation, "_look", looks)
    return seen


def pipeline_of(site: Site, events: Path) -> Pipeline:
    pipeline = Pipeline("events")

    @pipeline.source(bounded=True)
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(events))

    @pipeline.stage(sink=DeltaSink(site.table("kept")))
    def kept(source: DataFrame) -> DataFrame:
        return source.select("id", "key")

    return pipeline


@in_a_store_at_night
@pytest.mark.parametrize("step", [pytest.param(Step.ROUND_CREATE, marks=pytest.mark.nightly), Step.STAGE_FILES])
def test_a_cancelled_run_is_answered_and_the_next_attempt_completes_it(site: Site, looked: Event, step: Step) -> None:
    events = site.root / "events"
    inputs.write_versions(events, inputs.events(500), 3)
    home = site.files
    owners = AttemptLease(home, FIRST)
    owner = owners.take("a task").owner
    with observed_by(At(step, lambda: owners.cancel(owner, "its task was cleared"), looked)), pytest.raises(RunCancelledError):
        site.run(pipeline_of(site, events), run_id="one")
    response = Channel(home).response(start_request_id(FIRST))
    assert response is not None
    assert response.error is not None
    assert (response.error.error, response.error.evidence["owner"]) == ("RunCancelledError", owner)
    assert site.checkpoints() == []
    site.run(pipeline_of(site, events), run_id="one")
    assert_same(public(site.table("kept")), answer(site.spark.read.format("delta").load(str(events)).select("id", "key")))


def test_a_request_that_is_answered_while_spark_starts_begins_no_attempt(site: Site) -> None:
    events = site.root / "events"
    events.mkdir()
    channel = Channel(site.files)
    channel.claim(PipelineName("events"))
    request = channel.request_start(RunId("one"), parameters={})

    def started_late() -> SparkSession:
        channel.respond_failure(request, InterruptedRunError("It had not begun in time."))
        return site.spark

    with pytest.raises(InterruptedRunError, match="had not begun in time"):
        launch_requested(pipeline_of(site, events), channel.files, request.request, started_late)
    assert channel.attempts.numbers() == []


def test_a_cancel_that_comes_after_the_final_checkpoint_changes_nothing(site: Site, looked: Event) -> None:
    events = site.root / "events"
    inputs.write_versions(events, inputs.events(500), 2)
    owners = AttemptLease(site.files, FIRST)
    owner = owners.take("a task").owner
    with observed_by(At(Step.PUBLISH_SINK, lambda: owners.cancel(owner, "its task was cleared"), looked)):
        assert site.run(pipeline_of(site, events), run_id="one").checkpoint == 1
    assert_same(public(site.table("kept")), answer(site.spark.read.format("delta").load(str(events)).select("id", "key")))
