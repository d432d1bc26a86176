"""The table of a sink: what Spark and this process find there, and what the sink does about its properties."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType

from spark_jobs import DeltaSink
from spark_jobs.api.refusals import Place
from spark_jobs.api.sink import declare_sink
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.errors import NotFoundError
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


def at(table_id: str, version: int) -> StagingTable:
    metadata = {"id": table_id, "partitionColumns": [], "configuration": {}}
    return StagingTable(PLACE.uri, StructType(), metadata, {}, version)


class Looks:
    """A place at which this process and Spark look for a table.

    Args:
        by_spark: The table that Spark finds.
        here: Ids and versions that this process finds, one after the other; None for no table.
    """

    def __init__(self, patch: pytest.MonkeyPatch, by_spark: StagingTable | None, here: list[tuple[str, int] | None]) -> None:
        self._here = iter(here)
        patch.setattr(outlets, "with_versions", lambda frame, _: frame)
        patch.setattr(outlets, "plan_table", lambda *_: PlannedTable(by_spark, ANY, ()))
        patch.setattr(outlets, "apply_plan", lambda *_: by_spark)
        patch.setattr(outlets, "check_publishable", self._look)

    def _look(self, *_: object) -> tuple[Any, Publisher]:
        if (found := next(self._here)) is None:
            raise NotFoundError("There is no table.")
        return SimpleNamespace(table_id=found[0], version=found[1], shape=found), Publisher.DELTA_RS


@pytest.mark.parametrize("here", [None, ("a", 4), ("a", 6), ("b", 5)], ids=["none", "older", "newer", "another"])
def test_a_publication_is_planned_with_the_version_that_spark_has_planned_with(
    monkeypatch: pytest.MonkeyPatch, here: tuple[str, int] | None
) -> None:
    """Otherwise rows with a new column would be recorded as staged for a table without it, and merged without it."""
    Looks(monkeypatch, at("a", 5), [here])
    assert plan_outlet(SINK, ANY, ANY, PLACE).publishable is None
    Looks(monkeypatch, at("a", 5), [here, ("a", 7)])
    public = prepare_outlet(cast(Stage, SimpleNamespace(sink=SINK)), ANY, ANY, PLACE, "channel", "tombstones").public
    assert public is not None
    assert cast(Any, public.shape) == ("a", 7)


def test_a_table_is_opened_again_only_after_the_start_has_changed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = cast(Stage, SimpleNamespace(sink=SINK))
    Looks(monkeypatch, at("a", 5), [("a", 5)])
    assert prepare_outlet(stage, ANY, ANY, PLACE, "channel", "tombstones").public is not None, "one look"
    Looks(monkeypatch, at("a", 5), [("a", 5), ("a", 6)])
    monkeypatch.setattr(outlets, "apply_plan", lambda *_: at("a", 6))
    public = prepare_outlet(stage, ANY, ANY, PLACE, "channel", "tombstones").public
    assert public is not None
    assert cast(Any, public.shape) == ("a", 6)


def test_a_table_that_is_not_there_yet_has_no_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    Looks(monkeypatch, None, [None])
    assert plan_outlet(SINK, ANY, ANY, PLACE).publishable is None


def _said(caplog: pytest.LogCaptureFixture, configuration: dict[str, str], options: dict[str, Any]) -> list[str]:
    table = StagingTable("file:///tables/kept", StructType(), {"configuration": configuration}, {}, 0)
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
