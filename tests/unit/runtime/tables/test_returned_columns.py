"""Readers of a stage see the columns that the stage returns, and no other columns of its table."""

import json

from spark_jobs.runtime.tables.schemas import returned_alone


def field(name: str, **metadata: object) -> dict[str, object]:
    return {"name": name, "type": "long", "nullable": True, "metadata": metadata}


def names(columns: list[str]) -> list[str]:
    fields = [field("id"), field("Old"), field("day"), field("twice", **{"delta.generationExpression": "id * 2"})]
    metadata = {"schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": ["day"]}
    found = returned_alone(metadata, columns)
    assert found["partitionColumns"] == ["day"]
    return [each["name"] for each in json.loads(found["schemaString"])["fields"]]


def test_readers_do_not_see_a_column_that_the_stage_no_longer_returns() -> None:
    assert names(["ID"]) == ["id", "day", "twice"]


def test_names_that_differ_only_in_case_are_one_column() -> None:
    assert names(["old", "id"]) == ["id", "Old", "day", "twice"]
