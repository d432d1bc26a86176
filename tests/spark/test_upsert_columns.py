"""The columns, keys and constraints that an upsert sink accepts. Others are refused before any write."""

from datetime import date
from typing import Any

import pandas as pd
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import InterruptedRunError, InvalidPipelineError, UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from tests.spark import inputs
from tests.spark.conftest import Site
from tests.spark.rows import answer, public
from tests.support.places import in_a_store_at_night

pytestmark = pytest.mark.spark


def _pipeline(site: Site, *columns: str, **sink: Any) -> Pipeline:
    """Declares an upsert of ``columns`` of the changes. The columns are SQL expressions."""
    pipeline = Pipeline("customers", on_end="suspend")

    @pipeline.source(bounded=True)
    def changes(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.root / "changes"))

    @pipeline.stage(sink=DeltaSink(site.table("customers"), mode="upsert", **{"keys": ["id"]} | sink))
    def customers(changes: DataFrame) -> DataFrame:
        return changes.selectExpr(*columns)

    return pipeline


def _deliver(site: Site, *changes: tuple[int, int, str]) -> None:
    rows = pd.DataFrame(changes, columns=["id", "seq", "op"])
    inputs.append(site.root / "changes", rows)


MAPPED = {"table_properties": {"delta.columnMapping.mode": "name"}}


@in_a_store_at_night
@pytest.mark.parametrize(
    "key",
    [pytest.param("id AS `a b`", marks=pytest.mark.nightly), "named_struct('a b', id) AS id"],
    ids=["name", "name in a struct"],
)
def test_keys_whose_column_names_parquet_does_not_allow_are_compared_by_value(site: Site, key: str) -> None:
    pipeline = _pipeline(site, key, "seq", keys=["a b" if "AS `" in key else "id"], **MAPPED)
    _deliver(site, (1, 1, "insert"), (2, 2, "insert"), (3, 3, "insert"))
    site.run(pipeline)
    table = site.spark.read.format("delta").load(site.table("customers"))
    assert answer(table.select("seq")) == {(1,): 1, (2,): 1, (3,): 1}
    _deliver(site, (4, 4, "insert"), (4, 5, "insert"))
    with pytest.raises(InvalidPipelineError, match="has 1 keys"):
        site.run(pipeline)


@pytest.mark.nightly
def test_a_constraint_on_a_column_that_the_stage_does_not_return_is_left_to_the_merge(site: Site) -> None:
    table = f"delta.`{site.table('customers')}`"
    site.spark.sql(f"CREATE TABLE {table} (id LONG, seq LONG, note STRING) USING delta")
    site.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT noted CHECK (note IS NULL OR note <> '')")
    site.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT `a ``b` CHECK (seq < 10)")
    _deliver(site, (1, 1, "insert"))
    site.run(_pipeline(site, "id", "seq"))
    assert public(site.table("customers"), ["id", "seq", "note"]) == {(1, 1, None): 1}
    _deliver(site, (1, 10, "insert"))
    with pytest.raises(Exception, match="CHECK constraint a `b"):
        site.run(_pipeline(site, "id", "seq"))
    assert len(site.checkpoints()) == 1


def test_a_delete_condition_that_cannot_be_part_of_a_constraint_is_refused_by_name(site: Site) -> None:
    table = f"delta.`{site.table('customers')}`"
    site.spark.sql(f"CREATE TABLE {table} (id LONG, seq LONG) USING delta")
    site.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (seq < 10)")
    _deliver(site, (1, 1, "insert"))
    pipeline = _pipeline(site, "id", "seq", apply_as_deletes="seq < 0 -- gone")
    with pytest.raises(UnsupportedTableError, match="constraint small") as error:
        site.run(pipeline)
    assert "apply_as_deletes" in error.value.remedy
    assert site.checkpoints() == []


@pytest.mark.nightly
def test_the_path_of_a_table_may_have_a_backtick(site: Site) -> None:
    tables = site.another("it`s")
    tables.root.mkdir()
    declared = {
        "apply_as_deletes": "op = 'delete'",
        "sequence_by": "seq",
        "cluster_by": ["id"],
        "schema_evolution": "add_columns",
    }
    inputs.append(tables.root / "changes", pd.DataFrame({"id": [1, 2], "seq": [1, 1], "op": ["insert", "delete"]}))
    tables.run(_pipeline(tables, "id", "seq", "op", **declared))
    tables.run(_pipeline(tables, "id", "seq", "op", "1 AS more", **declared), fresh=True, on_rewind="keep")
    assert public(tables.table("customers"), ["id", "more"]) == {(1, 1): 1}


@pytest.mark.nightly
def test_columns_may_have_the_names_that_change_data_capture_tools_use(site: Site) -> None:
    names = ["__deleted", "__batch", "last", "winner"]
    columns = ["op = 'delete' AS `__deleted`", "seq AS `__BATCH`", "id AS last", "id AS winner"]
    pipeline = _pipeline(site, *columns, keys=["last", "winner"], sequence_by="__BATCH", apply_as_deletes="__deleted")
    for changes in [[(1, 1, "insert"), (1, 9, "delete")], [(2, 1, "insert"), (1, 5, "insert")]]:
        _deliver(site, *changes)
        site.run(pipeline)
    assert public(site.table("customers"), [*names[:1], "__BATCH", *names[2:]]) == {(False, 1, 2, 2): 1}


UNORDERED = ["map(id, id)", "array(map(id, id))", "named_struct('m', map(id, id))", "parse_json(op)"]


@pytest.mark.parametrize("expression", UNORDERED)
@pytest.mark.parametrize("option", ["keys", "sequence_by"])
def test_keys_and_sequences_that_cannot_be_compared_are_refused(site: Site, option: str, expression: str) -> None:
    _deliver(site, (1, 1, "insert"))
    sink: dict[str, Any] = {"keys": ["odd"]} if option == "keys" else {"sequence_by": "odd"}
    with pytest.raises(InvalidPipelineError, match="cannot be compared") as error:
        site.run(_pipeline(site, "id", f"{expression} AS odd", **sink))
    assert option in error.value.remedy
    assert not site.tables.exists()


@pytest.mark.parametrize("condition", ["count(*) > 1", "exists (SELECT 1 WHERE false)", "rand() < 0.5"])
def test_a_delete_condition_that_a_row_alone_does_not_decide_is_refused(site: Site, condition: str) -> None:
    _deliver(site, (1, 1, "insert"))
    with pytest.raises(InvalidPipelineError, match="apply_as_deletes"):
        site.run(_pipeline(site, "id", "seq", apply_as_deletes=condition))
    assert not site.tables.exists()


def test_a_row_on_which_the_condition_fails_fails_its_batch_and_not_the_publication(site: Site) -> None:
    pipeline = _pipeline(site, "id", "seq", "op", sequence_by="seq", apply_as_deletes="CAST(op AS INT) = 1 -- deleted")
    _deliver(site, (1, 1, "0"), (2, 1, "1"))
    site.run(pipeline)
    _deliver(site, (3, 1, "neither"))
    with pytest.raises(InterruptedRunError, match="CAST_INVALID_INPUT"):
        site.run(pipeline)
    assert len(site.checkpoints()) == 1
    assert public(site.table("customers"), ["id"]) == {(1,): 1}


@pytest.mark.nightly
def test_an_empty_key_that_a_partition_holds_as_null_is_found_again(site: Site) -> None:
    for seq in (1, 2):
        _deliver(site, (1, seq, ""))
        site.run(_pipeline(site, "id", "seq", "op", keys=["id", "OP"], sequence_by="seq", partition_by=["op"]))
    assert public(site.table("customers"), ["id", "op", "seq"]) == {(1, None, 2): 1}


@pytest.mark.nightly
def test_a_key_is_padded_as_its_column_is(site: Site) -> None:
    table = f"delta.`{site.table('customers')}`"
    site.spark.sql(f"CREATE TABLE {table} (op CHAR(4), seq LONG) USING delta")
    site.spark.sql(f"INSERT INTO {table} VALUES ('ab', 1)")
    _deliver(site, (1, 2, "ab"), (1, 3, "ab      "), (1, 1, "full"))
    site.run(_pipeline(site, "op", "seq", keys=["op"], sequence_by="seq"))
    assert answer(site.spark.sql(f"SELECT trim(op), seq FROM {table}")) == {("ab", 3): 1, ("full", 1): 1}


@pytest.mark.parametrize("kind", [pytest.param("CHAR(3)", marks=pytest.mark.nightly), "VARCHAR(3)"])
def test_a_text_that_is_too_long_for_its_column_fails_its_batch(site: Site, kind: str) -> None:
    site.spark.sql(f"CREATE TABLE delta.`{site.table('customers')}` (id LONG, op {kind}) USING delta")
    _deliver(site, (1, 1, "four"))
    with pytest.raises(InterruptedRunError, match="length"):
        site.run(_pipeline(site, "id", "op"))
    assert site.checkpoints() == []


@in_a_store_at_night
def test_a_merge_evaluates_expressions_in_the_time_zone_in_which_the_rows_were_staged(site: Site) -> None:
    table = DeltaTable.create(site.spark).location(site.table("customers"))
    table.addColumn("id", "LONG").addColumn("at", "TIMESTAMP").addColumn(
        "day", "DATE", generatedAlwaysAs="CAST(at AS DATE)"
    ).execute()
    _deliver(site, (1, 2, "before midnight in New York"), (2, 26, "after it in Greenwich only"))
    abroad = site.spark.newSession()
    abroad.conf.set("spark.sql.session.timeZone", "America/New_York")
    hours = "timestamp '2024-01-01 00:00:00Z' + make_interval(0, 0, 0, 0, seq) AS at"
    condition = "at > '2024-01-02 00:00:00'"  # the time has no zone: the session's applies
    _pipeline(site, "id", hours, apply_as_deletes=condition, publish="external").run(spark=abroad, home=site.place)
    publish(site.files, publishers=Publishers(lambda: site.spark))
    assert public(site.table("customers"), ["id", "day"]) == {(1, date(2023, 12, 31)): 1, (2, date(2024, 1, 1)): 1}


def test_a_constraint_that_only_the_publication_can_check_is_named_and_not_retried(site: Site) -> None:
    table = f"delta.`{site.table('customers')}`"
    site.spark.sql(f"CREATE TABLE {table} (id LONG, note STRING) USING delta")
    site.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT noted CHECK (coalesce(note, '') <> '')")
    _deliver(site, (1, 1, "a"))
    with pytest.raises(UnsupportedTableError, match=r"does not accept the staged rows: .*noted"):
        site.run(_pipeline(site, "id"))
    assert public(site.table("customers")) == {}
