"""Serialized triggers in Airflow's database stay readable after upgrades of this package, for ever.

A new argument needs a default value. A class that moves must stay importable under its old name.
"""

from importlib import import_module
from typing import Any

import pytest

from airflow_provider.triggers.home import WAITS
from spark_jobs.storage.open import open_place

pytestmark = pytest.mark.every_version

HOME = {
    "home": "file:///homes/flights",
    "deadline_at": None,
    "timeout_s": None,
    "poll_interval_s": 2.0,
    "max_poll_interval_s": 3.0,
}
RUN, WAIT = "airflow_provider.triggers.run.RunTrigger", "airflow_provider.triggers.home.HomeTrigger"
STORED: list[tuple[str, dict[str, Any]]] = [
    (RUN, HOME | {"request": "start-3", "attempt": 3, "owner": 1, "cancel_on_kill": True}),
    (
        WAIT,
        HOME
        | {"kind": "checkpoint", "arguments": {"final": True, "run": None, "newer_than": 0, "max_age_s": 600.0}}
        | {"deadline_at": 1_767_225_600.0, "timeout_s": 60.0},
    ),
    (
        WAIT,
        HOME | {"kind": "request", "arguments": {"request": "stop-airflow-1", "restart_timeout_s": 300.0, "end_timeout_s": 60.0}},
    ),
    (WAIT, HOME | {"kind": "end", "arguments": {"attempt": 3, "owner": 2}}),
    (WAIT, HOME | {"kind": "state", "arguments": {"states": ["running"]}}),
    ("airflow_provider.triggers.publication.PublicationTrigger", {"home": "flights"}),
    ("airflow_provider.triggers.losses.LossTrigger", {"home": "flights"}),
]


@pytest.mark.parametrize(("path", "stored"), STORED)
def test_a_trigger_that_was_stored_by_an_earlier_version_continues_its_wait(path: str, stored: dict[str, Any]) -> None:
    module, _, name = path.rpartition(".")
    trigger = getattr(import_module(module), name)(**stored)
    again, arguments = trigger.serialize()
    assert again == path
    assert arguments.items() >= stored.items()
    if path == WAIT:
        wait = WAITS[stored["kind"]](open_place(stored["home"]), **stored["arguments"])
        assert wait.arguments() == stored["arguments"]


def test_every_wait_has_a_stored_trigger() -> None:
    assert {stored["kind"] for path, stored in STORED if path == WAIT} == set(WAITS)
