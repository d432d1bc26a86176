"""``apply_as_deletes`` is evaluated without Spark if every engine gives it the same meaning. Otherwise Spark evaluates it."""

import pyarrow as pa
import pytest

from spark_jobs.publication.delete_conditions import delete_condition

TYPES = {"op": "string", "Gone": "boolean", "n": "integer", "a b": "long", "amount": "double"}
ROWS = pa.table(
    {
        "op": ["delete", "keep", None, "delete"],
        "Gone": [True, None, False, False],
        "n": pa.array([1, None, 3, -4], pa.int32()),
        "a b": pa.array([1, 2, 3, None], pa.int64()),
        "amount": [1.0, 2.0, 3.0, 4.0],
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("op = 'delete'", [1, 0, 0, 1]),
        ("OP == 'delete'", [1, 0, 0, 1]),
        ("op <> 'delete'", [0, 1, 0, 0]),
        ("op != 'delete' OR op IS NULL", [0, 1, 1, 0]),
        ("op IS NOT NULL", [1, 1, 0, 1]),
        ("op IN ('delete', 'keep')", [1, 1, 0, 1]),
        ("op NOT IN ('delete')", [0, 1, 0, 0]),
        ("NOT op = 'delete'", [0, 1, 0, 0]),
        ("gone", [1, 0, 0, 0]),
        ("NOT gone", [0, 0, 1, 1]),
        ("gone = false", [0, 0, 1, 1]),
        ("NOT gone AND op = 'delete' OR n >= 3", [0, 0, 1, 1]),
        ("NOT gone AND (op = 'delete' OR n >= 3)", [0, 0, 1, 1]),
        ("not (gone or op = 'keep')", [0, 0, 0, 1]),
        ("n < -3", [0, 0, 0, 1]),
        ("`a b` <= 2", [1, 1, 0, 0]),
        ("`gone` is null", [0, 1, 0, 0]),
    ],
)
def test_only_rows_for_which_the_condition_is_true_are_deletes(text: str, expected: list[int]) -> None:
    condition = delete_condition(text, TYPES)
    assert condition is not None
    assert list(map(int, condition.holds(ROWS).to_pylist())) == expected


@pytest.mark.parametrize(
    "text",
    [
        "op LIKE 'del%'",
        "lower(op) = 'delete'",
        "op = \"delete\"",
        "op = 'it\\'s'",
        "op = 'a' 'b'",
        "op = 1",
        "n = '1'",
        "n = 1.0",
        "n = 3000000000",
        "n = -1 - 1",
        "n = n",
        "amount = 1",
        "amount IS NULL OR amount > 1e3",
        "op BETWEEN 'a' AND 'b'",
        "op = 'a' = true",
        "op",
        "op IS TRUE",
        "op <=> 'delete'",
        "unknown = 1",
        "op = 'delete",
        "(gone",
        "gone)",
        "true",
        "",
        "op = 'delete' -- a comment",
    ],
)  # fmt: skip
def test_a_condition_that_engines_may_evaluate_differently_is_left_to_spark(text: str) -> None:
    assert delete_condition(text, TYPES) is None


def test_the_columns_that_a_condition_uses_are_found() -> None:
    condition = delete_condition("gone OR `a b` = 1", TYPES)
    assert condition is not None
    assert condition.columns == {"Gone", "a b"}
