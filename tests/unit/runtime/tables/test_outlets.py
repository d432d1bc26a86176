"""What a sink does about the properties of its table."""

import logging
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_jobs import DeltaSink
from spark_jobs.api.refusals import Place
from spark_jobs.api.sink import declare_sink
from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.table_shape import TableShape
from spark_jobs.runtime.tables.outlets import Outlet, PublicTable, name_auto_compaction
from spark_jobs.runtime.tables.tables import StagingTable

APPENDS: dict[str, Any] = {"mode": "append"}
PACKS: dict[str, Any] = {"mode": "append", "target_file_size": "128mb"}
REPLACES: dict[str, Any] = {"mode": "complete"}


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
