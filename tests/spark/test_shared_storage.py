"""Executors and driver must see the same home. These tests use no cluster; the nightly tests use disks that really are not shared."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.runtime.driver.shared_storage import check_shared
from spark_jobs.storage.local import LocalFiles
from tests.support.memory_files import MemoryFiles

pytestmark = pytest.mark.spark


@pytest.fixture
def on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.runtime.driver.shared_storage.is_local", lambda master: False)


@pytest.mark.usefixtures("on_a_cluster")
def test_the_check_leaves_a_shared_home_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    check_shared(spark, LocalFiles(tmp_path / "a home"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a home").mkdir()
    check_shared(spark, LocalFiles(tmp_path / "a home"))
    assert list((tmp_path / "a home").iterdir()) == []


@pytest.mark.usefixtures("on_a_cluster")
def test_a_home_that_executors_cannot_write_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file where a directory should be")
    with pytest.raises(RejectedError, match="is not shared with the executors of local.*cannot write and read there") as refused:
        check_shared(spark, LocalFiles(tmp_path))
    assert "error occurred while calling" not in refused.value.failed, "it says what Spark says, not that Spark was called"


@pytest.mark.usefixtures("on_a_cluster")
def test_a_home_in_which_the_driver_does_not_see_what_executors_wrote_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFiles, "names", lambda self, directory: [])
    with pytest.raises(RejectedError, match="the driver sees 0") as refused:
        check_shared(spark, LocalFiles(tmp_path))
    assert "mounted at the same path" in refused.value.remedy


class InAStore(MemoryFiles):
    """A place in a store of which Spark has no client."""

    url = "hdfs://nowhere.invalid/work"

    def below(self, directory: str) -> "InAStore":
        return self


@pytest.mark.usefixtures("on_a_cluster")
def test_a_store_that_executors_do_not_reach_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RejectedError, match="hdfs://nowhere.invalid/work is not shared with the executors") as refused:
        check_shared(spark, HomeInStore(MemoryFiles(), LocalFiles(tmp_path), InAStore()))
    assert "Give the executors the client of that store" in refused.value.remedy


@pytest.mark.usefixtures("on_a_cluster")
def test_a_cache_that_is_not_shared_is_refused_with_the_work_root_as_the_remedy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFiles, "names", lambda self, directory: [])
    with pytest.raises(RejectedError, match="the driver sees 0") as refused:
        check_shared(spark, HomeInStore(MemoryFiles(), LocalFiles(tmp_path)))
    assert "Name a work root, with --work-root or in Airflow with the connection's work_root: a place in the home's store" in (
        refused.value.remedy
    )
