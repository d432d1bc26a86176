"""The operator that publishes: either all of several pipelines, or none."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from airflow.sdk import AssetAlias, Context
from deltalake import write_deltalake

from airflow_provider.exceptions import PipelineRunError, PipelineRunRefusedError
from airflow_provider.facts import publication_facts
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.triggers.home import HomeTrigger
from airflow_provider.version_compat import TaskDeferred
from spark_jobs.checkpoint.retention import discard, kept
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import publisher_at_work
from spark_jobs.protocol.documents import Publish, Publisher
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    InvalidParameterError,
    NotFoundError,
    RejectedError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, PipelineName, RequestId, SinkName
from spark_jobs.publication.evidence import published_checkpoints
from spark_jobs.publication.publisher import Publication
from spark_jobs.waits.requests import answer_to
from tests.airflow.conftest import Homes, connection
from tests.airflow.deferral import carry_out, first_event, restarted
from tests.airflow.flights import TaskLog, context, until
from tests.support.asset_events import Events
from tests.support.staged_pipeline import HOURLY, StagedPipeline, path_of
from tests.support.systems import quick

DAILY = SinkName("daily")
SOON_S = 20.0
ROWS = [(1, "a"), (2, "b")]


def staged(homes: Homes, name: str, checkpoints: int = 1, **cut: Any) -> StagedPipeline:
    """A pipeline with complete checkpoints for external publication."""
    pipeline = StagedPipeline(quick(homes.path(name)), homes.root.parent / name)
    pipeline.make_table(HOURLY)
    for number in range(checkpoints):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EXTERNAL, cut=cut)
    return pipeline


def publish(pipelines: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], PublishCheckpointOperator(task_id="publish", pipelines=pipelines).execute(context()))


def refused(pipelines: Any, kind: type[StreamPipelineError]) -> PipelineRunRefusedError:
    with pytest.raises(PipelineRunRefusedError) as caught:
        publish(pipelines)
    assert isinstance(caught.value.error, kind)
    return caught.value


def test_every_pending_checkpoint_is_published_once(homes: Homes) -> None:
    pipeline = staged(homes, "orders", checkpoints=2)
    first = publish("orders")
    assert publish(["orders"]) == first
    assert pipeline.rows(HOURLY) == [(0, "a"), (1, "a")]
    assert pipeline.commits(HOURLY) == [1, 2]
    (facts,) = first.values()
    assert (facts["checkpoint"], facts["sinks"]["hourly"]["version"]) == (2, 2)
    assert list(first) == [f"file://{homes.path('orders')}"]


def test_a_checkpoint_can_be_named_by_the_xcom_of_another_task(homes: Homes) -> None:
    pipeline = staged(homes, "orders", checkpoints=2)
    (facts,) = publish({"orders": "1"}).values()
    assert facts["checkpoint"] == 1
    assert pipeline.commits(HOURLY) == [1]


def test_an_alias_gets_an_event_for_each_table_of_each_pipeline(homes: Homes) -> None:
    pipelines = [staged(homes, name) for name in ("orders", "customers")]
    told, alias = Events(), AssetAlias("tables")
    task = PublishCheckpointOperator(task_id="publish", pipelines=["orders", "customers"], outlets=[alias])
    task.execute(cast(Context, {**context(), "outlet_events": {alias: told}}))
    expected = [
        (
            pipeline.tables[HOURLY],
            {"home": pipeline.files.url, "sink": "hourly", "checkpoint": 1, "version": 1, "behind": False, "exact": True},
        )
        for pipeline in pipelines
    ]
    assert sorted(told.added, key=lambda event: event[0]) == sorted(expected, key=lambda event: event[0])


def test_several_pipelines_are_published_together(homes: Homes) -> None:
    pipelines = [staged(homes, name) for name in ("orders", "customers")]
    publish({"orders": None, "customers": ""})
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]


@pytest.mark.parametrize("harm", ["no checkpoint", "a staged file is gone", "the table was changed"])
def test_if_one_pipeline_cannot_be_published_none_is(homes: Homes, harm: str) -> None:
    first = staged(homes, "orders")
    second = staged(homes, "customers", checkpoints=0 if harm == "no checkpoint" else 1)
    table = path_of(second.tables[HOURLY])
    if harm == "a staged file is gone":
        next(Path(table).rglob("*.parquet")).unlink()
    if harm == "the table was changed":
        write_deltalake(table, pa.table({"day": ["monday"], "other": [1]}), mode="overwrite", schema_mode="overwrite")
    kinds: dict[str, type[StreamPipelineError]] = {
        "no checkpoint": RejectedError,
        "a staged file is gone": NotFoundError,
        "the table was changed": UnsupportedTableError,
    }
    refused(["orders", "customers"], kinds[harm])
    assert first.rows(HOURLY) == []


def test_a_retry_publishes_the_pipelines_that_a_crash_has_left(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines = [staged(homes, name) for name in ("orders", "customers")]
    carry_out_one = Publication.carry_out

    def dies_at_the_second(self: Publication) -> None:
        if self.files.url.endswith("customers"):
            raise SystemExit("the worker was lost")
        carry_out_one(self)

    with monkeypatch.context() as patch:
        patch.setattr(Publication, "carry_out", dies_at_the_second)
        with pytest.raises(SystemExit):
            publish(["orders", "customers"])
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], []]
    publish(["orders", "customers"])
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]


def test_a_retry_publishes_the_rest_although_the_public_checkpoint_was_discarded_since(homes: Homes) -> None:
    pipelines = [staged(homes, name) for name in ("orders", "customers")]
    first = publish({"orders": 1})
    goes_on(pipelines[0])
    facts = publish({"orders": 1, "customers": 1})
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]
    public, staged_only = facts.values()
    assert [each["checkpoint"] for each in facts.values()] == [1, 1]
    assert public["sinks"]["hourly"] == next(iter(first.values()))["sinks"]["hourly"] | {"rows": None}
    assert (public["run"], staged_only["run"]) == (None, "run-1")


def test_a_checkpoint_number_of_another_incarnation_is_not_taken_for_a_public_checkpoint(homes: Homes) -> None:
    pipeline = staged(homes, "orders", checkpoints=2)
    publish({"orders": 1})
    for _ in range(2):
        pipeline.checkpoint({HOURLY: [(7, "a")]}, publish=Publish.EXTERNAL, incarnation=IncarnationId("second"))
    publish({"orders": 4})
    discard_all_but(pipeline, [CheckpointId(4)])
    refused({"orders": 2}, RejectedError)
    assert publish({"orders": 3})


def goes_on(pipeline: StagedPipeline) -> None:
    """Completes two more checkpoints and discards the first one, which is published."""
    for number in (2, 3):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EXTERNAL)
    head, manifests = pipeline.store.manifest(CheckpointId(3)), pipeline.store.manifests()
    stay = kept(manifests, retained=1, published=published_checkpoints(head))
    assert discard_all_but(pipeline, [manifest.checkpoint for manifest in stay]) == [1]


def discard_all_but(pipeline: StagedPipeline, stay: Sequence[CheckpointId]) -> list[CheckpointId]:
    gone = [number for number in pipeline.store.ids() if number not in stay]
    discard(pipeline.files, gone)
    return gone


@pytest.mark.parametrize(
    ("pipelines", "kind"),
    [
        ([], InvalidParameterError),
        ({"orders": "the newest"}, InvalidParameterError),
        ("../elsewhere", AccessDeniedError),
        ({"orders": 7}, RejectedError),
    ],
)
def test_what_is_not_allowed_is_refused(homes: Homes, pipelines: Any, kind: type[StreamPipelineError]) -> None:
    pipeline = staged(homes, "orders")
    assert refused(pipelines, kind).error.remedy
    assert pipeline.rows(HOURLY) == []


def by_spark(homes: Homes, name: str = "orders") -> StagedPipeline:
    """A pipeline that Spark publishes, with a process that publishes when allowed. See :func:`let_go`."""
    pipeline = staged(homes, name, publisher=Publisher.SPARK)
    (homes.path(name) / ".publishes").touch()
    return pipeline


def let_go(homes: Homes, name: str = "orders") -> None:
    until(lambda: homes.starts(name))
    (homes.path(name) / ".go").touch()


def answers(pipeline: StagedPipeline) -> list[str]:
    return sorted(pipeline.files.names("answers"))


def task(**arguments: Any) -> PublishCheckpointOperator:
    return PublishCheckpointOperator(task_id="publish", pipelines=["customers", "orders"], **arguments)


def in_thread(work: Callable[[], Any]) -> "Future[Any]":
    pool = ThreadPoolExecutor(1)
    found = pool.submit(work)
    pool.shutdown(wait=False)
    return found


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_error_of_the_spark_that_publishes_fails_the_task(homes: Homes, deferrable: bool) -> None:
    pipeline = staged(homes, "orders", publisher=Publisher.SPARK)
    with pytest.raises(PipelineRunRefusedError, match="starting no Spark in these tests"):
        carry_out(PublishCheckpointOperator(task_id="publish", pipelines="orders", deferrable=deferrable), context())
    assert pipeline.rows(HOURLY) == []
    assert (homes.path("orders") / "work/publish-1.out").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("lacking", ["its python", "a conf without secrets", "what it has said"])
def test_a_spark_that_cannot_publish_leaves_no_other_pipeline_public(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, fake_python: Path, lacking: str
) -> None:
    pipelines = [staged(homes, "customers"), staged(homes, "orders", publisher=Publisher.SPARK)]
    extra: dict[str, Any] = {"home_root": str(homes.root), "python": str(fake_python)}
    if lacking == "its python":
        extra["python"] = "/no/such"
    if lacking == "a conf without secrets":
        extra["conf"] = {"spark.ui.password": "p"}
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(**extra))
    with pytest.raises(PipelineRunRefusedError):
        carry_out(task(), context())
    assert [pipeline.rows(HOURLY) for pipeline in pipelines] == [[], []]
    assert (homes.path("orders") / "work").exists() is (lacking == "what it has said")


def test_the_python_of_the_driver_is_not_looked_for_if_no_pipeline_needs_spark(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = staged(homes, "orders")
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(homes.root), python="/no/such"))
    publish("orders")
    assert pipeline.commits(HOURLY) == [1]


def test_the_last_lines_of_spark_are_in_the_tasks_log(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    staged(homes, "orders", publisher=Publisher.SPARK)
    log = TaskLog()
    monkeypatch.setattr(PublishCheckpointOperator, "log", log)
    with pytest.raises(PipelineRunRefusedError):
        carry_out(PublishCheckpointOperator(task_id="publish", pipelines="orders", deferrable=False), context())
    assert f"lines of {homes.path('orders')}/work/publish-1.out" in log.text
    assert "Use the real one." in log.text


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_task_waits_for_the_spark_that_publishes(homes: Homes, deferrable: bool) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    waiting = in_thread(lambda: carry_out(task(deferrable=deferrable), context()))
    until(lambda: homes.starts("orders"))
    pipelines[1].checkpoint({HOURLY: [(7, "later")]}, publish=Publish.EXTERNAL, cut={"publisher": Publisher.SPARK})
    let_go(homes)
    facts = waiting.result(SOON_S)
    assert [each["checkpoint"] for each in facts.values()] == [1, 1]
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]


def test_a_task_in_a_container_of_its_own_waits_for_its_spark_in_the_worker(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    waiting = in_thread(lambda: task().execute(context()))
    let_go(homes)
    waiting.result(SOON_S)
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]


def test_publishing_is_tried_again_unless_its_dag_says_otherwise() -> None:
    assert (task().retries, task(retries=0).retries) == (3, 0)


def test_the_next_try_waits_for_the_spark_that_is_publishing(homes: Homes) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    with pytest.raises(TaskDeferred):
        task().execute(context())
    waiting = in_thread(lambda: carry_out(task(), context()))
    let_go(homes)
    waiting.result(SOON_S)
    assert len(homes.starts("orders")) == 1
    assert pipelines[1].commits(HOURLY) == [1]


def test_a_signal_after_the_deferral_does_not_end_the_publishing_spark(homes: Homes) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    deferred = task()
    with pytest.raises(TaskDeferred):
        deferred.execute(context())
    deferred.on_kill()
    let_go(homes)
    until(lambda: pipelines[1].commits(HOURLY) == [1])


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_kill_just_after_the_publishing_spark_started_ends_it_too(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    staged(homes, "customers")
    by_spark(homes)
    killed, start = task(deferrable=deferrable), StreamPipelineHook.start_publication

    def killed_meanwhile(*arguments: Any) -> Any:
        started = start(*arguments)
        killed.on_kill()
        return started

    monkeypatch.setattr(StreamPipelineHook, "start_publication", killed_meanwhile)
    with pytest.raises(PipelineRunError, match="was killed"):
        killed.execute(context())
    assert not publisher_at_work(quick(homes.path("orders")), RequestId("publish-1-1"))


def test_a_killed_spark_fails_the_task_and_the_next_try_publishes_the_rest(homes: Homes) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    waiting = in_thread(lambda: carry_out(task(), context()))
    until(lambda: homes.starts("orders"))
    os.killpg(homes.starts("orders")[0]["pid"], signal.SIGKILL)
    with pytest.raises(PipelineRunError, match="has ended without an answer"):
        waiting.result(SOON_S)
    assert pipelines[1].rows(HOURLY) == []
    (homes.path("orders") / ".go").touch()
    carry_out(task(), context())
    assert pipelines[1].commits(HOURLY) == [1]


def test_a_task_starts_its_own_spark_in_the_next_try_after_the_publishing_spark_of_another_task_died(homes: Homes) -> None:
    pipeline = by_spark(homes)
    staged(homes, "customers")
    with pytest.raises(TaskDeferred):
        task().execute(context())
    until(lambda: homes.starts("orders"))
    with pytest.raises(TaskDeferred) as waiting:
        task().execute(context())
    os.killpg(homes.starts("orders")[0]["pid"], signal.SIGKILL)
    event = asyncio.run(first_event(restarted(waiting.value.trigger, settle_s=0.0)))
    with pytest.raises(PipelineRunError, match="has ended without an answer"):
        task().execute_complete(context(), event.payload, **(waiting.value.kwargs or {}))
    again = in_thread(lambda: carry_out(task(), context()))
    until(lambda: len(homes.starts("orders")) == 2)
    let_go(homes)
    again.result(SOON_S)
    assert pipeline.commits(HOURLY) == [1]
    assert answers(pipeline) == ["publish-1-1.json"]


def test_after_a_kill_between_publication_and_answer_the_next_process_only_answers(homes: Homes) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    (homes.path("orders") / ".dies_unanswered").touch()
    let = in_thread(lambda: let_go(homes))
    with pytest.raises(PipelineRunError, match="has ended without an answer"):
        carry_out(task(deferrable=False), context())
    let.result(SOON_S)
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[], [1]]
    (homes.path("orders") / ".dies_unanswered").unlink()
    carry_out(task(), context())
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]


def test_two_tasks_at_once_share_one_request_and_publish_once(homes: Homes) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    both = [in_thread(partial(carry_out, task(deferrable=deferrable), context())) for deferrable in (True, False)]
    let_go(homes)
    first, second = (each.result(SOON_S) for each in both)
    assert first == second
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]
    assert answers(pipelines[1])[:1] == ["publish-1-1.json"]


def test_a_refusal_is_an_answer_and_the_next_try_asks_again(homes: Homes) -> None:
    pipeline = staged(homes, "orders", publisher=Publisher.SPARK)
    publishing = PublishCheckpointOperator(task_id="publish", pipelines="orders")
    with pytest.raises(PipelineRunRefusedError, match="starting no Spark in these tests"):
        carry_out(publishing, context())
    assert answers(pipeline) == ["publish-1-1.json"]
    with pytest.raises(RejectedError, match="There is starting no Spark"):
        answer_to(pipeline.files, RequestId("publish-1-1"))
    (homes.path("orders") / ".publishes").touch()
    (homes.path("orders") / ".go").touch()
    carry_out(publishing, context())
    assert answers(pipeline) == ["publish-1-1.json", "publish-1-2.json"]
    assert pipeline.commits(HOURLY) == [1]


def test_airflow_dags_test_which_keeps_only_the_event_publishes_too(homes: Homes) -> None:
    pipelines = [staged(homes, "customers"), by_spark(homes)]
    with pytest.raises(TaskDeferred) as deferred:
        task().execute(context())
    let_go(homes)
    event = asyncio.run(first_event(restarted(deferred.value.trigger, settle_s=0.0)))
    task().execute_complete(context(), event.payload)
    assert [pipeline.commits(HOURLY) for pipeline in pipelines] == [[1], [1]]


def test_a_kill_while_the_worker_waits_ends_the_publishing_spark(homes: Homes) -> None:
    pipeline = by_spark(homes)
    staged(homes, "customers")
    killed = task(deferrable=False)
    waiting = in_thread(lambda: killed.execute(context()))
    until(lambda: homes.starts("orders"))
    killed.on_kill()
    with pytest.raises(PipelineRunError, match="was killed"):
        waiting.result(SOON_S)
    assert not publisher_at_work(quick(homes.path("orders")), RequestId("publish-1-1"))
    assert pipeline.rows(HOURLY) == []


def test_a_task_that_was_killed_publishes_no_other_pipeline(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (staged(homes, name) for name in ("customers", "orders"))
    killed = task()

    def published(*arguments: Any) -> dict[str, Any]:
        killed.on_kill()
        return publication_facts(*arguments)

    monkeypatch.setattr("airflow_provider.operators.publish_checkpoint.publication_facts", published)
    with pytest.raises(PipelineRunError, match="was killed"):
        killed.execute(context())
    assert [first.commits(HOURLY), second.rows(HOURLY)] == [[1], []]


def test_the_tasks_own_timeout_ends_the_wait_but_not_the_publication_and_logs_its_last_lines(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, log = by_spark(homes), TaskLog()
    monkeypatch.setattr(PublishCheckpointOperator, "log", log)
    staged(homes, "customers")
    with pytest.raises(PipelineRunError, match="was not answered within 2 s"):
        carry_out(task(execution_timeout=timedelta(seconds=2)), context())
    assert "publishing checkpoint 1" in log.text
    let_go(homes)
    until(lambda: pipeline.commits(HOURLY) == [1])


def test_the_tasks_own_timeout_covers_all_pipelines_that_spark_publishes(homes: Homes) -> None:
    for name in ("customers", "orders"):
        by_spark(homes, name)
    limited = task(execution_timeout=timedelta(minutes=1))
    with pytest.raises(TaskDeferred) as first:
        limited.execute(context())
    let_go(homes, "customers")
    event = asyncio.run(first_event(restarted(first.value.trigger, settle_s=0.0)))
    with pytest.raises(TaskDeferred) as second:
        limited.execute_complete(context(), event.payload, **(first.value.kwargs or {}))
    triggers = [cast(HomeTrigger, each.value.trigger) for each in (first, second)]
    assert [trigger.home.rpartition("/")[2] for trigger in triggers] == ["customers", "orders"]
    assert triggers[0].deadline_at == triggers[1].deadline_at


@pytest.mark.nightly
def test_a_real_spark_publishes(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = staged(homes, "orders", publisher=Publisher.SPARK)
    Channel(pipeline.files).claim(PipelineName("orders"))
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", connection(home_root=str(homes.root), python=sys.executable))
    (facts,) = carry_out(PublishCheckpointOperator(task_id="publish", pipelines="orders"), context()).values()
    assert facts["sinks"]["hourly"]["version"] == 1
    assert pipeline.rows(HOURLY) == [(0, "a")]
