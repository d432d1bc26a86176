"""The columns of a source change, between two runs or while a driver runs. Every row arrives, with the current columns."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, InterruptedRunError, Pipeline, RestartStrategy
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.inputs.delta_source import DeltaSource
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site
from tests.spark.rows import Rows, answer
from tests.support.command_line import spark_jobs
from tests.support.running import Running, lose

pytestmark = pytest.mark.spark

COLUMNS = "id INT, nme STRING, junk STRING, kind STRING, address STRUCT<city: STRING, tags: ARRAY<STRUCT<tag: STRING>>>"
SINK = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}


class People:
    """A source table whose rows count up."""

    def __init__(self, site: Site, columns: str = COLUMNS, properties: str = "'delta.columnMapping.mode' = 'name'") -> None:
        self.spark, self.path, self._ids = site.spark, site.tables / "people", count(1)
        self.change(
            f"CREATE TABLE {{people}} ({columns}) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true', {properties})"
        )

    def add(self, rows: int = 1, /, **columns: str) -> None:
        """Adds rows with their number in every column. ``columns`` are SQL for columns that cannot be a plain text."""
        for number in (next(self._ids) for _ in range(rows)):
            values = [
                f"CAST({columns.get(field.name, self._value(field.name))} AS {field.dataType.simpleString()}) AS `{field.name}`"
                for field in self.read().schema.fields
            ]
            self.change(f"INSERT INTO {{people}} SELECT {', '.join(values)} FROM (SELECT {number} AS n)")

    def _value(self, column: str) -> str:
        if column == "address":
            return "named_struct('city', concat('c', n), 'tags', array(named_struct('tag', concat('t', n))))"
        return "n" if column in ("id", "age") else f"concat('{column[:1]}', n)"

    def change(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.format(people=f"delta.`{self.path}`"))

    def read(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.path))


@dataclass(frozen=True)
class Change:
    """A change of the table, and the columns that the stage selects before and after it."""

    statements: tuple[str, ...]
    before: str
    after: str
    values: dict[str, str] | None = None
    """The values of rows that come after the change."""


NEW_ADDRESS = "named_struct('city', 'x', 'tags', array(named_struct('tag', 'y', 'weight', n)), 'zip', concat('z', n))"
CHANGES = {
    "renamed": Change(
        ("ALTER TABLE {people} RENAME COLUMN nme TO full_name", "ALTER TABLE {people} DROP COLUMN kind"),
        "id, nme AS full_name, junk",
        "id, full_name, junk",
    ),
    "dropped": Change(("ALTER TABLE {people} DROP COLUMN junk",), "id, nme", "id, nme"),
    "swapped": Change(
        (
            "ALTER TABLE {people} RENAME COLUMN nme TO other",
            "ALTER TABLE {people} RENAME COLUMN kind TO nme",
            "ALTER TABLE {people} RENAME COLUMN other TO kind",
        ),
        "id, nme AS name, kind AS what",
        "id, kind AS name, nme AS what",
        {"nme": "concat('k', n)", "kind": "concat('n', n)"},
    ),
    "made anew": Change(
        ("ALTER TABLE {people} DROP COLUMN junk", "ALTER TABLE {people} ADD COLUMN junk STRING"),
        "id, nme, CAST(NULL AS STRING) AS junk",
        "id, nme, junk",
    ),
    "added": Change(("ALTER TABLE {people} ADD COLUMN age INT FIRST",), "id, nme", "id, nme, age"),
    "widened": Change(("ALTER TABLE {people} ALTER COLUMN id TYPE LONG",), "id, nme", "id, nme", {"id": "n + 5000000000L"}),
    "fields": Change(
        (
            "ALTER TABLE {people} RENAME COLUMN address.city TO place",
            "ALTER TABLE {people} ADD COLUMN address.zip STRING",
            "ALTER TABLE {people} ADD COLUMN address.tags.element.weight INT",
        ),
        "id, address.city AS place, address.tags",
        "id, address.place AS place, address.tags, address.zip",
        {"address": NEW_ADDRESS},
    ),
}
CHANGES["all at once"] = Change(
    (
        *CHANGES["widened"].statements,
        "ALTER TABLE {people} RENAME COLUMN nme TO full_name",
        *CHANGES["made anew"].statements,
        *CHANGES["added"].statements,
        *CHANGES["fields"].statements,
    ),
    f"id, nme AS full_name, CAST(NULL AS STRING) AS junk, {CHANGES['fields'].before.removeprefix('id, ')}",
    f"id, full_name, junk, age, {CHANGES['fields'].after.removeprefix('id, ')}",
    {"id": "n + 5000000000L", "address": NEW_ADDRESS},
)
EVERY_DAY = ("all at once",)
KINDS = [pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.nightly) for name in CHANGES]


def copying(
    site: Site, select: str, *, bounded: bool = True, source: Callable[[SparkSession], DataFrame] | None = None
) -> Pipeline:
    """Declares a copy of the table's columns in ``select``. Its sink accepts every change of columns."""
    pipeline = Pipeline(
        "people",
        on_end="suspend" if bounded else "drain",
        checkpoint=CheckpointSettings(interval="1 hour" if bounded else "1 second"),
        restart=RestartStrategy.none(),
    )

    @pipeline.source(bounded=bounded)
    def people(spark: SparkSession) -> DataFrame:
        if source is not None:
            return source(spark)
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(site.tables / "people"))

    sink = DeltaSink(str(site.tables / "copy"), publish="every_checkpoint", schema_evolution="add_columns", table_properties=SINK)

    @pipeline.stage(sink=sink)
    def copy(people: DataFrame) -> DataFrame:
        return people.selectExpr(*_expressions(select))

    return pipeline


def _expressions(select: str) -> list[str]:
    return [each.strip() for each in select.split(", ")]


def copied(site: Site) -> Rows:
    """Returns the rows of the copy, as Spark reads it. Columns are sorted by name."""
    frame = site.spark.read.format("delta").load(str(site.tables / "copy"))
    return answer(_as_text(frame))


def rows_copied(site: Site) -> int:
    """Returns the number of rows added to the copy, from its log.

    delta-rs reads no table whose types may widen, and Spark cannot read it during the change.
    """
    lines = [line for path in (site.tables / "copy").glob("_delta_log/*.json") for line in path.read_text().splitlines()]
    return sum(json.loads(add["stats"])["numRecords"] for line in lines if (add := json.loads(line).get("add")))


def expected(people: People, select: str) -> Rows:
    """Returns the same rows from a batch query."""
    return answer(_as_text(people.read().selectExpr(*_expressions(select))))


def _as_text(frame: DataFrame) -> DataFrame:
    return frame.select(*(F.to_json(F.struct(F.col(name))).alias(name) for name in sorted(frame.columns)))


@pytest.fixture
def inferring(spark: SparkSession) -> Iterator[None]:
    """Allows streams of files without a declared schema."""
    spark.conf.set("spark.sql.streaming.schemaInference", "true")
    yield
    spark.conf.unset("spark.sql.streaming.schemaInference")


def offsets(site: Site) -> list[str]:
    return sorted(str(path) for path in site.home.glob("work/*/stages/*/checkpoint/offsets/[0-9]*"))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_were_not_read_arrive_with_the_new_columns(site: Site, kind: str) -> None:
    """The test also restores on a host that has only the home and the tables."""
    change, people = CHANGES[kind], People(site)
    people.add(2)
    site.run(copying(site, change.before))
    assert copied(site) == expected(people, change.before)
    people.add()
    people.change(*change.statements)
    people.add(**change.values or {})
    lose(site.home / "work")
    site.run(copying(site, change.after))
    assert copied(site) == expected(people, change.after)
    people.add(**change.values or {})
    site.run(copying(site, change.after))
    assert copied(site) == expected(people, change.after)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_round_goes_on_with_the_new_columns_to_its_end(site: Site, kind: str) -> None:
    change, people, flag = CHANGES[kind], People(site), site.home.parent / "fail"
    flag.touch()

    def fail(path: str) -> Callable[[int], int]:
        def checked(number: int) -> int:
            if number == 2 and Path(path).exists():
                raise ValueError("failed as told")
            return number

        return checked

    check = F.udf(fail(str(flag)), "long", useArrow=False)

    def source(spark: SparkSession) -> DataFrame:
        rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("startingVersion", 0)
        return rows.load(str(site.tables / "people")).where(check("id") >= 0)

    people.add(3)
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(copying(site, change.before, source=source), run_id="day 1")
    flag.unlink()
    want = people.read().count()
    people.change(*change.statements)
    people.add(**change.values or {})
    site.run(copying(site, change.after, source=source), run_id="day 1")
    assert rows_copied(site) == want, "the end is where it was"
    site.run(copying(site, change.after, source=source), run_id="day 2")
    assert copied(site) == expected(people, change.after)


# test_an_interrupted_round_goes_on_with_the_new_columns_to_its_end restores a checkpoint by day.
@pytest.mark.nightly
@pytest.mark.parametrize("place", ["home", "another home"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_savepoint_goes_on_with_the_new_columns(site: Site, kind: str, place: str) -> None:
    """The table changes while only the savepoint is left of the pipeline."""
    change, people, savepoint = CHANGES[kind], People(site), site.home.parent / "savepoint"
    people.add(2)
    with Running(site.spark, copying(site, change.before, bounded=False), site.home) as running:
        running.until(lambda: rows_copied(site) == 2)
        assert spark_jobs("stop", "--home", site.home, "--target", savepoint).exit_code == 0
        running.stopped()
    people.add()
    people.change(*change.statements)
    people.add(**change.values or {})
    lose(site.home / "work")
    restored = StartOptions(restore=RestoreFrom(savepoint=open_place(str(savepoint)).url))
    pipeline = copying(site, change.after, bounded=False)
    with Running(site.spark, pipeline, site.home.parent / place, options=restored) as running:
        running.until(lambda: rows_copied(site) == 4)
        people.add(**change.values or {})
        running.until(lambda: rows_copied(site) == 5)
    assert copied(site) == expected(people, change.after)


LIVE: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "added": ("*", ("ALTER TABLE {people} ADD COLUMN age INT",), {}),
    "dropped": ("*", ("ALTER TABLE {people} DROP COLUMN junk",), {}),
    "widened": ("*", ("ALTER TABLE {people} ALTER COLUMN id TYPE LONG",), {"id": "n + 5000000000L"}),
    "renamed": ("id, junk", ("ALTER TABLE {people} RENAME COLUMN nme TO full_name",), {}),
    "properties": ("*", ("ALTER TABLE {people} SET TBLPROPERTIES ('delta.appendOnly' = 'true')",), {}),
    "fields": ("id, address", ("ALTER TABLE {people} ADD COLUMN address.zip STRING",), {}),
}
LIVE_EVERY_DAY = ("widened",)


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each in LIVE_EVERY_DAY else pytest.mark.nightly) for each in LIVE]
)
def test_a_running_pipeline_goes_on_with_the_new_columns(site: Site, kind: str) -> None:
    """The change counts as no restart: the strategy allows none."""
    select, statements, values = LIVE[kind]
    people = People(site, "id INT, nme STRING, junk STRING, address STRUCT<city: STRING>")
    short = "named_struct('city', concat('c', n))"
    people.add(2, address=short)
    with Running(site.spark, copying(site, select, bounded=False), site.home) as running:
        running.until(lambda: rows_copied(site) == 2)
        people.add(address=short)
        people.change(*statements)
        zipped = "named_struct('city', concat('c', n), 'zip', concat('z', n))" if kind == "fields" else short
        new = {**values, "address": zipped}
        people.add(2, **new)
        running.until(lambda: rows_copied(site) == 5)
        people.add(**new)
        running.until(lambda: rows_copied(site) == 6)
    now = people.read().columns if select == "*" else _expressions(select)
    found = site.spark.read.format("delta").load(str(site.tables / "copy")).select(*now)
    assert answer(_as_text(found)) == expected(people, select)


def test_a_stage_that_uses_the_old_column_name_ends_at_a_rename_and_goes_on_with_the_new_name(site: Site) -> None:
    people = People(site)
    people.add(2)
    with Running(site.spark, copying(site, "id, nme AS full_name", bounded=False), site.home) as running:
        running.until(lambda: rows_copied(site) == 2)
        people.add()
        people.change("ALTER TABLE {people} RENAME COLUMN nme TO full_name")
        people.add()
        error = running.ends()
    assert isinstance(error, InvalidPipelineError)
    assert "nme" in error.failed
    assert "Correct the column's name" in error.remedy
    lose(site.home / "work")
    with Running(site.spark, copying(site, "id, full_name", bounded=False), site.home) as running:
        running.until(lambda: rows_copied(site) == 4)
    assert copied(site) == expected(people, "id, full_name")


def test_rows_that_a_shared_source_has_staged_are_first_read_under_the_old_names(site: Site) -> None:
    people = People(site)

    def shared(select: str) -> Pipeline:
        pipeline = Pipeline("shared", checkpoint=CheckpointSettings(interval="1 second"), restart=RestartStrategy.none())

        @pipeline.source(bounded=False, shared=True)
        def rows(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").load(str(people.path))

        @pipeline.stage(
            sink=DeltaSink(str(site.tables / "copy"), publish="every_checkpoint"),
            max_files_per_trigger=1,
            trigger_interval="2 seconds",
        )
        def copy(rows: DataFrame) -> DataFrame:
            return rows.selectExpr(*_expressions(select))

        return pipeline

    people.add()
    with Running(site.spark, shared("id, nme AS full_name"), site.home) as running:
        running.until(lambda: rows_copied(site) == 1)
        for _ in range(3):
            people.add()
        people.change("ALTER TABLE {people} RENAME COLUMN nme TO full_name")
        assert isinstance(running.ends(), InvalidPipelineError)
    with Running(site.spark, shared("id, full_name"), site.home) as running:
        people.add()
        running.until(lambda: rows_copied(site) == 5)
    assert copied(site) == expected(people, "id, full_name")


def test_a_dropped_column_that_a_stage_uses_is_refused_before_anything_is_staged(site: Site) -> None:
    people = People(site)
    people.add()
    site.run(copying(site, "id, junk"))
    people.add()
    people.change("ALTER TABLE {people} DROP COLUMN junk")
    before = offsets(site)
    with pytest.raises(InvalidPipelineError, match="junk"):
        site.run(copying(site, "id, junk"))
    assert offsets(site) == before
    site.run(copying(site, "id"))
    assert rows_copied(site) == 2


@pytest.mark.parametrize(
    "statement",
    ["CAST(id AS SHORT) AS id, nme", pytest.param("id, CAST(nme AS BINARY) AS nme", marks=pytest.mark.nightly)],
)
def test_a_type_that_does_not_fit_old_rows_is_refused_unless_the_source_is_taken_as_new(site: Site, statement: str) -> None:
    people = People(site, "id INT, nme STRING")

    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(people.path))

    people.add(2)
    site.run(copying(site, "CAST(id AS LONG) AS id", source=source), run_id="day 1")
    people.add()
    narrowed = people.read().selectExpr(*_expressions(statement))
    narrowed.write.format("delta").mode("overwrite").option("overwriteSchema", True).save(str(people.path))
    people.add()
    before = offsets(site)
    with pytest.raises(
        RejectedError, match="Source 'people' reads a table whose earlier rows cannot be read any more"
    ) as refused:
        site.run(copying(site, "CAST(id AS LONG) AS id", source=source), run_id="day 2")
    assert "--new-source people" in refused.value.remedy
    assert offsets(site) == before
    site.run(copying(site, "CAST(id AS LONG) AS id", source=source), run_id="day 2", new_sources=["people"])
    ids = site.spark.read.format("delta").load(str(site.tables / "copy"))
    assert sorted(row.id for row in ids.collect()) == [1, 1, 2, 2, 3, 4], "the table as it is, after what was read before"


def test_a_table_that_changes_while_the_stages_are_built_is_read_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    people, fix, seen = People(site), DeltaSource.prepare, count()
    people.add()

    def fixed(source: DeltaSource, *arguments: Any) -> Mapping[str, str]:
        if not next(seen):
            people.change("ALTER TABLE {people} RENAME COLUMN junk TO gone")
        return fix(source, *arguments)

    monkeypatch.setattr(DeltaSource, "prepare", fixed)
    site.run(copying(site, "id, nme"))
    assert next(seen) == 2
    assert copied(site) == expected(people, "id, nme")


# test_rows_that_a_shared_source_has_staged_are_first_read_under_the_old_names reads a source twice by day.
@pytest.mark.nightly
def test_a_source_that_is_read_twice_in_one_stage_has_the_new_columns_twice(site: Site) -> None:
    people = People(site)

    def twice(column: str) -> Pipeline:
        pipeline = Pipeline("twice", on_end="suspend")

        @pipeline.source(bounded=True)
        def rows(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").load(str(people.path))

        @pipeline.stage(sink=DeltaSink(str(site.tables / "copy")))
        def copy(rows: DataFrame) -> DataFrame:
            others = rows.selectExpr("id AS other", f"{column} AS theirs")
            return rows.join(others, F.col("id") == F.col("other")).selectExpr("id", f"{column} AS mine", "theirs")

        return pipeline

    people.add(2)
    site.run(twice("nme"))
    people.add()
    people.change("ALTER TABLE {people} RENAME COLUMN nme TO full_name")
    people.add()
    site.run(twice("full_name"))
    assert copied(site) == expected(people, "id, full_name AS mine, full_name AS theirs")


# test_rows_that_were_not_read_arrive_with_the_new_columns has new columns by day, and test_change_feeds.py has feeds.
@pytest.mark.nightly
def test_a_change_feed_has_the_new_columns(site: Site) -> None:
    people = People(site, properties="'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true'")

    def feed(spark: SparkSession) -> DataFrame:
        rows = spark.readStream.format("delta").option("readChangeFeed", True).option("startingVersion", 0)
        return rows.load(str(people.path))

    people.add(2)
    site.run(copying(site, "id, nme AS name, _change_type AS kind", source=feed))
    people.add()
    people.change("UPDATE {people} SET nme = 'other' WHERE id = 1", "ALTER TABLE {people} RENAME COLUMN nme TO name")
    people.add()
    people.change("DELETE FROM {people} WHERE id = 2")
    site.run(copying(site, "id, name, _change_type AS kind", source=feed))
    rows = site.spark.read.format("delta").load(str(site.tables / "copy")).collect()
    assert sorted((row.kind, row.id, row.name) for row in rows) == [
        ("delete", 2, "n2"),
        *(("insert", number, f"n{number}") for number in range(1, 5)),
        ("update_postimage", 1, "other"),
        ("update_preimage", 1, "n1"),
    ]


def test_a_schema_log_of_the_user_is_refused_with_a_remedy(site: Site) -> None:
    people = People(site)
    people.add()

    def source(spark: SparkSession) -> DataFrame:
        place = str(site.home.parent / "log")
        return spark.readStream.format("delta").option("schemaTrackingLocation", place).load(str(people.path))

    with pytest.raises(InvalidPipelineError, match="sets schemaTrackingLocation") as refused:
        site.run(copying(site, "id", source=source))
    assert "Remove the option" in refused.value.remedy
    site.run(copying(site, "id"))
    assert copied(site) == expected(people, "id")


# Each format and each kind of source is tried by day, but not each pair.
@pytest.mark.parametrize(
    ("bounded", "file_format"),
    [
        (True, "json"),
        (False, "parquet"),
        pytest.param(True, "parquet", marks=pytest.mark.nightly),
        pytest.param(False, "json", marks=pytest.mark.nightly),
    ],
)
def test_files_whose_inferred_schema_grows_have_their_new_columns(
    site: Site, inferring: None, file_format: str, bounded: bool
) -> None:
    folder = site.home.parent / "files"

    def add(name: str, *rows: dict[str, object]) -> None:
        lines = [json.dumps(row) for row in rows]
        if file_format == "json":
            folder.mkdir(exist_ok=True)
            (folder / name).write_text("\n".join(lines))
        else:
            frame = site.spark.read.json(site.spark.sparkContext.parallelize(lines))
            frame.coalesce(1).write.mode("append").parquet(str(folder))

    def source(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format(file_format)
        return reader.option("maxFilesPerTrigger", 1).load(str(folder))

    pipeline = copying(site, "*", bounded=bounded, source=source)
    add("1", {"id": 1, "place": {"city": "c1"}}, {"id": 2, "place": {"city": "c2"}})
    later = {"id": 3, "place": {"city": "c3", "zip": "z3"}, "age": 30}
    if bounded:
        site.run(pipeline)
        add("2", later)
        add("3", {"id": 4})
        site.run(pipeline)
    else:
        with Running(site.spark, pipeline, site.home) as running:
            running.until(lambda: rows_copied(site) == 2)
            add("2", later)
            add("3", {"id": 4} | ({"age": None} if file_format == "json" else {}))
            running.until(lambda: rows_copied(site) == 4)
    want = site.spark.read.option("mergeSchema", True).format(file_format).load(str(folder))
    assert copied(site) == answer(_as_text(want))


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_a_column_that_is_added_to_a_declared_schema_is_null_in_files_without_it(site: Site, file_format: str) -> None:
    folder = site.home.parent / "files"

    def reading(schema: str) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: spark.readStream.schema(schema).format(file_format).load(str(folder))

    site.spark.sql("SELECT 1L AS id").write.format(file_format).save(str(folder))
    site.run(copying(site, "*", source=reading("id LONG")))
    site.spark.sql("SELECT 2L AS id").write.mode("append").format(file_format).save(str(folder))
    site.spark.sql("SELECT 3L AS id, 30 AS age").write.mode("append").format(file_format).save(str(folder))
    site.run(copying(site, "*", source=reading("id LONG, age INT")))
    rows = site.spark.read.format("delta").load(str(site.tables / "copy")).collect()
    assert sorted((row.id, row.age) for row in rows) == [(1, None), (2, None), (3, 30)]
