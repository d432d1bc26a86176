"""Probes for differences between versions of Spark. No JVM is started."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from spark_jobs.protocol.errors import MissingRequirementError, RejectedError
from spark_jobs.runtime.inputs.ended_source import EndedReader
from spark_jobs.runtime.spark import spark_facts
from spark_jobs.runtime.spark.session import session_for_run, start_session, submitted_session
from spark_jobs.runtime.spark.spark_facts import AVAILABLE_NOW, arrow_schema, repartition_state

pytestmark = pytest.mark.every_version


def test_timestamps_are_passed_to_spark_in_utc() -> None:
    schema = arrow_schema(StructType().add("at", TimestampType()).add("local", TimestampNTZType()))
    assert schema == pa.schema([("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])


def test_the_reader_of_an_ended_source_works_in_workers_without_this_package() -> None:
    """A Python worker may lack this package. The pickled reader refers to PySpark alone."""
    schema = StructType().add("at", TimestampType())
    assert issubclass(EndedReader, AVAILABLE_NOW) or not AVAILABLE_NOW
    pickle: Any = cloudpickle
    given = pickle.dumps(EndedReader(schema, "at"))
    assert b"spark_facts" not in given
    reader = pickle.loads(given)
    rows, _ = reader.read(reader.initialOffset())
    assert [row.to_pylist() for row in rows] == [[{"at": datetime(9999, 12, 31, tzinfo=UTC)}]]


def test_only_a_spark_that_can_repartition_state_does_so() -> None:
    done: list[tuple[str, int]] = []
    manager = SimpleNamespace(repartition=lambda directory, partitions: done.append((directory, partitions)))
    newer: Any = SimpleNamespace(_streamingCheckpointManager=manager)
    older: Any = SimpleNamespace()
    repartition_state(newer, "/checkpoint", 8)
    assert done == [("/checkpoint", 8)]
    with pytest.raises(RejectedError, match="cannot change the number of state partitions to 8"):
        repartition_state(older, "/checkpoint", 8)


@pytest.mark.parametrize(
    "start",
    [lambda: start_session("a", {}), lambda: submitted_session("a", {}, "/w"), lambda: session_for_run(SimpleNamespace())],  # type: ignore[arg-type]
    ids=["a driver", "spark-submit", "a session of the user"],
)
def test_no_session_begins_on_a_spark_for_which_delta_has_no_jars(monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    monkeypatch.setattr(spark_facts, "SPARK_VERSION", "4.3.0")
    with pytest.raises(MissingRequirementError, match=r"This process has Spark 4\.3\.0, and Delta Lake has no jars for it"):
        start()
