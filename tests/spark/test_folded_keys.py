"""Spark folds the table of a sink's deleted keys. It stays small, and the sink's table is the same as without folds."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.protocol.documents import Publish, Publisher
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication import deleted_keys
from spark_jobs.publication.deleted_keys import fold, is_due
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.spark import SparkPublisher
from spark_jobs.publication.transactions import Publishers
from spark_jobs.publication.verification import named_by_home
from spark_jobs.runtime.tables.tombstones import prepare_tombstones
from tests.support.sink_kinds import Kind, Reference, Rows, cut_of, graves_in, rows_in
from tests.support.staged_pipeline import HOURLY, StagedPipeline, path_of
from tests.support.systems import quick

pytestmark = pytest.mark.spark

ROUNDS = 6
KEYS = 12
FOLD_VERSIONS = 2


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_keys, "FOLD_VERSIONS", FOLD_VERSIONS)


def changes(rounds: int) -> Iterator[Rows]:
    """Yields rows and deletes of a few keys, some of them late."""
    chance = Random(7)
    for number in range(rounds):
        keys = [3 * (number % 4), *chance.sample(range(KEYS), 3)]
        days = [f"{chance.randrange(max(number - 3, 0), number + 1):03}" for _ in keys]
        yield [(key, f"{day}!" if key % 3 == 0 else day) for key, day in dict(zip(keys, days, strict=True)).items()]


def data_in(table: Path) -> set[str]:
    """Returns the data files of a table's directory."""
    return {str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


# tests/unit/publication/test_deleted_keys.py has two hundred rounds without Spark.
@pytest.mark.nightly
def test_the_table_of_deleted_keys_stays_small_over_many_rounds_and_every_row_is_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline, publishers = StagedPipeline(quick(tmp_path / "home"), tmp_path), Publishers(lambda: spark)
    pipeline.make_table(HOURLY, partition_by=())
    cut = cut_of(pipeline, Publisher.SPARK, Kind.SEQUENCED)
    graves, reference = path_of(cut["merge"].tombstones), Reference(Kind.SEQUENCED)
    for rows in changes(ROUNDS):
        pipeline.checkpoint({HOURLY: rows}, publish=Publish.EVERY_CHECKPOINT, cut=cut)
        publish(pipeline.files, publishers=publishers)
        reference.publish(rows)
        assert graves_in(cut) == reference.graves
        assert len(list((graves / "_delta_log").glob("*.json"))) <= 2 * FOLD_VERSIONS + 3
        assert len(data_in(graves)) <= 4 * FOLD_VERSIONS
        assert named_by_home(pipeline.files).verify() == []
    assert rows_in(DeltaTable(str(path_of(pipeline.tables[HOURLY]))).to_pyarrow_table()) == sorted(reference.rows, key=str)
    versions = open_table(graves.as_uri()).facts.version
    assert versions >= ROUNDS, "each round has buried a key"
    publish(pipeline.files, publishers=publishers)
    assert open_table(graves.as_uri()).facts.version == versions


def test_keys_of_any_name_are_folded_and_large_files_stay_as_they_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns with such names are mapped: the files use other names."""
    table, keeper = tmp_path / "sink", SparkPublisher(spark)
    rows = spark.range(1_000).selectExpr("id AS `a key, of two`", "cast(id AS string) AS `é=1`", "id AS seq")
    prepare_tombstones(spark, rows, table.as_uri())
    for part in range(4):
        rows.where(f"seq % 4 = {part}").write.format("delta").mode("append").save(str(table))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE seq = 5")
    before = data_in(table)

    def folded() -> set[str]:
        fold(quick(table), table.as_uri(), AppId("a"), CheckpointId(1), keeper)
        return set(DeltaTable(str(table)).file_uris())

    assert is_due(quick(table))
    live = folded()
    assert len(live) == 1
    assert data_in(table) > before, "the next fold deletes them"
    monkeypatch.setattr("spark_jobs.publication.spark.LARGE_FILE_BYTES", 5_000)
    rows.where("seq < 2").write.format("delta").mode("append").save(str(table))
    needed = open_table(table.as_uri()).facts.version
    rows.where("seq < 3").write.format("delta").mode("append").save(str(table))
    later = folded()
    assert live < later
    assert len(later) == 2
    assert not before & data_in(table)
    assert spark.read.format("delta").load(str(table)).count() == 999 + 2 + 3
    (table / "_delta_log/_last_checkpoint").unlink()
    assert spark.newSession().read.format("delta").option("versionAsOf", needed).load(str(table)).count() == 999 + 2
