"""Log messages about table properties that a sink cannot honour."""

import logging
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_jobs import DeltaSink
from spark_jobs.api.refusals import Place
from spark_jobs.api.sink import declare_sink
from spark_jobs.runtime.tables.outlets import name_auto_compaction
from spark_jobs.runtime.tables.tables import StagingTable

APPENDS: dict[str, Any] = {"mode": "append"}
PACKS: dict[str, Any] = {"mode": "append", "target_file_size": "128mb"}
REPLACES: dict[str, Any] = {"mode": "complete"}


def _said(caplog: pytest.LogCaptureFixture, configuration: dict[str, str], options: dict[str, Any]) -> list[str]:
    table = StagingTable("file:///tables/kept", StructType(), {"configuration": configuration}, {})
    with caplog.at_level(logging.WARNING):
        name_auto_compaction(table, declare_sink(Place("kept", "stage", "kept"), DeltaSink("/tables/kept", **options)))
    return [record.getMessage() for record in caplog.records]


def test_auto_compaction_of_an_appended_table_is_done_by_packing_or_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = _said(caplog, {"delta.autoOptimize.autoCompact": "true"}, APPENDS)
    assert said.endswith("declare target_file_size=, or run OPTIMIZE")


def test_a_sink_that_cannot_pack_is_not_told_to(caplog: pytest.LogCaptureFixture) -> None:
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
def test_there_is_nothing_to_say_where_nothing_is_left_undone(
    caplog: pytest.LogCaptureFixture, configuration: dict[str, str], options: dict[str, Any]
) -> None:
    assert _said(caplog, configuration, options) == []
