"""The scheme of a URL says its kind of object store."""

from importlib.metadata import metadata
from typing import ClassVar, get_origin, get_type_hints

import pytest

from spark_jobs.storage.object_store_kinds import KINDS, is_in_object_store, spark_client_settings
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.open import open_place

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


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_says_all_that_may_differ(kind: type[ObjectStoreSettings]) -> None:
    named = {name for name, hint in get_type_hints(ObjectStoreSettings).items() if get_origin(hint) is ClassVar}
    assert {name for name in named if not hasattr(kind, name)} == set()
    assert kind.EXTRA in metadata("airflow-provider-spark-jobs").get_all("Provides-Extra", [])


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_is_a_place_in_each_of_its_spellings(kind: type[ObjectStoreSettings]) -> None:
    rest = kind.EXAMPLE.removeprefix(kind.SCHEME)
    assert [open_place(f"{spelling}{rest}").url for spelling in kind.SPELLINGS] == [kind.EXAMPLE] * len(kind.SPELLINGS)
