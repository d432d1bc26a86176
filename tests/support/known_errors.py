"""Programs with a mistake for each error of Spark, Delta and Python that has a remedy, and the same programs after the remedy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.functions import udf


@dataclass(frozen=True)
class Given:
    """The inputs of a program."""

    spark: SparkSession
    table: Path
    """A Delta table: ``id`` and ``zero`` are numbers, ``word`` a text, ``at`` a time."""
    scratch: Path
    """An empty directory."""

    def rows(self) -> DataFrame:
        return self.spark.readStream.format("delta").load(str(self.table)).withWatermark("at", "1 hour")

    def batch(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.table))

    def nested(self) -> DataFrame:
        return self.rows().select(F.struct("id").alias("inner"))

    def stream(self, file_format: str, path: object, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(file_format).options(**options)
        return (reader.schema(schema) if schema else reader).load(str(path))

    def mapped(self, function: Callable[[Any], Any], column: str = "zero") -> DataFrame:
        return self.batch().select(udf(function, "long", useArrow=False)(column))

    def joined(self) -> tuple[DataFrame, DataFrame, DataFrame]:
        left, right = self.batch(), self.batch().withColumn("more", F.lit(1))
        return left, right, left.join(right, left["id"] == right["id"])

    def written(self, *columns: Any) -> DataFrame:
        path = str(self.scratch / "written")
        self.batch().select(*columns).write.mode("overwrite").parquet(path)
        return self.spark.read.parquet(path)

    def json_rows(self, text: str, **options: str) -> DataFrame:
        (self.scratch / "rows.json").write_text(text)
        return self.spark.read.schema("n int").options(**options).json(str(self.scratch))


Program = Callable[[Given], DataFrame]
Pair = tuple[Program, Program]
COUNTED: Program = lambda given: given.rows().groupBy(F.window("at", "1 hour")).count()  # noqa: E731
READ: Program = lambda given: given.rows()  # noqa: E731


def import_nothing(number: Any) -> Any:
    import no_such_module  # type: ignore[import-not-found]

    return no_such_module.of(number)


def import_wrongly(number: Any) -> Any:
    from json import no_such_name  # type: ignore[attr-defined]

    return no_such_name(number)


def read_late_local(number: Any) -> Any:
    if number is None:
        late = 1
    return late  # type: ignore[possibly-undefined]


def _named(given: Given) -> DataFrame:
    left, _, joined = given.joined()
    return joined.select(left["id"])


PROGRAMS: Mapping[str, Pair] = {
    "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE": (
        lambda given: given.stream("delta", given.table).withWatermark("word", "1 hour"),
        lambda given: (
            given.stream("delta", given.table)
            .withColumn("word", F.to_timestamp(F.lit("2026-03-02")))
            .withWatermark("word", "1 hour")
        ),
    ),
    "UNRESOLVED_COLUMN": (lambda given: given.rows().select("unknown"), lambda given: given.rows().select("id")),
    "FIELD_NOT_FOUND": (lambda given: given.nested().select("inner.no"), lambda given: given.nested().select("inner.id")),
    "AMBIGUOUS_REFERENCE": (
        lambda given: given.joined()[2].select("id"),
        _named,
    ),
    "COLUMN_ALREADY_EXISTS": (
        lambda given: given.written("id", "id"),
        lambda given: given.written("id", F.col("id").alias("again")),
    ),
    "DATATYPE_MISMATCH": (
        lambda given: given.rows().select(F.col("id") + F.array(F.lit(1))),
        lambda given: given.rows().select(F.col("id") + F.lit(1)),
    ),
    "UNRESOLVED_ROUTINE": (
        lambda given: given.rows().selectExpr("no_such(id)"),
        lambda given: given.rows().selectExpr("abs(id)"),
    ),
    "PARSE_SYNTAX_ERROR": (
        lambda given: given.rows().selectExpr("id +"),
        lambda given: given.rows().selectExpr("id + 1"),
    ),
    "UNSUPPORTED_DATATYPE": (
        lambda given: given.stream("json", given.scratch, "id unknown"),
        lambda given: given.stream("json", given.scratch, "id long"),
    ),
    "NUM_COLUMNS_MISMATCH": (
        lambda given: given.rows().union(given.rows().select("id")),
        lambda given: given.rows().union(given.rows()),
    ),
    "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION": (lambda given: given.rows().groupBy("word").count(), COUNTED),
    "NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING": (
        lambda given: given.rows().withColumn("n", F.row_number().over(Window.partitionBy("word").orderBy("id"))),
        COUNTED,
    ),
    "Sorting is not supported on streaming": (lambda given: given.rows().orderBy("id"), READ),
    "Queries with streaming sources must be executed with": (
        lambda given: given.rows().where(F.lit(given.rows().count() > 0)),
        READ,
    ),
    "PATH_NOT_FOUND": (
        lambda given: given.spark.read.parquet(str(given.scratch / "nothing")),
        lambda given: given.written("id"),
    ),
    "UNABLE_TO_INFER_SCHEMA": (
        lambda given: given.spark.read.parquet(str(given.scratch)),
        lambda given: given.spark.read.schema("id long").parquet(str(given.scratch)),
    ),
    "Schema must be specified when creating a streaming source": (
        lambda given: given.stream("json", given.scratch),
        lambda given: given.stream("json", given.scratch, "id long"),
    ),
    "DATA_SOURCE_NOT_FOUND": (
        lambda given: given.stream("unheard_of", given.scratch, "id long"),
        lambda given: given.stream("json", given.scratch, "id long"),
    ),
    "TABLE_OR_VIEW_NOT_FOUND": (
        lambda given: given.spark.table("nothing"),
        lambda given: given.spark.table(f"delta.`{given.table}`"),
    ),
    "SCHEMA_NOT_FOUND": (
        lambda given: given.spark.sql("SHOW TABLES IN nothing"),
        lambda given: given.spark.sql("SHOW TABLES IN default"),
    ),
    "DELTA_SCHEMA_NOT_SET": (lambda given: given.stream("delta", given.scratch / "nothing"), READ),
    "DIVIDE_BY_ZERO": (
        lambda given: given.batch().select(F.lit(1) / F.col("zero")),
        lambda given: given.batch().select(F.try_divide(F.lit(1), F.col("zero"))),
    ),
    "CAST_INVALID_INPUT": (
        lambda given: given.batch().select(F.col("word").cast("int")),
        lambda given: given.batch().select(F.col("word").try_cast("int")),
    ),
    "CAST_OVERFLOW": (
        lambda given: given.batch().select((F.col("id") + 10**12).cast("int")),
        lambda given: given.batch().select((F.col("id") + 10**12).try_cast("int")),
    ),
    "ARITHMETIC_OVERFLOW": (
        lambda given: given.batch().selectExpr("id + 9223372036854775807"),
        lambda given: given.batch().selectExpr("try_add(id, 9223372036854775807)"),
    ),
    "NUMERIC_VALUE_OUT_OF_RANGE": (
        lambda given: given.batch().selectExpr("CAST(id * 1000 AS DECIMAL(3, 0))"),
        lambda given: given.batch().selectExpr("try_cast(id * 1000 AS DECIMAL(3, 0))"),
    ),
    "CANNOT_PARSE_TIMESTAMP": (
        lambda given: given.batch().select(F.to_timestamp("word", "yyyy-MM-dd")),
        lambda given: given.batch().select(F.try_to_timestamp("word", F.lit("yyyy-MM-dd"))),
    ),
    "INVALID_ARRAY_INDEX": (
        lambda given: given.batch().select(F.split("word", ",")[5]),
        lambda given: given.batch().select(F.get(F.split("word", ","), F.lit(5))),
    ),
    "MALFORMED_RECORD_IN_PARSING": (
        lambda given: given.json_rows("{no", mode="FAILFAST"),
        lambda given: given.json_rows("{no", mode="PERMISSIVE"),
    ),
    "USER_RAISED_EXCEPTION": (
        lambda given: given.batch().select(F.raise_error(F.lit("bad row"))),
        lambda given: given.batch().where("zero > 9").select(F.raise_error(F.lit("bad row"))),
    ),
    "ModuleNotFoundError": (lambda given: given.mapped(import_nothing), lambda given: given.mapped(lambda number: number)),
    "ImportError": (lambda given: given.mapped(import_wrongly), lambda given: given.mapped(lambda number: number)),
    "NameError": (
        lambda given: given.mapped(lambda number: no_such_name),  # type: ignore[name-defined]  # noqa: F821
        lambda given: given.mapped(lambda number: number),
    ),
    "UnboundLocalError": (lambda given: given.mapped(read_late_local), lambda given: given.mapped(lambda number: number)),
    "AttributeError": (
        lambda given: given.mapped(lambda number: number.nothing),
        lambda given: given.mapped(lambda number: number.real),
    ),
    "TypeError": (
        lambda given: given.mapped(lambda number: number + "1"),
        lambda given: given.mapped(lambda number: number + 1),
    ),
    "ZeroDivisionError": (
        lambda given: given.mapped(lambda number: 1 // number),
        lambda given: given.mapped(lambda number: 1 // number if number else None),
    ),
    "KeyError": (
        lambda given: given.mapped(lambda number: {}[number]),
        lambda given: given.mapped(lambda number: {}.get(number)),
    ),
    "IndexError": (
        lambda given: given.mapped(lambda number: [][number]),
        lambda given: given.mapped(lambda number: ([number])[0]),
    ),
    "UnicodeDecodeError": (
        lambda given: given.mapped(lambda number: int(b"\xff".decode("utf-8"))),
        lambda given: given.mapped(lambda number: len(b"\xff".decode("latin-1"))),
    ),
    "OSError": (
        lambda given: given.mapped(lambda number: Path("/no/such/file").stat().st_size),
        lambda given: given.mapped(lambda number: Path("/").stat().st_nlink),
    ),
}
WITHOUT_PROGRAM: Mapping[str, str] = {
    "UNSUPPORTED_STREAMING_OPERATOR": "the mistakes that we know of have other conditions; tests/spark/test_operators.py has the operators",
    "is not supported on streaming": "as above; the sentence with which Spark refuses operators that have no condition",
    "not supported when there are streaming": "as above",
    "DELTA_MISSING_DELTA_TABLE": "a stream names DELTA_SCHEMA_NOT_SET; a reader of one version of Delta, or of another catalog, this one",
    "DELTA_TABLE_NOT_FOUND": "as above",
    "DELTA_PATH_DOES_NOT_EXIST": "as above",
    "DELTA_INVALID_FORMAT": "needs a catalog with a table of another format",
    "DELTA_STREAMING_SCHEMA_LOCATION": "refused before Delta sees it: tests/spark/test_source_columns.py",
    "DELTA_INVALID_V1_TABLE_CALL": "Delta's own, where it is called in another way than by a reader",
    "DELTA_UNSUPPORTED_TIME_TRAVEL": "depends on the version of Delta",
    "NOT_NULL_ASSERT_VIOLATION": "needs a table with NOT NULL in a batch: tests/spark/test_tables.py",
    "MemoryError": "would take the memory of the machine",
    "FAILED_READ_FILE.FILE_NOT_EXIST": "tests/spark/test_data_loss.py",
    "FAILED_READ_FILE": "a person brings the file back: tests/spark/test_input_cells.py",
    "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH": "tests/spark/test_what_was_pinned.py",
    "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER": "tests/spark/test_what_was_pinned.py",
    "KAFKA_DATA_LOSS": "tests/spark/test_kafka_sources.py",
    "OperationalError": "needs a database that is away",
}
"""Known errors that no small program shows, with the reason or the test that follows the remedy."""
