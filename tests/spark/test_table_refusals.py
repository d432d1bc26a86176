"""Tables that refuse rows. Forbidden rows are refused while they are staged. An unpublishable table is refused earlier, by name."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InterruptedRunError, UnsupportedTableError
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import public
from tests.support.table_features import REFUSED, Refused

pytestmark = pytest.mark.spark


def _pipeline(site: Site, columns: Sequence[str] = ("id", "value"), **sink: Any) -> Pipeline:
    pipeline = Pipeline("refusals", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "rows"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "kept"), **sink))
    def kept(rows: DataFrame) -> DataFrame:
        return rows.selectExpr(*columns)

    return pipeline


def _deliver(site: Site, *values: int | None) -> None:
    ids = pd.array(range(len(values)), "Int64")
    inputs.append(site.home.parent / "rows", pd.DataFrame({"id": ids, "value": pd.array(list(values), "Int64")}))


def _state(table: Path) -> tuple[int, list[Path]]:
    return DeltaTable(str(table)).version(), sorted(table.rglob("*.parquet"))


def _write_log(table: Path, refused: Refused) -> None:
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": dict(refused.field_metadata)},
        {"name": "value", "type": "long", "nullable": True, "metadata": {}},
    ]
    reader_features = sorted({"catalogManaged"} & set(refused.protocol))
    protocol: dict[str, Any] = {"minReaderVersion": 3 if reader_features else 1, "minWriterVersion": refused.writer_version}
    if refused.protocol:
        protocol["writerFeatures"] = list(refused.protocol)
    if reader_features:
        protocol["readerFeatures"] = reader_features
    metadata = {
        "id": "0e6a0b7c-7c6e-4d0c-9a57-3f1c2d3e4f50",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": dict(refused.configuration),
    }
    info: dict[str, Any] = {"timestamp": 0, "inCommitTimestamp": 0, "operation": "CREATE TABLE", "operationParameters": {}}
    log = table / "_delta_log" / f"{0:020d}.json"
    log.parent.mkdir(parents=True)
    actions = [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.evidence)
def test_a_table_without_a_publisher_is_refused_by_name(site: Site, refused: Refused) -> None:
    table = site.tables / "kept"
    _write_log(table, refused)
    _deliver(site, 1, 2)
    with pytest.raises(UnsupportedTableError) as error:
        site.run(_pipeline(site))
    assert refused.evidence in error.value.failed
    assert error.value.safe
    assert sorted(path.name for path in (table / "_delta_log").glob("*.json")) == [f"{0:020d}.json"]
    assert not list(table.rglob("*.parquet"))
    assert site.checkpoints() == []


@pytest.mark.parametrize(
    "option",
    [
        {"mode": "complete"},
        {"mode": "upsert", "keys": ["id"]},
        pytest.param({"mode": "history", "keys": ["id"], "sequence_by": "value"}, marks=pytest.mark.nightly),
    ],
    ids=lambda option: option["mode"],
)
def test_an_append_only_table_accepts_only_sinks_that_add_rows(site: Site, option: dict[str, Any]) -> None:
    table = f"delta.`{site.tables / 'kept'}`"
    site.spark.sql(f"CREATE TABLE {table} (id LONG, value LONG) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true')")
    before = _state(site.tables / "kept")
    _deliver(site, 1, 2)
    pipeline = _totals(site) if option["mode"] == "complete" else _pipeline(site, **option)
    with pytest.raises(UnsupportedTableError, match="appendOnly"):
        site.run(pipeline)
    assert _state(site.tables / "kept") == before
    assert site.checkpoints() == []


def test_an_append_only_table_accepts_inserts(site: Site) -> None:
    table = f"delta.`{site.tables / 'kept'}`"
    site.spark.sql(f"CREATE TABLE {table} (id LONG, value LONG) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true')")
    site.spark.sql(f"INSERT INTO {table} VALUES (0, 10)")
    _deliver(site, 1, 2)
    site.run(_pipeline(site, mode="insert", keys=["id"]))
    assert public(site.tables / "kept", ["id", "value"]) == {(0, 10): 1, (1, 2): 1}


def _totals(site: Site) -> Pipeline:
    pipeline = Pipeline("refusals", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "rows"))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "kept"), mode="complete"))
    def kept(rows: DataFrame) -> DataFrame:
        return rows.groupBy("id").sum("value").toDF("id", "value")

    return pipeline


@pytest.mark.parametrize(
    ("columns", "clauses", "staged", "bad", "message"),
    [
        ("id LONG, value LONG NOT NULL", "", ["id", "value"], None, "NOT_NULL"),
        ("id LONG, value LONG", "TBLPROPERTIES ('delta.constraints.small' = 'value < 10')", ["id", "value"], 10, "small"),
        (
            "id LONG, value LONG, twice LONG GENERATED ALWAYS AS (value * 2)",
            "",
            ["id", "value", "value * 3 AS twice"],
            1,
            "twice",
        ),
    ],
    ids=["not null", "check", "generated"],
)
def test_a_row_that_the_table_forbids_fails_while_it_is_staged(
    site: Site, columns: str, clauses: str, staged: list[str], bad: int | None, message: str
) -> None:
    table = site.tables / "kept"
    site.spark.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta {clauses}")
    _deliver(site, 0)
    site.run(_pipeline(site, staged))
    before = DeltaTable(str(table)).version()
    _deliver(site, 0, bad)
    with pytest.raises(InterruptedRunError, match=message):
        site.run(_pipeline(site, staged))
    assert DeltaTable(str(table)).version() == before
    assert len(site.checkpoints()) == 1


@pytest.mark.parametrize(("optimized", "files"), [("false", 4), ("true", 1)])
def test_optimized_writes_are_honoured_while_files_are_staged(site: Site, optimized: str, files: int) -> None:
    _deliver(site, *range(40))
    pipeline = Pipeline("optimized")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.home.parent / "rows"))

    sink = DeltaSink(str(site.tables / "kept"), table_properties={"delta.autoOptimize.optimizeWrite": optimized})

    @pipeline.stage(sink=sink)
    def kept(rows: DataFrame) -> DataFrame:
        return rows.repartition(4)

    site.run(pipeline)
    assert site.manifest().sinks["kept"].actions.files == files  # type: ignore[index]


def test_auto_compaction_is_not_run_and_the_drivers_log_says_so(site: Site) -> None:
    _deliver(site, *range(40))
    properties = {"delta.autoOptimize.autoCompact": "true"}
    site.run(_pipeline(site, table_properties=properties))
    (log,) = (site.home / "logs").glob("*.log")
    (warned,) = [line for line in map(json.loads, log.read_text().splitlines()) if line["level"] == "WARNING"]
    assert "delta.autoOptimize.autoCompact" in warned["message"]
    assert "OPTIMIZE" in warned["message"]
