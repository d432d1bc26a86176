"""The cost of a batch that does not depend on its rows."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors.exceptions import captured
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.background import run_in_background
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.runtime.inputs.delta_source import counted_ahead
from spark_jobs.runtime.spark.session import job_group
from tests.spark.conftest import Site

pytestmark = pytest.mark.spark
_PATIENCE_S = 30.0


def test_a_run_raises_no_java_exception(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark converts each Java exception in nearly a tenth of a second, even one that only marks the end of a list."""
    found: list[str] = []
    convert = captured.convert_exception

    def counted(error: Any) -> Any:
        found.append(str(error.toString()))
        return convert(error)

    source = str(site.home.parent / "source")
    site.spark.range(4).repartition(2).write.format("delta").save(source)
    pipeline = Pipeline("quiet")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source)

    @pipeline.stage(sink=DeltaSink(str(site.tables / "copied")))
    def copied(numbers: DataFrame) -> DataFrame:
        return numbers

    monkeypatch.setattr(captured, "convert_exception", counted)
    site.run(pipeline)
    assert found == []


def _table(site: Site) -> str:
    """Writes a table of two files whose log must be read to count them. Returns its path."""
    table = site.home.parent / "source"
    site.spark.range(4).repartition(2).write.format("delta").save(str(table))
    for checksum in (table / "_delta_log").glob("*.crc"):
        checksum.unlink()
    DeltaJvm(site.spark).forget(str(table))
    return str(table)


def test_delta_keeps_the_number_of_files_that_it_has_counted(site: Site) -> None:
    table, context = _table(site), site.spark.sparkContext
    for group in ("counts", "knows"):
        with job_group(context, group, "counts files"):
            assert DeltaJvm(site.spark).count_files(table) == 2
    assert context.statusTracker().getJobIdsForGroup("counts")
    assert not context.statusTracker().getJobIdsForGroup("knows")


def test_a_count_that_has_not_ended_is_cancelled_and_holds_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    table, context = _table(site), site.spark.sparkContext
    jobs = context.statusTracker()
    monkeypatch.setattr("spark_jobs.runtime.inputs.delta_source.uuid4", lambda: "ahead")
    DeltaJvm(site.spark).snapshot(table)
    with _busy(context):
        with counted_ahead(site.spark, [table]):
            _wait(lambda: jobs.getJobIdsForGroup("counting-ahead"))
        (job,) = jobs.getJobIdsForGroup("counting-ahead")
        _wait(lambda: (found := jobs.getJobInfo(job)) is not None and found.status == "FAILED")
        assert not _are_locked(site.spark, table)
    assert DeltaJvm(site.spark).count_files(table) == 2


def _are_locked(spark: SparkSession, table: str) -> bool:
    """Returns True if a thread holds a lock that a query on a table needs before it runs a job."""
    snapshot = DeltaJvm(spark).log(table).unsafeVolatileSnapshot()
    ended = run_in_background(lambda: snapshot.uncache())
    try:
        ended.result(_PATIENCE_S)
    except TimeoutError:
        return True
    return False


@contextmanager
def _busy(context: SparkContext) -> Iterator[None]:
    """Keeps all cores of an application busy."""
    cores = context.defaultParallelism

    def work() -> None:
        with job_group(context, "busy", "sleeps"), suppress(Exception):
            context.parallelize(range(cores), cores).foreach(lambda _: time.sleep(600))

    ended = run_in_background(work)
    try:
        _wait(lambda: context.statusTracker().getJobIdsForGroup("busy"))
        yield
    finally:
        context.cancelJobGroup("busy")
        ended.result()


def _wait(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the job did not begin or end"
        time.sleep(0.01)
