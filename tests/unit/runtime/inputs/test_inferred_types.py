"""Columns and values of later files that an inferred schema would lose."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from spark_jobs.runtime.inputs.inferred_types import outgrows

LONG, DOUBLE, TEXT = LongType(), DoubleType(), StringType()
A = StructType().add("a", LONG)
A_AND_B = StructType().add("a", LONG).add("b", TEXT)
FITTING: dict[str, tuple[DataType, DataType]] = {
    "the same": (LONG, LONG),
    "fewer columns": (A_AND_B, A),
    "another case": (A, StructType().add("A", LONG)),
    "anything in a text": (TEXT, A),
    "a number in a wider one": (DOUBLE, LONG),
    "a decimal in a double": (DOUBLE, DecimalType(20, 0)),
    "a date in a time": (TimestampType(), DateType()),
    "fewer fields in an array": (ArrayType(A_AND_B), ArrayType(A)),
    "a narrower value in a map": (MapType(TEXT, DOUBLE), MapType(TEXT, LONG)),
}
OUTGROWN: dict[str, tuple[DataType, DataType]] = {
    "a column more": (A, A_AND_B),
    "a wider number": (LONG, DOUBLE),
    "a text": (LONG, TEXT),
    "another kind": (LONG, BooleanType()),
    "a time": (DateType(), TimestampType()),
    "another decimal": (DecimalType(5, 2), DecimalType(7, 2)),
    "a field of a struct": (StructType().add("s", A), StructType().add("s", A_AND_B)),
    "a field in an array": (ArrayType(A), ArrayType(A_AND_B)),
    "a field in a map": (MapType(TEXT, A), MapType(TEXT, A_AND_B)),
    "an array": (A, ArrayType(LONG)),
}


@pytest.mark.parametrize("case", FITTING)
def test_nothing_is_left_out_of(case: str) -> None:
    assert not outgrows(*FITTING[case])


@pytest.mark.parametrize("case", OUTGROWN)
def test_something_would_be_left_out_of(case: str) -> None:
    assert outgrows(*OUTGROWN[case])
