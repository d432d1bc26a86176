"""Spark's checkpoint files in S3 are written under their names."""

from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.runtime.spark.direct_checkpoint_files import DIRECT, write_directly
from spark_jobs.runtime.spark.session import CHECKPOINT_FILES, session_for_run, spark_checkpoint_files
from spark_jobs.storage.open import open_place

pytestmark = pytest.mark.spark


def count_words(session: SparkSession, words: Path, checkpoint: str) -> dict[str, int]:
    """Runs a stateful query over the new files of a folder. Returns the counts that have changed."""
    found: dict[str, int] = {}

    def take(frame: DataFrame, batch: int) -> None:
        found.update({row["value"]: row["count"] for row in frame.collect()})

    counts = session.readStream.text(str(words)).groupBy("value").agg(F.count("*").alias("count"))
    query = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(take)
    query.trigger(availableNow=True).start().awaitTermination()
    return found


def test_a_query_goes_on_from_files_that_were_written_directly(spark: SparkSession, store: str, tmp_path: Path) -> None:
    url, words = f"{store}/{uuid4()}", tmp_path / "words"
    words.mkdir()
    (words / "1.txt").write_text("a\nb\na\n")
    session = session_for_run(spark)
    write_directly(session, url)
    assert session.conf.get(CHECKPOINT_FILES) == DIRECT
    assert count_words(session, words, url) == {"a": 2, "b": 1}
    (words / "2.txt").write_text("a\n")
    again = session_for_run(spark)
    write_directly(again, url)
    assert count_words(again, words, url) == {"a": 3}
    paths = open_place(url).paths()
    assert {"metadata", "offsets/0", "offsets/1", "commits/1"} <= set(paths)
    assert [path for path in paths if ".tmp" in path or path.endswith(".crc")] == []


def test_files_elsewhere_or_with_a_class_of_the_user_are_written_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    session = session_for_run(spark)
    for url in (f"file://{tmp_path}", "hdfs://name-node/work"):
        write_directly(session, url)
    assert session.conf.get(CHECKPOINT_FILES) == spark_checkpoint_files(spark)
    session.conf.set(CHECKPOINT_FILES, "of.the.User")
    write_directly(session, "s3://lake/work")
    assert session.conf.get(CHECKPOINT_FILES) == "of.the.User"
