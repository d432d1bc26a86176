"""Spark writes offsets, commits and state as it does by default, but without the check whether a name is a link."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.runtime.spark.session import CHECKPOINT_FILES, session_for_run

pytestmark = pytest.mark.spark

BY_ITSELF = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
WAIT_S = 120


class Distinct:
    """A query with state over files, one file per batch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._batches = 0

    def batch(self, session: SparkSession) -> None:
        """Runs a batch of ten ids. The first id was also in the batch before."""
        self.root.joinpath("rows").mkdir(parents=True, exist_ok=True)
        first = 9 * self._batches
        lines = "".join(json.dumps({"id": number}) + "\n" for number in range(first, first + 10))
        self.root.joinpath("rows", f"{self._batches}.json").write_text(lines)
        self._batches += 1
        rows = session.readStream.schema("id LONG").json(str(self.root / "rows")).dropDuplicates(["id"])
        query = rows.writeStream.format("parquet").option("checkpointLocation", str(self.root / "checkpoint"))
        assert query.trigger(availableNow=True).start(str(self.root / "found")).awaitTermination(WAIT_S)

    def files(self) -> Counter[str]:
        """Counts the files by name, without the part that differs for each batch."""
        found = (path.relative_to(self.root / "checkpoint") for path in self.root.joinpath("checkpoint").rglob("*"))
        return Counter("/".join(part.split("_")[0] for part in path.parts) for path in found)


@pytest.fixture
def ours(spark: SparkSession) -> SparkSession:
    return session_for_run(spark)


@pytest.fixture
def by_itself(spark: SparkSession) -> SparkSession:
    session = session_for_run(spark)
    session.conf.set(CHECKPOINT_FILES, BY_ITSELF)
    return session


def test_a_query_can_switch_between_sparks_file_manager_and_ours_and_has_the_same_files(
    ours: SparkSession, by_itself: SparkSession, tmp_path: Path
) -> None:
    mixed, alone = Distinct(tmp_path / "mixed"), Distinct(tmp_path / "alone")
    for session in (by_itself, ours, by_itself):
        mixed.batch(session)
        alone.batch(by_itself)
    for query in (mixed, alone):
        found = by_itself.read.parquet(str(query.root / "found")).collect()
        assert sorted(row["id"] for row in found) == list(range(28))
    assert mixed.files() == alone.files()


def test_a_file_manager_that_the_user_has_set_stays(spark: SparkSession, by_itself: SparkSession) -> None:
    assert spark.conf.get(CHECKPOINT_FILES, None) is None
    assert session_for_run(by_itself).conf.get(CHECKPOINT_FILES) == BY_ITSELF
    assert session_for_run(spark).conf.get(CHECKPOINT_FILES) != BY_ITSELF
