"""Each error of Spark, Delta and Python that has a remedy is found by its entry, and its remedy works."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.runtime.spark import plan
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.spark.spark_errors import find
from tests.support.known_errors import PROGRAMS, Given

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("known") / "table"
    rows = {"id": [1, 2], "word": ["a", "b"], "zero": [0, 1], "at": [datetime(2026, 3, 2, tzinfo=UTC)] * 2}
    write_deltalake(path, pa.table(rows))
    return path


def carried_out(frame: DataFrame) -> None:
    """Executes a frame as a stage would."""
    if frame.isStreaming:
        plan.check_streaming(frame, "append")
    else:
        frame.collect()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_remedy_of_a_known_error_can_be_followed(spark: SparkSession, table: Path, tmp_path: Path, name: str) -> None:
    wrong, right = PROGRAMS[name]
    given = Given(session_for_run(spark), table, tmp_path)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of Spark, of Python or of the gateway
        carried_out(wrong(given))
    found = find(caught.value)
    assert found is not None, caught.value
    assert found.name == name
    carried_out(right(given))
