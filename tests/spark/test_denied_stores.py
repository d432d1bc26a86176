"""A place in a bucket that the credentials of the driver are not valid for is refused before anything is written.

The server checks the signature and the policy of each request, from each client: obstore, delta-rs and Hadoop's for Spark.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.errors import AccessDeniedError, NotFoundError, StorageError
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site
from tests.spark.rows import public
from tests.support.object_store import object_store_of_two_owners
from tests.support.running import Running

pytestmark = [pytest.mark.spark, pytest.mark.stores]

ENVIRONMENT = "this process's environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
Read = Callable[[SparkSession, str], DataFrame]


class Buckets(NamedTuple):
    """The buckets of a server, as places."""

    own: str
    others: str
    missing: str


@pytest.fixture(scope="module")
def buckets(spark: SparkSession, store: str) -> Iterator[Buckets]:
    """The driver's credentials are for the first bucket, and nobody has made the last one. Spark finds them by their own settings."""
    names = [f"{owner}-{uuid4()}" for owner in Buckets._fields]
    with object_store_of_two_owners(*names):
        context: Any = spark.sparkContext._jsc
        settings = {"endpoint": "ENDPOINT_URL", "access.key": "ACCESS_KEY_ID", "secret.key": "SECRET_ACCESS_KEY"}
        for name in names:
            for setting, variable in settings.items():
                context.hadoopConfiguration().set(f"fs.s3a.bucket.{name}.{setting}", os.environ[f"AWS_{variable}"])
        yield Buckets(*(f"s3://{name}" for name in names))


@pytest.fixture
def own(buckets: Buckets, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A home in the driver's own bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Site(spark, tmp_path, f"{buckets.own}/{tmp_path.name}")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "folder").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "folder" / "rows.parquet")
    return str(tmp_path / "folder")


def _files(spark: SparkSession, place: str) -> DataFrame:
    return spark.readStream.schema("id LONG").parquet(place)


def _table(spark: SparkSession, place: str) -> DataFrame:
    return spark.readStream.format("delta").load(place)


def _pipeline(source: str, sink: str, read: Read = _files, *, bounded: bool = True) -> Pipeline:
    pipeline = Pipeline("denied", checkpoint=CheckpointSettings(interval="1 hour"))

    @pipeline.source(bounded=bounded)
    def rows(spark: SparkSession) -> DataFrame:
        return read(spark, source)

    @pipeline.stage(sink=DeltaSink(sink))
    def same(rows: DataFrame) -> DataFrame:
        return rows

    return pipeline


def _assert_says_whose_credentials(error: StorageError, place: str) -> None:
    """Checks the sentences of an error, and that no value of a credential is in it."""
    assert error.failed.startswith(place)
    assert error.exists == f"{os.environ['AWS_ENDPOINT_URL']} was asked with the credentials of {ENVIRONMENT}."
    assert error.safe
    assert "bucket" in error.remedy
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert os.environ[name] not in f"{error} {error.evidence}"


def test_a_home_and_a_table_in_the_bucket_of_the_credentials_are_written(own: Site, folder: str) -> None:
    table = f"{own.store}/table"
    own.run(_pipeline(folder, table))
    assert public(table, ["id"]) == {(1,): 1, (2,): 1, (3,): 1}


@pytest.mark.parametrize(("whose", "kind"), [("others", AccessDeniedError), ("missing", NotFoundError)])
def test_a_table_in_a_bucket_of_other_credentials_is_refused(
    own: Site, buckets: Buckets, folder: str, whose: str, kind: type[StorageError]
) -> None:
    place = f"{getattr(buckets, whose)}/{uuid4()}"
    with pytest.raises(kind) as refused:
        own.run(_pipeline(folder, place))
    _assert_says_whose_credentials(refused.value, place)
    assert open_place(own.place).paths() == [], "nothing was written"


@pytest.mark.parametrize("read", [_files, _table])
@pytest.mark.parametrize(("whose", "kind"), [("others", AccessDeniedError), ("missing", NotFoundError)])
def test_a_source_in_a_bucket_of_other_credentials_is_refused(
    own: Site, buckets: Buckets, read: Read, whose: str, kind: type[StorageError]
) -> None:
    place = f"{getattr(buckets, whose)}/{uuid4()}"
    with pytest.raises(kind) as refused:
        own.run(_pipeline(place, f"{own.store}/table", read))
    _assert_says_whose_credentials(refused.value, place)
    assert open_place(own.store or "").paths() == [], "nothing was written"


@pytest.mark.parametrize("wanted", [Wanted.SAVEPOINT, Wanted.STOP])
@pytest.mark.parametrize(("whose", "kind"), [("others", AccessDeniedError), ("missing", NotFoundError)])
def test_a_savepoint_in_a_bucket_of_other_credentials_is_refused_before_its_checkpoint(
    site: Site, buckets: Buckets, folder: str, whose: str, kind: type[StorageError], wanted: Wanted
) -> None:
    place = f"{getattr(buckets, whose)}/{uuid4()}"
    with Running(site.spark, _pipeline(folder, str(site.tables / "table"), bounded=False), site.home) as running:
        running.until(lambda: running.status)
        requests, request = CheckpointRequests(running.files), request_id("a", wanted)
        requests.ask(request, target=place)
        running.until(lambda: requests.answer_of(request))
        answer = requests.answer_of(request)
        assert answer is not None
        assert answer.error is not None
        assert answer.error.error == kind.__name__
        assert answer.error.failed.startswith(place)
        assert ENVIRONMENT in answer.error.exists
        assert list(running.store.taken()) == [], "no checkpoint was taken for it"
