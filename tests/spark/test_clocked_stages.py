"""Stages that read no stream: each computes its whole table again, once in a round or at an interval."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from tests.spark.conftest import Site
from tests.support.running import Running, lose

pytestmark = pytest.mark.spark


def cheapest(site: Site, prices: Path, interval: str | None = None) -> Pipeline:
    """Declares the two cheapest prices."""
    pipeline = Pipeline("shop", on_end="drain" if interval else "suspend", checkpoint=CheckpointSettings(interval="1 second"))

    @pipeline.static(name="prices", refresh="unpinned" if interval else "round")
    def read(spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(prices))

    @pipeline.stage(sink=DeltaSink(site.table("cheapest"), mode="complete"), trigger_interval=interval)
    def cheapest(prices: DataFrame) -> DataFrame:
        return prices.orderBy("price").limit(2)

    return pipeline


def set_prices(site: Site, path: Path, *prices: int) -> None:
    site.spark.createDataFrame([(price,) for price in prices], "price LONG").write.format("delta").mode("overwrite").save(
        str(path)
    )


def public(site: Site) -> list[int]:
    return sorted(DeltaTable(site.table("cheapest")).to_pyarrow_table()["price"].to_pylist())


def test_each_round_computes_the_table_once_also_on_another_host(site: Site, tmp_path: Path) -> None:
    prices = tmp_path / "prices"
    set_prices(site, prices, 5, 3, 4)
    site.run(cheapest(site, prices))
    assert public(site) == [3, 4]
    set_prices(site, prices, 5, 7, 6, 9)
    lose(site.home / "work")
    site.run(cheapest(site, prices))
    assert public(site) == [5, 6]
    site.run(cheapest(site, prices), on_end="drain")
    assert public(site) == [5, 6]
    assert [site.manifest().stages[name].batch for name in site.manifest().stages] == [2]


def test_a_running_pipeline_computes_the_table_again_at_its_interval(site: Site, tmp_path: Path) -> None:
    prices = tmp_path / "prices"
    set_prices(site, prices, 5, 3, 4)
    with Running(site.spark, cheapest(site, prices, "1 second"), site.home) as running:
        running.until(lambda: (site.tables / "cheapest/_delta_log").exists() and public(site) == [3, 4])
        set_prices(site, prices, 2, 8)
        running.until(lambda: public(site) == [2, 8])
