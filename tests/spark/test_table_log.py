"""The log of a table as Spark writes it, with checkpoints of every kind. The product reads it without a list of files."""

from pathlib import Path

import pytest

from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication import transactions
from spark_jobs.publication.delta_rs import cached_log, open_table
from spark_jobs.publication.table_log import TableLog
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.local import LocalFiles
from tests.spark.conftest import Site

pytestmark = pytest.mark.spark

APP = AppId("app")
PART_SIZE = "spark.databricks.delta.checkpoint.partSize"


def _files_of(log: Path) -> list[str]:
    return sorted(path.name.partition(".checkpoint")[2] for path in log.glob("*.checkpoint*") if path.suffix != ".crc")


@pytest.mark.parametrize(
    ("properties", "part_size", "files"),
    [({}, None, 1), ({}, "1", 2), ({"delta.checkpointPolicy": "v2"}, None, 1)],
    ids=["one file", "several parts", "version 2"],
)
def test_a_log_checkpoint_that_spark_writes_while_the_stages_run_is_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], part_size: str | None, files: int
) -> None:
    table = site.tables / "t"
    writer = site.spark.range(4).repartition(2).write.format("delta")
    for name, value in {**properties, "delta.checkpointInterval": "3"}.items():
        writer = writer.option(name, value)
    writer.save(str(table))
    uri = table.as_uri()
    for number in (1, 2, 3):
        open_table(uri).commit((), APP, CheckpointId(number), {})
    expected = open_table(uri)
    monkeypatch.setattr(transactions, "SMALL_FILES", 0)
    if part_size is not None:
        site.spark.conf.set(PART_SIZE, part_size)
    try:
        publishers = Publishers(lambda: site.spark, in_driver=True)
        publishers.keep_log_short(expected)
        publishers.finish()
    finally:
        site.spark.conf.unset(PART_SIZE)
    log = table / "_delta_log"
    assert len(_files_of(log)) == files, _files_of(log)
    for path in log.glob("*.json"):
        if path.stem.isdigit():
            path.unlink()
    cached_log.cache_clear()
    anew = TableLog(LocalFiles(log), uri).newest()
    assert anew.differs_only_in_rows(expected._state)
    assert (anew.version, anew.apps) == (3, {APP: 3})


@pytest.mark.every_version
def test_a_transaction_of_spark_writes_no_log_checkpoint_before_the_publication_has_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = site.tables / "t"
    site.spark.range(1).write.format("delta").option("delta.checkpointInterval", "2").save(str(table))
    publishers, uri = Publishers(lambda: site.spark), table.as_uri()
    for number in range(1, 5):
        publishers.begin(Publisher.SPARK, uri, APP).close(CheckpointId(number), {})
    assert _files_of(table / "_delta_log") == []
    monkeypatch.setattr(transactions, "SMALL_FILES", 0)
    publishers.keep_log_short(open_table(uri))
    assert _files_of(table / "_delta_log") == [".parquet"]
