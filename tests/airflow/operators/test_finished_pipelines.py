"""The result of a task whose pipeline was finished by another run."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from airflow.sdk import AssetAlias, Context

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.ids import RunId
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes
from tests.airflow.flights import RUN, TaskLog, context, task_log
from tests.support.asset_events import Events
from tests.support.staged_pipeline import a_manifest

__all__ = ["task_log"]
PUBLIC = {"table": "file:///t/flights", "checkpoint": 1, "version": 1, "rows": 1}


def test_a_run_whose_checkpoint_was_discarded_gets_the_same_answer(homes: Homes) -> None:
    """The run's task was cleared long after the pipeline was stopped and continued."""
    request = Channel(open_files(str(homes.path()))).request_start(RUN, parameters={})
    answer = {"request": request.request, "attempt": request.attempt, "run": RUN, "checkpoint": 1, "sinks": {}}
    Channel(open_files(str(homes.path()))).respond(StartResponse.model_validate(answer | {"answered_at": datetime.now(UTC)}))
    facts = StreamPipelineOperator(task_id="run", entry="flights.py", home="flights").execute(context())
    assert (facts["run"], facts["attempt"], facts["checkpoint"], facts["sinks"]) == (RUN, 1, 1, {})
    assert (facts["round"], facts["drained"], facts["completed_at"]) == (None, None, None)


@pytest.mark.parametrize(("done_by", "said"), [("another", True), (RUN, False)])
def test_a_run_without_work_names_the_run_that_finished_the_pipeline_and_reports_no_table(
    homes: Homes, task_log: TaskLog, done_by: str, said: bool
) -> None:
    """The task succeeds and adds no row to any table. Its log must not suggest that it did work."""
    files = open_files(str(homes.path()))
    CheckpointStore(files).complete(manifest := a_manifest(1, run=RunId(done_by)))
    request = Channel(files).request_start(RUN, parameters={})
    answer: dict[str, Any] = {
        "request": request.request,
        "attempt": request.attempt,
        "run": RUN,
        "checkpoint": manifest.checkpoint,
    }
    answer["sinks"] = {"flights": PUBLIC}
    Channel(files).respond(StartResponse.model_validate(answer | {"answered_at": datetime.now(UTC)}))
    told, tables = Events(), AssetAlias("tables")
    task = StreamPipelineOperator(task_id="run", entry="flights.py", home="flights", outlets=[tables])
    task.execute(cast(Context, {**context(), "outlet_events": {tables: told}}))
    assert ("Nothing was left to do: run another has finished the pipeline with checkpoint 1." in task_log.text) is said
    assert [uri for uri, _ in told.added] == ([] if said else ["file:///t/flights"])
