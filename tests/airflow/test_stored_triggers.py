"""What Airflow's database has of triggers outlives an upgrade of this package: what was written once has to be readable for ever.

A new argument gets a default value here; a class that moves leaves its name behind.
"""

from importlib import import_module
from typing import Any

import pytest

pytestmark = pytest.mark.every_version

STORED: dict[str, dict[str, Any]] = {
    "airflow_provider.triggers.run.RunTrigger": {
        "home": "file:///homes/flights",
        "request": "start-3",
        "attempt": 3,
        "owner": 1,
        "deadline_at": None,
        "timeout_s": None,
        "poll_interval_s": 2.0,
        "max_poll_interval_s": 3.0,
        "cancel_on_kill": True,
    },
    "airflow_provider.triggers.checkpoint.CheckpointTrigger": {
        "home": "file:///homes/flights",
        "final": True,
        "run": None,
        "newer_than": 0,
        "deadline_at": 1_767_225_600.0,
        "timeout_s": 60.0,
        "poll_interval_s": 2.0,
        "max_poll_interval_s": 3.0,
    },
    "airflow_provider.triggers.spark_publication.SparkPublicationTrigger": {
        "home": "file:///homes/flights",
        "checkpoints": {"file:///homes/flights": 3},
        "output": "/homes/flights/work/publish-3.out",
        "started": True,
        "deadline_at": None,
        "timeout_s": None,
    },
    "airflow_provider.triggers.request.RequestTrigger": {
        "home": "file:///homes/flights",
        "request": "stop-airflow-1",
        "restart_timeout_s": 300.0,
        "deadline_at": None,
        "timeout_s": None,
        "poll_interval_s": 2.0,
        "max_poll_interval_s": 3.0,
    },
    "airflow_provider.triggers.end.EndTrigger": {
        "home": "file:///homes/flights",
        "attempt": 3,
        "owner": 2,
        "deadline_at": None,
        "timeout_s": None,
        "poll_interval_s": 2.0,
        "max_poll_interval_s": 3.0,
    },
    "airflow_provider.triggers.state.PipelineStateTrigger": {
        "home": "file:///homes/flights",
        "states": ["running"],
        "deadline_at": None,
        "timeout_s": None,
        "poll_interval_s": 2.0,
        "max_poll_interval_s": 3.0,
    },
    "airflow_provider.triggers.publication.PublicationTrigger": {"home": "flights"},
    "airflow_provider.triggers.losses.LossTrigger": {"home": "flights"},
}


@pytest.mark.parametrize("path", STORED)
def test_a_trigger_that_was_stored_by_an_earlier_version_waits_on(path: str) -> None:
    module, _, name = path.rpartition(".")
    trigger = getattr(import_module(module), name)(**STORED[path])
    again, arguments = trigger.serialize()
    assert again == path
    assert arguments.items() >= STORED[path].items()
