"""Values that Airflow masks may not be arguments of a task."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk import Asset, BaseOperator
from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]

from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.hidden_values import hide, refuse_hidden
from airflow_provider.operators.cancel import CancelPipelineOperator
from airflow_provider.operators.losses import AcceptLossOperator, BackfillLossOperator
from airflow_provider.operators.partitions import EmitFinishedPartitionsOperator
from airflow_provider.operators.publish_checkpoint import PublishCheckpointOperator
from airflow_provider.operators.savepoint import (
    DisposeSavepointOperator,
    StopWithSavepointOperator,
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
)
from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from airflow_provider.sensors.checkpoint import CheckpointSensor
from airflow_provider.sensors.final_checkpoint import FinalCheckpointSensor
from airflow_provider.sensors.pipeline_state import PipelineStateSensor
from airflow_provider.version_compat import HAS_PARTITION_EVENTS
from spark_jobs.protocol.documents import RunState
from spark_jobs.protocol.errors import InvalidParameterError
from tests.airflow.conftest import Homes
from tests.airflow.flights import context
from tests.support.secret_shapes import CORE, SHAPES, WHOLE

pytestmark = pytest.mark.every_version

HIDDEN = "hush-hush"
TASKS: dict[type[BaseOperator], dict[str, Any]] = {
    StreamPipelineOperator: {"home": "flights", "entry": "/pipelines/flights.py"},
    PublishCheckpointOperator: {"pipelines": "flights"},
    TriggerCheckpointOperator: {"home": "flights"},
    TriggerSavepointOperator: {"home": "flights"},
    StopWithSavepointOperator: {"home": "flights"},
    DisposeSavepointOperator: {"home": "flights", "savepoint": "saved"},
    CancelPipelineOperator: {"home": "flights"},
    AcceptLossOperator: {"home": "flights", "losses": "1-1", "reason": "approved"},
    BackfillLossOperator: {"entry": "flights.py", "home": "flights", "losses": "1-1"},
    EmitFinishedPartitionsOperator: {"home": "flights", "sink": "hourly", "outlets": [Asset("hours")]},
    CheckpointSensor: {"home": "flights"},
    FinalCheckpointSensor: {"home": "flights"},
    PipelineStateSensor: {"home": "flights", "states": [RunState.RUNNING]},
}
"""Every kind of task, with its required arguments."""
CONSTRUCTED = [kind for kind in TASKS if HAS_PARTITION_EVENTS or kind is not EmitFinishedPartitionsOperator]
"""The kinds that this Airflow takes."""


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in WHOLE and CORE in SHAPES[shape]])
def test_airflow_hides_a_secret_and_the_password_in_it(shape: str) -> None:
    core = f"core{uuid4().hex}"  # random, because a value that one test masks is masked in all
    hide(secret := SHAPES[shape].replace(CORE, core))
    assert core not in str(redact(f"no login with {secret}"))
    assert redact({"return_value": f"ada has {core} at db"}) == {"return_value": "ada has *** at db"}


def test_arguments_that_airflow_does_not_hide_are_accepted() -> None:
    refuse_hidden(
        home="flights", parameters={"password_file": "/x", "token": "plain", "days": [1, None, ("a", {"b": 2.0})]}, conf=None
    )


def test_a_hidden_value_is_found_at_any_depth_and_not_shown() -> None:
    mask_secret(HIDDEN)
    given = {"a": "x", "b": [{"url": f"x?y={HIDDEN}&z"}], HIDDEN: 1}
    with pytest.raises(InvalidParameterError) as caught:
        refuse_hidden(home="flights", parameters=given)
    assert caught.value.evidence == {"arguments": ["parameters", "parameters.b.url"]}
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "argument"),
    [pytest.param(kind, name, id=f"{kind.__name__} {name}") for kind in CONSTRUCTED for name in kind.template_fields],
)
def test_no_task_takes_a_hidden_value_in_an_argument_that_may_be_a_template(
    homes: Homes, kind: Callable[..., BaseOperator], argument: str
) -> None:
    mask_secret(HIDDEN)
    task = kind(task_id="task", **TASKS[kind])  # type: ignore[index]
    setattr(task, argument, HIDDEN)
    with pytest.raises(PipelineRunRefusedError, match=f"Airflow masks a value of {argument}, "):
        task.execute(context())
    assert list(homes.root.iterdir()) == []


def test_every_kind_of_task_is_tested_for_hidden_values() -> None:
    info = get_provider_info()
    modules = {name for kind in ("operators", "sensors") for each in info[kind] for name in each["python-modules"]}
    assert {kind.__module__ for kind in TASKS} == modules
