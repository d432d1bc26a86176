"""The asset events of finished hours, in Airflow's database."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.models.asset import AssetEvent, AssetModel
from airflow.sdk import DAG, Asset
from airflow.utils.session import create_session
from deltalake import DeltaTable
from sqlalchemy import delete, select

from airflow_provider import version_compat
from airflow_provider.operators.partitions import EmitFinishedPartitionsOperator
from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.airflow.conftest import Homes
from tests.airflow.known_dags import run_dag
from tests.support.staged_pipeline import HOURLY, StagedPipeline
from tests.support.watermarked_checkpoints import at, take

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore"),  # Airflow runs in this process, with the deprecations of its dependencies
]


@pytest.fixture
def pipeline(homes: Homes) -> StagedPipeline:
    found = StagedPipeline(open_files(str(homes.path())), homes.root.parent)
    found.make_table(HOURLY)
    return found


@pytest.fixture
def hours(request: pytest.FixtureRequest) -> Asset:
    """The asset of one test."""
    return Asset(f"hours_of_{request.node.name[:80]}".replace("[", "-").replace("]", ""))


def make_public(pipeline: StagedPipeline, watermark: datetime) -> None:
    take(pipeline, watermark)
    publish(pipeline.files)


def emit(hours: Asset, after: Any = None, events_max: int = 1_000, **changes: Any) -> str:
    """Runs a DAG with the operator. Returns the state of its task."""
    with DAG(f"emits_{hours.name}", schedule=None, max_active_runs=1) as dag:
        arguments: dict[str, Any] = {"home": "flights", "sink": "hourly", "outlets": [hours], "retries": 0} | changes
        operator = EmitFinishedPartitionsOperator(task_id="emit", post_execute=after, **arguments)
    operator.events_max = events_max
    (task,) = run_dag(dag).get_task_instances()
    return str(task.state)


def keys(hours: Asset) -> list[str | None]:
    """Returns the partitions of all events of the asset."""
    with create_session() as session:
        query = (
            select(AssetEvent.partition_key)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetModel.name == hours.name)
        )
        return sorted(session.scalars(query).all(), key=str)


def key(hour: int) -> str:
    return f"2026-01-01T{hour:02}:00:00"


def test_each_finished_hour_has_one_event(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(10, 59))
    assert (emit(hours), keys(hours)) == ("success", [key(9)])
    assert (emit(hours), keys(hours)) == ("skipped", [key(9)])
    make_public(pipeline, at(11))
    assert (emit(hours), keys(hours)) == ("success", [key(9), key(10)])
    make_public(pipeline, at(14, 30))
    assert (emit(hours), keys(hours)) == ("success", [key(hour) for hour in (9, 10, 11, 12, 13)])


def test_hours_of_a_task_that_fails_after_it_named_them_are_emitted_by_its_next_run_only(
    pipeline: StagedPipeline, hours: Asset
) -> None:
    make_public(pipeline, at(10))
    emit(hours)
    make_public(pipeline, at(12))

    def fails(*_: Any) -> None:
        raise RuntimeError("The worker is about to die.")

    assert (emit(hours, after=fails), keys(hours)) == ("failed", [key(9)])
    assert (emit(hours), keys(hours)) == ("success", [key(9), key(10), key(11)])


def test_hours_are_not_emitted_again_after_airflow_has_deleted_their_events(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(10))
    emit(hours)
    assert emit(hours) == "skipped"
    with create_session() as session:
        session.execute(delete(AssetEvent))
    make_public(pipeline, at(12))
    assert (emit(hours), keys(hours)) == ("success", [key(10), key(11)])


def test_a_day_is_finished_when_all_its_hours_are(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(23, 59))
    assert (emit(hours, every="day"), keys(hours)) == ("success", ["2025-12-31T00:00:00"])
    make_public(pipeline, at(0) + timedelta(days=1))
    assert (emit(hours, every="day"), keys(hours)) == ("success", ["2025-12-31T00:00:00", key(0)])


def test_an_allowance_waits_for_older_rows(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(11))
    assert (emit(hours, allowance=timedelta(minutes=30)), keys(hours)) == ("success", [key(9)])


def test_many_hours_at_once_are_emitted_in_several_runs(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(10))
    emit(hours, events_max=2)
    make_public(pipeline, at(13))
    assert (emit(hours, events_max=2), keys(hours)) == ("success", [key(9), key(10), key(11)])
    assert (emit(hours, events_max=2), keys(hours)) == ("success", [key(9), key(10), key(11), key(12)])


def complete(pipeline: StagedPipeline) -> str | None:
    """Returns the property that the operator sets."""
    return DeltaTable(pipeline.tables[HOURLY]).metadata().configuration.get("complete_until")


def test_a_table_property_names_the_end_of_the_newest_finished_hour(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(10, 59))
    emit(hours)
    assert complete(pipeline) is None
    make_public(pipeline, at(11, 30))
    emit(hours, table_property="complete_until")
    assert complete(pipeline) == "2026-01-01T11:00:00+00:00"
    make_public(pipeline, at(13))  # after another writer's commit
    emit(hours, table_property="complete_until")
    assert complete(pipeline) == "2026-01-01T13:00:00+00:00"


def test_the_table_property_is_set_once_and_before_the_event(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(10))
    emit(hours)
    make_public(pipeline, at(12))
    seen: list[str | None] = []

    def fails(*_: Any) -> None:
        seen.append(complete(pipeline))
        raise RuntimeError("The worker is about to die.")

    assert emit(hours, after=fails, table_property="complete_until") == "failed"
    assert (seen, keys(hours)) == (["2026-01-01T12:00:00+00:00"], [key(9)])
    version = DeltaTable(pipeline.tables[HOURLY]).version()
    assert emit(hours, table_property="complete_until") == "success"
    assert DeltaTable(pipeline.tables[HOURLY]).version() == version


def test_a_dag_whose_runs_may_overlap_is_refused(pipeline: StagedPipeline, hours: Asset) -> None:
    make_public(pipeline, at(10))
    with DAG("overlaps", schedule=None, max_active_runs=2) as dag:
        EmitFinishedPartitionsOperator(task_id="emit", home="flights", sink="hourly", outlets=[hours], retries=0)
    (task,) = run_dag(dag).get_task_instances()
    assert (task.state, keys(hours)) == ("failed", [])


@pytest.mark.parametrize(
    "changes",
    [
        {"outlets": []},
        {"every": "week"},
        {"allowance": timedelta(hours=-1)},
        {"table_property": "delta.appendOnly"},
        {"table_property": ""},
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_file_is_parsed(hours: Asset, changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"home": "flights", "sink": "hourly", "outlets": [hours]} | changes
    with pytest.raises(ValueError, match="outlets|week|allowance|table_property"):
        EmitFinishedPartitionsOperator(task_id="emit", **arguments)


def test_an_airflow_without_partitioned_asset_events_is_refused_by_name(hours: Asset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_compat, "HAS_PARTITION_EVENTS", False)
    with pytest.raises(MissingRequirementError, match="EmitFinishedPartitionsOperator needs that"):
        EmitFinishedPartitionsOperator(task_id="emit", home="flights", sink="hourly", outlets=[hours])
