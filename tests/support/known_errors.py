"""Programs with a mistake for each error of Spark, Delta and Python that has a remedy, and the same programs after the remedy."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import connect
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

    def at_version(self, version: int, path: str = "") -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", version).load(f"{self.table}{path}")

    def kept_for(self, duration: str) -> DataFrame:
        """Returns the first version of a table that keeps deleted files for some time."""
        path = self.scratch / "kept"
        for _ in range(2):
            self.batch().write.format("delta").mode("overwrite").save(str(path))
        self.spark.sql(
            f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval {duration}')"
        )
        return self.spark.read.format("delta").option("versionAsOf", 0).load(str(path))

    def inserted(self, number: str) -> DataFrame:
        """Returns a table of small numbers after a number of each row was inserted."""
        path = self.scratch / "small"
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{path}` (n INT) USING delta")
        self.spark.sql(f"INSERT INTO delta.`{path}` SELECT {number} FROM delta.`{self.table}`")
        return self.spark.read.format("delta").load(str(path))

    def resumed(self, version: int) -> DataFrame:
        """Returns the table after a query has gone on from an offset of a version of Delta's format."""
        place = self.scratch / "checkpoint"
        if not place.exists():
            self._copied(place)
        offsets = place / "offsets/0"
        offsets.write_text(re.sub(r'"sourceVersion":\d+', f'"sourceVersion":{version}', offsets.read_text()))
        for written in (*place.glob("commits/*0*"), *place.glob("offsets/.0.crc"), *place.glob("commits/.0.crc")):
            written.unlink(missing_ok=True)
        self._copied(place)
        return self.batch()

    def _copied(self, place: Path) -> None:
        query = self.rows().writeStream.format("noop").option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        query.awaitTermination()

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
    "UNRESOLVED_COLUMN_AMONG_FIELD_NAMES": (
        lambda given: given.batch().dropDuplicates(["unknown"]),
        lambda given: given.batch().dropDuplicates(["id"]),
    ),
    "FIELD_NOT_FOUND": (lambda given: given.nested().select("inner.no"), lambda given: given.nested().select("inner.id")),
    "AMBIGUOUS_REFERENCE": (
        lambda given: given.joined()[2].select("id"),
        _named,
    ),
    "AMBIGUOUS_REFERENCE_TO_FIELDS": (
        lambda given: given.rows().select(F.struct("id", "id").alias("inner")).select("inner.id"),
        lambda given: given.rows().select(F.struct("id", F.col("id").alias("again")).alias("inner")).select("inner.id"),
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
    "streaming DataFrames/DataSets without watermark": (
        lambda given: given.stream("delta", given.table).dropDuplicatesWithinWatermark(["id"]),
        lambda given: given.rows().dropDuplicatesWithinWatermark(["id"]),
    ),
    "is not supported without a watermark": (
        lambda given: given.stream("delta", given.table).join(given.stream("delta", given.table).select("at"), "at", "left"),
        lambda given: given.rows().join(given.rows().select("at"), "at", "left"),
    ),
    "Distinct aggregations are not supported": (
        lambda given: given.rows().groupBy(F.window("at", "1 hour")).agg(F.countDistinct("id")),
        lambda given: given.rows().groupBy(F.window("at", "1 hour")).agg(F.approx_count_distinct("id")),
    ),
    "is not supported on streaming": (lambda given: given.rows().sample(0.5), READ),
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
    "DELTA_MISSING_DELTA_TABLE": (
        lambda given: given.spark.sql(f"DESCRIBE DETAIL delta.`{given.scratch / 'nothing'}`"),
        lambda given: given.spark.sql(f"DESCRIBE DETAIL delta.`{given.table}`"),
    ),
    "DELTA_TABLE_NOT_FOUND": (
        lambda given: given.spark.read.format("delta").load(str(given.scratch)),
        lambda given: given.batch(),
    ),
    "DELTA_INVALID_V1_TABLE_CALL": (lambda given: given.spark.readStream.table(f"delta.`{given.table}`"), READ),
    "DELTA_INVALID_FORMAT_FROM_SOURCE_VERSION": (lambda given: given.resumed(99), lambda given: given.resumed(1)),
    "DELTA_UNSUPPORTED_TIME_TRAVEL_MULTIPLE_FORMATS": (
        lambda given: given.at_version(0, "@v0"),
        lambda given: given.at_version(0),
    ),
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION": (
        lambda given: given.kept_for("0 seconds"),
        lambda given: given.kept_for("1 day"),
    ),
    "DELTA_VERSION_NOT_FOUND": (
        lambda given: given.at_version(99),
        lambda given: given.at_version(0),
    ),
    "DELTA_UNSUPPORTED_TIME_TRAVEL_VIEWS": (
        lambda given: given.stream("delta", given.table, versionAsOf="0"),
        lambda given: given.spark.read.format("delta").option("versionAsOf", 0).load(str(given.table)),
    ),
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
    "CAST_OVERFLOW_IN_TABLE_INSERT": (
        lambda given: given.inserted("(id + 1000000000000)"),
        lambda given: given.inserted("try_cast(id + 1000000000000 AS INT)"),
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
    "INVALID_ARRAY_INDEX_IN_ELEMENT_AT": (
        lambda given: given.batch().select(F.element_at(F.split("word", ","), 5)),
        lambda given: given.batch().select(F.try_element_at(F.split("word", ","), F.lit(5))),
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
    "MemoryError": (
        lambda given: given.mapped(lambda number: len(bytearray(2**62))),
        lambda given: given.mapped(lambda number: len(bytearray(2**10))),
    ),
    "OperationalError": (
        lambda given: given.mapped(lambda number: connect("/no/such/database").total_changes),
        lambda given: given.mapped(lambda number: connect(":memory:").total_changes),
    ),
    "OSError": (
        lambda given: given.mapped(lambda number: Path("/no/such/file").stat().st_size),
        lambda given: given.mapped(lambda number: Path("/").stat().st_nlink),
    ),
}
FOLLOWED: Mapping[str, str] = {
    "DELTA_STREAMING_SCHEMA_LOCATION_CONFLICT": "tests/spark/test_source_columns.py"
    "::test_a_schema_log_of_the_user_is_refused_with_a_remedy",
    "DELTA_STREAMING_SCHEMA_LOCATION_NOT_UNDER_CHECKPOINT": "tests/spark/test_source_columns.py"
    "::test_a_schema_log_of_the_user_is_refused_with_a_remedy",
    "FAILED_READ_FILE.FILE_NOT_EXIST": "tests/spark/test_data_loss.py"
    "::test_an_interrupted_round_goes_on_with_the_remaining_input_once_the_loss_is_accepted",
    "FAILED_READ_FILE": "tests/spark/test_input_cells.py::test_an_interrupted_round_handles_each_change_of_its_source_as_documented",
    "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH": "tests/spark/test_changed_pinned_files.py"
    "::test_an_unreadable_file_is_not_retried_and_another_file_can_replace_it",
    "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER": "tests/spark/test_changed_pinned_files.py"
    "::test_an_unreadable_file_is_not_retried_and_another_file_can_replace_it",
    "KAFKA_DATA_LOSS": "tests/spark/test_data_loss.py"
    "::test_an_interrupted_round_goes_on_with_the_remaining_input_once_the_loss_is_accepted",
}
"""The tests that follow the remedies of errors in a whole run."""
NEEDS_A_PERSON: Mapping[str, str] = {
    "UNSUPPORTED_STREAMING_OPERATOR_WITHOUT_WATERMARK": "Spark checks the plan before, and has no condition there: "
    "streaming DataFrames/DataSets without watermark",
    "not supported when there are streaming": "a sentence of older versions, for STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION",
    "DELTA_PATH_DOES_NOT_EXIST": "a reader of this version of Delta names PATH_NOT_FOUND",
    "DELTA_INVALID_FORMAT": "older versions of Delta name it",
    "FAILED_READ_FILE.UNSUPPORTED_FILE_SYSTEM": "every file system of the tests has all methods",
    "NOT_NULL_ASSERT_VIOLATION": "Spark names it where it writes into a table of another catalog; Delta has a condition of its own",
}
"""Known errors that no program of the tests meets, with the reason: a person follows the remedy."""
