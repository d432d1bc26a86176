"""The locations of tables in a catalog. No Spark session is started."""

from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.api.address import TableAddress
from spark_jobs.runtime.tables import table_places
from spark_jobs.runtime.tables.table_places import TablePlace, locate


@pytest.mark.parametrize("exists", [True, False])
def test_a_table_of_a_catalog_may_be_in_a_store(exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = SimpleNamespace(catalog=SimpleNamespace(tableExists=lambda name: exists))
    url = "s3a://lake/warehouse/hourly"
    monkeypatch.setattr(table_places, "table_location", lambda *_: url)
    monkeypatch.setattr(table_places, "new_table", lambda *_: ("spark_catalog.default.hourly", url))
    named, location = ("hourly", None) if exists else ("spark_catalog.default.hourly", url)
    assert locate(spark, TableAddress("hourly", named=True)) == TablePlace("s3://lake/warehouse/hourly", named, location=location)
