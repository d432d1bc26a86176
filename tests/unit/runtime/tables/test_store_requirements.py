"""Tables in object stores that are refused before rows are staged."""

from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.home import HomeInStore
from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.runtime.tables import store_requirements
from spark_jobs.runtime.tables.store_requirements import check_stores, prepare_stores
from spark_jobs.runtime.tables.table_places import TablePlace
from tests.support.memory_files import MemoryFiles

SPARK = cast(SparkSession, None)
HOURLY = SinkName("hourly")


class Store(MemoryFiles):
    url = "s3://lake/home"

    def below(self, directory: str) -> "Store":
        return self


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_requirements, "check_clients", lambda *_: None)
    monkeypatch.setattr(store_requirements, "make_commits_conditional", lambda *_: None)
    monkeypatch.setattr(store_requirements, "check_commits", lambda *_, **__: None)


def test_spark_commits_to_a_store_only_by_conditional_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = list[str]()
    monkeypatch.setattr(store_requirements, "make_commits_conditional", lambda _, uri: prepared.append(uri))
    prepare_stores(SPARK, HomeInStore(Store()), {HOURLY: TablePlace("s3://lake/hourly")})
    assert prepared == ["s3://lake/home", "s3://lake/hourly"], "channels too"


def test_a_store_without_conditional_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(MemoryFiles):
        def create(self, path: str, data: bytes) -> None:
            self.contents[path] = data

    places = {HOURLY: TablePlace("s3://lake/hourly")}
    careful, careless = MemoryFiles(), Careless()
    monkeypatch.setattr(store_requirements, "table_files", lambda uri: careful)
    check_stores(SPARK, places)
    monkeypatch.setattr(store_requirements, "table_files", lambda uri: careless)
    with pytest.raises(MissingRequirementError, match="does not keep the first of two files"):
        check_stores(SPARK, places)
    assert careful.contents == careless.contents == {}


def test_spark_tries_to_commit_in_each_bucket_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    monkeypatch.setattr(store_requirements, "check_commits", lambda _, uri, **__: tried.append(uri))
    monkeypatch.setattr(store_requirements, "table_files", lambda uri: MemoryFiles())
    uris = ["s3://lake/a", "s3://lake/b", "s3://pond/c", "file:///tables/d"]
    check_stores(SPARK, {SinkName(uri[-1]): TablePlace(uri) for uri in uris})
    assert tried == ["s3://lake/b", "s3://pond/c"]


def test_spark_only_writes_a_file_beside_tables_in_s3_that_were_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, commits = list[str](), dict[str, bool]()
    monkeypatch.setattr(store_requirements, "table_files", lambda uri: uri)
    monkeypatch.setattr(store_requirements, "check_create_if_absent", tables.append)
    monkeypatch.setattr(store_requirements, "check_commits", lambda _, uri, *, is_known: commits.update({uri: is_known}))
    places = {SinkName(uri[-1]): TablePlace(uri) for uri in ("s3://lake/a", "s3://lake/b", "gs://pond/c")}
    check_stores(SPARK, places, are_known=True)
    assert tables == ["gs://pond/c"]
    assert commits == {"s3://lake/b": True, "gs://pond/c": False}
