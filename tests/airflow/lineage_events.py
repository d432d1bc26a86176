"""The events of Airflow's OpenLineage provider, in a file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.plugins import openlineage
from airflow.providers.openlineage.plugins.listener import OpenLineageListener
from airflow.sdk.listener import get_listener_manager

Event = dict[str, Any]
assert openlineage.OpenLineageProviderPlugin.listeners == [], "the plugin was loaded without a configuration, so it sends nothing"


def _forget_configuration() -> None:
    for each in vars(conf).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Event]]:
    """Configures Airflow's OpenLineage provider for the DAG runs of a test. Returns the event of the end of a task, by the task's id."""
    path = tmp_path / "lineage.json"
    monkeypatch.setenv(
        "AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps({"type": "file", "log_file_path": str(path), "append": True})
    )
    _forget_configuration()
    listener: Any = OpenLineageListener()  # type: ignore[no-untyped-call]
    get_listener_manager().add_listener(listener)  # type: ignore[no-untyped-call]

    def end_of(task: str) -> Event:
        events = [json.loads(line) for line in path.read_text().splitlines()]
        found: list[Event] = [
            each for each in events if each["job"]["name"].endswith(f".{task}") and each["eventType"] != "START"
        ]
        assert len(found) == 1, found
        return found[0]

    yield end_of
    listener.before_stopping(component=None)  # ends its processes
    get_listener_manager().pm.unregister(listener)
    monkeypatch.undo()
    _forget_configuration()


def datasets(event: Event, kind: str) -> dict[str, dict[str, Any]]:
    """Returns the facets of an event's ``inputs`` or ``outputs``, by namespace and name, without each facet's producer and schema."""
    return {
        f"{each['namespace']} {each['name']}": {
            facet: {key: value for key, value in fields.items() if not key.startswith("_")}
            for facet, fields in (each["facets"] | each.get("inputFacets", {}) | each.get("outputFacets", {})).items()
        }
        for each in event[kind]
    }
