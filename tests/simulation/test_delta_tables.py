"""The simulated Delta tables behave as those on a disk, as far as publication depends on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Schema

from spark_jobs.protocol.errors import ConflictError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication import delta_rs
from spark_jobs.publication.delta_rs import OpenTable, open_table
from tests.simulation.delta_tables import SCHEMA_TEXT, Tables
from tests.simulation.storage import Disk
from tests.simulation.world import Chaos, World

ONE, OTHER = AppId("one"), AppId("other")
Opener = Callable[[], OpenTable]


@pytest.fixture(params=["on disk", "simulated"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Returns a function that opens a table."""
    uri = (tmp_path / "table").as_uri()
    if request.param == "on disk":
        DeltaTable.create(uri, Schema.from_json(SCHEMA_TEXT))
        return lambda: open_table(uri)
    tables = Tables(Disk(World(0, Chaos())))
    tables.make(str(tmp_path / "table"))
    monkeypatch.setattr(delta_rs, "log_of", tables.log_of)
    monkeypatch.setattr(delta_rs, "DeltaTable", tables.open)
    return lambda: open_table(uri)


def add(name: str) -> dict[str, Any]:
    stats = json.dumps({"numRecords": 1})
    return {"path": name, "size": 1, "partitionValues": {}, "modificationTime": 0, "stats": stats}


def commit(table: OpenTable, app: AppId, version: int, *, replace: bool = False) -> None:
    table.commit([add(f"{app}-{version}.parquet")], app, CheckpointId(version), {}, replace=replace)


def test_an_app_has_no_transaction_version_until_it_commits(opened: Opener) -> None:
    assert (opened().facts.version, opened().transaction_version(ONE)) == (0, None)
    commit(opened(), ONE, 7)
    assert (opened().facts.version, opened().transaction_version(ONE), opened().transaction_version(OTHER)) == (1, 7, None)


def test_if_one_app_opened_the_table_twice_only_one_of_its_commits_succeeds(opened: Opener) -> None:
    first, second = opened(), opened()
    commit(first, ONE, 1)
    with pytest.raises(ConflictError):
        commit(second, ONE, 1)
    with pytest.raises(ConflictError):
        commit(second, ONE, 2)
    assert opened().facts.version == 1


def test_a_commit_of_another_app_conflicts_only_with_a_replacement(opened: Opener) -> None:
    first, second, third = opened(), opened(), opened()
    commit(first, ONE, 1)
    commit(second, OTHER, 1)
    with pytest.raises(ConflictError):
        commit(third, AppId("third"), 1, replace=True)
    commit(opened(), AppId("third"), 1, replace=True)
    assert [opened().transaction_version(app) for app in (ONE, OTHER, AppId("third"))] == [1, 1, 1]
