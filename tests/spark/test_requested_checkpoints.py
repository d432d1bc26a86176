"""Checkpoints of a running pipeline that somebody asks for."""

from pathlib import Path

import pytest

from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import StageName
from tests.spark.conftest import Site
from tests.spark.test_running_pipelines import Events, ids, three_stages
from tests.support.command_line import document, spark_jobs
from tests.support.running import Running

pytestmark = pytest.mark.spark


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path / "events")


def test_a_requested_checkpoint_makes_public_what_was_read_before_it(site: Site, events: Events) -> None:
    events.add(100)
    with Running(site.spark, three_stages(site, events, interval="1 hour"), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("again")].rows_in == events.rows)
        answer = document(spark_jobs("checkpoint", "--home", site.home, "--request", "now", "--output", "json"))
        assert ids(site, "copied") == ids(site, "again") == list(range(101))
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
    with pytest.raises(RejectedError, match="No attempt is at work"):
        CheckpointRequests(running.files).ask(request_id("later"))


def test_a_request_that_nobody_came_to_answer_is_answered_by_the_next_attempt(site: Site, events: Events) -> None:
    pipeline = three_stages(site, events, interval="1 hour")
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("again")].rows_in == events.rows)
        spark_jobs("checkpoint", "--home", site.home, "--request", "first")
    requests = CheckpointRequests(running.files)
    running.files.delete("responses/checkpoint-first.json")  # as if it had died between the manifest and the answer
    with Running(site.spark, pipeline, site.home) as running:
        running.until(lambda: requests.answer_of(request_id("first")))
    answer = requests.answer_of(request_id("first"))
    assert answer is not None
    assert (answer.checkpoint, answer.attempt, running.store.taken()) == (1, 2, [1])
