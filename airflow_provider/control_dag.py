"""Creates a DAG that controls one pipeline: through a form in Airflow's UI, and through its REST API."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.operators.cancel import CancelPipelineOperator
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.savepoint import (
    DisposeSavepointOperator,
    StopWithSavepointOperator,
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
)
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.retry import PipelineRetryPolicy
from airflow_provider.version_compat import HAS_RETRY_POLICIES
from spark_jobs.protocol.documents import OnRewind
from spark_jobs.protocol.errors import InvalidParameterError

CONTROL_TAG = "stream-pipeline-control"
"""The tag that marks a control DAG for the pipelines page."""
ACTIONS = {
    "checkpoint": "take a checkpoint now; the pipeline runs on",
    "savepoint": "take a savepoint; the pipeline runs on",
    "stop": "take a savepoint, then stop; the next start goes on after the last row",
    "drain": "flush all windows, joins and timers for good, take a savepoint, then stop; a person approves first",
    "cancel": "end the driver at once, without a checkpoint",
    "publish": "publish the rows that are staged up to the newest checkpoint",
    "restore": "start the pipeline from the savepoint below, and supervise it",
    "dispose": "delete the savepoint below",
}
"""The choices of the form with their meaning. Each choice is the id of a task."""
NEEDS_SAVEPOINT = ("restore", "dispose")


def control_dag(
    dag_id: str,
    *,
    home: str,
    pipeline: Mapping[str, Any] | None = None,
    conn_id: str = StreamPipelineHook.default_conn_name,
    params: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    **kwargs: Any,
) -> DAG:
    """Creates the DAG that controls one pipeline. Call it at the top level of a DAG file.

    Each run carries out the action that its form or its ``conf`` names. Everyone who may trigger the DAG may act on the pipeline.

    Args:
        dag_id: The id of the DAG.
        home: The pipeline's home, inside the connection's home roots.
        pipeline: The arguments of the ``StreamPipelineOperator`` that runs the pipeline, such as ``entry`` and ``parameters``. None: the
            form has no ``restore``.
        conn_id: The connection, of type ``stream_pipeline``.
        params: The DAG's own params, for templates in ``pipeline``.
        tags: Tags of the DAG, in addition to :data:`CONTROL_TAG`.
        kwargs: Further arguments of the DAG.

    Raises:
        ValueError: ``pipeline`` sets an argument that the control DAG sets itself, or ``params`` uses a name of the form.
    """
    actions = [name for name in ACTIONS if name != "restore" or pipeline is not None]
    form = _form(home, conn_id, actions)
    given = dict(params or {})
    if taken := sorted(form.keys() & given.keys()):
        raise ValueError(f"The form already has {', '.join(taken)}: rename them in params=.")
    own = {"task_id", "home", "conn_id", "restore", "on_rewind", "allow_drained", "wait_for"}
    if pipeline is not None and (fixed := sorted(own & pipeline.keys())):
        raise ValueError(f"The control DAG sets {', '.join(fixed)} itself: remove them from pipeline=.")
    policy = {"retry_policy": PipelineRetryPolicy()} if HAS_RETRY_POLICIES else {}
    defaults = {"retries": 2, "retry_delay": timedelta(seconds=30)} | policy
    settings: dict[str, Any] = {
        "description": f"Control the pipeline of {home}",
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "schedule": None,
        "catchup": False,
        "doc_md": _doc(dag_id, home, actions),
    }
    settings |= kwargs
    settings["default_args"] = defaults | dict(settings.get("default_args") or {})
    with DAG(dag_id, params=form | given, tags=[CONTROL_TAG, *tags], **settings) as dag:
        _add_tasks(home, conn_id, pipeline)
    return dag


def _form(home: str, conn_id: str, actions: list[str]) -> dict[str, Param]:
    form = {
        "action": Param(
            "savepoint",
            type="string",
            enum=actions,
            title="Action",
            description_md="\n".join(f"* **{name}**: {ACTIONS[name]}" for name in actions),
        ),
        "savepoint": Param(
            None,
            type=["null", "string"],
            title="Savepoint",
            description="With restore or dispose: the URL of the savepoint. The pipelines page and 'spark-jobs savepoints' list them.",
        ),
        "target": Param(
            None,
            type=["null", "string"],
            title="Target",
            description="With savepoint, stop or drain: the place of the new savepoint, not there yet. Empty: below the home.",
        ),
        "home": Param(home, type="string", const=home, title="Home", description="The pipeline that is controlled."),
        "conn_id": Param(conn_id, type="string", const=conn_id, title="Connection", description="Its roots allow the home."),
    }
    if "restore" in actions:
        form["on_rewind"] = Param(
            OnRewind.REFUSE.value,
            type="string",
            enum=[OnRewind.REFUSE.value, OnRewind.KEEP.value],
            title="Rows published since the savepoint",
            description="With restore: refuse if rows were published after the savepoint, or keep these rows.",
        )
        form["allow_drained"] = Param(
            False,
            type="boolean",
            title="Allow a drained savepoint",
            description="With restore: accept a savepoint that was taken after a drain.",
        )
    return form


def _add_tasks(home: str, conn_id: str, pipeline: Mapping[str, Any] | None) -> None:
    place: dict[str, Any] = {"home": home, "conn_id": conn_id}
    saved: dict[str, Any] = place | {"target": "{{ params.target or '' }}"}

    @task.branch
    def choose(params: dict[str, Any] | None = None) -> str:
        """Return the id of the task that carries out the action."""
        return chosen_task(params or {})

    approve = ApprovalOperator(
        task_id="approve",
        subject=f"Drain the pipeline of {home}?",
        body="Every open window is flushed and closed for good, and the pipeline is finished. If you reject, it runs on.",
    )
    approve >> StopWithSavepointOperator(task_id="drain", drain=True, **saved)
    choice = choose()
    choice >> [
        approve,
        TriggerCheckpointOperator(task_id="checkpoint", **place),
        TriggerSavepointOperator(task_id="savepoint", **saved),
        StopWithSavepointOperator(task_id="stop", **saved),
        CancelPipelineOperator(task_id="cancel", **place),
        PublishCheckpointOperator(task_id="publish", pipelines=home, conn_id=conn_id),
        DisposeSavepointOperator(task_id="dispose", savepoint="{{ params.savepoint or '' }}", **place),
    ]
    if pipeline is not None:
        choice >> StreamPipelineOperator(
            task_id="restore",
            restore="{{ params.savepoint or '' }}",
            on_rewind="{{ params.on_rewind }}",
            allow_drained="{{ params.allow_drained }}",
            **place,
            **pipeline,
        )


def chosen_task(params: Mapping[str, Any]) -> str:
    """Returns the id of the task for the action that a form has chosen.

    Raises:
        PipelineRunRefusedError: The action needs a savepoint, and the form names none.
    """
    action = str(params["action"])
    with raising_airflow_errors():
        if action in NEEDS_SAVEPOINT and not str(params.get("savepoint") or "").strip():
            raise InvalidParameterError(
                f"The action '{action}' needs a savepoint, but the form names none.",
                safe="Nothing was started, stopped or deleted.",
                remedy="Trigger the DAG again with the savepoint's URL. The pipelines page and 'spark-jobs savepoints' list them.",
                parameter="savepoint",
            )
    return "approve" if action == "drain" else action


def _doc(dag_id: str, home: str, actions: list[str]) -> str:
    lines = "\n".join(f"* **{name}**: {ACTIONS[name]}." for name in actions)
    return f"""
### Control of the pipeline in `{home}`

{lines}

Trigger it with the form, with a button of the pipelines page, or over REST:

    POST /api/v2/dags/{dag_id}/dagRuns    {{"logical_date": null, "conf": {{"action": "stop"}}}}

If a worker or a triggerer is lost, a retry waits for the same request. If two runs stop the pipeline at once, one wins, and the other fails
with an error that names the first. The savepoint's URL is the XCom `savepoint`. A drain cannot be undone, so `approve` waits for a person
first. Everyone who may trigger this DAG may act on the pipeline.
"""
