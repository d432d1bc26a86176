"""What a start reads of the tables that it stages into."""

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from spark_jobs.protocol.errors import StorageError
from spark_jobs.runtime.tables import tables
from spark_jobs.runtime.tables.tables import read_ahead


def test_reading_ahead_leaves_the_errors_of_tables_to_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"s3://away": StorageError("the store is away"), "s3://odd": AnalysisException("not a table")}
    looked: list[str] = []

    def find(session: Any, uri: str) -> None:
        looked.append(uri)
        if uri in errors:
            raise errors[uri]

    monkeypatch.setattr(tables, "find_table", find)
    session: Any = None
    read_ahead(session, [*errors, "s3://lake/kept"])
    assert sorted(looked) == ["s3://away", "s3://lake/kept", "s3://odd"]
