"""The names of a table's directory in documents, in Spark and in delta-rs."""

from pathlib import Path

import pytest

from spark_jobs.protocol.errors import InvalidParameterError, UnsupportedTableError
from spark_jobs.storage.table_uris import is_in_store, spark_path, table_files, table_uri


def test_the_url_of_a_table_has_escapes_and_its_path_for_spark_has_none(tmp_path: Path) -> None:
    uri = table_uri(str(tmp_path / "ware house"))
    assert uri == f"file://{tmp_path}/ware%20house"
    assert spark_path(uri) == str(tmp_path / "ware house")
    assert table_files(uri).local() == tmp_path / "ware house"
    assert not is_in_store(uri)


def test_the_two_spellings_of_a_place_in_s3_are_one_table() -> None:
    uri = table_uri("s3a://lake/ware house/flights")
    assert uri == table_uri("s3://lake/ware house/flights/") == "s3://lake/ware%20house/flights"
    assert spark_path(uri) == "s3://lake/ware house/flights"
    assert table_files(uri).url == "s3://lake/ware house/flights"
    assert is_in_store(uri)


def test_the_two_spellings_of_a_place_in_azure_are_one_table() -> None:
    uri = table_uri("abfs://lake@Flights.dfs.core.windows.net/ware house/flights")
    assert uri == "abfss://lake@flights.dfs.core.windows.net/ware%20house/flights"
    assert uri == table_uri("abfss://lake@flights.dfs.core.windows.net/ware house/flights/")
    assert spark_path(uri) == table_files(uri).url == "abfss://lake@flights.dfs.core.windows.net/ware house/flights"
    assert is_in_store(uri)


@pytest.mark.parametrize(
    "place", ["wasbs://lake@account/flights", "abfss://lake@account/flights", "gs://lake/../x", "s3://lake/../x"]
)
def test_a_place_without_a_publisher_is_refused(place: str) -> None:
    with pytest.raises(InvalidParameterError):
        table_uri(place)


@pytest.mark.parametrize("name", ["ware house", "flüge", "a=b"])
def test_a_path_in_hdfs_whose_escapes_delta_rs_would_not_decode_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedTableError, match="which delta-rs cannot address"):
        table_uri(f"hdfs://name-node:8020/{name}/flights")
    assert (
        spark_path(table_uri("hdfs://name-node:8020/ware-house_1/flights.v~2"))
        == "hdfs://name-node:8020/ware-house_1/flights.v~2"
    )


@pytest.mark.parametrize(
    "uri", ["wasbs://lake/flights", "file://host/flights", "flights", "s3://lake/flights?x=1", "s3://lake/a%5Bb"]
)
def test_a_text_that_is_not_a_table_uri_is_refused(uri: str) -> None:
    with pytest.raises(UnsupportedTableError):
        table_files(uri)
