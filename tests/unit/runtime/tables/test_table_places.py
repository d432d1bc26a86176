"""The locations of tables in a catalog. No Spark session is started."""

from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.api.address import TableAddress
from spark_jobs.runtime.tables import table_places
from spark_jobs.runtime.tables.table_places import locate


@pytest.mark.parametrize("exists", [True, False])
def test_a_table_of_a_catalog_may_be_in_a_store(exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = SimpleNamespace(catalog=SimpleNamespace(tableExists=lambda name: exists))
    for name in ("table_location", "default_location"):
        monkeypatch.setattr(table_places, name, lambda *_: "s3a://lake/warehouse/hourly")
    assert locate(spark, TableAddress("hourly", named=True)).uri == "s3://lake/warehouse/hourly"
