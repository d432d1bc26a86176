"""The sensors for checkpoints, in the worker and in the triggerer."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context, PokeReturnValue

from airflow_provider.exceptions import PipelineRunError, PipelineRunRefusedError
from airflow_provider.sensors.checkpoint import CheckpointSensor
from airflow_provider.sensors.final_checkpoint import FinalCheckpointSensor
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.version_compat import AirflowSensorTimeout, AirflowSkipException, AirflowTaskTimeout, TaskDeferred
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.retention import discard
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import CheckpointKind
from spark_jobs.protocol.ids import CheckpointId, RunId
from spark_jobs.storage.open import open_files
from spark_jobs.waits.limits import WaitLimits
from tests.airflow.conftest import Homes
from tests.airflow.deferral import carry_out, first_event, restarted
from tests.support.away import away
from tests.support.staged_pipeline import a_manifest

TASK = SimpleNamespace(dag_id="flights", run_id="manual__1", task_id="wait", map_index=-1)
UPSTREAM = run_id_of(SimpleNamespace(dag_id="flights", run_id="manual__1", task_id="run", map_index=-1))


def complete(
    homes: Homes, checkpoint: int, run: str = "somebody", kind: CheckpointKind = CheckpointKind.FINAL, *, drained: bool = False
) -> None:
    manifest = a_manifest(checkpoint, run=RunId(run), checkpoint_kind=kind, drained=drained)
    CheckpointStore(open_files(str(homes.path()))).complete(manifest)


def poke(**arguments: Any) -> PokeReturnValue:
    sensor = FinalCheckpointSensor(task_id="wait", **({"home": "flights"} | arguments))
    return sensor.poke(cast(Context, {"ti": TASK}))


def found(**arguments: Any) -> dict[str, Any]:
    done = poke(**arguments)
    assert done.is_done
    return cast(dict[str, Any], done.xcom_value)


def test_the_sensor_waits_while_there_is_no_checkpoint_and_writes_nothing(homes: Homes) -> None:
    assert not poke()
    assert list(homes.root.iterdir()) == []


def test_any_final_checkpoint_ends_the_wait_by_default(homes: Homes) -> None:
    complete(homes, 1)
    assert found()["checkpoint"] == 1
    assert found()["home"] == f"file://{homes.path()}"


def test_a_periodic_checkpoint_is_not_final(homes: Homes) -> None:
    complete(homes, 1, kind=CheckpointKind.PERIODIC)
    assert not poke()


def test_a_stop_leaves_the_round_open_and_a_drain_ends_it(homes: Homes) -> None:
    complete(homes, 1, kind=CheckpointKind.STOP)
    assert not poke()
    complete(homes, 2, kind=CheckpointKind.STOP, drained=True)
    assert found()["checkpoint"] == 2


def test_the_sensor_waits_for_the_run_of_an_upstream_task(homes: Homes) -> None:
    complete(homes, 1)
    assert not poke(run_of_task="run")
    complete(homes, 2, run=UPSTREAM)
    assert found(run_of_task="run")["checkpoint"] == 2


def test_a_later_checkpoint_of_another_run_does_not_hide_the_one_that_is_waited_for(homes: Homes) -> None:
    complete(homes, 1, run=UPSTREAM)
    complete(homes, 2)
    assert found(run=UPSTREAM)["checkpoint"] == 1


@pytest.mark.parametrize(("newer_than", "expected"), [(None, True), ("", True), (1, True), ("1", True), (2, False), ("2", False)])
def test_the_sensor_can_wait_for_a_newer_checkpoint(homes: Homes, newer_than: int | str | None, expected: bool) -> None:
    complete(homes, 1)
    complete(homes, 2)
    assert bool(poke(newer_than=newer_than)) is expected


def test_with_a_maximum_age_an_older_checkpoint_does_not_count(homes: Homes) -> None:
    store, now = CheckpointStore(open_files(str(homes.path()))), datetime.now(UTC)
    for number, age in ((1, timedelta(minutes=30)), (2, timedelta(minutes=20))):
        store.complete(a_manifest(number, checkpoint_kind=CheckpointKind.FINAL, completed_at=now - age))
    assert found()["checkpoint"] == 2
    assert not poke(max_age=timedelta(minutes=10))
    assert found(max_age=timedelta(minutes=25))["checkpoint"] == 2
    waiting = FinalCheckpointSensor(task_id="wait", home="flights", max_age=timedelta(minutes=10))
    wait = waiting.wait_in(open_files(str(homes.path())), cast(Context, {"ti": TASK}))
    assert wait.judge(wait.look(), 0.0) is None
    assert "that is at most 600 s old" in str(wait.too_late(wait.look(), 60.0))
    store.complete(a_manifest(3, checkpoint_kind=CheckpointKind.FINAL, completed_at=now))
    judged = wait.judge(wait.look(), 1.0)
    assert judged is not None
    assert judged["facts"]["checkpoint"] == 3


@pytest.mark.parametrize("newer_than", ["the first", "1.5", -1, True])
def test_a_wrong_checkpoint_number_is_refused(homes: Homes, newer_than: Any) -> None:
    with pytest.raises(PipelineRunRefusedError, match="newer_than=.* is not the number of a checkpoint"):
        poke(newer_than=newer_than)


def test_a_home_that_is_not_allowed_fails_at_once(homes: Homes) -> None:
    with pytest.raises(PipelineRunRefusedError):
        poke(home="/elsewhere")


def test_a_sensor_with_two_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        FinalCheckpointSensor(task_id="wait", home="flights", run="a", run_of_task="b")


def test_any_checkpoint_ends_the_wait_of_the_checkpoint_sensor(homes: Homes) -> None:
    complete(homes, 1, kind=CheckpointKind.PERIODIC)
    sensor = CheckpointSensor(task_id="wait", home="flights")
    assert carry_out(sensor, cast(Context, {"ti": TASK}))["checkpoint"] == 1


def a_sensor(**arguments: Any) -> FinalCheckpointSensor:
    given: dict[str, Any] = {"home": "flights", "poll_interval_s": 0.02, "max_poll_interval_s": 0.05, "timeout": 30.0}
    return FinalCheckpointSensor(task_id="wait", **(given | arguments))


def test_a_deferred_wait_ends_with_the_checkpoint_that_was_wanted(homes: Homes) -> None:
    complete(homes, 1)

    def arrives() -> None:
        complete(homes, 2, kind=CheckpointKind.PERIODIC)
        complete(homes, 3)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(carry_out, a_sensor(newer_than=1), cast(Context, {"ti": TASK}))
        arrives()
        assert waiting.result(20.0)["checkpoint"] == 3


def test_a_checkpoint_that_was_seen_ends_the_wait_although_it_is_discarded_before_the_task_resumes(homes: Homes) -> None:
    ti = cast(Context, {"ti": TASK})
    with pytest.raises(TaskDeferred) as deferred:
        a_sensor().execute(ti)
    complete(homes, 1)
    event = asyncio.run(first_event(restarted(deferred.value.trigger, settle_s=0.0)))
    expected = found()
    discard(open_files(str(homes.path())), [CheckpointId(1)])
    assert a_sensor().execute_complete(ti, json.loads(json.dumps(event.payload))) == expected


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
def test_a_sensor_keeps_waiting_while_the_storage_is_unavailable(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    complete(homes, 1)
    monkeypatch.setattr(CheckpointStore, "taken", away(CheckpointStore.taken))
    sensor = a_sensor(deferrable=deferrable, poke_interval=0.02)
    assert carry_out(sensor, cast(Context, {"ti": TASK}))["checkpoint"] == 1


def test_a_storage_that_stays_unavailable_ends_the_wait(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointStore, "taken", away(CheckpointStore.taken, range(1000)))
    sensor = a_sensor(deferrable=False, poke_interval=0.02, timeout=60.0)
    sensor.wait_limits = WaitLimits(storage_s=2.0)
    with pytest.raises(PipelineRunError, match="The disk is away"):
        sensor.execute(cast(Context, {"ti": TASK}))


def test_a_wait_that_is_already_over_is_not_deferred(homes: Homes) -> None:
    complete(homes, 1)
    assert a_sensor().execute(cast(Context, {"ti": TASK}))["checkpoint"] == 1


@pytest.mark.parametrize(("soft", "outcome"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_deferred_sensor_that_times_out_ends_like_any_sensor(homes: Homes, soft: bool, outcome: type[Exception]) -> None:
    with pytest.raises(outcome):
        carry_out(a_sensor(timeout=0.1, soft_fail=soft), cast(Context, {"ti": TASK}))


@pytest.mark.parametrize(
    ("timeout_s", "limit_s", "outcome"), [(60.0, 0.1, AirflowTaskTimeout), (0.1, 60.0, AirflowSensorTimeout)]
)
def test_the_shorter_limit_ends_a_deferred_wait_like_a_wait_in_a_worker(
    homes: Homes, timeout_s: float, limit_s: float, outcome: type[BaseException]
) -> None:
    began_s = time.monotonic()
    with pytest.raises(outcome):
        carry_out(a_sensor(timeout=timeout_s, execution_timeout=timedelta(seconds=limit_s)), cast(Context, {"ti": TASK}))
    assert time.monotonic() - began_s < 20.0


def test_a_corrupt_home_ends_a_deferred_wait_and_is_not_retried(homes: Homes) -> None:
    sensor = a_sensor(run="somebody")
    Channel(open_files(str(homes.path()))).request_start(RunId("somebody"), parameters={})
    files = homes.path() / "responses"
    files.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(carry_out, sensor, cast(Context, {"ti": TASK}))
        (files / "start-1.json").write_text("torn")
        with pytest.raises(PipelineRunRefusedError, match="start-1.json"):
            waiting.result(20.0)
