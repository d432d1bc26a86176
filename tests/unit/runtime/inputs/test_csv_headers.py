"""Comparison of the columns in a CSV header with the columns of a schema."""

import pytest

from spark_jobs.runtime.inputs.csv_headers import difference

COLUMNS = ["id", "amount", "Note"]


@pytest.mark.parametrize(
    "header",
    [
        ("id", "amount", "Note"),
        ("ID", "Amount", "note"),
        (" id", "amount ", "Note"),
        ("id", "amount"),
        ("id", "amount", "Note", "more"),
        ("id",),
    ],
    ids=[
        "the same",
        "in another case",
        "with spaces",
        "a column less at the end",
        "a column more at the end",
        "only the first column",
    ],
)
def test_a_header_with_the_columns_of_the_schema_at_their_positions_is_accepted(header: tuple[str, ...]) -> None:
    assert difference(COLUMNS, header) is None


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (("amount", "id", "Note"), "has 'amount' as column 1, where the schema has 'id'"),
        (("id", "more", "amount", "Note"), "has 'more' as column 2, where the schema has 'amount'"),
        (("id", "Note"), "has 'Note' as column 2, where the schema has 'amount'"),
        (("id", "amount", "remark"), "has 'remark' as column 3, where the schema has 'Note'"),
        (("id", None, "Note"), "has '' as column 2, where the schema has 'amount'"),
    ],
    ids=["swapped", "a column more in between", "a column less in between", "renamed", "without a name"],
)
def test_the_error_of_a_header_names_the_wrong_column(header: tuple[str | None, ...], why: str) -> None:
    assert difference(COLUMNS, header) == why


def test_names_that_spark_has_made_unique_match_the_header() -> None:
    """An inferred schema gives each column a unique name."""
    assert difference(["a0", "a1", "_c2"], ("a", "a", None)) is None
    assert difference(["a0", "a1", "_c2"], ("a", None, "a")) is not None
