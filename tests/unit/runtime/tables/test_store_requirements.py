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


HOME = HomeInStore(Store())


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_requirements, "check_clients", lambda *_: None)
    monkeypatch.setattr(store_requirements, "make_commits_conditional", lambda *_: None)
    monkeypatch.setattr(store_requirements, "check_commits", lambda *_: None)


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
    check_stores(SPARK, HOME, places)
    monkeypatch.setattr(store_requirements, "table_files", lambda uri: careless)
    with pytest.raises(MissingRequirementError, match="does not keep the first of two files"):
        check_stores(SPARK, HOME, places)
    assert careful.contents == careless.contents == {}


def test_spark_tries_to_commit_in_each_bucket_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    monkeypatch.setattr(store_requirements, "check_commits", lambda _, uri: tried.append(uri))
    monkeypatch.setattr(store_requirements, "table_files", lambda uri: MemoryFiles())
    uris = ["s3://lake/a", "s3://lake/b", "s3://pond/c", "file:///tables/d"]
    check_stores(SPARK, HOME, {SinkName(uri[-1]): TablePlace(uri) for uri in uris})
    assert tried == ["s3://lake/b", "s3://pond/c"]


@pytest.mark.parametrize(
    ("published", "written", "tried", "looked_for"),
    [
        ({"s3://lake/a", "s3://pond/c"}, "requests/start-2.json", ["s3://lake/b", "s3://pond/c"], ["requests/start-2.json"]),
        ({"s3://lake/a", "s3://lake/b"}, "requests/start-2.json", ["s3://pond/c"], ["requests/start-2.json"]),
        ({"s3://lake/a", "s3://lake/b"}, None, ["s3://lake/a", "s3://lake/b", "s3://pond/c"], []),
        (set(), "requests/start-2.json", ["s3://lake/a", "s3://lake/b", "s3://pond/c"], []),
    ],
)
def test_tables_in_the_homes_bucket_that_it_has_published_into_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, published: set[str], written: str | None, tried: list[str], looked_for: list[str]
) -> None:
    """A home in the same bucket shows whether Spark uses the same store. For another bucket only a trial shows that."""
    tables, found = list[str](), list[str]()
    monkeypatch.setattr(store_requirements, "table_files", lambda uri: uri)
    monkeypatch.setattr(store_requirements, "check_create_if_absent", tables.append)
    monkeypatch.setattr(store_requirements, "check_finds", lambda _, home, path, uri: found.append(path))
    places = {SinkName(uri[-1]): TablePlace(uri) for uri in ("s3://lake/a", "s3://lake/b", "s3://pond/c")}
    check_stores(SPARK, HOME, places, published, written)
    assert (sorted(tables), found) == (tried, looked_for)
