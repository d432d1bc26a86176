"""The scheme of a URL says its kind of object store."""

import pytest

from spark_jobs.storage.object_store_kinds import is_in_object_store, spark_client_settings

CONTAINER = "abfss://lake@flights.dfs.core.windows.net"


def test_spark_has_the_settings_of_every_kind_of_store() -> None:
    given = {"AWS_REGION": "eu-central-1", "AZURE_STORAGE_ACCOUNT_KEY": "key"}
    settings = spark_client_settings(given, {})
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert settings["spark.hadoop.fs.azure.account.key"] == "${env.AZURE_STORAGE_ACCOUNT_KEY}"


@pytest.mark.parametrize(
    ("url", "is_there"),
    [
        ("s3://lake/x", True),
        (f"{CONTAINER}/x", True),
        ("gs://lake/x", True),
        ("hdfs://lake/x", False),
        ("file:///lake/x", False),
        ("/lake/x", False),
    ],
)
def test_a_url_of_an_object_store_is_known_by_its_scheme(url: str, is_there: bool) -> None:
    assert is_in_object_store(url) == is_there
