"""Labels of staged files."""

import json
from typing import Any

import pytest

from spark_jobs.publication.labels import labelled

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})
METADATA: dict[str, Any] = {"id": "t", "schemaString": SCHEMA, "partitionColumns": [], "configuration": {}}
LINES = [{"add": {"path": "a%20b.parquet", "partitionValues": {}}, "batch": 7}]


def test_each_file_gets_its_label_as_a_partition_value() -> None:
    metadata, adds = labelled(METADATA, LINES, "batch")
    assert metadata["id"] != "t"
    assert metadata["partitionColumns"] == ["__batch"]
    assert [field["name"] for field in json.loads(metadata["schemaString"])["fields"]] == ["id", "__batch"]
    assert adds == [{"path": "a%20b.parquet", "partitionValues": {"__batch": "7"}}]
    assert LINES[0]["add"] == {"path": "a%20b.parquet", "partitionValues": {}}


def test_files_without_a_label_are_described_as_they_are() -> None:
    metadata, adds = labelled(METADATA, LINES, None)
    assert metadata == METADATA | {"id": metadata["id"]}
    assert adds == [LINES[0]["add"]]


def test_a_missing_label_is_an_error() -> None:
    with pytest.raises(KeyError, match="bin"):
        labelled(METADATA, LINES, "bin")
