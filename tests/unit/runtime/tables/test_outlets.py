"""The table of a sink: what Spark and this process find there, and what the sink does about its properties."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType

from spark_jobs import DeltaSink
from spark_jobs.api.refusals import Place
from spark_jobs.api.sink import declare_sink
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.errors import NotFoundError, RejectedError
from spark_jobs.protocol.table_shape import TableShape
from spark_jobs.runtime.tables import outlets
from spark_jobs.runtime.tables.outlets import Outlet, PublicTable, name_auto_compaction, plan_outlet, prepare_outlet
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import PlannedTable, StagingTable

APPENDS: dict[str, Any] = {"mode": "append"}
PACKS: dict[str, Any] = {"mode": "append", "target_file_size": "128mb"}
REPLACES: dict[str, Any] = {"mode": "complete"}
ANY: Any = None
PLACE = TablePlace("s3://lake/kept")
SINK = declare_sink(Place("kept", "stage", "kept"), DeltaSink(PLACE.uri))


class Finds:
    """A place at which Spark and this process find tables by their ids; None for no table.

    Args:
        by_spark: Id of the table that Spark finds.
        here: Ids of the tables that this process finds, one after the other.
    """

    def __init__(self, patch: pytest.MonkeyPatch, by_spark: str | None, here: list[str | None]) -> None:
        self._here: Iterator[str | None] = iter(here)
        metadata = {"id": by_spark, "partitionColumns": [], "configuration": {}}
        self.table = None if by_spark is None else StagingTable(PLACE.uri, StructType(), metadata, {})
        patch.setattr(outlets, "with_versions", lambda frame, _: frame)
        patch.setattr(outlets, "plan_table", lambda *_: PlannedTable(self.table, ANY, ()))
        patch.setattr(outlets, "check_publishable", self._look)

    def _look(self, *_: object) -> tuple[Any, Publisher]:
        if (found := next(self._here)) is None:
            raise NotFoundError("There is no table.")
        return SimpleNamespace(table_id=found, shape=ANY), Publisher.DELTA_RS


@pytest.mark.parametrize(("by_spark", "here"), [("a", None), (None, "a"), ("a", "b")])
def test_a_spark_that_finds_another_table_than_this_process_is_refused(
    monkeypatch: pytest.MonkeyPatch, by_spark: str | None, here: str | None
) -> None:
    Finds(monkeypatch, by_spark, [here, here])
    with pytest.raises(RejectedError, match=r"Spark commits to tables in s3://lake/kept in another store than this process\."):
        plan_outlet(SINK, ANY, ANY, PLACE)


@pytest.mark.parametrize("before", [None, "replaced"])
def test_a_table_that_was_created_or_replaced_while_a_start_looks_is_found_at_the_second_look(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    Finds(monkeypatch, "new", [before, "new"])
    found = plan_outlet(SINK, ANY, ANY, PLACE).publishable
    assert found is not None
    assert found[0].table_id == "new"


def test_a_table_that_is_not_there_yet_has_no_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    Finds(monkeypatch, None, [None])
    assert plan_outlet(SINK, ANY, ANY, PLACE).publishable is None


def test_a_table_is_opened_again_only_after_the_start_has_changed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, frame = SimpleNamespace(sink=SINK), ANY
    found = Finds(monkeypatch, "a", ["a", "a", "a, grown"])
    monkeypatch.setattr(outlets, "apply_plan", lambda *_: found.table)
    outlet = prepare_outlet(cast(Stage, stage), ANY, frame, PLACE, "channel", "tombstones")
    assert outlet.public is not None
    assert outlet.public.table_id == "a"
    monkeypatch.setattr(outlets, "apply_plan", lambda *_: replace(found.table))
    outlet = prepare_outlet(cast(Stage, stage), ANY, frame, PLACE, "channel", "tombstones")
    assert outlet.public is not None
    assert outlet.public.table_id == "a, grown"


def _said(caplog: pytest.LogCaptureFixture, configuration: dict[str, str], options: dict[str, Any]) -> list[str]:
    table = StagingTable("file:///tables/kept", StructType(), {"configuration": configuration}, {})
    with caplog.at_level(logging.WARNING):
        name_auto_compaction(table, declare_sink(Place("kept", "stage", "kept"), DeltaSink("/tables/kept", **options)))
    return [record.getMessage() for record in caplog.records]


def test_the_advice_on_auto_compaction_of_an_appended_table_is_packing_or_optimize(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = _said(caplog, {"delta.autoOptimize.autoCompact": "true"}, APPENDS)
    assert said.endswith("declare target_file_size=, or run OPTIMIZE")


def test_the_advice_on_auto_compaction_for_a_sink_that_cannot_pack_is_optimize(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = _said(caplog, {"delta.autoOptimize.autoCompact": "true"}, REPLACES)
    assert said.endswith("does not run: run OPTIMIZE")


@pytest.mark.parametrize(
    ("configuration", "options"),
    [
        ({"delta.autoOptimize.autoCompact": "true"}, PACKS),
        ({"delta.autoOptimize.autoCompact": "false"}, APPENDS),
        ({}, REPLACES),
    ],
    ids=["packed", "off", "not set"],
)
def test_no_advice_is_given_if_no_compaction_is_left_undone(
    caplog: pytest.LogCaptureFixture, configuration: dict[str, str], options: dict[str, Any]
) -> None:
    assert _said(caplog, configuration, options) == []


def test_only_constraints_that_do_not_come_from_the_public_table_belong_to_a_staging_table() -> None:
    constraints = {"delta.constraints.Small": "id < 7"}
    shape = TableShape(table_schema="{}", partition_by=(), configuration=constraints, features=())
    public = PublicTable("file:///tables/kept", (), Publisher.SPARK, "id", shape)
    other: Any = object()
    merged, appended = Outlet(other, public, other, other), Outlet(other, public, None, other)
    assert [merged.is_own_constraint(name) for name in ("small", "not_null_0")] == [False, True]
    assert [appended.is_own_constraint(name) for name in ("small", "not_null_0")] == [False, False]
