"""Checkpoints of a running pipeline on request."""

from datetime import UTC, datetime

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.home.layout import answer_path, request_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import StageName
from spark_jobs.storage.files import create_document
from tests.spark.conftest import Site
from tests.support.command_line import document, spark_jobs
from tests.support.growing_table import Events, bounded_at_night, bounded_too
from tests.support.running import Running
from tests.support.running_minutes import assert_shown, events, ids, three_stages

pytestmark = pytest.mark.spark


__all__ = ["events"]


@bounded_too
def test_a_requested_checkpoint_publishes_the_rows_that_were_read_before_it(site: Site, events: Events) -> None:
    events.add(100)
    with Running(site.spark, three_stages(site, events, interval="1 hour"), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName(events.furthest)].rows_in == events.rows)
        answer = document(spark_jobs("checkpoint", "--home", site.home, "--request", "now", "--output", "json"))
        assert_shown(site, events)
        assert ids(site, "copied", answer["sinks"]["copied"]["version"]) == list(range(101))
        again = document(spark_jobs("checkpoint", "--home", site.home, "--request", "now", "--output", "json"))
        manifest = running.store.head()
        spark_jobs("checkpoint", "--home", site.home, "--request", "unchanged")
        first, unchanged = running.store.history()
    assert again == answer
    assert manifest is not None
    assert (answer["checkpoint"], manifest.checkpoint, manifest.request) == (1, 1, "checkpoint-now")
    assert first.new_state_files > first.reused_state_files == 0
    assert (unchanged.new_state_files, unchanged.new_state_bytes) == (0, 0)
    assert (unchanged.reused_state_files, unchanged.reused_state_bytes) == (first.new_state_files, first.new_state_bytes)
    with pytest.raises(RejectedError, match="No attempt is running"):
        CheckpointRequests(running.files).ask(request_id("later"))


@bounded_at_night
def test_the_next_attempt_answers_a_request_that_was_left_open(site: Site, events: Events) -> None:
    pipeline = three_stages(site, events, interval="1 hour")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName(events.furthest)].rows_in == events.rows)
        spark_jobs("checkpoint", "--home", site.home, "--request", "first")
    requests = CheckpointRequests(running.files)
    first = request_id("first")
    running.files.delete(answer_path(first))  # as if the driver had died between the manifest and the answer
    create_document(running.files, request_path(first), CheckpointRequest(request=first, requested_at=datetime.now(UTC)))
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: requests.answer_of(first))
    answer = requests.answer_of(first)
    assert answer is not None
    assert (answer.checkpoint, answer.attempt, running.store.taken()) == (1, 2, [1])


def test_a_pipeline_that_starts_again_with_bounded_inputs_answers_earlier_requests(site: Site, events: Events) -> None:
    with Running(site.spark, three_stages(site, events, interval="1 hour"), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("again")].rows_in == events.rows)
    request = CheckpointRequest(request=request_id("too-late"), requested_at=datetime.now(UTC))
    create_document(
        running.files, f"requests/{request.request}.json", request
    )  # as if the driver had died before it saw the request
    path, bounded = str(events.path), Pipeline("live")
    bounded.source(bounded=True, name="events")(lambda spark: spark.readStream.format("delta").load(path))
    bounded.stage(sink=DeltaSink(str(site.tables / "ended")), name="ended")(lambda events: events)
    assert site.run(bounded, fresh=True).checkpoint is not None
    answer = CheckpointRequests(running.files).answer_of(request.request)
    assert answer is not None
    assert (answer.error, answer.attempt) == (None, 2)
    assert answer.checkpoint in running.store.taken()
