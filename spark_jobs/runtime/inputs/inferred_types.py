"""Compares types that were inferred from different files."""

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_NUMBERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType, DecimalType, FloatType, DoubleType)
_TIMES: tuple[type[DataType], ...] = (DateType, TimestampNTZType, TimestampType)


def outgrows(known: DataType, found: DataType) -> bool:
    """Returns True if a type has fields that the other lacks, or values that the other cannot hold."""
    if isinstance(known, StructType) and isinstance(found, StructType):
        fields = {field.name.casefold(): field.dataType for field in known.fields}
        return any(
            field.name.casefold() not in fields or outgrows(fields[field.name.casefold()], field.dataType)
            for field in found.fields
        )
    if isinstance(known, ArrayType) and isinstance(found, ArrayType):
        return outgrows(known.elementType, found.elementType)
    if isinstance(known, MapType) and isinstance(found, MapType):
        return outgrows(known.keyType, found.keyType) or outgrows(known.valueType, found.valueType)
    if known == found or isinstance(known, StringType):
        return False
    for order in (_NUMBERS, _TIMES):
        if isinstance(known, order) and isinstance(found, order):
            return order.index(type(found)) > order.index(type(known)) or type(found) is type(known)
    return True
