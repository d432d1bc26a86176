"""Changes of a table between staging and publication that still allow the publication, decided from its metadata alone."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from spark_jobs.protocol.table_shape import TableShape
from spark_jobs.publication.fitting import conditions, misfits, misfits_of, renaming, shape, unreadable

MAPPED = {"delta.columnMapping.mode": "name"}


def field(name: str, kind: Any = "long", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    noted = {key.replace("__", "."): value for key, value in metadata.items()}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": noted}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any, *, nulls: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def a_table(
    *fields: dict[str, Any],
    partition_by: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    properties: Mapping[str, str] = MappingProxyType({}),
) -> TableShape:
    return shape(json.dumps(struct(*fields)), partition_by, properties, features)


def named(name: str, physical: str, kind: Any = "long", **more: Any) -> dict[str, Any]:
    return field(name, kind, delta__columnMapping__physicalName=physical, **more)


def widened(name: str, *changes: tuple[str, str], path: str | None = None, kind: Any = None) -> dict[str, Any]:
    inside = {} if path is None else {"fieldPath": path}
    record = [{"fromType": old, "toType": new, **inside} for old, new in changes]
    return field(name, kind or changes[-1][1], delta__typeChanges=record)


ID, GPS = field("id"), field("gps", struct(field("pitch", "double")))
YAW = field("gps", struct(field("pitch", "double"), field("yaw", "double")))
FITTING = {
    "the same": ([ID], [ID]),
    "a column at the end": ([ID], [ID, field("note", "string")]),
    "a column before": ([ID], [field("note", "string"), ID]),
    "a comment": ([ID], [field("id", comment="a number")]),
    "a default": ([ID], [field("id", CURRENT_DEFAULT="7")]),
    "a field of a struct": ([ID, GPS], [ID, YAW]),
    "a field in an array": ([field("a", array(GPS["type"]))], [field("a", array(YAW["type"]))]),
    "a field in a map": ([field("m", mapping("string", GPS["type"]))], [field("m", mapping("string", YAW["type"]))]),
    "another case": ([field("Id")], [ID]),
    "a wider type": ([field("id", "integer")], [widened("id", ("integer", "long"))]),
    "a type widened twice": ([field("id", "byte")], [widened("id", ("byte", "integer"), ("integer", "long"))]),
    "a type widened once more": ([field("id", "integer")], [widened("id", ("byte", "integer"), ("integer", "long"))]),
    "a wider element": (
        [field("a", array("integer"))],
        [widened("a", ("integer", "long"), path="element", kind=array("long"))],
    ),
    "a wider value of a map in an array": (
        [field("a", array(mapping("string", "float")))],
        [widened("a", ("float", "double"), path="element.value", kind=array(mapping("string", "double")))],
    ),
    "a null that is allowed now": ([field("id", nullable=False)], [ID]),
}
MISFITTING = {
    "another type": ([ID], [field("id", "string")], "has string in id, and had long"),
    "a type that was not widened by Delta": ([field("id", "integer")], [ID], "has long in id, and had integer"),
    "a narrower type": ([ID], [field("id", "integer")], "has integer in id"),
    "another type inside": ([GPS], [field("gps", struct(field("pitch", "string")))], "has string in gps.pitch, and had double"),
    "an element of another type": ([field("a", array("long"))], [field("a", array("string"))], "string in a.element"),
    "a struct that has become a number": ([GPS], [field("gps")], "has long in gps, and had struct"),
    "a column less": ([ID, GPS], [ID], "has no column gps any more, and no column mapping"),
    "a field less": ([YAW], [GPS], r"has no column gps\.yaw any more"),
    "none of its columns": ([ID], [GPS], "has none of the columns id any more"),
    "a new column without null": ([ID], [ID, field("note", nullable=False)], "new column note that must not be null"),
    "a new generated column": ([ID], [ID, field("n", delta__generationExpression="id + 1")], "new generated column n"),
    "another generated value": (
        [ID],
        [field("id", delta__generationExpression="7")],
        "has delta.generationExpression on column id",
    ),
    "no null inside": (
        [GPS],
        [field("gps", struct(field("pitch", "double", nullable=False)))],
        r"allows no null in gps\.pitch any more",
    ),
    "no null in an array": ([field("a", array("long"))], [field("a", array("long", nulls=False))], r"no null in a\.element"),
    "an invariant": ([ID], [field("id", delta__invariants="id > 0")], r"has delta\.invariants on column id"),
    "padded text": ([field("t", "string")], [field("t", "string", __CHAR_VARCHAR_TYPE_STRING="char(3)")], r"has char\(3\) in t"),
}


def text_kind(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Restores the only metadata key that begins with two underscores. ``field`` turns them into a dot."""
    return json.loads(json.dumps(fields).replace('".CHAR_VARCHAR_TYPE_STRING"', '"__CHAR_VARCHAR_TYPE_STRING"'))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("staged", "now"), FITTING.values(), ids=FITTING)
def test_rows_fit_a_table_that_has(staged: list[Any], now: list[Any]) -> None:
    assert misfits(a_table(*staged), a_table(*now)) == []
    assert conditions(a_table(*staged), a_table(*now)) == {}


@pytest.mark.parametrize(("staged", "now", "reason"), MISFITTING.values(), ids=MISFITTING)
def test_rows_do_not_fit_a_table_that_has(staged: list[Any], now: list[Any], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        assert not misfits(a_table(*text_kind(staged)), a_table(*text_kind(now))), misfits(
            a_table(*text_kind(staged)), a_table(*text_kind(now))
        )


def test_files_of_a_table_with_column_mapping_are_read_by_the_mapped_names() -> None:
    staged = a_table(named("id", "col-1"), named("note", "col-2", "string"), properties=MAPPED)
    renamed = a_table(named("number", "col-1"), named("note", "col-2", "string"), properties=MAPPED)
    dropped = a_table(named("id", "col-1"), properties=MAPPED)
    again = a_table(named("id", "col-1"), named("note", "col-3", "integer"), properties=MAPPED)
    for now in (renamed, dropped, again):
        assert misfits(staged, now) == []
    assert misfits(a_table(field("id")), a_table(named("id", "id"), properties=MAPPED)) == []
    assert misfits(staged, a_table(field("id"), field("note", "string"))) != [], "the mapping was dropped, and its names with it"
    by_id = {"delta.columnMapping.mode": "id"}
    assert misfits(a_table(field("id")), a_table(named("id", "id"), properties=by_id)) == ["maps its columns by id"]


def test_partitions_are_compared_by_the_names_in_files() -> None:
    day, date = named("day", "day", "string"), named("date", "day", "string")
    assert misfits(a_table(ID, day, partition_by=("day",)), a_table(ID, date, partition_by=("date",), properties=MAPPED)) == []
    assert misfits(a_table(ID, day), a_table(ID, day, partition_by=("day",))) == [
        "is partitioned by ['day'], and was partitioned by []"
    ]


def test_only_features_that_need_other_files_do_not_fit() -> None:
    staged = a_table(ID, partition_by=("id",))
    for feature in ("checkConstraints", "rowTracking", "clustering", "deletionVectors", "v2Checkpoint", "changeDataFeed"):
        assert misfits(staged, a_table(ID, partition_by=("id",), features=(feature,))) == []
    partitioned = a_table(ID, partition_by=("id",), features=("materializePartitionColumns",))
    assert misfits(staged, partitioned) == ["has materializePartitionColumns"]
    compatible = {"delta.enableIcebergCompatV2": "true"}
    assert misfits(staged, a_table(ID, partition_by=("id",), properties=compatible)) == [
        "is compatible with Iceberg (delta.enableIcebergCompatV2)"
    ]
    assert misfits(a_table(ID, properties=compatible), a_table(ID, properties=compatible)) == []


def test_constraints_that_staged_rows_were_not_checked_for_become_conditions() -> None:
    checked = {"delta.constraints.positive": "id > 0"}
    assert conditions(a_table(ID), a_table(ID, properties=checked)) == {"positive": "id > 0"}
    assert conditions(a_table(ID, properties=checked), a_table(ID, properties=checked)) == {}
    assert conditions(a_table(ID, properties=checked), a_table(ID)) == {}
    assert conditions(a_table(ID, properties=checked), a_table(ID, properties={"delta.constraints.again": "id > 0"})) == {}
    assert conditions(a_table(ID), a_table(field("id", nullable=False))) == {"id NOT NULL": "`id` IS NOT NULL"}
    short = text_kind([field("t", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)")])
    assert conditions(a_table(field("t", "string")), a_table(*short)) == {"t varchar(3)": "coalesce(length(`t`), 0) <= 3"}
    assert misfits(a_table(field("t", "string")), a_table(*short)) == []


def test_columns_of_merged_rows_are_renamed_to_the_current_names() -> None:
    first = a_table(named("id", "a"), named("value", "b"), named("gone", "c"), properties=MAPPED)
    second = a_table(named("id", "a"), named("Amount", "b"), properties=MAPPED)
    found = renaming([first, second], second, ["ID"])
    assert found.columns == {"id": "id", "value": "Amount", "amount": "Amount"}
    assert misfits_of([first, second], second, ["id"]) == []
    assert misfits_of([first], a_table(named("number", "a"), named("value", "b"), properties=MAPPED), ["id"]) == [
        "no longer has the column id, which identifies or orders its rows"
    ]


def test_rows_with_a_renamed_field_inside_a_struct_cannot_be_merged() -> None:
    before = a_table(named("id", "a"), named("s", "b", struct(named("x", "c"))), properties=MAPPED)
    after = a_table(named("id", "a"), named("s", "b", struct(named("y", "c"))), properties=MAPPED)
    assert misfits_of([before], after, ["id"]) == ["has renamed the field s.x to y"]
    assert misfits_of([before], after, None) == []


READABLE = {
    "a column that is called otherwise": ([named("a", "x")], [named("b", "x")]),
    "a column that is gone": ([ID, field("note", "string")], [ID]),
    "a new column": ([ID], [ID, field("note", "string")]),
    "columns that have swapped their names": (
        [named("a", "x"), named("b", "y", "string")],
        [named("b", "x"), named("a", "y", "string")],
    ),
    "a column that was made anew": ([named("a", "x", array("long"))], [named("a", "y", array("long", nulls=False))]),
    "a wider type": ([field("id", "integer")], [widened("id", ("integer", "long"))]),
    "a wider type in an array": (
        [field("ids", array("integer"))],
        [widened("ids", ("integer", "long"), path="element", kind=array("long"))],
    ),
    "a counter of the writer's": ([ID], [field("id", delta__identity__highWaterMark=7)]),
    "a field of a struct": ([GPS], [YAW]),
}
UNREADABLE = {
    "a narrower type": ([ID], [field("id", "integer")], "has integer in id, and had long"),
    "a wider type that Delta has not widened": ([field("id", "integer")], [ID], "has long in id, and had integer"),
    "a type in a struct": (
        [GPS],
        [field("gps", struct(field("pitch", "string")))],
        "has string in gps.pitch, and had double",
    ),
    "a type in a map": (
        [field("m", mapping("string", "long"))],
        [field("m", mapping("string", "string"))],
        "has string in m.value, and had long",
    ),
    "a column that was made anew, of another type": (
        [named("a", "x")],
        [named("a", "y", "string")],
        "has a new a of type string, and had one of type long",
    ),
    "a column that was made anew with other fields": (
        [named("gps", "x", GPS["type"])],
        [named("gps", "y", YAW["type"])],
        "has a new gps of type struct, and had one of type struct",
    ),
    "a column that became a struct": ([field("gps", "string")], [GPS], "has struct in gps, and had string"),
}


@pytest.mark.parametrize("case", READABLE)
def test_earlier_rows_can_be_read_after(case: str) -> None:
    before, now = READABLE[case]
    assert unreadable(a_table(*before), a_table(*now)) == []


@pytest.mark.parametrize("case", UNREADABLE)
def test_earlier_rows_cannot_be_read_after(case: str) -> None:
    before, now, reason = UNREADABLE[case]
    assert unreadable(a_table(*before), a_table(*now)) == [reason]


def test_earlier_rows_cannot_be_read_with_other_partitions_or_by_id() -> None:
    whole, parted = a_table(ID), a_table(ID, partition_by=("id",))
    assert unreadable(whole, parted) == ["is partitioned by ['id'], and was partitioned by []"]
    assert unreadable(whole, a_table(ID, properties={"delta.columnMapping.mode": "id"})) == ["maps its columns by id"]
