"""Stops, saves or cancels the pipeline of ``live_stream``, by a form or over REST. A person approves before anything is drained."""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_provider.operators.cancel import CancelPipelineOperator
from airflow_provider.operators.savepoint import StopWithSavepointOperator, TriggerSavepointOperator

HOME = "live_stream"
TARGET = "{{ params.target or '' }}"

with DAG(
    "live_stream_control",
    description="Stop, save or cancel live_stream",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule=None,
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["spark", "delta", "example"],
    params={
        "action": Param(
            "stop",
            type="string",
            enum=["stop", "savepoint", "cancel"],
            title="Action",
            description="Stop with a savepoint; a savepoint alone, and it runs on; or end it at once, without one.",
        ),
        "drain": Param(
            False,
            type="boolean",
            title="Drain",
            description="With stop: flush open windows first, for ever. A person is asked before that.",
        ),
        "target": Param(
            None,
            type=["null", "string"],
            title="Target",
            description="Directory of the savepoint, inside the home roots, not there yet. Empty: below the home.",
        ),
    },
    doc_md="""
    ### Control of a stream that lives in a task

    Trigger it with the form, or over REST:

        POST /api/v2/dags/live_stream_control/dagRuns    {"logical_date": null, "conf": {"action": "stop"}}

    * **stop** takes one checkpoint that has every row that was read, publishes it and makes a savepoint. `run` of `live_stream` ends with
      success; its next DAG run goes on after the last row.
    * **stop and drain** flushes open windows, too. It cannot be undone, so that `approve` waits for a person: *Reject*, and nothing has
      happened. The pipeline is finished then, and goes on only from its savepoint, with `allow_drained`.
    * **savepoint** leaves it running.
    * **cancel** ends the driver at once. `run` of `live_stream` fails, without a retry; clear it to go on.

    Whatever dies meanwhile, a retry waits on for the same request. Of two runs that stop it at once one wins, and the other is told. The
    savepoint's URL is the XCom `savepoint`. Who may trigger this DAG may stop the pipeline: Airflow's permissions decide.

    Needs the connection `stream_pipeline_default`; the home is `live_stream` in its first home root.
    """,
):

    @task.branch
    def choose(params: dict[str, Any] | None = None) -> str:
        """The task that does what was asked for."""
        assert params is not None  # Airflow gives it
        return "approve" if params["action"] == "stop" and params["drain"] else str(params["action"])

    approve = ApprovalOperator(
        task_id="approve",
        subject=f"Drain the pipeline of {HOME}?",
        body="Every open window is flushed and closed for ever, and the pipeline is finished. Reject, and it runs on.",
    )
    choose() >> [
        StopWithSavepointOperator(task_id="stop", home=HOME, target=TARGET),
        approve,
        TriggerSavepointOperator(task_id="savepoint", home=HOME, target=TARGET),
        CancelPipelineOperator(task_id="cancel", home=HOME),
    ]
    approve >> StopWithSavepointOperator(task_id="drain", home=HOME, target=TARGET, drain=True)
