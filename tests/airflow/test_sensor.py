"""The sensor for a final checkpoint."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context, PokeReturnValue

from airflow_provider.exceptions import PipelineRunRefusedError
from airflow_provider.identity import run_id_of
from airflow_provider.sensors.final_checkpoint import FinalCheckpointSensor
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import CheckpointKind
from spark_jobs.protocol.ids import RunId
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes
from tests.support.staged_pipeline import a_manifest

TASK = SimpleNamespace(dag_id="flights", run_id="manual__1", task_id="wait", map_index=-1)
UPSTREAM = run_id_of(SimpleNamespace(dag_id="flights", run_id="manual__1", task_id="run", map_index=-1))


def complete(homes: Homes, checkpoint: int, run: str = "somebody", kind: CheckpointKind = CheckpointKind.FINAL) -> None:
    manifest = a_manifest(checkpoint, run=RunId(run), checkpoint_kind=kind)
    CheckpointStore(open_files(str(homes.path()))).complete(manifest)


def poke(**arguments: Any) -> PokeReturnValue:
    sensor = FinalCheckpointSensor(task_id="wait", **({"home": "flights"} | arguments))
    return sensor.poke(cast(Context, {"ti": TASK}))


def found(**arguments: Any) -> dict[str, Any]:
    done = poke(**arguments)
    assert done.is_done
    return cast(dict[str, Any], done.xcom_value)


def test_it_waits_while_there_is_no_checkpoint_and_writes_nothing(homes: Homes) -> None:
    assert not poke()
    assert list(homes.root.iterdir()) == []


def test_any_final_checkpoint_will_do_unless_told_otherwise(homes: Homes) -> None:
    complete(homes, 1)
    assert found()["checkpoint"] == 1
    assert found()["home"] == f"file://{homes.path()}"


def test_a_periodic_checkpoint_is_not_final(homes: Homes) -> None:
    complete(homes, 1, kind=CheckpointKind.PERIODIC)
    assert not poke()


def test_it_waits_for_the_run_of_a_task_upstream(homes: Homes) -> None:
    complete(homes, 1)
    assert not poke(run_of_task="run")
    complete(homes, 2, run=UPSTREAM)
    assert found(run_of_task="run")["checkpoint"] == 2


def test_a_later_checkpoint_of_another_run_does_not_hide_it(homes: Homes) -> None:
    complete(homes, 1, run=UPSTREAM)
    complete(homes, 2)
    assert found(run=UPSTREAM)["checkpoint"] == 1


@pytest.mark.parametrize(("newer_than", "expected"), [(None, True), ("", True), (1, True), ("1", True), (2, False), ("2", False)])
def test_it_can_wait_for_a_newer_one(homes: Homes, newer_than: int | str | None, expected: bool) -> None:
    complete(homes, 1)
    complete(homes, 2)
    assert bool(poke(newer_than=newer_than)) is expected


def test_a_home_that_is_not_allowed_fails_at_once(homes: Homes) -> None:
    with pytest.raises(PipelineRunRefusedError):
        poke(home="/elsewhere")


def test_two_runs_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="not both"):
        FinalCheckpointSensor(task_id="wait", home="flights", run="a", run_of_task="b")
